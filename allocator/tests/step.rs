//! The step arena: same addresses after the first step, every difference noticed, nothing ever shared.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use azulejo_allocator::{ALIGNMENT, Error, Lease, StepArena};

/// A small step: three buffers alive together, then one in the place of the first.
fn step(arena: &StepArena, len: usize) -> Vec<(usize, bool)> {
    let place = |lease: &Lease<f32>| (lease.as_ptr().addr(), lease.is_planned());
    let mut a = arena.take::<f32>("a", len).unwrap();
    let mut b = arena.take::<f32>("b", 2 * len).unwrap();
    a.fill(1.0);
    b.fill(2.0);
    assert!(a.iter().all(|&x| x == 1.0));
    let first = place(&a);
    drop(a);
    let mut c = arena.take_zeroed::<f32>("c", len).unwrap();
    assert!(c.iter().all(|&x| x == 0.0));
    c.fill(3.0);
    assert!(b.iter().all(|&x| x == 2.0));
    let places = vec![first, place(&b), place(&c)];
    drop((b, c));
    arena.end_step().unwrap();
    places
}

#[test]
fn a_step_that_is_repeated_gets_the_same_aligned_places() {
    let arena = StepArena::new();
    assert!(step(&arena, 1000).iter().all(|&(_, planned)| !planned));
    let second = step(&arena, 1000);
    assert!(
        second
            .iter()
            .all(|&(address, planned)| planned && address % ALIGNMENT == 0)
    );
    assert_eq!(
        second[0].0, second[2].0,
        "the third buffer takes the place of the first, which is gone"
    );
    for _ in 0..10 {
        assert_eq!(step(&arena, 1000), second);
    }
    let stats = arena.stats();
    assert_eq!(
        (stats.steps, stats.plans, stats.own_takes, stats.planned_takes),
        (12, 1, 3, 33)
    );
    assert_eq!(
        stats.peak,
        3 * 4000_usize.next_multiple_of(ALIGNMENT) - 32 - 64 + 32,
        "{stats:?}"
    );
}

#[test]
fn shorter_steps_stay_in_place_and_longer_ones_are_planned_anew_a_few_times() {
    let arena = StepArena::new();
    for len in [500, 1000, 10, 990, 1000, 1010] {
        step(&arena, len);
    }
    let plans = arena.stats().plans;
    // The first step plans, 1000 plans anew, and 1010 may still fit the headroom.
    assert!((2..=3).contains(&plans), "{plans}");
    let settled = step(&arena, 1010);
    for len in [1, 700, 1010, 0] {
        assert_eq!(
            step(&arena, len).iter().map(|place| place.1).collect::<Vec<_>>(),
            [true; 3]
        );
    }
    assert_eq!(step(&arena, 1010), settled);
}

#[test]
fn a_larger_step_grows_the_plan_at_once() {
    let arena = StepArena::new();
    let planned = |len| step(&arena, len).iter().map(|place| place.1).collect::<Vec<_>>();
    assert_eq!(planned(1024), [false; 3]);
    // An eighth more fits, more than that grows before the first take is served, and what is smaller stays in place.
    for (len, plans) in [
        (1024, 1),
        (1152, 1),
        (1153, 2),
        (1024, 2),
        (1328, 2),
        (100_000, 3),
        (7, 3),
    ] {
        assert_eq!(planned(len), [true; 3], "{len}");
        assert_eq!(arena.stats().plans, plans, "{len}");
    }
    let stats = arena.stats();
    assert_eq!((stats.own_takes, stats.planned_takes), (3, 21));
    assert!(stats.block >= 100_000 * 3 * 4);
}

#[test]
fn a_first_take_of_another_name_is_not_growth() {
    let arena = StepArena::new();
    step(&arena, 100);
    let lease = arena.take::<f32>("other", 1000).unwrap();
    assert!(!lease.is_planned());
    drop(lease);
    arena.end_step().unwrap();
    // A first take without bytes says nothing about the others.
    let arena = StepArena::new();
    for (len, planned) in [(0, false), (5, false), (5, true)] {
        let first = arena.take::<f32>("first", len).unwrap();
        let second = arena.take::<f32>("second", 10).unwrap();
        assert_eq!((first.is_planned(), second.is_planned()), (planned, planned));
        drop((first, second));
        arena.end_step().unwrap();
    }
}

#[test]
fn capacity_that_was_reserved_is_there() {
    let arena = StepArena::new();
    for len in [10, 5000, 1] {
        let lease = arena.take_reserving::<u16>("x", len, 5000).unwrap();
        assert_eq!((lease.len(), lease.is_planned()), (len, len != 10));
        drop(lease);
        arena.end_step().unwrap();
    }
    assert_eq!(arena.stats().plans, 1);
}

#[test]
fn another_sequence_is_noticed_and_planned_anew() {
    let arena = StepArena::new();
    step(&arena, 100);
    step(&arena, 100);
    for planned in [false, true] {
        let x = arena.take::<f32>("a", 100).unwrap();
        let y = arena.take::<f32>("other", 100).unwrap();
        let z = arena.take::<f32>("c", 100).unwrap();
        assert!(x.is_planned(), "the first take is as before");
        assert_eq!((y.is_planned(), z.is_planned()), (planned, planned));
        drop((x, y, z));
        arena.end_step().unwrap();
    }
    assert_eq!(arena.stats().plans, 2);
}

