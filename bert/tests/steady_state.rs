//! A settled training step takes no memory from anybody: no allocation, no page fault.
//!
//! A program of its own and without a test harness, because the counters are those of the whole process.
#![expect(unsafe_code, reason = "a global allocator that counts")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use azulejo_bert::batch::Batch;
use azulejo_bert::config::Config;
use azulejo_bert::features::Feature;
use azulejo_bert::model::{Logits, Model};
use azulejo_bert::optim::{AdamW, Settings};
use azulejo_bert::params::Head;
use azulejo_bert::precision::Precision;
use azulejo_bert::runtime::TeamExecutor;
use azulejo_bert::sampler::Sampler;
use azulejo_bert::schedule::{LearningRate, Schedule};
use azulejo_bert::trainer::{Every, Observer, Progress, TrainConfig, total_steps, train};
use azulejo_topology::{Team, TeamConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, and how often it was asked.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came; a reallocation is the default one, made of these.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above, and `at` is from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads the counters without moving them.
struct Counters {
    stat: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    allocations: u64,
    /// Minor page faults of all threads: what `getrusage` reports.
    faults: u64,
}

impl Counters {
    fn new() -> Counters {
        Counters {
            stat: File::open("/proc/self/stat").unwrap(),
        }
    }

    fn read(&self) -> Count {
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        let mut text = [0; 1024];
        let len = self.stat.read_at(&mut text, 0).unwrap();
        let text = std::str::from_utf8(&text[..len]).unwrap();
        // The tenth field; the second is in brackets and may hold anything.
        let rest = text.rsplit_once(')').unwrap().1;
        let faults = rest.split_whitespace().nth(7).unwrap().parse().unwrap();
        Count { allocations, faults }
    }
}

impl std::ops::Sub for Count {
    type Output = Count;

    fn sub(self, earlier: Count) -> Count {
        Count {
            allocations: self.allocations - earlier.allocations,
            faults: self.faults - earlier.faults,
        }
    }
}

const NOTHING: Count = Count {
    allocations: 0,
    faults: 0,
};

/// Notes the counters after every step, in memory that it has already.
struct Watch {
    counters: Counters,
    last: Count,
    steps: Vec<(usize, Count)>, // tokens, and what the step took
}

impl Observer for Watch {
    fn step(&mut self, progress: &Progress) -> azulejo_bert::Result<()> {
        let now = self.counters.read();
        self.steps.push((progress.tokens, now - self.last));
        self.last = self.counters.read();
        Ok(())
    }

    fn log(&mut self, _: &Progress, _: f64) -> azulejo_bert::Result<()> {
        Ok(())
    }

    fn save(&mut self, _: &Progress, _: &Model, _: &AdamW) -> azulejo_bert::Result<()> {
        Ok(())
    }

    fn wants_to_stop(&mut self) -> bool {
        false
    }
}

const SAMPLES: usize = 600;
const MICRO_BATCH: usize = 6;

/// Lengths from 20 to 140 tokens: steps of six differ by half of their mean.
fn features() -> Vec<Feature> {
    let feature = |i: usize| {
        let n = 20 + (i * 7919) % 121;
        Feature {
            ids: (0..n).map(|k| (5 + (i * 31 + k * 17) % 490) as u32).collect(),
            token_types: (0..n).map(|k| u8::from(k > n / 3)).collect(),
            offsets: vec![None; n],
            example: i,
            start: (n / 2) as u32,
            end: (n / 2 + 2) as u32,
        }
    };
    (0..SAMPLES).map(feature).collect()
}

fn model(precision: Precision, exec: &TeamExecutor) -> Model {
    let config = Config::bert(500, 96, 3, 4, 192).unwrap();
    let mut model = Model::new(config.clone(), Head::QuestionAnswering, precision).unwrap();
    let weights = model.params().initialise(&config, 1);
    model.update(exec, |to| to.copy_from_slice(&weights)).unwrap();
    model
}

/// Trains an epoch, and looks at the steps of its second half that are no larger than one before.
fn training(precision: Precision, micro_batches_per_step: usize, features: &[Feature], exec: &TeamExecutor) {
    let mut model = model(precision, exec);
    let mut optimizer = AdamW::new(Settings::default(), model.params());
    let sampler = Sampler {
        samples: features.len(),
        micro_batch: MICRO_BATCH,
        micro_batches_per_step,
        seed: 42,
        drop_last: false,
        lengths: None,
    };
    let steps = total_steps(&sampler, 1.0, -1);
    let config = TrainConfig {
        sampler,
        steps,
        learning_rate: LearningRate {
            schedule: Schedule::Linear,
            peak: 1e-4,
            warmup: 0,
            total: steps,
        },
        seed: 1,
        logging: Every::NEVER,
        evaluation: Every::NEVER,
        eval_delay: 0,
        eval_on_start: false,
        saving: Every::NEVER,
    };
    let comm = azulejo_collectives::threads(1).unwrap().remove(0);
    let counters = Counters::new();
    let mut watch = Watch {
        last: counters.read(),
        counters,
        steps: Vec::with_capacity(steps as usize),
    };
    train(exec, &comm, &mut model, &mut optimizer, features, &config, &mut watch).unwrap();

    let mut most = 0;
    let mut settled = Vec::new();
    for (i, &(tokens, count)) in watch.steps.iter().enumerate() {
        if i >= watch.steps.len() / 2 && tokens <= most {
            settled.push((i, tokens, count));
        }
        most = most.max(tokens);
    }
    let (least, largest) = (
        settled.iter().map(|s| s.1).min().unwrap(),
        settled.iter().map(|s| s.1).max().unwrap(),
    );
    let taken: Vec<_> = settled.iter().filter(|s| s.2 != NOTHING).collect();
    eprintln!(
        "{precision:?}, {micro_batches_per_step} micro-batches a step: {} settled steps of {least} to {largest} tokens; the first \
         step took {:?}, these took something: {taken:?}",
        settled.len(),
        watch.steps[0].1
    );
    assert!(settled.len() * 3 > watch.steps.len() && largest * 10 > least * 11);
    assert!(taken.is_empty(), "{taken:?}");
}

/// Windows as evaluation deals them out: by length, the longest first.
fn evaluation(precision: Precision, features: &[Feature], exec: &TeamExecutor) {
    let model = model(precision, exec);
    let mut sorted: Vec<&Feature> = features.iter().collect();
    sorted.sort_by_key(|f| std::cmp::Reverse(f.len()));
    let (mut batch, mut logits) = (Batch::new(), Logits::default());
    let counters = Counters::new();
    let mut taken = Vec::with_capacity(SAMPLES);
    for chunk in sorted.chunks(MICRO_BATCH) {
        let before = counters.read();
        batch.clear();
        for f in chunk {
            batch.push(&f.ids, &f.token_types, 0, 0, 0);
        }
        model.forward_into(exec, &batch, &mut logits).unwrap();
        taken.push((batch.tokens(), counters.read() - before));
    }
    eprintln!("{precision:?}, forward: the first took {:?}", taken[0]);
    // No batch has more tokens than the first.
    let taken: Vec<_> = taken[1..].iter().filter(|t| t.1 != NOTHING).collect();
    assert!(taken.is_empty(), "{taken:?}");
}

fn main() {
    let exec = TeamExecutor(Team::new(TeamConfig::unpinned(2)).unwrap());
    let features = features();
    for precision in [Precision::Bf16, Precision::F32] {
        training(precision, 1, &features, &exec);
        training(precision, 5, &features, &exec);
        evaluation(precision, &features, &exec);
    }
}
