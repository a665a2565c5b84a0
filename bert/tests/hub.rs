//! The way to the Hub, against two small servers of our own: one imitates the Hub, one the store of its large files.
#![cfg(feature = "hub")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use azulejo_bert::hub::Hub;
use azulejo_bert::squad::read::DataSet;
use sha2::{Digest as _, Sha256};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const PARQUET: &[u8] = include_bytes!("fixtures/squad.parquet");

/// One request as a server saw it.
#[derive(Debug, Clone)]
struct Seen {
    line: String,
    headers: HashMap<String, String>,
}

struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is cut; all if none.
    cut: Option<usize>,
}

fn answer(status: &'static str, headers: &[(&'static str, &str)], body: &[u8]) -> Answer {
    Answer {
        status,
        headers: headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect(),
        body: body.to_vec(),
        cut: None,
    }
}

type Log = Arc<Mutex<Vec<Seen>>>;

/// Answers each request by `handle`, which also learns how many requests with this line came before.
fn serve(handle: impl Fn(&Seen, usize) -> Answer + Send + 'static) -> (String, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let log = Log::default();
    let seen = log.clone();
    // It ends with the process of the tests.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let Some(request) = read_request(&stream) else { continue };
            let before = {
                let mut seen = seen.lock().unwrap();
                seen.push(request.clone());
                seen.iter().filter(|other| other.line == request.line).count() - 1
            };
            let answer = handle(&request, before);
            let _closed = write_answer(&stream, &request, &answer);
        }
    });
    (address, log)
}

