//! Ranks that do not come, do not fit, do not know the secret or die: the others say who, and end.

#![allow(clippy::unwrap_used, reason = "test code")]

mod program;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use program::{LIMIT, Place, processes, run, start};

const SECRET: &str = "correct horse battery staple";
/// From the death of a rank to the end of the job.
const NOTICED: Duration = Duration::from_secs(10);

/// A port of this machine that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A rank as torchrun would start it.
fn rank(place: &Place, rank: usize, world: usize, port: u16) -> Command {
    let mut command = place.training();
    command
        .args(["--deadline", "60"])
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("AZULEJO_SECRET", SECRET);
    command
}

#[test]
fn ranks_that_fit_train() {
    let place = Place::new();
    let port = free_port();
    let other = start(&mut rank(&place, 1, 2, port));
    run(&mut rank(&place, 0, 2, port)).good();
    other.finish(LIMIT).good();
    assert!(place.path("out/model.safetensors").is_file());
    place.assert_tidy();
}

#[test]
fn a_port_that_is_taken() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ended = run(&mut rank(&place, 0, 2, address.port()));
    ended.failed(&[&format!("cannot listen on {address}"), "Address already in use"]);
    assert!(!place.path("out").exists());
}

#[test]
fn another_program_at_the_meeting_point() {
    let place = Place::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let rank = start(&mut rank(&place, 1, 2, port));
    let (mut stream, _) = server.accept().unwrap();
    let mut greeting = [0; 40];
    stream.read_exact(&mut greeting).unwrap();
    stream.write_all(&[b'x'; 400]).unwrap();
    rank.finish(LIMIT)
        .failed(&["in place of rank 0 is another program", &port.to_string()]);
}

#[test]
fn nobody_at_the_meeting_point() {
    let place = Place::new();
    let port = free_port();
    let ended = run(rank(&place, 1, 2, port).args(["--deadline", "1"]));
    ended.failed(&["rank 0 at 127.0.0.1", "does not answer", "Connection refused"]);
}

#[test]
fn a_rank_that_does_not_come() {
    let place = Place::new();
    let port = free_port();
    let one = start(rank(&place, 1, 3, port).args(["--deadline", "2"]));
    let ended = run(rank(&place, 0, 3, port).args(["--deadline", "2"]));
    ended.failed(&["rank 2 did not come", "1 of 2 came to rank 0"]);
    one.finish(LIMIT).failed(&["rank 2 did not come"]);
    assert!(!place.path("out").exists());
}

#[test]
fn a_rank_of_another_world_size() {
    let place = Place::new();
    let port = free_port();
    let other = start(&mut rank(&place, 1, 3, port));
    let words = ["rank 0 has a world of 2, rank 1", "one of 3"];
    run(&mut rank(&place, 0, 2, port)).failed(&words);
    other.finish(LIMIT).failed(&words);
    assert!(!place.path("out").exists());
}

#[test]
fn a_rank_that_is_there_already() {
    let place = Place::new();
    let port = free_port();
    let leader = start(&mut rank(&place, 0, 3, port));
    let ones = [
        start(&mut rank(&place, 1, 3, port)),
        start(&mut rank(&place, 1, 3, port)),
    ];
    let words = ["rank 0 expects no other rank 1"];
    leader.finish(LIMIT).failed(&words);
    let said = ones.map(|one| one.finish(LIMIT).err);
    assert!(said.iter().any(|err| err.contains(words[0])), "{said:?}");
}

#[test]
fn a_wrong_secret_is_turned_away_and_the_job_goes_on() {
    let place = Place::new();
    let port = free_port();
    let leader = start(&mut rank(&place, 0, 2, port));
    let wrong = run(rank(&place, 1, 2, port).env("AZULEJO_SECRET", "incorrect horse battery staple"));
    let wrong = wrong.failed(&["the secrets differ", "rank 0"]);
    assert!(!wrong.err.contains("horse"), "the secret is printed: {}", wrong.err);
    run(&mut rank(&place, 1, 2, port)).good();
    leader.finish(LIMIT).good();
}

#[test]
fn a_wrong_secret_alone() {
    let place = Place::new();
    let port = free_port();
    let leader = start(rank(&place, 0, 2, port).args(["--deadline", "3"]));
    run(rank(&place, 1, 2, port).env("AZULEJO_SECRET", "incorrect horse battery staple"))
        .failed(&["the secrets differ"]);
    leader
        .finish(LIMIT)
        .failed(&["rank 1 did not come", "1 connections did not prove the secret"]);
}