#[test]
fn a_buffer_that_lives_longer_than_planned_is_never_overwritten() {
    let arena = StepArena::new();
    for _ in 0..2 {
        drop(arena.take::<u8>("early", 256).unwrap());
        drop(arena.take::<u8>("late", 256).unwrap());
        arena.end_step().unwrap();
    }
    for round in 0..3 {
        // This time the first is alive while the second is taken, whose planned place is the same.
        let mut early = arena.take::<u8>("early", 256).unwrap();
        early.fill(7);
        let mut late = arena.take::<u8>("late", 256).unwrap();
        late.fill(9);
        assert!(early.iter().all(|&byte| byte == 7));
        assert_eq!(late.is_planned(), round > 0);
        drop((early, late));
        arena.end_step().unwrap();
    }
}

#[test]
fn a_step_does_not_end_under_living_leases() {
    let arena = StepArena::new();
    let lease = arena.take::<f32>("kept", 8).unwrap();
    let error = arena.end_step().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Outlived {
                name: "kept",
                leases: 1
            }
        ),
        "{error}"
    );
    drop(lease);
    arena.end_step().unwrap();
    // A lease may outlive the arena itself.
    let mut lease = arena.take::<f32>("kept", 8).unwrap();
    drop(arena);
    lease.fill(1.0);
    assert_eq!(lease[7], 1.0);
}

#[test]
fn limits_lengths_and_alignments_are_typed_errors() {
    let arena = StepArena::with_limit(4096);
    let held = arena.take::<u8>("held", 4000).unwrap();
    let error = arena.take::<u8>("more", 128).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Exhausted {
                asked: 128,
                in_use: 4032,
                limit: 4096,
                ..
            }
        ),
        "{error}"
    );
    drop(held);
    arena.take::<u8>("more", 128).unwrap();
    let arena = StepArena::new();
    assert!(matches!(
        arena.take::<f64>("x", usize::MAX / 4),
        Err(Error::TooLong { .. })
    ));
    assert!(matches!(
        arena.take::<u8>("x", isize::MAX as usize - (16 << 20)),
        Err(Error::Map { .. })
    ));
    // The failed takes left no trace.
    arena.end_step().unwrap();
    assert_eq!(arena.stats().peak, 0);
}

#[test]
fn marks_tell_the_most_by_name() {
    let arena = StepArena::new();
    let pair = (arena.take::<u8>("x", 64).unwrap(), arena.take::<u8>("x", 64).unwrap());
    drop(pair);
    drop(arena.take::<u8>("y", 1).unwrap());
    let marks: Vec<_> = arena
        .marks()
        .iter()
        .map(|mark| (mark.name, mark.peak, mark.takes))
        .collect();
    assert_eq!(marks, [("x", 128, 2), ("y", 64, 1)]);
}

#[test]
fn leases_go_to_other_threads() {
    let arena = StepArena::new();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for value in 0..4u32 {
                let arena = &arena;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let mut lease = arena.take::<u32>("shared name", 300).unwrap();
                        lease.fill(value);
                        assert!(lease.iter().all(|&x| x == value));
                    }
                });
            }
        });
        arena.end_step().unwrap();
    }
}

#[test]
fn random_steps_never_share_memory() {
    let seed = 0xa11c_0001_u64;
    eprintln!("seed {seed:#x}");
    let mut state = seed;
    let mut draw = |below: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 33) as usize) % below
    };
    const NAMES: [&str; 4] = ["p", "q", "r", "s"];
    let arena = StepArena::new();
    for step in 0..300 {
        let mut living: Vec<(Lease<u64>, u64)> = Vec::new();
        for take in 0..draw(30) {
            let stamp = (step * 1000 + take) as u64;
            // Mostly the same program, with changes of length, name and lifetime.
            let name = NAMES[if draw(40) == 0 { draw(4) } else { take % 4 }];
            let mut lease = arena.take::<u64>(name, 100 + draw(60)).unwrap();
            lease.fill(stamp);
            living.push((lease, stamp));
            while living.len() > 2 + draw(4) {
                let (lease, stamp) = living.swap_remove(draw(living.len()));
                assert!(lease.iter().all(|&word| word == stamp), "step {step}, take {take}");
            }
        }
        for (lease, stamp) in living.drain(..) {
            assert!(lease.iter().all(|&word| word == stamp), "step {step}");
        }
        arena.end_step().unwrap();
    }
    assert!(arena.stats().planned_takes > 100, "{:?}", arena.stats());
}

/// Minor page faults of this thread so far.
fn faults() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(7)?.parse().ok()
}

#[test]
fn a_planned_step_faults_no_page() {
    const LEN: usize = 4 << 20;
    let arena = StepArena::new();
    let step = || {
        let mut x = arena.take::<u8>("x", LEN).unwrap();
        let mut y = arena.take::<u8>("y", LEN).unwrap();
        for page in (0..LEN).step_by(4096) {
            x[page] = 1;
            y[page] = 2;
        }
        drop((x, y));
        arena.end_step().unwrap();
    };
    step();
    step();
    let Some(before) = faults() else {
        return eprintln!("skipped: this system does not count faults");
    };
    for _ in 0..10 {
        step();
    }
    let during = faults().unwrap() - before;
    // The reading of the counter itself may fault a page or two; the steps touch 20,480.
    assert!(during < 16, "{during} faults");
    eprintln!(
        "{} of {} bytes in huge pages",
        arena.huge_bytes().unwrap_or(0),
        arena.stats().block
    );
}