fn read_request(stream: &TcpStream) -> Option<Seen> {
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let mut lines = BufReader::new(stream).lines();
    let line = lines.next()?.ok()?;
    let mut headers = HashMap::new();
    for header in lines {
        let header = header.ok()?;
        let Some((name, value)) = header.split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    Some(Seen { line, headers })
}

fn write_answer(mut stream: &TcpStream, request: &Seen, answer: &Answer) -> std::io::Result<()> {
    let mut head = format!(
        "HTTP/1.1 {}\r\nConnection: close\r\nContent-Length: {}\r\n",
        answer.status,
        answer.body.len()
    );
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    if !request.line.starts_with("HEAD") {
        stream.write_all(&answer.body[..answer.cut.unwrap_or(answer.body.len())])?;
    }
    stream.flush()
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn weights() -> Vec<u8> {
    (0..100_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect()
}

/// The store of large files. It breaks off the first time, can go on in the middle, and spoils what is called `spoilt`.
fn store() -> (String, Log) {
    serve(|request, before| {
        let all = weights();
        if request.line.contains("/spoilt") {
            let mut wrong = all;
            wrong[5] ^= 1;
            return answer("200 OK", &[], &wrong);
        }
        if request.line.contains("/parquet") {
            return answer("200 OK", &[], PARQUET);
        }
        let range = request
            .headers
            .get("range")
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        match range {
            Some(from) => {
                let from: usize = from.parse().unwrap();
                let range = format!("bytes {from}-{}/{}", all.len() - 1, all.len());
                answer("206 Partial Content", &[("Content-Range", &range)], &all[from..])
            }
            None => Answer {
                cut: (before == 0).then_some(40_000),
                ..answer("200 OK", &[], &all)
            },
        }
    })
}

fn hub_server(store: &str) -> (String, Log) {
    let store = store.to_owned();
    serve(move |request, before| {
        let path = request.line.split(' ').nth(1).unwrap_or_default();
        let missing = || answer("404 Not Found", &[("X-Error-Code", "EntryNotFound")], b"");
        let small = |etag: &str, body: &[u8]| {
            answer(
                "200 OK",
                &[("X-Repo-Commit", COMMIT), ("ETag", &format!("\"{etag}\""))],
                body,
            )
        };
        let large = |place: &str, body: &[u8]| {
            let (size, sum) = (body.len().to_string(), format!("\"{}\"", sha256(body)));
            let location = format!("{store}/{place}");
            let headers = [
                ("X-Repo-Commit", COMMIT),
                ("X-Linked-Size", &size),
                ("X-Linked-ETag", &sum),
                ("ETag", "\"something-else\""),
                ("Location", &location),
            ];
            answer("302 Found", &headers, b"see there")
        };
        if let Some(rest) = path.strip_prefix("/old-name/") {
            return answer(
                "307 Temporary Redirect",
                &[("Location", &format!("/org/tiny/{rest}"))],
                b"",
            );
        }
        if path.starts_with("/org/private/")
            && request
                .headers
                .get("authorization")
                .is_none_or(|t| t != "Bearer secret")
        {
            return answer("401 Unauthorized", &[("X-Error-Code", "RepoNotFound")], b"");
        }
        if path.starts_with("/org/gated/") {
            return answer("403 Forbidden", &[("X-Error-Code", "GatedRepo")], b"");
        }
        if path.starts_with("/org/busy/") && before < 2 {
            return answer("429 Too Many Requests", &[("Retry-After", "0")], b"");
        }
        if path.starts_with("/org/down/") {
            return answer("503 Service Unavailable", &[], b"");
        }
        if path.starts_with("/nobody/") {
            return answer("404 Not Found", &[("X-Error-Code", "RepoNotFound")], b"");
        }
        if path.contains("/resolve/v9/") {
            return answer("404 Not Found", &[("X-Error-Code", "RevisionNotFound")], b"");
        }
        if path == "/api/datasets/squad/revision/main" {
            let list =
                br#"{"siblings": [{"rfilename": "README.md"}, {"rfilename": "plain_text/train-00000-of-00001.parquet"},
                {"rfilename": "plain_text/validation-00000-of-00001.parquet"}]}"#;
            return answer("200 OK", &[], list);
        }
        if path.starts_with("/datasets/squad/resolve/main/plain_text/") {
            return large("parquet", PARQUET);
        }
        match path.rsplit('/').next().unwrap_or_default() {
            "config.json" => small("aa11", b"{\"model_type\": \"bert\"}"),
            "vocab.txt" => small("bb22", b"[PAD]\n"),
            "model.safetensors" if path.contains("spoilt") => large("spoilt", &weights()),
            "model.safetensors" => large("weights", &weights()),
            _ => missing(),
        }
    })
}

fn environment(home: &Path, endpoint: &str, more: &[(&str, &str)]) -> Hub {
    let mut variables = HashMap::from([("HF_HOME", OsString::from(home)), ("HF_ENDPOINT", endpoint.into())]);
    variables.extend(more.iter().map(|(name, value)| (*name, OsString::from(value))));
    Hub::new(|name| variables.get(name).cloned()).pause(Duration::from_millis(1))
}

fn quiet(_: &str, _: u64, _: u64) {}

#[test]
fn a_model_is_fetched_once_and_its_broken_download_goes_on() {
    let ((store, stored), home) = (store(), tempfile::tempdir().unwrap());
    let (endpoint, asked) = hub_server(&store);
    let hub = environment(home.path(), &endpoint, &[("HF_TOKEN", "secret")]);
    let mut last = (0, 0);
    let folder = hub
        .model("org/tiny", "main", &mut |_, done, total| last = (done, total))
        .unwrap();
    assert_eq!(folder, home.path().join("hub/models--org--tiny/snapshots").join(COMMIT));
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), weights());
    assert_eq!(fs::read(folder.join("vocab.txt")).unwrap(), b"[PAD]\n");
    assert!(!folder.join("tokenizer.json").exists());
    // The layout of the Python library: blobs by checksum, links relative to them, the branch's commit.
    let link = fs::read_link(folder.join("model.safetensors")).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(sha256(&weights())));
    let reference = fs::read_to_string(home.path().join("hub/models--org--tiny/refs/main")).unwrap();
    assert_eq!(reference, COMMIT);

    let requests = stored.lock().unwrap().clone();
    assert_eq!(
        requests.len(),
        2,
        "once from the start, once from where it broke: {requests:?}"
    );
    assert!(requests[1].headers["range"].starts_with("bytes="));
    assert!(
        requests.iter().all(|r| !r.headers.contains_key("authorization")),
        "the token stays with the Hub"
    );
    assert!(
        asked
            .lock()
            .unwrap()
            .iter()
            .all(|r| r.headers["authorization"] == "Bearer secret")
    );

    // Again: only the heads are asked for. With the full commit: nothing at all.
    asked.lock().unwrap().clear();
    assert_eq!(hub.model("org/tiny", "main", &mut quiet).unwrap(), folder);
    assert!(asked.lock().unwrap().iter().all(|r| r.line.starts_with("HEAD")));
    assert_eq!(stored.lock().unwrap().len(), 2);
}

