//! The learning rate of each optimiser step, as Hugging Face's schedulers give it.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Shape of the learning rate over the run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Schedule {
    /// Warm-up, then straight down to zero.
    Linear,
    /// The same all the way; warm-up is ignored.
    Constant,
    /// Warm-up, then the same.
    ConstantWithWarmup,
    /// Warm-up, then `cycles` waves of a cosine; a half goes down to zero.
    Cosine {
        /// Waves.
        cycles: f64,
    },
    /// Warm-up, then `cycles` times half a cosine down to zero.
    CosineWithRestarts {
        /// How often it begins at the peak.
        cycles: f64,
    },
    /// As [`Schedule::Cosine`], but down to a share of the peak.
    CosineWithMinimum {
        /// Waves.
        cycles: f64,
        /// The share.
        minimum: f64,
    },
    /// Warm-up, then down to a share of the peak along a power of the part of the run that is left.
    Polynomial {
        /// The share.
        end: f64,
        /// The power.
        power: f64,
    },
    /// Warm-up, then falling with the square root of the step.
    InverseSqrt {
        /// Steps from where the fall would begin to where it does; 0 for the steps of warm-up, or 10,000 without any.
        timescale: f64,
    },
    /// Warm-up, the peak for `stable` steps, down a cosine for `decay` steps, then a share of the peak.
    WarmupStableDecay {
        /// Steps at the peak.
        stable: u64,
        /// Steps down.
        decay: u64,
        /// The share.
        minimum: f64,
        /// Waves of the cosine.
        cycles: f64,
    },
}

impl Schedule {
    /// The names that transformers gives the shapes.
    pub const NAMES: [&'static str; 9] = [
        "linear",
        "constant",
        "constant_with_warmup",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "inverse_sqrt",
        "cosine_with_min_lr",
        "warmup_stable_decay",
    ];

    /// The schedule that `--lr_scheduler_type` and `--lr_scheduler_kwargs` name. `peak` is the highest rate, to which
    /// `lr_end` and `min_lr` relate.
    ///
    /// ```
    /// use azulejo_bert::schedule::Schedule;
    /// let options = serde_json::json!({"num_cycles": 3}).as_object().unwrap().clone();
    /// let schedule = Schedule::new("cosine_with_restarts", &options, 5e-5).unwrap();
    /// assert_eq!(schedule, Schedule::CosineWithRestarts { cycles: 3.0 });
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for another name, an option that the schedule does not have or needs, or one out of range.
    pub fn new(name: &str, options: &Map<String, Value>, peak: f64) -> Result<Schedule> {
        let mut options = Options {
            left: options.clone(),
            name,
        };
        let schedule = match name {
            "linear" => Schedule::Linear,
            "constant" => Schedule::Constant,
            "constant_with_warmup" => Schedule::ConstantWithWarmup,
            "cosine" => Schedule::Cosine {
                cycles: options.take("num_cycles")?.unwrap_or(0.5),
            },
            "cosine_with_restarts" => Schedule::CosineWithRestarts {
                cycles: options.take("num_cycles")?.unwrap_or(1.0),
            },
            "cosine_with_min_lr" => {
                let cycles = options.take("num_cycles")?.unwrap_or(0.5);
                let minimum = match (options.take("min_lr")?, options.take("min_lr_rate")?) {
                    (Some(rate), None) => rate / peak,
                    (None, Some(share)) => share,
                    _ => return Err(options.error("it needs one of the options min_lr and min_lr_rate")),
                };
                Schedule::CosineWithMinimum { cycles, minimum }
            }
            "polynomial" => {
                let end = options.take("lr_end")?.unwrap_or(1e-7);
                let power = options.take("power")?.unwrap_or(1.0);
                if end >= peak {
                    return Err(options.error(&format!("lr_end {end:e} must be below the learning rate {peak:e}")));
                }
                Schedule::Polynomial { end: end / peak, power }
            }
            "inverse_sqrt" => Schedule::InverseSqrt {
                timescale: options.take("timescale")?.unwrap_or(0.0),
            },
            "warmup_stable_decay" => {
                let mut steps = |key: &str| match options.take(key)? {
                    Some(steps) => Ok(steps as u64),
                    None => Err(options.error(&format!("it needs the option {key}"))),
                };
                let (stable, decay) = (steps("num_stable_steps")?, steps("num_decay_steps")?);
                Schedule::WarmupStableDecay {
                    stable,
                    decay,
                    minimum: options.take("min_lr_ratio")?.unwrap_or(0.0),
                    cycles: options.take("num_cycles")?.unwrap_or(0.5),
                }
            }
            other => {
                return Err(Error::Config {
                    reason: format!(
                        "learning rate schedule {other:?}, expected {}",
                        Schedule::NAMES.join(", ")
                    ),
                });
            }
        };
        match options.left.keys().next() {
            None => Ok(schedule),
            Some(key) => Err(options.error(&format!("it has no option {key}"))),
        }
    }
}

