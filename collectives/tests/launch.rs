//! Each launcher's variables, their precedence, host files, and jobs of real processes.

#![allow(clippy::unwrap_used, reason = "test code")]
#![allow(clippy::print_stdout, reason = "the processes under test talk to the test")]

#[path = "common/processes.rs"]
mod processes;

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use azulejo_collectives::launch::{
    Host, Launch, Local, Meeting, Remote, Role, STATUS_PEER_LOST, detect, detect_in, parse_host_file, place,
};
use azulejo_collectives::{Backend, Options, ReduceOp, connect};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

const LIMIT: Duration = Duration::from_secs(20);

fn role(variables: &[(&str, &str)]) -> Result<Role, String> {
    let lookup = |name: &str| {
        variables
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, value)| (*value).to_string())
    };
    detect_in(&lookup).map_err(|e| e.to_string())
}

fn rank(variables: &[(&str, &str)]) -> Launch {
    match role(variables) {
        Ok(Role::Rank(launch)) => launch,
        other => panic!("expected a rank, got {other:?}"),
    }
}

fn at(host: &str, port: u16) -> Meeting {
    Meeting::Address {
        host: host.into(),
        port,
    }
}

const SECRET: (&str, &str) = ("AZULEJO_SECRET", "correct horse battery staple");

#[test]
fn nothing_set_is_nobody() {
    assert_eq!(role(&[]), Ok(Role::Unassigned));
    // Anybody may have a variable of one of these names.
    assert_eq!(role(&[("RANK", "captain")]), Ok(Role::Unassigned));
}

#[test]
fn torchrun() {
    let launch = rank(&[
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("GROUP_RANK", "2"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("MASTER_PORT", "29400"),
        SECRET,
    ]);
    assert_eq!(
        (launch.rank, launch.world_size, launch.local_rank, launch.local_size),
        (5, 8, 1, 2)
    );
    assert_eq!(launch.meeting, at("10.0.0.1", 29400));
    assert!(launch.secret.is_some());
}

#[test]
fn a_local_torchrun_without_a_secret_meets_through_a_file_of_the_user() {
    let launch = rank(&[
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29400"),
    ]);
    assert!(matches!(launch.meeting, Meeting::File(_)), "{launch:?}");
}

#[test]
fn a_pytorch_job_with_one_process_a_replica() {
    let launch = rank(&[
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("MASTER_ADDR", "job-master-0"),
        ("MASTER_PORT", "23456"),
        ("PET_NNODES", "4"),
        ("PET_NODE_RANK", "3"),
        ("PET_NPROC_PER_NODE", "1"),
        ("PET_MASTER_ADDR", "job-master-0"),
        ("PET_MASTER_PORT", "23456"),
        SECRET,
    ]);
    assert_eq!((launch.rank, launch.world_size, launch.local_size), (3, 4, 1));
    assert_eq!(launch.meeting, at("job-master-0", 23456));
}

#[test]
fn a_pytorch_job_with_several_processes_a_replica_starts_them() {
    let variables = [
        ("RANK", "1"),
        ("WORLD_SIZE", "8"),
        ("PET_NNODES", "4"),
        ("PET_NODE_RANK", "1"),
        ("PET_NPROC_PER_NODE", "2"),
        ("PET_MASTER_ADDR", "job-master-0"),
        ("PET_MASTER_PORT", "23456"),
        SECRET,
    ];
    let Ok(Role::Node(share)) = role(&variables) else {
        panic!("expected a node, got {:?}", role(&variables))
    };
    assert_eq!((share.node, share.nodes, share.ranks_per_node), (1, 4, 2));
    let lines = Local::share("program", &share).dry_run();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].contains("RANK=2 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2"),
        "{}",
        lines[0]
    );
    assert!(
        lines[1].contains("RANK=3 ") && lines[1].contains("MASTER_ADDR=job-master-0"),
        "{}",
        lines[1]
    );
    // Under torchrun, which has started this process, it is a rank.
    let under = [variables.as_slice(), &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")]].concat();
    assert_eq!(rank(&under).rank, 1);
}