#[test]
fn a_cache_serves_offline_and_when_the_hub_is_down() {
    let (home, (store, _)) = (tempfile::tempdir().unwrap(), store());
    let (endpoint, _) = hub_server(&store);
    let folder = environment(home.path(), &endpoint, &[])
        .model("org/tiny", "main", &mut quiet)
        .unwrap();
    let nowhere = "http://127.0.0.1:9";
    for (endpoint, more) in [(endpoint.as_str(), &[("HF_HUB_OFFLINE", "1")][..]), (nowhere, &[][..])] {
        let hub = environment(home.path(), endpoint, more);
        assert_eq!(hub.model("org/tiny", "main", &mut quiet).unwrap(), folder);
        assert_eq!(hub.model("org/tiny", COMMIT, &mut quiet).unwrap(), folder);
        let message = hub.model("org/other", "main", &mut quiet).unwrap_err().to_string();
        let reason = if more.is_empty() { "5 times" } else { "HF_HUB_OFFLINE" };
        assert!(message.contains("org/other"), "{message}");
        assert!(
            message.contains(reason) || message.contains("not in the cache"),
            "{message}"
        );
    }
    let elsewhere = environment(Path::new("/nonexistent"), nowhere, &[("HF_HUB_OFFLINE", "true")])
        .cache_dir(&home.path().join("hub"));
    assert_eq!(elsewhere.model("org/tiny", "main", &mut quiet).unwrap(), folder);
}

#[test]
fn refusals_say_why() {
    let (home, (store, _)) = (tempfile::tempdir().unwrap(), store());
    let (endpoint, _) = hub_server(&store);
    let hub = environment(home.path(), &endpoint, &[]);
    for (name, revision, part) in [
        ("org/private", "main", "private and not readable without a token"),
        ("org/gated", "main", "access must be asked for"),
        ("nobody/model", "main", "no such repository"),
        ("org/tiny", "v9", "no revision \"v9\""),
        ("org/down", "main", "503"),
        ("../etc", "main", "neither a folder here nor the name"),
        ("a/b/c", "main", "neither a folder here nor the name"),
        ("org/spoilt", "main", "SHA-256"),
    ] {
        let message = hub.model(name, revision, &mut quiet).unwrap_err().to_string();
        assert!(message.contains(part), "{name}: {message}");
    }
    // What was spoilt is not left in the cache.
    let blobs = home.path().join("hub/models--org--spoilt/blobs");
    assert!(!blobs.join(sha256(&weights())).exists());
    // With the token, after two answers of "too many requests", and under an old name, all is well.
    let hub = environment(home.path(), &endpoint, &[("HF_TOKEN", "secret")]);
    for name in ["org/private", "org/busy", "old-name"] {
        hub.model(name, "main", &mut quiet)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn a_data_set_comes_as_its_splits() {
    let (home, (store, _)) = (tempfile::tempdir().unwrap(), store());
    let (endpoint, _) = hub_server(&store);
    let hub = environment(home.path(), &endpoint, &[]);
    let splits = hub.dataset("squad", None, "main", &mut quiet).unwrap();
    let names: Vec<_> = splits.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["train", "validation"]);
    assert_eq!(fs::read(&splits[1].1).unwrap(), PARQUET);
    #[cfg(feature = "parquet")]
    assert_eq!(DataSet::read(&splits[0].1).unwrap().len(), 3);
    #[cfg(not(feature = "parquet"))]
    assert!(DataSet::read(&splits[0].1).is_err());
    let message = hub
        .dataset("squad", Some("fancy"), "main", &mut quiet)
        .unwrap_err()
        .to_string();
    assert!(message.contains("plain_text") && message.contains("fancy"), "{message}");
    let offline = environment(home.path(), &endpoint, &[("HF_HUB_OFFLINE", "1")]);
    assert_eq!(
        offline
            .dataset("squad", Some("plain_text"), "main", &mut quiet)
            .unwrap(),
        splits
    );
}

/// Processes that want the same file: one fetches it, the others wait and find it.
#[test]
fn a_file_is_fetched_by_one_of_many() {
    let (home, (store, stored)) = (tempfile::tempdir().unwrap(), store());
    let (endpoint, _) = hub_server(&store);
    std::thread::scope(|scope| {
        let fetch = || {
            environment(home.path(), &endpoint, &[])
                .model("org/tiny", "main", &mut quiet)
                .unwrap()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(fetch)).collect();
        let folders: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(folders.windows(2).all(|pair| pair[0] == pair[1]));
    });
    assert_eq!(stored.lock().unwrap().len(), 2);
}