/// The options of a schedule that were not asked for yet.
struct Options<'a> {
    left: Map<String, Value>,
    name: &'a str,
}

impl Options<'_> {
    fn take(&mut self, key: &str) -> Result<Option<f64>> {
        match self.left.remove(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|x| *x >= 0.0) {
                Some(x) => Ok(Some(x)),
                None => Err(self.error(&format!("{key} is {value}, expected a number of at least 0"))),
            },
        }
    }

    fn error(&self, reason: &str) -> Error {
        Error::Config {
            reason: format!("learning rate schedule {}: {reason}", self.name),
        }
    }
}

/// A schedule with its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LearningRate {
    /// The shape.
    pub schedule: Schedule,
    /// The highest rate.
    pub peak: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// Steps of the whole run.
    pub total: u64,
}

impl LearningRate {
    /// The rate of update `k`, counted from 0. With warm-up the first update has rate 0, as it has there.
    pub fn at(&self, k: u64) -> f64 {
        let warming = k < self.warmup && self.schedule != Schedule::Constant;
        let factor = if warming {
            k as f64 / self.warmup.max(1) as f64
        } else {
            self.after_warmup(k)
        };
        self.peak * factor
    }

    fn after_warmup(&self, k: u64) -> f64 {
        let passed = k.saturating_sub(self.warmup);
        let rest = self.total.saturating_sub(self.warmup).max(1) as f64;
        let progress = passed as f64 / rest;
        // `cycles` waves, of which the first half goes from 1 to 0.
        let wave = |cycles: f64, progress: f64| (0.5 * (1.0 + cos_pi(cycles * 2.0 * progress))).max(0.0);
        match self.schedule {
            Schedule::Constant | Schedule::ConstantWithWarmup => 1.0,
            Schedule::Linear => self.total.saturating_sub(k) as f64 / rest,
            Schedule::Cosine { cycles } => wave(cycles, progress),
            Schedule::CosineWithRestarts { .. } if progress >= 1.0 => 0.0,
            Schedule::CosineWithRestarts { cycles } => wave(0.5, (cycles * progress).fract()),
            Schedule::CosineWithMinimum { cycles, minimum } => wave(cycles, progress) * (1.0 - minimum) + minimum,
            Schedule::Polynomial { end, .. } if k > self.total => end,
            Schedule::Polynomial { end, power } => {
                let left = 1.0 - progress;
                let left = if power == 1.0 { left } else { left.powf(power) };
                (1.0 - end) * left + end
            }
            Schedule::InverseSqrt { timescale } => {
                let scale = match (timescale, self.warmup) {
                    (0.0, 0) => 10_000.0,
                    (0.0, warmup) => warmup as f64,
                    (given, _) => given,
                };
                1.0 / ((passed as f64 + scale) / scale).sqrt()
            }
            Schedule::WarmupStableDecay { stable, .. } if passed < stable => 1.0,
            Schedule::WarmupStableDecay {
                stable,
                decay,
                minimum,
                cycles,
            } if passed < stable + decay => {
                (1.0 - minimum) * wave(cycles, (passed - stable) as f64 / decay as f64) + minimum
            }
            Schedule::WarmupStableDecay { minimum, .. } => minimum,
        }
    }
}

