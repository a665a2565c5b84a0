//! What a run leaves for people and dashboards: the log, event files for TensorBoard, curves, a model card.

use std::path::Path;

use azulejo_bert::checkpoint::Folder;
use azulejo_bert::model::Model;
use azulejo_bert::model_card::ModelCard;
use azulejo_bert::plot::{Panel, svg};
use azulejo_bert::results::python_json;
use azulejo_bert::resume::History;
use azulejo_bert::tensorboard::{EventFile, run_name};
use serde_json::{Map, Value};

use crate::Failure;
use crate::args::Args;

/// File of the curves in the output folder.
const CURVES: &str = "training_curves.svg";

/// The log of a run. On ranks other than 0 it stays empty.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// What `trainer_state.json` keeps of the run.
    pub(crate) history: History,
    /// Steps so far.
    pub(crate) step: u64,
    /// Epochs so far.
    pub(crate) epoch: f64,
    /// Metrics of the last evaluation.
    pub(crate) evaluated: Map<String, Value>,
    events: Option<EventFile>,
}

impl Records {
    /// Begins the event file of a training, if one is asked for.
    pub(crate) fn begin(&mut self, args: &Args, output: &Path, model: &Model) -> Result<(), Failure> {
        if args.tensorboard() {
            let path = match &args.logging_dir {
                Some(path) => path.clone(),
                None => output.join("runs").join(run_name()),
            };
            let mut events = EventFile::create(path)?;
            events.text("args", &arguments(args))?;
            events.text("model_config", &python_json(&model.config().to_json(), 2, true))?;
            self.events = Some(events);
        }
        Ok(())
    }

    /// Adds an entry to the log and to the event file.
    pub(crate) fn log(&mut self, entry: Value) {
        if let (Some(events), Value::Object(values)) = (&mut self.events, &entry)
            && let Err(error) = events.log(self.step, values)
        {
            // Curves are not worth the run.
            complain!("warning: {error}: no more is written for TensorBoard");
            self.events = None;
        }
        self.history.log_history.push(entry);
    }

    /// Adds the metrics of an evaluation or prediction, with the step they belong to.
    pub(crate) fn log_metrics(&mut self, metrics: &Map<String, Value>) {
        // As there: the number of samples is in the files of results only.
        let mut entry = metrics.clone();
        entry.retain(|name, _| !name.ends_with("_samples"));
        entry.insert("epoch".into(), self.epoch.into());
        entry.insert("step".into(), self.step.into());
        self.log(Value::Object(entry));
    }

    /// Writes the curves and the card of the model in `output`.
    pub(crate) fn write(&self, args: &Args, output: &Path, base: &str, ranks: usize) -> Result<(), Failure> {
        let mut folder = Folder::open(output)?;
        let plot = svg(&self.panels());
        if let Some(picture) = &plot {
            folder.add(CURVES, |out| std::io::Write::write_all(out, picture.as_bytes()))?;
        }
        let card = ModelCard {
            name: match &args.run_name {
                Some(name) => name.clone(),
                None => output
                    .file_name()
                    .unwrap_or(output.as_os_str())
                    .to_string_lossy()
                    .into_owned(),
            },
            base_model: base.to_owned(),
            dataset: match (&args.dataset_name, &args.train_file) {
                (Some(name), _) => name.clone(),
                (None, Some(file)) => file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                (None, None) => "built-in data".into(),
            },
            settings: settings(args, ranks),
            metrics: self.evaluated.clone(),
            log_history: self.history.log_history.clone(),
            plot: plot.map(|_| CURVES.into()),
        };
        let text = card.to_markdown();
        folder.add("README.md", |out| std::io::Write::write_all(out, text.as_bytes()))?;
        Ok(folder.commit()?)
    }

    fn panels(&self) -> Vec<Panel> {
        let quantities = [
            ("loss", "loss"),
            ("learning_rate", "learning rate"),
            ("eval_f1", "F1 in per cent"),
        ];
        let panel = |(key, title): (&str, &str)| Panel {
            title: title.into(),
            points: self
                .history
                .log_history
                .iter()
                .filter_map(|entry| Some((entry.get("step")?.as_f64()?, entry.get(key)?.as_f64()?)))
                .collect(),
        };
        quantities.into_iter().map(panel).collect()
    }
}

/// The arguments of a run as `training_args.json` has them, which can be given to another run.
pub(crate) fn arguments(args: &Args) -> String {
    python_json(&Value::Object(args.settings().clone()), 2, true)
}

/// The lines of the card about the training.
fn settings(args: &Args, ranks: usize) -> Vec<(String, String)> {
    let names = [
        "learning_rate",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "max_steps",
        "optim",
        "weight_decay",
        "lr_scheduler_type",
        "warmup_ratio",
        "warmup_steps",
        "max_seq_length",
        "doc_stride",
        "bf16",
        "seed",
    ];
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => python_json(other, 0, false),
    };
    let mut lines: Vec<_> = names
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), text(args.settings().get(name)?))))
        .collect();
    lines.push(("processes".into(), ranks.to_string()));
    lines
}