#[test]
fn open_mpi_and_hydra() {
    let launch = rank(&[
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "prterun-host-1@1"),
    ]);
    assert_eq!(
        (launch.rank, launch.world_size, launch.local_rank, launch.local_size),
        (2, 4, 2, 4)
    );
    assert!(
        launch.meeting.to_string().ends_with("meeting-prterun-host-1-1"),
        "{}",
        launch.meeting
    );
    let hydra = [
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "2"),
    ];
    let launch = rank(&hydra);
    assert_eq!((&launch.meeting, launch.by_mpi()), (&Meeting::Unknown, true));
    let options = Options {
        backend: Backend::Tcp,
        ..Options::default()
    };
    let text = connect(&launch, &options).unwrap_err().to_string();
    assert!(text.contains("MASTER_ADDR") && text.contains("several nodes"), "{text}");
    let with_address = [
        hydra.as_slice(),
        &[("MASTER_ADDR", "fd00::7"), ("MASTER_PORT", "5000"), SECRET],
    ]
    .concat();
    let launch = rank(&with_address);
    assert_eq!((launch.local_rank, launch.local_size), (1, 2));
    assert_eq!(launch.meeting.to_string(), "[fd00::7]:5000");
}

#[test]
fn slurm_needs_a_step() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")];
    assert_eq!(role(&batch), Ok(Role::Unassigned));
    let step = [
        ("SLURM_PROCID", "3"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
        ("MASTER_ADDR", "node1"),
        SECRET,
    ];
    let launch = rank(&step);
    assert_eq!((launch.rank, launch.local_rank, launch.local_size), (3, 1, 2));
    assert_eq!(launch.meeting, at("node1", 29500));
}

#[test]
fn bad_variables_name_themselves() {
    let cases: [(&[(&str, &str)], &str); 5] = [
        (
            &[("RANK", "x"), ("WORLD_SIZE", "2")],
            "RANK: expected a number, got \"x\"",
        ),
        (
            &[("RANK", "2"), ("WORLD_SIZE", "2")],
            "RANK: rank 2 is no rank of a world of 2",
        ),
        (&[("PMI_RANK", "0")], "PMI_SIZE: it is not set, but PMI_RANK is"),
        (
            &[("PET_NNODES", "two"), ("PET_NODE_RANK", "0")],
            "PET_NNODES: expected a number of nodes",
        ),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")],
            "RANK says rank 0 of 2, PMI_RANK says rank 1 of 2",
        ),
    ];
    for (variables, expected) in cases {
        let text = role(variables).unwrap_err();
        assert!(text.contains(expected), "{text} for {expected}");
    }
}

#[test]
fn host_files_of_both_dialects() {
    let text = "# nodes\nnode1:2\nnode2 slots=4 max_slots=8 # fast\n\n10.0.0.3\n[fe80::1]:3\nfe80::2\nnode1:1\n";
    let host = |name: &str, slots| Host {
        name: name.into(),
        slots,
    };
    let expected = [
        host("node1", Some(3)),
        host("node2", Some(4)),
        host("10.0.0.3", None),
        host("fe80::1", Some(3)),
        host("fe80::2", None),
    ];
    assert_eq!(parse_host_file(text).unwrap(), expected);
    for (text, line, word) in [
        ("", 0, "names no host"),
        ("a\nb:x", 2, "\"x\""),
        ("a slots=slots", 1, "slots="),
        ("a:0", 1, "positive"),
        ("a what", 1, "not understood"),
        ("-oProxyCommand=x", 1, "no host name"),
        ("a;b", 1, "no host name"),
    ] {
        let error = parse_host_file(text).unwrap_err().to_string();
        assert!(
            error.contains(&format!("line {line}")) && error.contains(word),
            "{error} for {text:?}"
        );
    }
}

#[test]
fn ranks_are_dealt_as_hydra_does() {
    let hosts = parse_host_file("a:2\nb:1").unwrap();
    assert_eq!(place(&hosts, 3, None), [0, 0, 1]);
    assert_eq!(place(&hosts, 5, None), [0, 0, 1, 0, 0]);
    assert_eq!(place(&hosts, 4, Some(2)), [0, 0, 1, 1]);
    assert_eq!(place(&hosts, 2, Some(usize::MAX)), [0, 0]);
}

