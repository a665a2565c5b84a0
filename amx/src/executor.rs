//! Who runs the work: an executor of the caller's choice. The crate has no thread pool of its own.

/// Workers that run one closure each.
///
/// A GEMM cuts its output into disjoint tiles; each worker claims tiles until none is left. Who computes a tile never
/// changes a result. An executor that calls the task too rarely costs an error, one that calls it too often costs
/// nothing: soundness does not depend on it.
pub trait Executor: Sync {
    /// The number of workers.
    fn threads(&self) -> usize;

    /// Calls `task(worker)` once on each worker, `worker` counting from zero, and returns after all have finished.
    fn run(&self, task: &(dyn Fn(usize) + Sync));
}

/// The calling thread as the only worker.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Executor for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, task: &(dyn Fn(usize) + Sync)) {
        task(0);
    }
}
