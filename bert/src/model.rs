//! A model: its sizes, its weights, and what can be asked of it. The computation is in its submodules: `pass` has the
//! encoder, `heads` what stands on top of it.

mod heads;
mod pass;

use crate::acts::LayerActs;
use crate::batch::Batch;
use crate::buffers::{Buffers, Kind};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::ops::{Context, try_share};
use crate::params::{Head, HeadRanges, Params};
use crate::precision::{Operand, Precision};
use azulejo_allocator::StepArena;
use azulejo_amx::rows::Rows;
use azulejo_amx::{Executor, Gemm, Isa, MatRef};
use half::bf16;
use pass::{Objective, Pass};
use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Called with a range of the flat gradient buffer that is final, and the whole buffer; ranges come from the end of
/// the buffer to its start, adjoin each other and cover it.
pub type OnReady<'a> = dyn FnMut(Range<usize>, &mut [f32]) + 'a;

/// A head of the caller's: reads the encoder's output, adds to its gradient, returns the loss. both `(t, h)`
pub type CustomObjective<'a> = dyn FnMut(&[f32], &mut [f32]) -> f32 + 'a;

/// What a micro-batch needs to know about its place in the training run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Number of the optimiser step.
    pub step: u64,
    /// Factor of the loss in the gradients: 1 for one micro-batch a step.
    pub weight: f32,
}

/// Start and end logits of every token of a batch. `(t)` each
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Logits {
    /// Of the answer's first token.
    pub start: Vec<f32>,
    /// Of its last token.
    pub end: Vec<f32>,
}

/// A model: its sizes, its weights, and the weights as the matrix products read them.
pub struct Model {
    config: Config,
    params: Params,
    weights: Vec<f32>, // (params.total())
    prepared: Prepared,
    gemm: Gemm,
    rows: Rows,
    buffers: Buffers,
}

#[expect(
    clippy::large_enum_variant,
    reason = "a model has one of them, and neither is moved about"
)]
enum Prepared {
    F32(Weights<f32>),
    Bf16(Weights<bf16>),
}

struct Weights<T: Operand> {
    layers: Vec<LayerWeights<T>>,
    vocabulary: Option<VocabularyWeights<T>>,
    /// An empty list with room for what every layer keeps; none while a pass has it.
    acts: Mutex<Vec<LayerActs<T>>>,
}

struct LayerWeights<T: Operand> {
    qkv: T::Prepared,  // (3h, h)
    out: T::Prepared,  // (h, h)
    up: T::Prepared,   // (f, h)
    down: T::Prepared, // (h, f)
}

struct VocabularyWeights<T: Operand> {
    dense: T::Prepared, // (h, h)
    words: T::Prepared, // (v, h): the embedding table
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Model");
        debug
            .field("config", &self.config)
            .field("head", &self.params.head())
            .field("precision", &self.precision());
        debug.field("parameters", &self.params.total()).finish_non_exhaustive()
    }
}

impl Model {
    /// A model with weights that are all zero; [`update`](Model::update) gives it others. It computes with the best
    /// instruction set of this processor, or the one that the environment variable `AZULEJO_ISA` names.
    pub fn new(config: Config, head: Head, precision: Precision) -> Result<Model> {
        Model::with_isa(config, head, precision, Isa::best()?)
    }

    /// The same with an instruction set of the caller's choice. In either precision it never changes a result.
    pub fn with_isa(config: Config, head: Head, precision: Precision, isa: Isa) -> Result<Model> {
        let params = Params::new(&config, head);
        let weights = vec![0.0; params.total()];
        let prepared = match precision {
            Precision::F32 => Prepared::F32(Weights::new(&config, head)),
            Precision::Bf16 => Prepared::Bf16(Weights::new(&config, head)),
        };
        let (gemm, rows) = (Gemm::with_isa(isa)?, Rows::new(isa)?);
        Ok(Model {
            config,
            params,
            weights,
            prepared,
            gemm,
            rows,
            buffers: Buffers::new(),
        })
    }

    /// The name of the kernel that multiplies matrices.
    pub fn kernel_name(&self) -> &'static str {
        match self.prepared {
            Prepared::F32(_) => self.gemm.f32_kernel_name(),
            Prepared::Bf16(_) => self.gemm.kernel_name(),
        }
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The table of its parameters.
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The type that its matrix products read.
    pub fn precision(&self) -> Precision {
        match self.prepared {
            Prepared::F32(_) => Precision::F32,
            Prepared::Bf16(_) => Precision::Bf16,
        }
    }

    /// All weights, in the order of [`params`](Model::params).
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Time spent in matrix products and attention since the model was made.
    pub fn product_time(&self) -> Duration {
        self.buffers.lent()
    }

    /// The row operations of the model's instruction set.
    pub(crate) fn rows(&self) -> Rows {
        self.rows
    }

    /// Lets `change` write the weights, then renews what the matrix products read: once for an optimiser step, not
    /// for each micro-batch.
    pub fn update<R>(&mut self, exec: &dyn Executor, change: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
        let result = change(&mut self.weights);
        match &mut self.prepared {
            Prepared::F32(prepared) => prepared.renew(exec, &self.config, &self.params, &self.weights)?,
            Prepared::Bf16(prepared) => prepared.renew(exec, &self.config, &self.params, &self.weights)?,
        }
        Ok(result)
    }

    /// The answer logits of every token, without dropout.
    pub fn forward(&self, exec: &dyn Executor, batch: &Batch) -> Result<Logits> {
        let mut logits = Logits::default();
        self.forward_into(exec, batch, &mut logits)?;
        Ok(logits)
    }

