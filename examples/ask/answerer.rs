//! A fine-tuned model with its tokenizer: a question and a text go in, answers with their places and confidence come out.

use std::path::Path;
use std::sync::Arc;

use azulejo_bert::checkpoint;
use azulejo_bert::evaluate;
use azulejo_bert::model::Model;
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::runtime::TeamExecutor;
use azulejo_bert::squad::features::{Windows, evaluation_features};
use azulejo_bert::squad::postprocess::{Choice, answers};
use azulejo_bert::squad::read::{DataSet, Example, Notes};
use azulejo_bert::tokenizer::Tokenizer;
use azulejo_collectives::Communicator;
use azulejo_topology::{Team, TeamConfig};
use serde_json::{Value, json};

use crate::Failure;

/// Answers that share the probability.
const CONSIDERED: usize = 20;
/// Windows computed together.
const BATCH: usize = 8;

/// How to answer.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) bf16: bool,
    pub(crate) threads: Option<usize>,
    pub(crate) max_length: usize,
    pub(crate) stride: usize,
    pub(crate) max_answer_length: usize,
    pub(crate) null_threshold: Option<f64>,
}

/// One answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Found {
    /// Empty for "no answer".
    pub(crate) text: String,
    /// Its share of the probability among the best answers, 0 to 1.
    pub(crate) confidence: f64,
    /// Code points of the text, unless it is "no answer".
    pub(crate) place: Option<(usize, usize)>,
}

impl Found {
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "text": self.text,
            "confidence": self.confidence,
            "start": self.place.map(|place| place.0),
            "end": self.place.map(|place| place.1),
        })
    }
}

pub(crate) struct Answerer {
    tokenizer: Tokenizer,
    model: Model,
    exec: TeamExecutor,
    alone: Communicator,
    windows: Windows,
    choice: Choice,
}

impl Answerer {
    pub(crate) fn load(folder: &Path, settings: &Settings) -> Result<Answerer, Failure> {
        let tokenizer = Tokenizer::from_folder(folder)?;
        let precision = if settings.bf16 { Precision::Bf16 } else { Precision::F32 };
        let mut model = Model::new(checkpoint::load_config(folder)?, Head::QuestionAnswering, precision)?;
        let mut weights = vec![0.0; model.params().total()];
        let report = checkpoint::load_weights(folder, model.params(), &mut weights)?;
        if !report.new.is_empty() {
            return Err(format!(
                "{} is not fine-tuned for question answering: it lacks {}",
                folder.display(),
                report.new.join(", ")
            )
            .into());
        }
        let threads = match settings.threads {
            Some(threads) => threads,
            None => std::thread::available_parallelism()?.get(),
        };
        let exec = TeamExecutor(Team::new(TeamConfig::unpinned(threads))?);
        model.update(&exec, |to| to.copy_from_slice(&weights))?;
        Ok(Answerer {
            windows: Windows {
                max_length: settings.max_length.min(tokenizer.max_length().unwrap_or(usize::MAX)),
                stride: settings.stride,
                cut_questions: false,
            },
            choice: Choice {
                n_best: CONSIDERED,
                max_answer_length: settings.max_answer_length,
                null_threshold: settings.null_threshold,
                once: true,
            },
            alone: azulejo_collectives::threads(1)?.remove(0),
            tokenizer,
            model,
            exec,
        })
    }

    /// Answers, the best first; "no answer" first if it wins. Empty if the text has nothing to answer with.
    pub(crate) fn ask(&self, question: &str, text: &str) -> Result<Vec<Found>, Failure> {
        let set = DataSet {
            path: "the text".into(),
            examples: vec![Example {
                id: question.to_owned(),
                title: Arc::from(""),
                question: question.to_owned(),
                context: Arc::from(text),
                answers: Vec::new(),
            }],
            notes: Notes::default(),
        };
        let features = evaluation_features(&set, &self.tokenizer, &self.windows)?;
        let n_best = self.choice.n_best;
        let (exec, alone, model) = (&self.exec, &self.alone, &self.model);
        let found = evaluate::candidates(exec, alone, model, &features, BATCH, n_best, &mut |_, _| {})?;
        let mut answered = answers(&set, &features, &found.unwrap_or_default(), &self.choice);
        let answered = answered.remove(0);
        let mut list: Vec<Found> = answered
            .n_best
            .into_iter()
            // The stand-in "empty" is no text of the context.
            .filter_map(|span| {
                let (from, to) = span.offsets?;
                let real = !span.text.is_empty();
                Some(Found {
                    text: span.text,
                    confidence: span.probability,
                    place: real.then_some((from as usize, to as usize)),
                })
            })
            .collect();
        if let Some(none) = list.iter().position(|answer| answer.text.is_empty())
            && answered.text.is_empty()
        {
            list[..=none].rotate_right(1);
        }
        Ok(list)
    }
}