#[test]
fn a_dry_run_over_ssh_shows_commands_without_the_secret() {
    let hosts = parse_host_file("user@a\nb").unwrap();
    let job = Remote::new("/opt/it's here", hosts, 4, Some(2))
        .arguments(["--x", "a b"])
        .variable("K", "v w")
        .port(7000);
    let lines = job.dry_run();
    assert_eq!(lines.len(), 4);
    assert!(
        lines[3].starts_with("ssh -o BatchMode=yes -o StrictHostKeyChecking=yes"),
        "{}",
        lines[3]
    );
    for word in [
        " b ",
        "RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
        "MASTER_ADDR=a MASTER_PORT=7000",
    ] {
        assert!(lines[3].contains(word), "{word:?} in {}", lines[3]);
    }
    assert!(lines.iter().all(|line| !line.contains("SECRET")), "{lines:?}");
}

/// Not a test of its own: what the processes run that the tests below start.
#[test]
fn started_process() {
    let Some(mode) = processes::mode() else { return };
    let folder = std::env::var("FOLDER").unwrap_or_default();
    let program = std::env::current_exe().unwrap();
    let arguments = ["started_process", "--exact", "--nocapture", "--test-threads=1"];
    if let Some(mode) = mode.strip_prefix("launch ") {
        let job = Local::new(program, 2, 2)
            .arguments(arguments)
            .variable(processes::MODE, mode);
        let outcome = job.run().unwrap();
        eprintln!("outcome: {outcome:?}");
        std::process::exit(outcome.status);
    }
    if let Some(mode) = mode.strip_prefix("remote ") {
        // In place of ssh: a shell that ignores the host's name.
        let hosts = parse_host_file("127.0.0.1:2").unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let job = Remote::new(program, hosts, 2, None).port(port).arguments(arguments);
        let job = job
            .shell(["sh", "-c", "exec sh -c \"$1\""])
            .variable(processes::MODE, mode);
        let outcome = job.variable("FOLDER", folder).run().unwrap();
        std::process::exit(outcome.status);
    }
    let Ok(Role::Rank(launch)) = detect() else {
        panic!("the launcher describes a rank")
    };
    let interrupted = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let flag = interrupted.clone();
    signal_hook::flag::register_usize(signal_hook::consts::SIGINT, flag, 1).unwrap();
    let comm = connect(&launch, &Options::default()).unwrap();
    println!(
        "\nhello from {} of node {}",
        comm.rank(),
        std::env::var("GROUP_RANK").unwrap()
    );
    if !folder.is_empty() {
        std::fs::write(format!("{folder}/pid{}", comm.rank()), std::process::id().to_string()).unwrap();
    }
    let mut sum = [comm.rank() as u32];
    let lost = |error: azulejo_collectives::Error| -> ! {
        println!("\nsaw: {error}");
        std::process::exit(STATUS_PEER_LOST);
    };
    comm.all_reduce(&mut sum, ReduceOp::Sum)
        .unwrap_or_else(|error| lost(error));
    assert_eq!(sum[0] as usize, comm.world_size() * (comm.world_size() - 1) / 2);
    match mode.as_str() {
        "work" => {}
        "fail" if comm.rank() == 1 => std::process::exit(7),
        _ => {
            // Until somebody ends it; the ranks agree on the step in which they stop.
            loop {
                let mut stop = [interrupted.load(std::sync::atomic::Ordering::Relaxed) as u32];
                comm.all_reduce(&mut stop, ReduceOp::Max)
                    .unwrap_or_else(|error| lost(error));
                if stop[0] > 0 {
                    std::fs::write(format!("{folder}/saved{}", comm.rank()), "saved").unwrap();
                    // Leaving without a goodbye would look like dying.
                    drop(comm);
                    std::process::exit(130);
                }
            }
        }
    }
}

