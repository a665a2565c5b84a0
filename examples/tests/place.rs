//! The collectives worker of `squad_4node` runs on the CPU that the printed plan says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../squad_4node/place.rs"]
mod place;

use azulejo_collectives::launch::{Launch, Meeting};
use azulejo_collectives::{Options, threads_with};
use place::Place;

/// CPUs of the threads of this process whose name begins so, as the kernel lists them.
fn cpus_of_threads(name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if std::fs::read_to_string(task.join("comm")).unwrap().starts_with(name) {
            let status = std::fs::read_to_string(task.join("status")).unwrap();
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            found.push(list.unwrap().trim().to_owned());
        }
    }
    found
}

#[test]
fn the_collectives_worker_is_where_the_plan_says() {
    let launch = Launch {
        rank: 0,
        world_size: 2,
        local_rank: 0,
        local_size: 1,
        machine_rank: 0,
        machine_size: 1,
        meeting: Meeting::Unknown,
        secret: None,
        source: "a test",
    };
    let place = Place::of(&launch).unwrap();
    assert!(place.table.contains("rank 0: "), "{}", place.table);
    assert!(
        place.line().contains("collectives worker planned on CPU"),
        "{}",
        place.line()
    );
    let options = Options {
        start_hook: Some(place.worker_hook()),
        ..Options::default()
    };
    let ranks = threads_with(1, &options).unwrap();
    let line = place.line();
    eprintln!("{line}");
    let printed = line.split("collectives worker on CPU ").nth(1).unwrap();
    let printed = printed.split(';').next().unwrap();
    assert_eq!(cpus_of_threads("collectives"), [printed], "{line}");
    // What the plan has for threads that prepare data is the whole of the rank's part, and the worker's CPU is in it.
    let cpus = place.cpus().to_string();
    assert_eq!(cpus_of_threads("the_collectives"), [cpus], "this thread");
    assert_eq!(
        place.team().cpus.len(),
        place.team().cpus.iter().filter(|cpu| cpu.is_some()).count()
    );
    drop(ranks);
}