    /// The same into lists that are used again.
    pub fn forward_into(&self, exec: &dyn Executor, batch: &Batch, logits: &mut Logits) -> Result<()> {
        self.expect_head(Head::QuestionAnswering)?;
        self.buffers.step(Kind::Forward, |arena| match &self.prepared {
            Prepared::F32(prepared) => self.pass(exec, arena, prepared).logits(batch, logits),
            Prepared::Bf16(prepared) => self.pass(exec, arena, prepared).logits(batch, logits),
        })
    }

    /// Forward and backward over one micro-batch: adds the gradient of `step.weight` times the loss to `grads` and
    /// returns the loss. After an error `grads` holds a part of the gradient.
    pub fn train_micro_batch(
        &self,
        exec: &dyn Executor,
        batch: &Batch,
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        self.expect_head(Head::QuestionAnswering)?;
        self.train(exec, batch, Objective::Span, step, grads, on_ready)
    }

    /// The same for masked language modelling: `targets` are places among the batch's tokens, and the token that
    /// each should be. The span labels are not read.
    pub fn train_micro_batch_mlm(
        &self,
        exec: &dyn Executor,
        batch: &Batch,
        targets: &[(usize, u32)],
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        self.expect_head(Head::MaskedLanguage)?;
        self.train(exec, batch, Objective::Vocabulary(targets), step, grads, on_ready)
    }

    /// The same under a head of the caller's: `objective` reads the encoder's output, adds the gradient of its loss
    /// (times `step.weight`) to what is zero, and returns the loss. The model's own head gets no gradient.
    pub fn train_micro_batch_with(
        &self,
        exec: &dyn Executor,
        batch: &Batch,
        objective: &mut CustomObjective,
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        self.train(exec, batch, Objective::Custom(objective), step, grads, on_ready)
    }

    fn train(
        &self,
        exec: &dyn Executor,
        batch: &Batch,
        objective: Objective,
        step: Step,
        grads: &mut [f32],
        on_ready: &mut OnReady,
    ) -> Result<f32> {
        self.buffers.step(Kind::Train, |arena| match &self.prepared {
            Prepared::F32(prepared) => self
                .pass(exec, arena, prepared)
                .train(batch, objective, step, grads, on_ready),
            Prepared::Bf16(prepared) => self
                .pass(exec, arena, prepared)
                .train(batch, objective, step, grads, on_ready),
        })
    }

    fn expect_head(&self, expected: Head) -> Result<()> {
        if self.params.head() == expected {
            return Ok(());
        }
        Err(Error::Config {
            reason: format!("expected a model with head {expected:?}, got {:?}", self.params.head()),
        })
    }

    fn pass<'a, T: Operand>(
        &'a self,
        exec: &'a dyn Executor,
        arena: &'a StepArena,
        prepared: &'a Weights<T>,
    ) -> Pass<'a, T> {
        Pass {
            cx: Context {
                exec,
                gemm: self.gemm,
                rows: self.rows,
                buffers: &self.buffers,
                arena,
            },
            config: &self.config,
            params: &self.params,
            weights: &self.weights,
            prepared,
        }
    }
}

impl<T: Operand> Weights<T> {
    fn new(config: &Config, head: Head) -> Weights<T> {
        let (h, f) = (config.hidden, config.intermediate);
        let layer = |_| LayerWeights {
            qkv: T::prepared(3 * h, h),
            out: T::prepared(h, h),
            up: T::prepared(f, h),
            down: T::prepared(h, f),
        };
        let vocabulary = (head == Head::MaskedLanguage).then(|| VocabularyWeights {
            dense: T::prepared(h, h),
            words: T::prepared(config.vocabulary, h),
        });
        Weights {
            layers: (0..config.layers).map(layer).collect(),
            vocabulary,
            acts: Mutex::default(),
        }
    }

    /// An empty list for what the layers keep.
    fn no_acts(&self) -> Vec<LayerActs<T>> {
        let mut list = std::mem::take(&mut *self.acts.lock().unwrap_or_else(PoisonError::into_inner));
        list.reserve(self.layers.len());
        list
    }

    /// Takes the list, which is empty again, for the next pass.
    fn keep_acts(&self, list: Vec<LayerActs<T>>) {
        debug_assert!(list.is_empty(), "what a pass keeps does not outlive it");
        *self.acts.lock().unwrap_or_else(PoisonError::into_inner) = list;
    }

    /// Prepares every weight again.
    fn renew(&mut self, exec: &dyn Executor, config: &Config, params: &Params, weights: &[f32]) -> Result<()> {
        let (h, f) = (config.hidden, config.intermediate);
        let layers = self.layers.iter_mut().zip(&params.layers).flat_map(|(to, at)| {
            [
                (&mut to.qkv, &at.qkv.weight, h),
                (&mut to.out, &at.out.weight, h),
                (&mut to.up, &at.up.weight, h),
                (&mut to.down, &at.down.weight, f),
            ]
        });
        let head = match (&mut self.vocabulary, &params.head_ranges) {
            (Some(to), HeadRanges::MaskedLanguage { dense, .. }) => Some([
                (&mut to.dense, &dense.weight, h),
                (&mut to.words, &params.embeddings.words, h),
            ]),
            _ => None,
        };
        try_share(exec, layers.chain(head.into_iter().flatten()), |(to, from, k)| {
            T::prepare(to, MatRef::row_major(&weights[from.clone()], from.len() / k, k)?)
        })
    }
}
