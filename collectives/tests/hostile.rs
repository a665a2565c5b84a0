//! Strangers while the ranks meet: nobody without the secret joins, blocks or crashes the job; who knows the secret
//! but does not fit is told why, on both sides.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use azulejo_collectives::launch::{Launch, Meeting};
use azulejo_collectives::{Communicator, Error, Options, Secret, connect};

/// A port of the loopback interface that was free a moment ago, and stays reserved for nobody: tests that lose it to
/// another program fail loudly.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn secret() -> Secret {
    Secret::new("correct horse battery staple").unwrap()
}

fn launch(rank: usize, world: usize, port: u16) -> Launch {
    Launch {
        rank,
        world_size: world,
        local_rank: rank,
        local_size: world,
        machine_rank: rank,
        machine_size: world,
        meeting: Meeting::Address {
            host: "127.0.0.1".into(),
            port,
        },
        secret: Some(secret()),
        source: "test",
    }
}

fn options(seconds: u64) -> Options {
    Options {
        join_deadline: Duration::from_secs(seconds),
        ..Options::default()
    }
}

/// Connects as soon as rank 0 listens.
fn stranger(port: u16) -> TcpStream {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))) {
            Ok(stream) => return stream,
            Err(e) => assert!(Instant::now() < end, "rank 0 does not listen: {e}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn both_meet(ranks: Vec<Result<Communicator, Error>>) {
    std::thread::scope(|scope| {
        for comm in ranks {
            let comm = comm.unwrap();
            scope.spawn(move || assert_eq!(comm.all_gather(&[comm.rank() as u8]).unwrap(), [0, 1]));
        }
    });
}

#[test]
fn strangers_of_every_kind_do_not_hinder_the_job() {
    let port = free_port();
    let ranks = std::thread::scope(|scope| {
        let zero = scope.spawn(move || connect(&launch(0, 2, port), &options(60)));
        // Silent ones, more than may be pending, held open through the whole meeting.
        let silent: Vec<TcpStream> = (0..70).map(|_| stranger(port)).collect();
        drop(silent);
        let kept: Vec<TcpStream> = (0..10).map(|_| stranger(port)).collect();
        // Random bytes, a huge length after a good greeting, a greeting that breaks off, a web browser.
        let greeting = [b"azulejo\n".as_slice(), &[7; 32]].concat();
        let noise: Vec<u8> = (0..5000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let huge = [greeting.as_slice(), &u32::MAX.to_le_bytes(), &[0; 100]].concat();
        let wrong_proof = [greeting.as_slice(), &4_u32.to_le_bytes(), &[0; 36]].concat();
        for bytes in [
            noise.as_slice(),
            &huge,
            &wrong_proof,
            &greeting[..20],
            b"GET / HTTP/1.1\r\n\r\n",
        ] {
            let mut stream = stranger(port);
            // Rank 0 may have closed already.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() <= 41, "a stranger got {} bytes", answer.len());
        }
        let one = connect(&launch(1, 2, port), &options(60));
        let ranks = vec![zero.join().unwrap(), one];
        drop(kept);
        ranks
    });
    both_meet(ranks);
}

#[test]
fn a_recorded_handshake_is_worth_nothing() {
    // A proxy in the middle records what rank 1 says; rank 1 joins through it, and its words are said again.
    let (port, proxy_port) = (free_port(), free_port());
    let proxy = TcpListener::bind(("127.0.0.1", proxy_port)).unwrap();
    let (recorded, zero, one) = std::thread::scope(|scope| {
        // A world of three, so that rank 0 still listens when the words are said again.
        let zero = scope.spawn(move || connect(&launch(0, 3, port), &options(3)));
        let one = scope.spawn(move || connect(&launch(1, 3, proxy_port), &options(3)));
        let (mut from, _) = proxy.accept().unwrap();
        let mut to = stranger(port);
        let (mut from_back, mut to_back) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        scope.spawn(move || std::io::copy(&mut to_back, &mut from_back));
        let mut recorded = Vec::new();
        let mut bytes = [0; 4096];
        // Greeting and introduction; the introduction ends with its proof.
        while recorded.len() < 40 + 4 + 20 + 32 {
            let n = from.read(&mut bytes).unwrap();
            assert_ne!(n, 0, "rank 1 broke off");
            recorded.extend(&bytes[..n]);
            to.write_all(&bytes[..n]).unwrap();
        }
        let mut again = stranger(port);
        again.write_all(&recorded).unwrap();
        let mut answer = Vec::new();
        let _ = again.read_to_end(&mut answer);
        // A greeting and the refusal of the proof.
        assert_eq!(answer.len(), 41);
        assert_eq!(answer[40], 0);
        let (zero, one) = (zero.join().unwrap(), one.join().unwrap());
        let _ = to.shutdown(std::net::Shutdown::Both);
        (recorded, zero, one)
    });
    assert!(recorded.starts_with(b"azulejo\n"));
    // Rank 2 never came; both who did name it, and rank 0 has counted the stranger.
    for error in [zero.unwrap_err(), one.unwrap_err()] {
        let text = error.to_string();
        assert!(
            text.contains("rank 2 did not come") && text.contains("1 connections did not prove"),
            "{text}"
        );
    }
}

#[test]
fn a_wrong_secret_is_said_at_once_and_the_job_goes_on() {
    let port = free_port();
    let ranks = std::thread::scope(|scope| {
        let zero = scope.spawn(move || connect(&launch(0, 2, port), &options(60)));
        let wrong = Secret::new("not the same secret").unwrap();
        let error = connect(
            &Launch {
                secret: Some(wrong),
                ..launch(1, 2, port)
            },
            &options(60),
        )
        .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rank 0") && text.contains("the secrets differ"), "{text}");
        assert!(!text.contains("horse") && !text.contains("not the same"), "{text}");
        let one = connect(&launch(1, 2, port), &options(60));
        vec![zero.join().unwrap(), one]
    });
    both_meet(ranks);
}

#[test]
fn another_world_size_is_an_error_on_both_sides() {
    let port = free_port();
    let (zero, one) = std::thread::scope(|scope| {
        let zero = scope.spawn(move || connect(&launch(0, 2, port), &options(60)));
        let one = connect(&launch(1, 3, port), &options(60));
        (zero.join().unwrap(), one)
    });
    for error in [zero.unwrap_err(), one.unwrap_err()] {
        let text = error.to_string();
        assert!(text.contains("a world of 2") && text.contains("one of 3"), "{text}");
    }
}

#[test]
fn a_rank_that_comes_twice_is_an_error_on_both_sides() {
    let port = free_port();
    let (zero, twice) = std::thread::scope(|scope| {
        let zero = scope.spawn(move || connect(&launch(0, 3, port), &options(60)));
        let one = scope.spawn(move || connect(&launch(1, 3, port), &options(60)));
        let again = connect(&launch(1, 3, port), &options(60));
        (zero.join().unwrap(), [one.join().unwrap(), again])
    });
    let text = zero.unwrap_err().to_string();
    assert!(text.contains("no other rank 1"), "{text}");
    let texts = twice.map(|result| result.unwrap_err().to_string());
    assert!(texts.iter().all(|text| text.contains("no other rank 1")), "{texts:?}");
}

#[test]
fn absent_ranks_are_named_to_all_who_came() {
    let port = free_port();
    let errors: Vec<String> = std::thread::scope(|scope| {
        let join = |rank| scope.spawn(move || connect(&launch(rank, 5, port), &options(1)).unwrap_err().to_string());
        let ranks = [join(0), join(2)];
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for text in errors {
        assert!(text.contains("ranks 1, 3 and 4 did not come"), "{text}");
    }
}

#[test]
fn without_rank_0_the_others_say_so() {
    let port = free_port();
    let text = connect(&launch(1, 2, port), &options(1)).unwrap_err().to_string();
    assert!(
        text.contains(&format!("rank 0 at 127.0.0.1:{port} does not answer")),
        "{text}"
    );
}

#[test]
fn a_taken_port_is_said() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let text = connect(&launch(0, 2, port), &options(1)).unwrap_err().to_string();
    assert!(
        text.contains(&format!("cannot listen on 127.0.0.1:{port}")) && text.contains("in use"),
        "{text}"
    );
}

#[test]
fn another_program_at_the_meeting_point_is_said() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = other.accept().unwrap();
            stream.write_all(&[b'x'; 100]).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let text = connect(&launch(1, 2, port), &options(5)).unwrap_err().to_string();
        assert!(text.contains("is another program"), "{text}");
    });
}

