//! Answers to every question of a file: `--do_eval` and `--do_predict`.

use std::path::Path;
use std::time::Instant;

use azulejo_bert::checkpoint::Folder;
use azulejo_bert::evaluate;
use azulejo_bert::model::Model;
use azulejo_bert::results::{python_json, rounded, save_metrics};
use azulejo_bert::squad::features::evaluation_features;
use azulejo_bert::squad::metrics::{NoAnswer, Part, score, score_v2};
use azulejo_bert::squad::postprocess::{Answered, Choice, answers, n_best_predictions, null_odds, predictions};
use azulejo_bert::squad::read::DataSet;
use azulejo_bert::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::progress::Meter;
use crate::worker::{Questions, Rank, Summary};

/// What a file's answers are for: it decides the names of files and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Evaluate,
    Predict,
}

impl Purpose {
    /// Files begin with it.
    pub(crate) fn split(self) -> &'static str {
        match self {
            Purpose::Evaluate => "eval",
            Purpose::Predict => "predict",
        }
    }

    /// Metrics begin with it; `Trainer.predict` calls them `test_f1` and so on.
    pub(crate) fn prefix(self) -> &'static str {
        match self {
            Purpose::Evaluate => "eval",
            Purpose::Predict => "test",
        }
    }
}

/// Every question's answer, and the metrics by name.
pub(crate) type Answers = (Vec<Answered>, Map<String, Value>);

impl Rank<'_> {
    /// Reads a file, and refuses what could not be scored in the end.
    pub(crate) fn questions(
        &self,
        purpose: Purpose,
        file: &Path,
        tokenizer: &Tokenizer,
        limit: Option<usize>,
    ) -> Result<Questions, Failure> {
        let mut set = self.read(file)?;
        set.check_for_scoring(self.args.version_2_with_negative, purpose == Purpose::Predict)?;
        if let Some(limit) = limit {
            set.examples.truncate(limit);
        }
        let features = evaluation_features(&set, tokenizer, &self.job.windows)?;
        Ok(Questions { set, features })
    }

    /// Every question's answer and the metrics; on rank 0 only.
    pub(crate) fn answer(
        &self,
        purpose: Purpose,
        questions: &Questions,
        model: &Model,
    ) -> azulejo_bert::Result<Option<Answers>> {
        let args = self.args;
        let begin = Instant::now();
        let features = &questions.features;
        let mine = features.len().div_ceil(self.comm.world_size()) as u64;
        let what = match purpose {
            Purpose::Evaluate => "evaluate",
            Purpose::Predict => "predict",
        };
        let mut meter = Meter::new(what, mine, self.root(), !args.disable_tqdm);
        let found = evaluate::candidates(
            &self.exec,
            &self.comm,
            model,
            features,
            args.per_device_eval_batch_size,
            args.n_best_size,
            &mut |done, _| meter.at(done as u64, ""),
        )?;
        meter.finish();
        let Some(found) = found else {
            return Ok(None);
        };
        let choice = Choice {
            n_best: args.n_best_size,
            max_answer_length: args.max_answer_length,
            null_threshold: args.version_2_with_negative.then_some(args.null_score_diff_threshold),
            once: args.dedup_nbest,
        };
        let answered = answers(&questions.set, features, &found, &choice);
        let prefix = purpose.prefix();
        let mut metrics = Map::new();
        if questions.set.unanswered() < questions.set.len() {
            for (name, value) in scores(&questions.set, &answered, args.version_2_with_negative) {
                metrics.insert(format!("{prefix}_{name}"), value);
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let batch = args.per_device_eval_batch_size * self.comm.world_size();
        let batches = features.len().div_ceil(batch);
        let rate = |count: usize| json!(rounded(count as f64 / seconds, 3));
        metrics.insert(format!("{prefix}_runtime"), json!(rounded(seconds, 4)));
        metrics.insert(format!("{prefix}_samples_per_second"), rate(features.len()));
        metrics.insert(format!("{prefix}_steps_per_second"), rate(batches));
        let split = purpose.split();
        metrics.insert(format!("{split}_samples"), json!(features.len()));
        Ok(Some((answered, metrics)))
    }

    /// Answers the questions and writes the files of answers and results.
    pub(crate) fn answer_and_write(
        &self,
        purpose: Purpose,
        questions: &Questions,
        model: &Model,
        summary: &mut Summary,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        let Some((answered, metrics)) = self.answer(purpose, questions, model)? else {
            return Ok(());
        };
        summary.records.log_metrics(&metrics);
        if purpose == Purpose::Evaluate {
            summary.records.evaluated = metrics.clone();
        }
        let prefix = purpose.prefix();
        let metric = |name: &str| metrics.get(&format!("{prefix}_{name}")).and_then(Value::as_f64);
        if let (Some(exact), Some(f1)) = (metric("exact_match").or(metric("exact")), metric("f1")) {
            summary.scores.push((purpose, exact, f1));
        }
        summary
            .answered
            .push((purpose, questions.features.len(), begin.elapsed()));
        let split = purpose.split();
        self.interrupt.hold();
        let mut folder = Folder::open(&self.job.output)?;
        let mut files = vec![
            ("predictions", predictions(&answered)),
            ("nbest_predictions", n_best_predictions(&answered)),
        ];
        if self.args.version_2_with_negative {
            files.push(("null_odds", null_odds(&answered)));
        }
        for (name, value) in files {
            let text = python_json(&value, 4, false) + "\n";
            folder.add(&format!("{split}_{name}.json"), |out| {
                std::io::Write::write_all(out, text.as_bytes())
            })?;
        }
        folder.commit()?;
        save_metrics(&self.job.output, split, &metrics)?;
        self.interrupt.release();
        Ok(())
    }
}

/// The scores with the names that the metrics `squad` and `squad_v2` give them.
fn scores(set: &DataSet, answered: &[Answered], version_2: bool) -> Vec<(String, Value)> {
    let texts: Vec<(String, String)> = answered.iter().map(|a| (a.id.clone(), a.text.clone())).collect();
    if !version_2 {
        let scores = score(set, &texts);
        return vec![
            ("exact_match".into(), json!(scores.exact_match)),
            ("f1".into(), json!(scores.f1)),
        ];
    }
    let scores = score_v2(set, &texts, &NoAnswer::default());
    let parts = [
        ("", Some(scores.all)),
        ("HasAns_", scores.has_answer),
        ("NoAns_", scores.no_answer),
    ];
    let mut out = Vec::new();
    for (name, part) in parts {
        let Some(Part { exact, f1, total }) = part else {
            continue;
        };
        out.push((format!("{name}exact"), json!(exact)));
        out.push((format!("{name}f1"), json!(f1)));
        out.push((format!("{name}total"), json!(total)));
    }
    for (name, (best, threshold)) in [("exact", scores.best_exact), ("f1", scores.best_f1)] {
        out.push((format!("best_{name}"), json!(best)));
        out.push((format!("best_{name}_thresh"), json!(threshold)));
    }
    out
}
