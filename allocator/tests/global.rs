//! The allocator under a whole test program: random programs against a shadow heap, threads, thread ends, forks.
#![expect(unsafe_code, reason = "calls GlobalAlloc and fork directly")]
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test: seeds are printed")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one of two calls under the same promise"
)]

use azulejo_allocator::Global;
use std::alloc::{GlobalAlloc, Layout};
use std::sync::mpsc;

#[global_allocator]
static A: Global = Global::new();

struct Rng(u64);

impl Rng {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below
    }
}

struct Block {
    at: *mut u8,
    layout: Layout,
    key: u8,
}

// SAFETY: a block of memory has no thread.
unsafe impl Send for Block {}

impl Block {
    fn new(rng: &mut Rng) -> Block {
        let size = match rng.next(20) {
            0 => 1 + rng.next(6 << 20),
            1..=3 => 1 + rng.next(300_000),
            _ => 1 + rng.next(2000),
        };
        let align = if rng.next(4) == 0 { 1 << rng.next(17) } else { 8 };
        let layout = Layout::from_size_align(size, align).unwrap();
        let zeroed = rng.next(8) == 0;
        // SAFETY: the size is not 0.
        let at = unsafe {
            if zeroed {
                A.alloc_zeroed(layout)
            } else {
                A.alloc(layout)
            }
        };
        assert!(!at.is_null() && at.addr().is_multiple_of(align));
        let mut block = Block { at, layout, key: 0 };
        if zeroed {
            block.check();
        }
        block.fill(rng.next(256) as u8);
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block is ours and as long as its layout; the kernel or the pattern has written it.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.layout.size()) }
    }

    fn fill(&mut self, key: u8) {
        self.key = key;
        self.bytes().fill(key);
    }

    fn check(&mut self) {
        let key = self.key;
        assert!(
            self.bytes().iter().all(|&b| b == key),
            "{:?} was overwritten",
            self.layout
        );
    }

    fn resize(&mut self, size: usize) {
        self.check();
        let kept = size.min(self.layout.size());
        // SAFETY: the block came from this allocator with this layout.
        self.at = unsafe { A.realloc(self.at, self.layout, size) };
        assert!(!self.at.is_null() && self.at.addr().is_multiple_of(self.layout.align()));
        self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
        let key = self.key;
        assert!(self.bytes()[..kept].iter().all(|&b| b == key));
        self.fill(key);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the block came from this allocator with this layout.
        unsafe { A.dealloc(self.at, self.layout) };
    }
}

fn program(seed: u64, steps: usize, send: Option<&mpsc::Sender<Block>>) {
    let mut rng = Rng(seed * 2 + 0x9E37_79B9_7F4A_7C15);
    let mut live: Vec<Block> = Vec::new();
    for _ in 0..steps {
        match rng.next(10) {
            0..=4 => live.push(Block::new(&mut rng)),
            5 if !live.is_empty() => {
                let i = rng.next(live.len());
                let size = 1 + rng.next(live[i].layout.size() * 2);
                live[i].resize(size);
            }
            6 if !live.is_empty() => {
                let block = live.swap_remove(rng.next(live.len()));
                if let Some(send) = send {
                    let _ = send.send(block);
                }
            }
            _ if !live.is_empty() => drop(live.swap_remove(rng.next(live.len()))),
            _ => {}
        }
        while live.len() > 60 {
            drop(live.swap_remove(rng.next(live.len())));
        }
    }
}

#[test]
fn random_programs_keep_every_byte() {
    for seed in 0..4 {
        println!("seed {seed}");
        program(seed, 1500, None);
    }
}

#[test]
fn blocks_are_freed_by_other_threads() {
    let (send, receive) = mpsc::channel::<Block>();
    std::thread::scope(|scope| {
        scope.spawn(move || receive.into_iter().for_each(drop));
        for seed in 10..14 {
            let send = send.clone();
            scope.spawn(move || program(seed, 800, Some(&send)));
        }
        drop(send);
    });
}

#[test]
fn blocks_outlive_their_threads_and_destructors_allocate() {
    thread_local! {
        static LAST: std::cell::RefCell<Vec<String>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    struct Noisy;
    impl Drop for Noisy {
        fn drop(&mut self) {
            assert_eq!(format!("{:>40}", 7).len(), 40);
        }
    }
    thread_local! {
        static NOISY: Noisy = const { Noisy };
    }
    for round in 0..200 {
        let text = std::thread::spawn(move || {
            NOISY.with(|_| LAST.with(|l| l.borrow_mut().push(format!("{round:>100}"))));
            (0..100).map(|i| format!("{i:>50}")).collect::<Vec<_>>()
        })
        .join()
        .unwrap();
        assert_eq!(text.len(), 100);
    }
}

#[test]
fn a_forked_child_can_allocate() {
    std::thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut seed = 100;
            while matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                program(seed, 100, None);
                seed += 1;
            }
        });
        for _ in 0..50 {
            // SAFETY: the child only allocates and exits at once.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let words: Vec<Vec<u8>> = (0..200).map(|i| vec![1; i * 50]).collect();
                let sum: usize = words.iter().map(Vec::len).sum();
                // SAFETY: ends the child without running the parent's destructors.
                unsafe { libc::_exit(i32::from(sum != 995_000)) };
            }
            let mut status = 1;
            // SAFETY: waits for the child just made.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!((waited, status), (child, 0));
        }
        drop(stop);
    });
}

#[test]
fn small_memory_comes_back() {
    std::thread::spawn(|| {
        let many: Vec<Box<[u8; 100]>> = (0..300_000).map(|i| Box::new([i as u8; 100])).collect();
        let peak = A.stats().mapped;
        drop(many);
        A.release();
        let after = A.stats().mapped;
        assert!(peak > 30_000_000 && after + 20_000_000 < peak, "{peak} -> {after}");
    })
    .join()
    .unwrap();
}
