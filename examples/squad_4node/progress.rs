//! What is seen of a run: a bar where the terminal is one, plain lines where it is not; log entries; checkpoints.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use azulejo_bert::model::Model;
use azulejo_bert::optim::AdamW;
use azulejo_bert::results::rounded;
use azulejo_bert::tokenizer::Tokenizer;
use azulejo_bert::trainer::{Observer, Progress, TrainConfig};
use azulejo_bert::{Result, resume};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::records::Records;

use crate::interrupt::Interrupt;

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

/// Rank 0 shows, logs and saves; all ranks listen for Ctrl-C.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    pub(crate) meter: Meter,
    pub(crate) interrupt: Interrupt,
    /// Where checkpoints go; none on ranks other than 0.
    pub(crate) output: Option<PathBuf>,
    pub(crate) keep: Option<usize>,
    /// Leave the optimiser out of checkpoints.
    pub(crate) model_only: bool,
    pub(crate) config: &'a TrainConfig,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) records: &'a mut Records,
    /// Floating-point operations for a token, forward and backward, as Trainer counts them.
    pub(crate) flos_per_token: f64,
    pub(crate) saved: Vec<PathBuf>,
}

impl Observer for Watch<'_> {
    fn step(&mut self, progress: &Progress) -> Result<()> {
        self.meter.at(progress.step, &format!("loss {:.4}", progress.loss));
        (self.records.step, self.records.epoch) = (progress.step, progress.epoch);
        self.records.total_flos += self.flos_per_token * progress.tokens as f64;
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

    fn save(&mut self, _: &Progress, model: &Model, optimizer: &AdamW) -> Result<()> {
        let Some(output) = &self.output else {
            return Ok(());
        };
        let path = resume::save(
            output,
            model,
            (!self.model_only).then_some(optimizer),
            optimizer.steps(),
            self.config,
            Some(self.tokenizer),
            &self.records.log_history,
            self.records.total_flos,
        )?;
        if !self.saved.contains(&path) {
            self.saved.push(path);
        }
        while self.keep.is_some_and(|keep| self.saved.len() > keep) {
            let oldest = self.saved.remove(0);
            // A checkpoint that cannot be removed costs space, not the run.
            if let Err(e) = std::fs::remove_dir_all(&oldest) {
                complain!("warning: cannot remove {}: {e}", oldest.display());
            }
        }
        Ok(())
    }

    fn wants_to_stop(&mut self) -> bool {
        self.interrupt.asked()
    }
}
