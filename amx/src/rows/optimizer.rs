//! AdamW over flat slices: one pass that reads the gradient, moves both moments and the weights.

use crate::simd::{Kernel, Lanes};

/// The two AdamW updates that published fine-tuning recipes use; they differ in where epsilon and the decay stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum AdamWVariant {
    /// `adamw_torch`: decay before the update, epsilon beside the bias-corrected root.
    #[default]
    Torch,
    /// `adamw_hf`: epsilon beside the plain root, the bias correction in the step size, decay after the update.
    Hf,
}

/// One step of AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Which of the two updates.
    pub variant: AdamWVariant,
    /// Learning rate of this step.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay; 0 for biases and layer normalisations.
    pub weight_decay: f64,
    /// The number of this step, counted from 1.
    pub step: u64,
    /// What each gradient is multiplied by first: the clip factor, and the mean over accumulated batches.
    pub gradient_scale: f32,
}

/// The step on flat slices of one length.
pub(crate) struct Step<'a> {
    pub(crate) w: &'a mut [f32],
    pub(crate) m: &'a mut [f32],
    pub(crate) v: &'a mut [f32],
    pub(crate) g: &'a [f32],
    pub(crate) constants: Constants,
}

/// Everything that is the same for all weights of a step, computed in f64 and rounded once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants {
    scale: f32,
    one_minus_beta1: f32,
    beta2: f32,
    one_minus_beta2: f32,
    /// What the root of the second moment is multiplied by; 1 in the HF variant.
    root_factor: f32,
    eps: f32,
    /// Minus the step size.
    minus_step: f32,
    /// What weights are multiplied by before the update; 1 in the HF variant.
    decay_before: f32,
    /// Minus what of the updated weight is subtracted from it; 0 in the torch variant.
    minus_decay_after: f32,
}

impl AdamW {
    /// The constants of this step.
    #[expect(clippy::cast_possible_truncation, reason = "computed in f64, applied in f32")]
    pub(crate) fn constants(&self) -> Constants {
        let step = i32::try_from(self.step).unwrap_or(i32::MAX);
        let correction1 = 1.0 - self.beta1.powi(step);
        let correction2 = (1.0 - self.beta2.powi(step)).sqrt();
        let decay = self.learning_rate * self.weight_decay;
        let (root_factor, step_size, decay_before, decay_after) = match self.variant {
            AdamWVariant::Torch => (1.0 / correction2, self.learning_rate / correction1, 1.0 - decay, 0.0),
            AdamWVariant::Hf => (1.0, self.learning_rate * correction2 / correction1, 1.0, decay),
        };
        Constants {
            scale: self.gradient_scale,
            one_minus_beta1: (1.0 - self.beta1) as f32,
            beta2: self.beta2 as f32,
            one_minus_beta2: (1.0 - self.beta2) as f32,
            root_factor: root_factor as f32,
            eps: self.eps as f32,
            minus_step: -step_size as f32,
            decay_before: decay_before as f32,
            minus_decay_after: -decay_after as f32,
        }
    }
}

impl Constants {
    /// The new weight and moments of sixteen elements.
    #[inline(always)]
    fn update<S: Lanes>(self, s: S, w: S::F, m: S::F, v: S::F, g: S::F) -> [S::F; 3] {
        let g = s.mul(g, s.splat(self.scale));
        // The first moment moves towards the gradient, as torch's lerp does.
        let m = s.fma(s.sub(g, m), s.splat(self.one_minus_beta1), m);
        let v = s.fma(
            s.mul(g, g),
            s.splat(self.one_minus_beta2),
            s.mul(v, s.splat(self.beta2)),
        );
        let denominator = s.fma(s.sqrt(v), s.splat(self.root_factor), s.splat(self.eps));
        let w = s.mul(w, s.splat(self.decay_before));
        let w = s.fma(s.div(m, denominator), s.splat(self.minus_step), w);
        let w = s.fma(w, s.splat(self.minus_decay_after), w);
        [w, m, v]
    }
}

impl Kernel for Step<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Lanes>(self, s: S) {
        let (w, w_tail) = self.w.as_chunks_mut::<16>();
        let (m, m_tail) = self.m.as_chunks_mut::<16>();
        let (v, v_tail) = self.v.as_chunks_mut::<16>();
        let (g, g_tail) = self.g.as_chunks::<16>();
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let new = self.constants.update(s, s.load(w), s.load(m), s.load(v), s.load(g));
            s.store(new[0], w);
            s.store(new[1], m);
            s.store(new[2], v);
        }
        if !w_tail.is_empty() {
            let [w, m, v] = self.constants.update(
                s,
                s.load_part(w_tail, 0.0),
                s.load_part(m_tail, 0.0),
                s.load_part(v_tail, 0.0),
                s.load_part(g_tail, 0.0),
            );
            s.store_part(w, w_tail);
            s.store_part(m, m_tail);
            s.store_part(v, v_tail);
        }
    }
}
