//! AdamW over the flat buffers, in the two variants that published runs used.
//!
//! With the clipped gradient `g`, both keep `m = b1 m + (1 - b1) g` and `v = b2 v + (1 - b2) g^2` and differ in
//!
//! ```text
//! torch:  w -= lr decay w;  w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//! hf:     w -= lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps);  w -= lr decay w
//! ```
//!
//! Every element is independent, so that threads never change a result.

use crate::clip::{PIECE, clip_factor, global_norm};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::ops::share;
use crate::params::Params;
use azulejo_amx::Executor;
use azulejo_amx::rows::AdamW as AdamWStep;
pub use azulejo_amx::rows::AdamWVariant as Variant;

/// Settings of the optimiser; the defaults are `TrainingArguments`'.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// Which of the two formulas.
    pub variant: Variant,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of their squares.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay of everything but biases and LayerNorm.
    pub weight_decay: f64,
    /// Largest norm of the whole gradient; 0 leaves it as it is.
    pub max_grad_norm: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            variant: Variant::Torch,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            max_grad_norm: 1.0,
        }
    }
}

/// The optimiser's state.
#[derive(Debug)]
pub struct AdamW {
    settings: Settings,
    step: u64,
    m: Vec<f32>, // (params.total())
    v: Vec<f32>, // (params.total())
    pieces: Vec<Piece>,
    squares: Vec<f64>, // of the gradient, a sum for each piece of the norm
}

/// A run of elements with one rule; pieces tile the buffer.
#[derive(Debug, Clone, Copy)]
struct Piece {
    len: usize,
    decays: bool,
}

impl AdamW {
    /// Fresh state for a table of parameters.
    pub fn new(settings: Settings, params: &Params) -> AdamW {
        let mut pieces: Vec<Piece> = Vec::new();
        for param in params {
            match pieces.last_mut() {
                Some(last) if last.decays == param.decays && last.len + param.len() <= PIECE => last.len += param.len(),
                _ => {
                    let (full, rest) = (param.len() / PIECE, param.len() % PIECE);
                    pieces.extend(std::iter::repeat_n(
                        Piece {
                            len: PIECE,
                            decays: param.decays,
                        },
                        full,
                    ));
                    pieces.extend((rest > 0).then_some(Piece {
                        len: rest,
                        decays: param.decays,
                    }));
                }
            }
        }
        AdamW {
            settings,
            step: 0,
            m: vec![0.0; params.total()],
            v: vec![0.0; params.total()],
            pieces,
            squares: Vec::new(),
        }
    }

    /// Updates done.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The means of gradients and of their squares, in the order of the parameter table.
    pub fn moments(&self) -> (&[f32], &[f32]) {
        (&self.m, &self.v)
    }

    /// Takes over the state of a checkpoint.
    pub fn restore(&mut self, steps: u64, m: Vec<f32>, v: Vec<f32>) -> Result<()> {
        for (what, got) in [("first moments", m.len()), ("second moments", v.len())] {
            if got != self.m.len() {
                return Err(Error::Length {
                    what,
                    expected: self.m.len(),
                    got,
                });
            }
        }
        (self.step, self.m, self.v) = (steps, m, v);
        Ok(())
    }

    /// Clips the gradient, moves the weights, and renews what the model's matrix products read. Returns the norm of
    /// the gradient before clipping. A gradient that is not finite is an error and changes nothing.
    pub fn update(&mut self, exec: &dyn Executor, model: &mut Model, grads: &[f32], learning_rate: f64) -> Result<f64> {
        if grads.len() != self.m.len() || model.params().total() != self.m.len() {
            return Err(Error::Length {
                what: "gradients",
                expected: self.m.len(),
                got: grads.len(),
            });
        }
        let norm = global_norm(exec, model.rows(), &mut self.squares, grads);
        if !norm.is_finite() {
            // Backward computes from the end of the table to its start; the first bad tensor is the last one here.
            let bad = model
                .params()
                .iter()
                .rev()
                .find(|p| grads[p.range.clone()].iter().any(|g| !g.is_finite()));
            let name = bad.map_or("(all elements are finite, their squares are not)", |p| &p.name);
            return Err(Error::NotFinite {
                tensor: format!("the gradient of {name}"),
                samples: Vec::new(),
            });
        }
        let s = self.settings;
        let clip = if s.max_grad_norm > 0.0 {
            clip_factor(norm, s.max_grad_norm)
        } else {
            1.0
        };
        self.step += 1;
        let rule = |decays| AdamWStep {
            variant: s.variant,
            learning_rate,
            beta1: s.beta1,
            beta2: s.beta2,
            eps: s.eps,
            weight_decay: if decays { s.weight_decay } else { 0.0 },
            step: self.step,
            gradient_scale: clip as f32,
        };
        let (decayed, spared) = (rule(true), rule(false));
        let rows = model.rows();
        let (m, v, pieces) = (&mut self.m[..], &mut self.v[..], &self.pieces[..]);
        model.update(exec, |weights| {
            let parts = Parts {
                weights,
                m,
                v,
                grads,
                pieces: pieces.iter(),
            };
            share(exec, parts, |(weights, m, v, grads, decays)| {
                rows.adamw(weights, m, v, grads, if decays { &decayed } else { &spared });
            });
        })?;
        Ok(norm)
    }
}

