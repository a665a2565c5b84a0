//! What survivors see when a rank dies, freezes, leaves, is late or calls something else: always the rank's name, on
//! every rank, within the deadline.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::print_stdout, reason = "the processes under test talk to the test")]

#[path = "common/processes.rs"]
mod processes;

use std::io::Read as _;
use std::time::{Duration, Instant};

use azulejo_collectives::launch::{Role, detect};
use azulejo_collectives::{Backend, Communicator, Error, Options, ReduceOp, TreeNode, connect, threads, threads_with};
use rustix::process::Signal;

/// The contract: every survivor has its error by then.
const LIMIT: Duration = Duration::from_secs(10);

/// Not a test of its own: what the processes run that the tests below start.
#[test]
fn rank_process() {
    let Some(mode) = processes::mode() else { return };
    let (backend, mode) = match mode.strip_suffix(" over TCP") {
        Some(mode) => (Backend::Tcp, mode),
        None => (Backend::Hybrid, mode.as_str()),
    };
    let Role::Rank(launch) = detect().unwrap() else {
        panic!("the test describes a rank")
    };
    let deadline = Duration::from_secs(if mode == "one is late" { 1 } else { 300 });
    let comm = connect(
        &launch,
        &Options {
            deadline,
            backend,
            ..Options::default()
        },
    )
    .unwrap();
    let expected = if backend == Backend::Tcp {
        "tcp"
    } else {
        "shared memory"
    };
    assert_eq!(comm.transport(), expected);
    let mut buffer = vec![1.0_f32; if mode == "big" { 8 << 20 } else { 50_000 }];
    let mut rounds = 0;
    let error = loop {
        if let Err(error) = comm.all_reduce(&mut buffer, ReduceOp::Sum) {
            break error;
        }
        rounds += 1;
        if rounds == 3 {
            println!("\nunder way");
        }
        let me = comm.rank() == 2;
        match mode {
            "one leaves" if me && rounds == 5 => return,
            "one panics" if me && rounds == 5 => panic!("on purpose"),
            "one is late" if me && rounds == 5 => {
                // Late for ever: until the test closes this pipe.
                let _ = std::io::stdin().read(&mut [0]);
                return;
            }
            _ => {}
        }
    };
    println!("\nfailed: {error}");
    assert_eq!(error.failed_rank(), Some(2), "{error}");
}

/// Starts four ranks, does something to rank 2 and expects every other rank to blame it, whatever joins them.
fn survivors_blame_rank_2(mode: &str, hurt: impl Fn(&processes::RankProcess), expected: &[&str]) {
    survivors_blame(mode, &hurt, expected);
    survivors_blame(&format!("{mode} over TCP"), &hurt, expected);
}

fn survivors_blame(mode: &str, hurt: &dyn Fn(&processes::RankProcess), expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = processes::start("rank_process", mode, 4, folder.path());
    for rank in &mut ranks {
        rank.wait_for("under way");
    }
    hurt(&ranks[2]);
    let victim = ranks.remove(2);
    let end = Instant::now() + LIMIT;
    for rank in ranks {
        let number = rank.rank;
        let (status, output) = rank.finish(end);
        assert!(status.success(), "{mode}, rank {number}: {status}\n{output}");
        let line = output
            .lines()
            .find(|line| line.starts_with("failed: "))
            .unwrap_or_default();
        assert!(
            line.contains("rank 2 ") && expected.iter().any(|word| line.contains(word)),
            "{mode}, rank {number}: {output}"
        );
    }
    drop(victim);
}

#[test]
fn a_killed_rank_is_named() {
    survivors_blame_rank_2("small", |rank| rank.signal(Signal::KILL), &["ended or was killed"]);
}

#[test]
fn a_rank_killed_in_the_middle_of_large_transfers_is_named() {
    survivors_blame_rank_2("big", |rank| rank.signal(Signal::KILL), &["ended or was killed"]);
}

#[test]
fn a_frozen_rank_is_named() {
    survivors_blame_rank_2("small", |rank| rank.signal(Signal::STOP), &["silent"]);
}

#[test]
fn a_rank_that_leaves_is_named() {
    survivors_blame_rank_2("one leaves", |_| {}, &["left the job"]);
}

#[test]
fn a_rank_that_panics_is_named() {
    survivors_blame_rank_2("one panics", |_| {}, &["panicked"]);
}

#[test]
fn a_late_rank_is_named() {
    survivors_blame_rank_2("one is late", |_| {}, &["did not take part"]);
}

