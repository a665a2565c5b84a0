//! How good are these predictions? `squad_score DATA.json PREDICTIONS.json` prints exact match and F1 as the official script
//! of SQuAD 1.1 does, and with `--v2` as that of SQuAD 2.0.

#![expect(clippy::print_stdout, reason = "the answer goes to standard output")]

use std::path::PathBuf;
use std::process::ExitCode;

use azulejo_bert::Result;
use azulejo_bert::squad::metrics::{NoAnswer, Part, read_predictions, read_probabilities, score, score_v2};
use azulejo_bert::squad::read::DataSet;
use clap::Parser;

#[derive(Parser)]
#[command(about = "Scores answers as the official scripts of SQuAD do")]
struct Args {
    /// Questions with their gold answers.
    data: PathBuf,
    /// JSON object, question id to predicted text.
    predictions: PathBuf,
    /// The score of version 2.0, in which questions may have no answer.
    #[arg(long)]
    v2: bool,
    /// Version 2: JSON object, question id to the probability (or odds) that there is no answer.
    #[arg(long, requires = "v2", value_name = "FILE")]
    na_prob_file: Option<PathBuf>,
    /// Version 2: above this probability a prediction counts as "no answer".
    #[arg(long, requires = "v2", default_value_t = 1.0)]
    na_prob_thresh: f64,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(scores) => {
            println!("{scores}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("squad_score: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<String> {
    let set = DataSet::read(&args.data)?;
    let predictions = read_predictions(&args.predictions)?;
    let mut entries = Vec::new();
    let missing;
    if args.v2 {
        let mut no_answer = NoAnswer::default();
        if let Some(file) = &args.na_prob_file {
            no_answer.probabilities = read_probabilities(file)?;
            no_answer.threshold = Some(args.na_prob_thresh);
        }
        let scores = score_v2(&set, &predictions, &no_answer);
        missing = scores.missing;
        let parts = [
            ("", Some(scores.all)),
            ("HasAns_", scores.has_answer),
            ("NoAns_", scores.no_answer),
        ];
        for (prefix, Part { exact, f1, total }) in parts.into_iter().filter_map(|(p, part)| Some((p, part?))) {
            entries.push(format!(
                "\"{prefix}exact\": {exact:?}, \"{prefix}f1\": {f1:?}, \"{prefix}total\": {total}"
            ));
        }
        for (name, (best, threshold)) in [("exact", scores.best_exact), ("f1", scores.best_f1)] {
            entries.push(format!(
                "\"best_{name}\": {best:?}, \"best_{name}_thresh\": {threshold:?}"
            ));
        }
    } else {
        let scores = score(&set, &predictions);
        missing = scores.missing;
        entries.push(format!(
            "\"exact_match\": {:?}, \"f1\": {:?}",
            scores.exact_match, scores.f1
        ));
    }
    if missing > 0 {
        eprintln!("squad_score: {missing} of {} questions have no prediction", set.len());
    }
    Ok(format!("{{{}}}", entries.join(", ")))
}