/// Steps of warm-up: the number given, or the share of the run when that number is 0.
pub fn warmup_steps(steps: u64, ratio: f64, total: u64) -> u64 {
    if steps > 0 {
        steps
    } else {
        (total as f64 * ratio).ceil() as u64
    }
}

/// cos(pi x) for x of at least 0. Its own series, so that a run does not depend on a machine's mathematical library.
fn cos_pi(x: f64) -> f64 {
    let x = x % 2.0;
    let x = if x > 1.0 { 2.0 - x } else { x };
    // cos(pi x) = -cos(pi (1 - x)), which leaves arguments up to pi / 2; there the 12th term is below 1e-17.
    let (y, sign) = if x > 0.5 { (1.0 - x, -1.0) } else { (x, 1.0) };
    let square = (y * std::f64::consts::PI) * (y * std::f64::consts::PI);
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..=12 {
        term *= -square / f64::from((2 * n - 1) * (2 * n));
        sum += term;
    }
    sign * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of transformers' `get_scheduler` at peak 1, 3 steps of warm-up and 10 in all.
    #[test]
    fn as_published() {
        let rate = |schedule, k| {
            LearningRate {
                schedule,
                peak: 1.0,
                warmup: 3,
                total: 10,
            }
            .at(k)
        };
        let table = [
            (Schedule::Linear, [0.0, 1.0 / 3.0, 1.0, 4.0 / 7.0, 0.0]),
            (Schedule::Constant, [1.0; 5]),
            (Schedule::ConstantWithWarmup, [0.0, 1.0 / 3.0, 1.0, 1.0, 1.0]),
            (
                Schedule::Cosine { cycles: 0.5 },
                [0.0, 1.0 / 3.0, 1.0, 0.6112604669781572, 0.0],
            ),
        ];
        for (schedule, expected) in table {
            for (k, expected) in [0, 1, 3, 6, 10].into_iter().zip(expected) {
                let got = rate(schedule, k);
                assert!(
                    (got - expected).abs() < 1e-15,
                    "{schedule:?} step {k}: {got}, expected {expected}"
                );
            }
        }
        let no_warmup = LearningRate {
            schedule: Schedule::Linear,
            peak: 2.0,
            warmup: 0,
            total: 4,
        };
        assert_eq!([0, 1, 4, 9].map(|k| no_warmup.at(k)), [2.0, 1.5, 0.0, 0.0]);
    }

    #[test]
    fn warmup_by_number_or_share() {
        assert_eq!(warmup_steps(5, 0.5, 100), 5);
        assert_eq!(warmup_steps(0, 0.1, 101), 11);
        assert_eq!(warmup_steps(0, 0.0, 101), 0);
    }

    #[test]
    fn cosine_is_the_cosine() {
        for i in 0..=1000 {
            let x = f64::from(i) / 1000.0;
            // The product with pi is rounded on both sides: half a unit of 2^-52 in a number up to pi, twice.
            let error = (cos_pi(x) - (x * std::f64::consts::PI).cos()).abs();
            assert!(error < 4.0 * f64::EPSILON, "{x}: {error:e}");
        }
    }

    /// Values of `get_scheduler` of transformers 4.55 (4.46 for the warm-up of warmup_stable_decay, which ends at the
    /// minimum's share in 4.55) at peak 2e-3, 4 steps of warm-up and 20 in all, for the updates
    /// 0, 2, 4, 9, 13, 19 and 21.
    #[test]
    fn all_shapes_are_as_published() {
        for (name, options, expected) in SCHEDULES {
            let options: Map<String, Value> = serde_json::from_str(options).unwrap();
            let rate = LearningRate {
                schedule: Schedule::new(name, &options, 2e-3).unwrap(),
                peak: 2e-3,
                warmup: 4,
                total: 20,
            };
            for (k, expected) in [0, 2, 4, 9, 13, 19, 21].into_iter().zip(expected) {
                let got = rate.at(k);
                // A few roundings of numbers up to the peak on both sides.
                assert!(
                    (got - expected).abs() <= 8.0 * f64::EPSILON * 2e-3,
                    "{name} {options:?} step {k}: {got}, expected {expected}"
                );
            }
        }
    }

    #[rustfmt::skip]
    const SCHEDULES: &[(&str, &str, [f64; 7])] = &[
        ("linear", r#"{}"#, [0.0, 0.001, 0.002, 0.001375, 0.000875, 0.000125, 0.0]),
        ("cosine", r#"{}"#, [0.0, 0.001, 0.002, 0.0015555702330196021, 0.0008049096779838719, 1.921471959676957e-05, 1.921471959676957e-05]),
        ("cosine", r#"{"num_cycles": 1.25}"#, [0.0, 0.001, 0.002, 0.00022698954663726302, 0.0007097153227455375, 0.001471396736825998, 0.0005286032631740025]),
        ("cosine_with_restarts", r#"{"num_cycles": 3}"#, [0.0, 0.001, 0.002, 1.921471959676957e-05, 0.00044442976698039807, 0.00016853038769745467, 0.0]),
        ("polynomial", r#"{}"#, [0.0, 0.001, 0.002, 0.0013750312500000002, 0.00087505625, 0.00012509375000000002, 1e-07]),
        ("polynomial", r#"{"lr_end": 0.0001, "power": 2.0}"#, [0.0, 0.001, 0.002, 0.000998046875, 0.000463671875, 0.000107421875, 0.0001]),
        ("inverse_sqrt", r#"{}"#, [0.0, 0.001, 0.002, 0.0013333333333333333, 0.0011094003924504584, 0.000917662935482247, 0.0008728715609439695]),
        ("inverse_sqrt", r#"{"timescale": 50}"#, [0.0, 0.001, 0.002, 0.0019069251784911846, 0.001841149235796647, 0.0017541160386140584, 0.00172773685116272]),
        ("cosine_with_min_lr", r#"{"min_lr": 0.0001}"#, [0.0, 0.001, 0.002, 0.0015777917213686222, 0.0008646641940846782, 0.0001182539836169311, 0.0001182539836169311]),
        ("cosine_with_min_lr", r#"{"min_lr_rate": 0.25}"#, [0.0, 0.001, 0.002, 0.0016666776747647017, 0.0011036822584879038, 0.0005144110396975771, 0.0005144110396975771]),
        ("warmup_stable_decay", r#"{"num_stable_steps": 5, "num_decay_steps": 8}"#, [0.0, 0.001, 0.002, 0.002, 0.001, 0.0, 0.0]),
        ("warmup_stable_decay", r#"{"num_stable_steps": 3, "num_decay_steps": 12, "min_lr_ratio": 0.1}"#, [0.0, 0.001, 0.002, 0.0018794228634059949, 0.0011, 0.0002, 0.0002]),
    ];

    #[test]
    fn options_are_checked() {
        let message = |name: &str, options: &str| {
            let options: Map<String, Value> = serde_json::from_str(options).unwrap();
            Schedule::new(name, &options, 1e-3).unwrap_err().to_string()
        };
        for (name, options, part) in [
            ("step", "{}", "\"step\", expected linear"),
            ("reduce_lr_on_plateau", "{}", "expected linear"),
            ("linear", r#"{"power": 2}"#, "linear: it has no option power"),
            (
                "cosine",
                r#"{"num_cycles": "2"}"#,
                "num_cycles is \"2\", expected a number",
            ),
            ("cosine", r#"{"num_cycles": -1}"#, "at least 0"),
            ("cosine_with_min_lr", "{}", "min_lr and min_lr_rate"),
            (
                "cosine_with_min_lr",
                r#"{"min_lr": 1e-5, "min_lr_rate": 0.1}"#,
                "one of the options",
            ),
            ("polynomial", r#"{"lr_end": 0.01}"#, "below the learning rate"),
            (
                "warmup_stable_decay",
                r#"{"num_stable_steps": 3}"#,
                "needs the option num_decay_steps",
            ),
        ] {
            let message = message(name, options);
            assert!(message.contains(part), "{message}");
        }
    }
}