#[test]
fn without_a_secret_nobody_listens() {
    let text = connect(
        &Launch {
            secret: None,
            ..launch(0, 2, free_port())
        },
        &options(1),
    )
    .unwrap_err()
    .to_string();
    assert!(text.contains("AZULEJO_SECRET"), "{text}");
}

#[test]
fn ipv6_works_where_the_machine_has_it() {
    let Ok(probe) = TcpListener::bind("[::1]:0") else {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    };
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let meeting = Meeting::Address {
        host: "::1".into(),
        port,
    };
    let ranks = std::thread::scope(|scope| {
        let join = |rank| {
            let launch = Launch {
                meeting: meeting.clone(),
                ..launch(rank, 2, port)
            };
            scope.spawn(move || connect(&launch, &options(60)))
        };
        [join(0), join(1)]
            .map(|rank| rank.join().unwrap())
            .into_iter()
            .collect()
    });
    both_meet(ranks);
}

#[test]
fn a_rank_that_dies_while_the_others_still_meet_is_named() {
    let port = free_port();
    std::thread::scope(|scope| {
        let zero = scope.spawn(move || connect(&launch(0, 4, port), &options(60)));
        // Ranks 1 and 2 come through proxies, which see when rank 0 has accepted them. Rank 1 must have been before
        // rank 2 breaks off: a rank that comes when the meeting is over can only say that rank 0 is gone.
        let through_proxy = |rank| {
            let proxy_port = free_port();
            let proxy = TcpListener::bind(("127.0.0.1", proxy_port)).unwrap();
            let joining = scope.spawn(move || connect(&launch(rank, 4, proxy_port), &options(60)));
            let (mut from, _) = proxy.accept().unwrap();
            let mut to = stranger(port);
            let (mut from_back, mut to_back) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            scope.spawn(move || std::io::copy(&mut from, &mut to));
            // The greeting; then the known byte (1), an empty verdict (4) and its proof (32).
            for length in [40, 37] {
                let mut answer = vec![0; length];
                to_back.read_exact(&mut answer).unwrap();
                from_back.write_all(&answer).unwrap();
            }
            (joining, from_back, to_back)
        };
        let (one, mut to_one, mut from_zero) = through_proxy(1);
        scope.spawn(move || {
            let _ = std::io::copy(&mut from_zero, &mut to_one);
            let _ = to_one.shutdown(std::net::Shutdown::Both);
        });
        let (two, from_back, to_back) = through_proxy(2);
        let _ = to_back.shutdown(std::net::Shutdown::Both);
        let _ = from_back.shutdown(std::net::Shutdown::Both);
        for (rank, result) in [(0, zero), (1, one)] {
            let text = result.join().unwrap().unwrap_err().to_string();
            assert!(
                text.contains("rank 2 was lost while the ranks met"),
                "rank {rank}: {text}"
            );
        }
        assert!(two.join().unwrap().is_err());
    });
}
