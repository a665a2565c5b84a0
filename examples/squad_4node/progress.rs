//! What is seen of a run: a bar where the terminal is one, plain lines where it is not; log entries; checkpoints.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use azulejo_bert::model::Model;
use azulejo_bert::optim::AdamW;
use azulejo_bert::results::rounded;
use azulejo_bert::resume::Best;
use azulejo_bert::tokenizer::Tokenizer;
use azulejo_bert::trainer::{Observer, Progress, TrainConfig};
use azulejo_bert::{Result, resume};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::answer::Purpose;
use crate::records::Records;
use crate::worker::{Questions, Rank};

/// Shows how far something is. Silent on ranks other than 0.
#[derive(Debug)]
pub(crate) struct Meter {
    bar: Option<ProgressBar>,
    plain: bool,
    what: &'static str,
    total: u64,
    begin: Instant,
    said: Instant,
}

impl Meter {
    pub(crate) fn new(what: &'static str, total: u64, shown: bool, bar: bool) -> Meter {
        let bar = (shown && bar && std::io::stderr().is_terminal()).then(|| {
            let style =
                ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {per_sec} {eta_precise} left {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style).with_prefix(what)
        });
        let now = Instant::now();
        Meter {
            plain: shown && bar.is_none(),
            bar,
            what,
            total,
            begin: now,
            said: now,
        }
    }

    pub(crate) fn at(&mut self, done: u64, message: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(message.to_owned());
        }
        if self.plain && (self.said.elapsed() > Duration::from_secs(5) || done == self.total) {
            self.said = Instant::now();
            let rate = done as f64 / self.begin.elapsed().as_secs_f64().max(1e-9);
            let left = (self.total - done.min(self.total)) as f64 / rate.max(1e-9);
            complain!(
                "{} {done}/{} {rate:.1}/s {left:.0} s left {message}",
                self.what,
                self.total
            );
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Rank 0 shows, logs and saves; all ranks evaluate and listen for Ctrl-C.
pub(crate) struct Watch<'a> {
    pub(crate) rank: &'a Rank<'a>,
    pub(crate) meter: Meter,
    /// What is evaluated during training.
    pub(crate) dev: Option<&'a Questions>,
    /// The last value of the metric that decides which checkpoint is best, and the step it belongs to.
    pub(crate) judged: Option<(u64, f64)>,
    pub(crate) config: &'a TrainConfig,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) records: &'a mut Records,
    /// Floating-point operations for a token, forward and backward, as Trainer counts them.
    pub(crate) flos_per_token: f64,
}

impl Watch<'_> {
    /// Whether the checkpoint in `path` is the best so far.
    fn judge(&mut self, step: u64, path: PathBuf) {
        let args = self.rank.args;
        let Some((_, metric)) = self.judged.filter(|&(at, _)| at == step && args.looks_for_the_best()) else {
            return;
        };
        let better = |than: f64| {
            if args.greater_is_better() {
                metric > than
            } else {
                metric < than
            }
        };
        if self
            .records
            .history
            .best
            .as_ref()
            .is_none_or(|best| better(best.metric))
        {
            self.records.history.best = Some(Best {
                metric,
                checkpoint: path,
            });
        }
    }
}

impl Observer for Watch<'_> {
    fn step(&mut self, progress: &Progress) -> Result<()> {
        self.meter.at(progress.step, &format!("loss {:.4}", progress.loss));
        (self.records.step, self.records.epoch) = (progress.step, progress.epoch);
        self.records.history.total_flos += self.flos_per_token * progress.tokens as f64;
        Ok(())
    }

    fn log(&mut self, progress: &Progress, mean_loss: f64) -> Result<()> {
        self.records.log(json!({
            "epoch": rounded(progress.epoch, 2),
            "grad_norm": progress.grad_norm,
            "learning_rate": progress.learning_rate,
            "loss": rounded(mean_loss, 4),
            "step": progress.step,
        }));
        Ok(())
    }

    fn evaluate(&mut self, progress: &Progress, model: &Model) -> Result<()> {
        let Some(questions) = self.dev else { return Ok(()) };
        let Some((_, metrics)) = self.rank.answer(Purpose::Evaluate, questions, model)? else {
            return Ok(());
        };
        self.records.log_metrics(&metrics);
        let value = |name: &str| metrics.get(&format!("eval_{name}")).and_then(Value::as_f64);
        self.judged = value(self.rank.args.metric()).map(|value| (progress.step, value));
        if let (Some(exact), Some(f1)) = (value("exact_match").or(value("exact")), value("f1")) {
            say!("after step {}: exact match {exact:.2}, F1 {f1:.2}", progress.step);
        }
        Ok(())
    }

    fn save(&mut self, progress: &Progress, model: &Model, optimizer: &AdamW) -> Result<()> {
        if !self.rank.root() {
            return Ok(());
        }
        let (args, output) = (self.rank.args, &self.rank.job.output);
        self.judge(progress.step, resume::checkpoint(output, progress.step));
        resume::save(
            output,
            model,
            (!args.save_only_model).then_some(optimizer),
            progress.step,
            self.config,
            Some(self.tokenizer),
            &self.records.history,
        )?;
        if let Some(keep) = args.save_total_limit {
            let best = self.records.history.best.as_ref();
            for (path, e) in resume::rotate(output, keep, best.map(|best| best.checkpoint.as_path())) {
                // A checkpoint that cannot be removed costs space, not the run.
                complain!("warning: cannot remove {}: {e}", path.display());
            }
        }
        Ok(())
    }

    fn wants_to_stop(&mut self) -> bool {
        self.rank.interrupt.asked()
    }
}
