//! The team: every member once a round, panics carried out, nested use serial, oversubscription harmless.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use azulejo_topology::{CpuSet, Error, Spin, Team, TeamConfig, allowed_cpus};

fn team(threads: usize, spin: Spin) -> Team {
    Team::new(TeamConfig {
        spin,
        ..TeamConfig::unpinned(threads)
    })
    .unwrap()
}

/// Every way of waiting that has code of its own.
const SPINS: [Spin; 3] = [Spin::Auto, Spin::Never, Spin::For(Duration::from_micros(20))];

#[test]
fn a_team_of_one_runs_on_the_calling_thread() {
    let team = team(1, Spin::Auto);
    let here = std::thread::current().id();
    let calls = AtomicUsize::new(0);
    team.run(&|member| {
        assert_eq!(member, 0);
        assert_eq!(std::thread::current().id(), here);
        calls.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(calls.into_inner(), 1);
}

#[test]
fn every_member_is_called_once_a_round_on_its_own_thread() {
    for spin in SPINS {
        for threads in [2, 3, 7] {
            let team = team(threads, spin);
            assert_eq!(team.threads(), threads);
            let ids: Vec<std::sync::Mutex<Option<ThreadId>>> = (0..threads).map(|_| Default::default()).collect();
            for round in 0..300 {
                let calls: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
                team.run(&|member| {
                    calls[member].fetch_add(1, Ordering::Relaxed);
                    let id = std::thread::current().id();
                    assert_eq!(*ids[member].lock().unwrap().get_or_insert(id), id);
                });
                for (member, count) in calls.iter().enumerate() {
                    assert_eq!(
                        count.load(Ordering::Relaxed),
                        1,
                        "{spin:?}, round {round}, member {member}"
                    );
                }
            }
            let distinct: std::collections::HashSet<_> = ids.iter().map(|id| id.lock().unwrap().unwrap()).collect();
            assert_eq!(distinct.len(), threads);
        }
    }
}

#[test]
fn members_really_run_at_the_same_time() {
    let team = team(4, Spin::Auto);
    let meeting = Barrier::new(4);
    team.run(&|_| {
        meeting.wait();
    });
}

#[test]
fn writes_of_members_are_visible_after_the_round() {
    let team = team(3, Spin::For(Duration::from_micros(50)));
    let mut parts = vec![0u64; 3];
    for round in 1..200u64 {
        let cells: Vec<_> = parts.iter_mut().map(std::sync::Mutex::new).collect();
        team.run(&|member| **cells[member].lock().unwrap() += round * (member as u64 + 1));
    }
    let sum: u64 = (1..200).sum();
    assert_eq!(parts, [sum, sum * 2, sum * 3]);
}

#[test]
fn a_panic_reaches_the_caller_after_all_have_finished_and_the_team_stays_usable() {
    for spin in SPINS {
        let team = team(4, spin);
        for panicking in 0..4 {
            let finished = AtomicUsize::new(0);
            let caught = catch_unwind(AssertUnwindSafe(|| {
                team.run(&|member| {
                    if member == panicking {
                        std::panic::resume_unwind(Box::new(format!("member {member} failed")));
                    }
                    finished.fetch_add(1, Ordering::Relaxed);
                });
            }));
            let payload = caught.unwrap_err();
            assert_eq!(
                payload.downcast_ref::<String>().unwrap(),
                &format!("member {panicking} failed")
            );
            assert_eq!(finished.into_inner(), 3);
        }
        // All at once: the lowest member's payload comes out.
        let caught = catch_unwind(|| team.run(&|member| std::panic::resume_unwind(Box::new(member))));
        assert_eq!(caught.unwrap_err().downcast_ref::<usize>(), Some(&0));
        let calls = AtomicUsize::new(0);
        team.run(&|_| {
            calls.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(calls.into_inner(), 4);
    }
}

#[test]
fn a_nested_run_is_serial_on_the_thread_that_makes_it() {
    let outer = team(3, Spin::Never);
    let other = team(2, Spin::Never);
    let calls = AtomicUsize::new(0);
    outer.run(&|_| {
        let here = std::thread::current().id();
        for team in [&outer, &other] {
            let order = std::sync::Mutex::new(Vec::new());
            team.run(&|member| {
                assert_eq!(std::thread::current().id(), here);
                order.lock().unwrap().push(member);
                calls.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(order.into_inner().unwrap(), (0..team.threads()).collect::<Vec<_>>());
        }
    });
    assert_eq!(calls.into_inner(), 3 * (3 + 2));
    // The caller is no longer in a round: a plain run uses all threads again.
    let meeting = Barrier::new(3);
    outer.run(&|_| {
        meeting.wait();
    });
}

#[test]
fn a_panic_in_a_nested_run_comes_out_after_all_its_calls() {
    let team = team(3, Spin::Never);
    let calls = AtomicUsize::new(0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        team.run(&|outer| {
            if outer == 1 {
                team.run(&|inner| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    if inner == 0 {
                        std::panic::resume_unwind(Box::new("inner"));
                    }
                });
            }
        });
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"inner"));
    assert_eq!(calls.into_inner(), 3);
}

#[test]
fn threads_that_share_a_team_do_not_wait_for_each_other() {
    let team = team(3, Spin::Never);
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    team.run(&|_| {
                        calls.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(calls.into_inner(), 4 * 200 * 3);
}

#[test]
fn a_thread_started_inside_a_round_may_use_the_team() {
    let team = team(2, Spin::Never);
    let calls = AtomicUsize::new(0);
    team.run(&|_| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                team.run(&|_| {
                    calls.fetch_add(1, Ordering::Relaxed);
                })
            });
        });
    });
    assert_eq!(calls.into_inner(), 2 * 2);
}

#[test]
fn many_teams_on_few_cpus_finish() {
    // Eight teams of four on whatever there is: far more threads than CPUs on most machines that run tests.
    let calls = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for index in 0..8 {
            let calls = &calls;
            scope.spawn(move || {
                let team = team(4, SPINS[index % 3]);
                for _ in 0..100 {
                    team.run(&|_| {
                        calls.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(calls.into_inner(), 8 * 4 * 100);
}

#[test]
fn dropping_a_team_joins_its_threads() {
    for _ in 0..50 {
        let team = team(3, Spin::Auto);
        team.run(&|_| {});
        drop(team);
        // A team that never ran ends as well.
        drop(self::team(3, Spin::Never));
    }
}

#[test]
fn members_run_where_they_are_pinned() {
    // A thread of its own, because the caller is pinned as well and tests share the process.
    std::thread::spawn(|| {
        let allowed = match allowed_cpus() {
            Ok(allowed) => allowed,
            Err(error) => return eprintln!("skipped: no affinity here: {error}"),
        };
        let team = Team::new(TeamConfig::pinned(&allowed)).unwrap();
        let cpus: Vec<usize> = allowed.iter().collect();
        team.run(&|member| assert_eq!(allowed_cpus().unwrap(), CpuSet::single(cpus[member])));
    })
    .join()
    .unwrap();
}

#[test]
fn a_team_that_cannot_be_made_says_why() {
    assert!(matches!(Team::new(TeamConfig::default()), Err(Error::EmptyTeam)));
    if allowed_cpus().is_err() {
        return eprintln!("skipped: no affinity here");
    }
    for absent in [1023, 60_000] {
        let config = TeamConfig {
            cpus: vec![None, Some(absent)],
            spin: Spin::Auto,
        };
        let error = Team::new(config).unwrap_err();
        assert!(
            matches!(error, Error::TeamPin { member: 1, cpu, .. } if cpu == absent),
            "{error}"
        );
    }
}