#[test]
fn variables_that_make_no_sense() {
    let place = Place::new();
    let port = free_port();
    let fails = |change: &[(&str, &str)], words: &[&str]| {
        let mut command = rank(&place, 1, 2, port);
        command.args(["--deadline", "5"]).envs(change.iter().copied());
        run(&mut command).failed(words);
    };
    fails(&[("RANK", "2")], &["RANK: rank 2 is no rank of a world of 2"]);
    fails(&[("RANK", "one")], &["RANK: expected a number, got \"one\""]);
    fails(&[("WORLD_SIZE", "0")], &["RANK: rank 1 is no rank of a world of 0"]);
    fails(&[("WORLD_SIZE", "-2")], &["WORLD_SIZE: expected a number"]);
    fails(&[("WORLD_SIZE", "999999999999")], &["WORLD_SIZE", "at most"]);
    fails(
        &[("MASTER_PORT", "http")],
        &["MASTER_PORT: expected a number, got \"http\""],
    );
    fails(
        &[("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "2")],
        &["LOCAL_RANK: 3 does not fit LOCAL_WORLD_SIZE=2"],
    );
    fails(&[("AZULEJO_SECRET", "short")], &["the job's secret: it has 5 bytes"]);
    fails(
        &[("AZULEJO_SECRET", ""), ("AZULEJO_SECRET_FILE", "none")],
        &["the job's secret: none: No such file"],
    );
    fails(&[("AZULEJO_SECRET", "")], &["the job's secret", "AZULEJO_SECRET_FILE"]);
    let elsewhere = [("MASTER_ADDR", ""), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    fails(&elsewhere, &["MASTER_ADDR", "rank 0's node"]);
    fails(
        &[("OMP_NUM_THREADS", "lots")],
        &["OMP_NUM_THREADS: expected a number of threads"],
    );
    fails(&[("KMP_HW_SUBSET", "9z")], &["KMP_HW_SUBSET"]);
    fails(&[("CCL_WORKER_AFFINITY", "x")], &["CCL_WORKER_AFFINITY"]);
}

#[test]
fn host_files_that_are_none() {
    let place = Place::new();
    place.write_bytes("hosts", b"node0 slots=2\nnode1 slots=many\n");
    let fails = |file: &str, words: &[&str]| {
        run(place.training().args(["--hostfile", file])).failed(words);
    };
    fails("none", &["cannot read the host file none", "No such file"]);
    fails("hosts", &["host file, line 2", "slots=", "\"many\""]);
    place.write_bytes("hosts", b"# nobody\n");
    fails("hosts", &["names no host"]);
    place.write_bytes("hosts", b"-oProxyCommand=date\n");
    fails("hosts", &["host file, line 1", "is no host name"]);
}

/// Long enough to be killed in the middle.
const ENDLESS: [&str; 6] = ["--max_steps", "1000000", "--save_steps", "5", "--save_total_limit", "3"];

#[test]
fn a_rank_that_is_killed_ends_the_job() {
    let place = Place::new();
    let job = start(place.training().args(ENDLESS).args(["--nodes", "2", "--ppn", "2"]));
    let ranks = processes::children(&job);
    assert_eq!(ranks.len(), 4);
    job.wait_for_checkpoint(&place);
    let killed = ranks
        .iter()
        .find(|rank| rank.variable("RANK").as_deref() == Some("2"))
        .unwrap();
    killed.signal("KILL");
    let at = Instant::now();
    let ended = job.finish(NOTICED).with(137, &["rank 2 was ended by signal 9"]);
    assert!(at.elapsed() < NOTICED);
    assert!(
        ended.count("rank 2 closed its connection") >= 3,
        "the other ranks name it too:\n{}",
        ended.err
    );
    assert!(ranks.iter().all(|rank| !rank.runs()), "processes are left");
    // The saved state is whole: the job goes on from it.
    let last = place.last_checkpoint("out");
    let more = (last + 2).to_string();
    let again = run(place.training().args([
        "--resume_from_checkpoint",
        "--gradient_accumulation_steps",
        "4",
        "--max_steps",
        &more,
    ]))
    .good();
    assert!(again.out.contains(&format!("after step {last}")), "{}", again.out);
    assert!(place.contents("tmp").is_empty());
}

#[test]
fn a_rank_that_is_killed_ends_the_others_without_a_launcher() {
    let place = Place::new();
    let port = free_port();
    let ranks: Vec<_> = (0..3).map(|i| start(rank(&place, i, 3, port).args(ENDLESS))).collect();
    ranks[0].wait_for_checkpoint(&place);
    let mut ranks = ranks.into_iter();
    let (zero, one, two) = (ranks.next().unwrap(), ranks.next().unwrap(), ranks.next().unwrap());
    processes::signal(one.id(), "KILL");
    let at = Instant::now();
    for survivor in [zero, two] {
        let ended = survivor.finish(NOTICED);
        assert!(ended.status.is_some_and(|status| status != 0), "{ended:?}");
        assert!(
            ended.err.contains("error: ") && ended.err.contains("rank 1"),
            "{}",
            ended.err
        );
        assert!(!ended.err.contains("panicked"), "{}", ended.err);
    }
    assert!(at.elapsed() < NOTICED);
}
