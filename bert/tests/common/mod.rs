//! The fixtures of `reference/model_fixtures.py`, and helpers that several test programs share.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test program uses its part of this module"
)]

use azulejo_bert::batch::Batch;
use azulejo_bert::config::Config;
use azulejo_bert::model::{Model, Step};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::{Executor, Serial};
use safetensors::{Dtype, SafeTensors};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One fixture file.
pub struct Fixture {
    bytes: Vec<u8>,
    pub config: Config,
    pub recipe: serde_json::Value,
    pub head: Head,
}

impl Fixture {
    pub fn read(name: &str) -> Fixture {
        let path = format!("{}/tests/fixtures/{name}.safetensors", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = header.metadata().as_ref().unwrap();
        let config = Config::from_json(&metadata["config"]).unwrap();
        let recipe = serde_json::from_str(&metadata["recipe"]).unwrap();
        let head = if name.ends_with("mlm") {
            Head::MaskedLanguage
        } else {
            Head::QuestionAnswering
        };
        Fixture {
            bytes,
            config,
            recipe,
            head,
        }
    }

    /// A tensor of any number type.
    pub fn tensor(&self, name: &str) -> Vec<f64> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        let data = view.data();
        match view.dtype() {
            Dtype::F32 => data
                .chunks(4)
                .map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            Dtype::F64 => data
                .chunks(8)
                .map(|b| f64::from_le_bytes(b.try_into().unwrap()))
                .collect(),
            Dtype::I32 => data
                .chunks(4)
                .map(|b| f64::from(i32::from_le_bytes(b.try_into().unwrap())))
                .collect(),
            other => panic!("{name} is {other:?}"),
        }
    }

    pub fn number(&self, name: &str) -> f64 {
        self.recipe[name].as_f64().unwrap()
    }

    pub fn model(&self, precision: Precision) -> Model {
        let mut model = Model::new(self.config.clone(), self.head, precision).unwrap();
        let params = model.params().clone();
        model
            .update(&Serial, |weights| {
                for param in &params {
                    let values = self.tensor(&format!("w.{}", param.name));
                    assert_eq!(values.len(), param.len(), "{}", param.name);
                    for (to, from) in weights[param.range.clone()].iter_mut().zip(values) {
                        *to = from as f32;
                    }
                }
            })
            .unwrap();
        model
    }

    pub fn batch(&self, number: usize) -> Batch {
        let part = |name: &str| self.tensor(&format!("{number}.{name}"));
        let (ids, types) = (part("ids"), part("token_types"));
        let (lengths, starts, ends) = (part("lengths"), part("starts"), part("ends"));
        let mut batch = Batch::new();
        let mut at = 0;
        for (i, length) in lengths.iter().map(|&n| n as usize).enumerate() {
            let ids: Vec<u32> = ids[at..at + length].iter().map(|&x| x as u32).collect();
            let types: Vec<u8> = types[at..at + length].iter().map(|&x| x as u8).collect();
            batch.push(
                &ids,
                &types,
                starts[i] as u32,
                ends[i] as u32,
                (100 * number + i) as u64,
            );
            at += length;
        }
        batch
    }

    /// The masked tokens of batch 0.
    pub fn targets(&self) -> Vec<(usize, u32)> {
        let targets = self.tensor("0.targets");
        targets
            .iter()
            .enumerate()
            .filter(|&(_, &id)| id >= 0.0)
            .map(|(i, &id)| (i, id as u32))
            .collect()
    }

    /// Loss and gradient of batch 0.
    pub fn train(&self, model: &Model, exec: &dyn Executor) -> (f32, Vec<f32>) {
        let mut grads = vec![0.0; model.params().total()];
        let batch = self.batch(0);
        let loss = match self.head {
            Head::QuestionAnswering => model
                .train_micro_batch(exec, &batch, STEP, &mut grads, &mut |_, _| {})
                .unwrap(),
            Head::MaskedLanguage => {
                let targets = self.targets();
                model
                    .train_micro_batch_mlm(exec, &batch, &targets, STEP, &mut grads, &mut |_, _| {})
                    .unwrap()
            }
        };
        (loss, grads)
    }
}

pub const STEP: Step = Step {
    seed: 1,
    step: 0,
    weight: 1.0,
};

/// The Euclidean norm.
pub fn norm(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// Threads started for each call: slow, and enough to see that the number of workers changes nothing.
pub struct Threads(pub usize);

impl Executor for Threads {
    fn threads(&self) -> usize {
        self.0
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..self.0 {
                scope.spawn(|| task(next.fetch_add(1, Ordering::Relaxed)));
            }
        });
    }
}