/// Runs `act` on every rank; the error of each.
fn errors(ranks: Vec<Communicator>, act: impl Fn(&Communicator) -> Result<(), Error> + Sync) -> Vec<Error> {
    std::thread::scope(|scope| {
        let run = |comm: Communicator| scope.spawn(|| act(&{ comm }).expect_err("the call fails on every rank"));
        let ranks: Vec<_> = ranks.into_iter().map(run).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn mismatched_calls_name_both_sides_on_every_rank() {
    type Act = fn(&Communicator) -> Result<(), Error>;
    let cases: [(&str, Act, [&str; 2]); 9] = [
        (
            "length",
            |c| c.all_reduce(&mut vec![0.0_f32; if c.rank() == 1 { 9 } else { 8 }], ReduceOp::Sum),
            ["8 x f32", "9 x f32"],
        ),
        (
            "type",
            |c| match c.rank() {
                1 => c.all_reduce(&mut [0_i32; 8], ReduceOp::Sum),
                _ => c.all_reduce(&mut [0.0_f32; 8], ReduceOp::Sum),
            },
            ["8 x f32", "8 x i32"],
        ),
        (
            "operation",
            |c| {
                c.all_reduce(
                    &mut [0.0_f32; 8],
                    if c.rank() == 1 { ReduceOp::Max } else { ReduceOp::Sum },
                )
            },
            ["sum", "max"],
        ),
        (
            "kind",
            |c| {
                if c.rank() == 1 {
                    c.barrier()
                } else {
                    c.all_reduce(&mut [0.0_f32; 100_000], ReduceOp::Sum)
                }
            },
            ["barrier", "all_reduce"],
        ),
        (
            "root",
            |c| c.broadcast(&mut [0_u8; 4], usize::from(c.rank() == 1)),
            ["root 0", "root 1"],
        ),
        (
            "root of a reduction",
            |c| c.reduce(&mut [0_u8; 4], ReduceOp::Sum, usize::from(c.rank() == 1)),
            ["root 0", "root 1"],
        ),
        (
            "length of all-to-all",
            |c| c.all_to_all(&vec![0_u8; if c.rank() == 1 { 6 } else { 3 }]).map(drop),
            ["3 x u8", "6 x u8"],
        ),
        (
            "tag",
            |c| match c.rank() {
                0 => c.send(&[0_u8], 1, 5),
                1 => c.receive::<u8>(0, 6).map(drop),
                _ => c.barrier(),
            },
            ["tag 5", "tag 6"],
        ),
        (
            "total",
            |c| {
                let parts = vec![(TreeNode::leaf(c.rank() as u64), vec![0.0])];
                c.start_all_reduce_tree(parts, if c.rank() == 1 { 4 } else { 3 }, 0)?
                    .wait()
                    .map(drop)
            },
            ["3 micro-batches", "4 micro-batches"],
        ),
    ];
    for (what, act, sides) in cases {
        for error in errors(threads(3).unwrap(), act) {
            let text = error.to_string();
            assert!(matches!(error, Error::Mismatch { .. }), "{what}: {text}");
            assert!(
                text.contains("rank 1 called") && sides.iter().all(|side| text.contains(side)),
                "{what}: {text}"
            );
        }
    }
}

#[test]
fn parts_that_are_no_tree_are_an_error_on_every_rank() {
    // Rank 1 brings what rank 0 has brought already.
    let errors = errors(threads(2).unwrap(), |comm| {
        comm.start_all_reduce_tree(vec![(TreeNode::leaf(0), vec![0.0; 5000])], 2, 0)?
            .wait()
            .map(drop)
    });
    for error in errors {
        assert!(error.to_string().contains("micro-batch 0"), "{error}");
    }
}

#[test]
fn a_failed_communicator_stays_failed() {
    let options = Options {
        deadline: Duration::from_millis(50),
        ..Options::default()
    };
    let mut ranks = threads_with(2, &options).unwrap();
    let idle = ranks.pop().unwrap();
    let comm = ranks.pop().unwrap();
    let first = comm.barrier().unwrap_err();
    assert_eq!(first.failed_rank(), Some(1), "{first}");
    assert!(first.to_string().contains("operation 0, barrier"), "{first}");
    assert_eq!(comm.barrier().unwrap_err().to_string(), first.to_string());
    // The other rank is told the same, before it has called anything.
    let end = Instant::now() + LIMIT;
    while idle.failure().is_none() {
        assert!(Instant::now() < end, "rank 1 was not told");
        std::thread::sleep(Duration::from_millis(1));
    }
    let told = idle.barrier().unwrap_err();
    assert!(told.to_string().starts_with(&first.to_string()), "{told}");
}

#[test]
fn wrong_arguments_leave_the_communicator_as_it_was() {
    let comm = threads(1).unwrap().pop().unwrap();
    assert!(matches!(
        comm.broadcast(&mut [0_u8], 1),
        Err(Error::Root { root: 1, world_size: 1 })
    ));
    assert!(matches!(comm.gather_bytes(&[], 5), Err(Error::Root { .. })));
    assert!(matches!(
        comm.start_all_reduce_tree(vec![], 1, 0),
        Err(Error::Parts { .. })
    ));
    let uneven = vec![(TreeNode::leaf(0), vec![0.0]), (TreeNode::leaf(1), vec![])];
    assert!(matches!(
        comm.start_all_reduce_tree(uneven, 2, 0),
        Err(Error::Length { .. })
    ));
    comm.barrier().unwrap();
}