/// Cuts the four buffers into pieces.
struct Parts<'a> {
    weights: &'a mut [f32],
    m: &'a mut [f32],
    v: &'a mut [f32],
    grads: &'a [f32],
    pieces: std::slice::Iter<'a, Piece>,
}

impl<'a> Iterator for Parts<'a> {
    type Item = (&'a mut [f32], &'a mut [f32], &'a mut [f32], &'a [f32], bool);

    fn next(&mut self) -> Option<Self::Item> {
        let &Piece { len, decays } = self.pieces.next()?;
        let cut = |from: &mut &'a mut [f32]| {
            let (first, rest) = std::mem::take(from).split_at_mut(len);
            *from = rest;
            first
        };
        let (weights, m, v) = (cut(&mut self.weights), cut(&mut self.m), cut(&mut self.v));
        let (grads, rest) = self.grads.split_at(len);
        self.grads = rest;
        Some((weights, m, v, grads, decays))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::params::Head;
    use crate::precision::Precision;
    use azulejo_amx::Serial;

    fn model() -> Model {
        let config = Config::bert(2000, 48, 1, 3, 100).unwrap();
        let mut model = Model::new(config.clone(), Head::QuestionAnswering, Precision::F32).unwrap();
        let weights = model.params().initialise(&config, 1);
        model.update(&Serial, |w| w.copy_from_slice(&weights)).unwrap();
        model
    }

    #[test]
    fn pieces_tile_the_table() {
        let model = model();
        let adam = AdamW::new(Settings::default(), model.params());
        assert!(adam.pieces.len() > 4 && adam.pieces.iter().all(|p| p.len <= PIECE));
        let mut at = 0;
        for piece in &adam.pieces {
            for param in model
                .params()
                .iter()
                .filter(|p| p.range.start < at + piece.len && p.range.end > at)
            {
                assert_eq!(param.decays, piece.decays, "{}", param.name);
            }
            at += piece.len;
        }
        assert_eq!(at, model.params().total());
    }

    /// The first step moves each weight by the rate in the direction of its gradient, whatever its size.
    #[test]
    fn a_tiny_rate_moves_weights() {
        let mut model = model();
        let before = model.weights().to_vec();
        let mut adam = AdamW::new(
            Settings {
                eps: 0.0,
                ..Settings::default()
            },
            model.params(),
        );
        let grads = vec![1e-3; before.len()];
        let norm = adam.update(&Serial, &mut model, &grads, 1e-6).unwrap();
        assert!((norm / (1e-3 * (before.len() as f64).sqrt()) - 1.0).abs() < f64::from(f32::EPSILON));
        for (after, before) in model.weights().iter().zip(&before) {
            // A weight below 1 has a spacing of at most 2^-24.
            let bound = 1e-9 + before.abs() * f32::EPSILON;
            assert!((before - after - 1e-6).abs() < bound, "{before} became {after}");
        }
    }

    #[test]
    fn a_bad_gradient_changes_nothing() {
        let mut model = model();
        let before = model.weights().to_vec();
        let mut adam = AdamW::new(Settings::default(), model.params());
        let mut grads = vec![1e-3; before.len()];
        let name = "bert.encoder.layer.0.output.dense.weight";
        grads[model.params().find(name).unwrap().range.start + 5] = f32::NAN;
        grads[3] = f32::INFINITY;
        let message = adam.update(&Serial, &mut model, &grads, 1e-3).unwrap_err().to_string();
        assert!(message.contains(name), "{message}");
        assert_eq!((model.weights(), adam.steps()), (&before[..], 0));
    }
}
