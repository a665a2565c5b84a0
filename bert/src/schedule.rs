//! The learning rate of each optimiser step, as Hugging Face's schedulers give it.

use crate::error::{Error, Result};
use std::str::FromStr;

/// Shape of the learning rate over the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Warm-up, then straight down to zero.
    Linear,
    /// The same all the way; warm-up is ignored.
    Constant,
    /// Warm-up, then the same.
    ConstantWithWarmup,
    /// Warm-up, then half a cosine down to zero.
    Cosine,
}

impl Schedule {
    /// All shapes with the names that transformers gives them.
    pub const NAMES: [(&'static str, Schedule); 4] = [
        ("linear", Schedule::Linear),
        ("cosine", Schedule::Cosine),
        ("constant", Schedule::Constant),
        ("constant_with_warmup", Schedule::ConstantWithWarmup),
    ];
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Schedule> {
        let found = Schedule::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, schedule)| *schedule).ok_or_else(|| Error::Config {
            reason: format!(
                "learning rate schedule {name:?}, expected one of {}",
                Schedule::NAMES.map(|(known, _)| known).join(", ")
            ),
        })
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
            let rest = self.total.saturating_sub(self.warmup).max(1) as f64;
            match self.schedule {
                Schedule::Constant | Schedule::ConstantWithWarmup => 1.0,
                Schedule::Linear => self.total.saturating_sub(k) as f64 / rest,
                Schedule::Cosine => 0.5 * (1.0 + cos_pi((k.saturating_sub(self.warmup) as f64 / rest).min(1.0))),
            }
        };
        self.peak * factor
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

/// cos(pi x) for x in 0..=1. Its own series, so that a run does not depend on a machine's mathematical library.
fn cos_pi(x: f64) -> f64 {
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
            (Schedule::Cosine, [0.0, 1.0 / 3.0, 1.0, 0.6112604669781572, 0.0]),
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

    #[test]
    fn names() {
        assert_eq!("cosine".parse::<Schedule>().unwrap(), Schedule::Cosine);
        assert!("step".parse::<Schedule>().unwrap_err().to_string().contains("step"));
    }
}
