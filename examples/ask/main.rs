//! Asks a fine-tuned model about a text: `ask MODEL_FOLDER --text FILE` reads questions from the terminal, with history,
//! or from standard input; questions on the command line are answered at once; `--batch FILE` answers JSON lines.

mod answerer;
mod show;

use std::io::{BufRead as _, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use answerer::{Answerer, Settings};
use show::Style;

/// Every allocation of the program, tensors included.
#[global_allocator]
static ALLOCATOR: azulejo_allocator::Global = azulejo_allocator::Global::new();

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Answers questions about a text with a fine-tuned model.
///
/// At the prompt: a question; `:n 3` shows three answers each; `:text FILE` takes another text; Ctrl-D ends.
#[derive(Parser)]
#[command(rename_all = "snake_case", max_term_width = 120)]
struct Args {
    /// Folder of a model fine-tuned for question answering, as squad_4node or transformers saves it
    #[arg(value_name = "MODEL_FOLDER")]
    model: PathBuf,
    /// Questions to answer at once
    #[arg(value_name = "QUESTION")]
    questions: Vec<String>,
    /// Text to find the answers in
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Questions as JSON lines: {"question": ..., "context": ..., "id": ...}; without a context, about --text
    #[arg(long, value_name = "FILE", conflicts_with = "questions")]
    batch: Option<PathBuf>,
    /// Where the answers to --batch go, as JSON lines; else to standard output
    #[arg(long, value_name = "FILE", requires = "batch")]
    output: Option<PathBuf>,
    /// Answers to show
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1000))]
    answers: u16,
    /// Allow "no answer", as a model trained on SQuAD 2 can give it
    #[arg(long)]
    version_2_with_negative: bool,
    /// How much better than the best answer "no answer" must be to win
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    null_score_diff_threshold: f64,
    /// Longest answer in tokens
    #[arg(long, value_name = "N", default_value_t = 30)]
    max_answer_length: usize,
    /// Longest window in tokens
    #[arg(long, value_name = "N", default_value_t = 384)]
    max_seq_length: usize,
    /// Tokens that neighbouring windows share
    #[arg(long, value_name = "N", default_value_t = 128)]
    doc_stride: usize,
    /// Matrix products in BF16
    #[arg(long)]
    bf16: bool,
    /// Threads; as many as there are cores for this process if not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    threads: Option<u16>,
    /// File that keeps the questions asked, for the arrow keys of the next time
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let text = args.text.as_deref().map(read_text).transpose()?;
    if text.is_none() && args.batch.is_none() {
        return Err("nothing to ask about: give --text FILE or --batch FILE".into());
    }
    let answerer = Answerer::load(
        &args.model,
        &Settings {
            bf16: args.bf16,
            threads: args.threads.map(usize::from),
            max_length: args.max_seq_length,
            stride: args.doc_stride,
            max_answer_length: args.max_answer_length,
            null_threshold: args.version_2_with_negative.then_some(args.null_score_diff_threshold),
        },
    )?;
    if let Some(file) = &args.batch {
        return batch(&answerer, file, text.as_deref(), args);
    }
    let mut session = Session {
        answerer,
        text: text.unwrap_or_default(),
        answers: args.answers.into(),
        style: Style::of_terminal(),
    };
    if !args.questions.is_empty() {
        return args.questions.iter().try_for_each(|question| session.ask(question));
    }
    if std::io::stdin().is_terminal() {
        session.prompt(args.history.as_deref())
    } else {
        for line in std::io::stdin().lock().lines() {
            session.line(&line?)?;
        }
        Ok(())
    }
}

fn read_text(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = String::from_utf8(bytes).map_err(|e| {
        let line = e.as_bytes()[..e.utf8_error().valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count()
            + 1;
        format!("{}:{line}: the text is not UTF-8", path.display())
    })?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}

/// Questions about one text.
struct Session {
    answerer: Answerer,
    text: String,
    answers: usize,
    style: Style,
}

impl Session {
    fn prompt(&mut self, history: Option<&Path>) -> Result<(), Failure> {
        let mut editor = DefaultEditor::new()?;
        if let Some(path) = history
            && path.exists()
        {
            editor
                .load_history(path)
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        loop {
            match editor.readline("? ") {
                Ok(line) => {
                    editor.add_history_entry(line.trim())?;
                    // A mistake at the prompt does not end the session.
                    if let Err(error) = self.line(&line) {
                        eprintln!("{error}");
                    }
                }
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(path) = history {
            editor
                .save_history(path)
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" => Ok(()),
            ":n" => match rest.trim().parse() {
                Ok(n) if n > 0 => {
                    self.answers = n;
                    Ok(())
                }
                _ => Err(format!(":n {rest}: expected a number above 0").into()),
            },
            ":text" => {
                self.text = read_text(Path::new(rest.trim()))?;
                Ok(())
            }
            _ if word.starts_with(':') => Err(format!("{word}: expected a question, :n N or :text FILE").into()),
            _ => self.ask(line),
        }
    }

    fn ask(&self, question: &str) -> Result<(), Failure> {
        let found = self.answerer.ask(question, &self.text)?;
        for answer in found.iter().take(self.answers) {
            writeln!(std::io::stdout(), "{}", show::line(&self.text, answer, self.style))?;
        }
        Ok(())
    }
}

/// Answers a file of questions; a bad line is an error with its number, before the first answer is written.
fn batch(answerer: &Answerer, file: &Path, text: Option<&str>, args: &Args) -> Result<(), Failure> {
    let at = |line: usize, message: &str| format!("{}:{line}: {message}", file.display());
    let mut questions = Vec::new();
    for (index, line) in read_text(file)?.lines().enumerate() {
        let number = index + 1;
        if line.trim().is_empty() {
            continue;
        }
        let row: Value = serde_json::from_str(line).map_err(|e| at(number, &e.to_string()))?;
        let Some(question) = row["question"].as_str() else {
            return Err(at(number, "expected an object with the text \"question\"").into());
        };
        let context = match (&row["context"], text) {
            (Value::String(context), _) => context.clone(),
            (Value::Null, Some(text)) => text.to_owned(),
            (Value::Null, None) => return Err(at(number, "it has no \"context\", and there is no --text").into()),
            _ => return Err(at(number, "its \"context\" is not a text").into()),
        };
        let id = match &row["id"] {
            Value::Null => json!(number),
            id => id.clone(),
        };
        questions.push((id, question.to_owned(), context));
    }
    let mut out: Box<dyn std::io::Write> = match &args.output {
        None => Box::new(std::io::stdout().lock()),
        Some(path) => Box::new(std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?),
    };
    for (id, question, context) in &questions {
        let found = answerer.ask(question, context)?;
        let answers = found.iter().take(args.answers.into()).map(answerer::Found::to_json);
        let answers: Vec<Value> = answers.collect();
        let row = json!({"id": id, "question": question, "answers": answers});
        writeln!(out, "{row}")?;
    }
    Ok(out.flush()?)
}