fn launcher(mode: &str, folder: &std::path::Path) -> std::process::Child {
    let mut command = processes::myself("started_process", mode);
    command
        .env("FOLDER", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait(mut child: std::process::Child) -> (Option<i32>, String) {
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let text = std::thread::scope(|scope| {
        let errors = scope.spawn(move || {
            let mut text = String::new();
            err.read_to_string(&mut text).unwrap();
            text
        });
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        text + &errors.join().unwrap()
    });
    (child.wait().unwrap().code(), text)
}

/// The process numbers of `world` ranks, once all have written them.
fn pids(folder: &std::path::Path, world: usize) -> Vec<Pid> {
    let end = Instant::now() + LIMIT;
    let read = |rank| {
        std::fs::read_to_string(folder.join(format!("pid{rank}")))
            .ok()?
            .parse()
            .ok()
    };
    loop {
        let found: Vec<i32> = (0..world).filter_map(read).collect();
        if found.len() == world {
            return found.into_iter().map(|pid| Pid::from_raw(pid).unwrap()).collect();
        }
        assert!(
            Instant::now() < end,
            "only {} of {world} ranks have started",
            found.len()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn all_gone(pids: &[Pid]) {
    let end = Instant::now() + LIMIT;
    // A process that has ended and is not yet waited for by the system counts as gone.
    let state = |pid: &Pid| std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    let runs = |pid: &Pid| test_kill_process(*pid).is_ok() && !state(pid).contains(") Z ");
    while pids.iter().any(runs) {
        assert!(Instant::now() < end, "ranks are left behind");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_local_job_works_and_its_output_is_marked() {
    let folder = tempfile::tempdir().unwrap();
    let (status, text) = wait(launcher("launch work", folder.path()));
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("\nhello from 0 of node 0"), "{text}");
    for (rank, node) in [(1, 0), (2, 1), (3, 1)] {
        assert!(
            text.contains(&format!("[rank {rank}] hello from {rank} of node {node}\n")),
            "{text}"
        );
    }
}

#[test]
fn the_first_failure_ends_the_job_with_its_status() {
    let folder = tempfile::tempdir().unwrap();
    let (status, text) = wait(launcher("launch fail", folder.path()));
    assert_eq!(status, Some(7), "{text}");
    assert!(text.contains("ended with status 7"), "{text}");
    for rank in [2, 3] {
        assert!(
            text.contains(&format!("[rank {rank}] saw: rank 1 closed its connection")),
            "{text}"
        );
    }
    all_gone(&pids(folder.path(), 4));
}

#[test]
fn a_killed_rank_ends_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let job = launcher("launch forever", folder.path());
    let ranks = pids(folder.path(), 4);
    kill_process(ranks[3], Signal::KILL).unwrap();
    let (status, text) = wait(job);
    assert_eq!(status, Some(137), "{text}");
    assert!(text.contains("saw: rank 3 closed its connection"), "{text}");
    all_gone(&ranks);
}

#[test]
fn ctrl_c_lets_ranks_save_and_gives_130() {
    let folder = tempfile::tempdir().unwrap();
    let job = launcher("launch forever", folder.path());
    let ranks = pids(folder.path(), 4);
    kill_process(Pid::from_raw(job.id() as i32).unwrap(), Signal::INT).unwrap();
    let (status, text) = wait(job);
    assert_eq!(status, Some(130), "{text}");
    for rank in 0..4 {
        assert!(
            folder.path().join(format!("saved{rank}")).exists(),
            "rank {rank} has not saved\n{text}"
        );
    }
    all_gone(&ranks);
}

#[test]
fn a_killed_launcher_leaves_nobody_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = launcher("launch forever", folder.path());
    let ranks = pids(folder.path(), 4);
    job.kill().unwrap();
    job.wait().unwrap();
    all_gone(&ranks);
}

#[test]
fn ranks_behind_a_remote_shell_work_and_end_with_the_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let (status, text) = wait(launcher("remote work", folder.path()));
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("[rank 1] hello from 1"), "{text}");

    let folder = tempfile::tempdir().unwrap();
    let job = launcher("remote forever", folder.path());
    let ranks = pids(folder.path(), 2);
    kill_process(Pid::from_raw(job.id() as i32).unwrap(), Signal::INT).unwrap();
    let (status, text) = wait(job);
    assert_eq!(status, Some(130), "{text}");
    assert!(folder.path().join("saved1").exists(), "{text}");
    all_gone(&ranks);

    let folder = tempfile::tempdir().unwrap();
    let mut job = launcher("remote forever", folder.path());
    let ranks = pids(folder.path(), 2);
    job.kill().unwrap();
    job.wait().unwrap();
    all_gone(&ranks);
}
