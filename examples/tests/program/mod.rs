//! The built program as a process, small good input for it, and what is left behind.

#![allow(dead_code, reason = "each test program uses its own part")]
#![allow(clippy::unwrap_used, reason = "test code")]

pub(crate) mod processes;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use azulejo_examples::demo;
use serde_json::{Value, json};

/// Time for a whole run of a few steps, on a machine that is busy with other things.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The program, which cargo has built beside the tests.
pub(crate) fn squad_4node() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/<profile>/deps/<test>
    let profile = test.parent().unwrap().parent().unwrap();
    let program = profile.join("examples/squad_4node");
    assert!(
        program.is_file(),
        "{} is not built; `cargo test -p azulejo-examples` and `cargo build --example squad_4node` do that",
        program.display()
    );
    program
}

/// A folder for one test, with a model, data, and room for results and temporary files.
pub(crate) struct Place {
    folder: tempfile::TempDir,
}

/// Questions of [`Place::data`].
pub(crate) const QUESTIONS: usize = 24;

impl Place {
    /// A model folder `model`, and data in `train.json` and `dev.json`.
    pub(crate) fn new() -> Place {
        let place = Place {
            folder: tempfile::tempdir().unwrap(),
        };
        demo::unpack_encoder(&place.path("model")).unwrap();
        std::fs::create_dir(place.path("tmp")).unwrap();
        place.write("train.json", &data("train"));
        place.write("dev.json", &data("dev"));
        place
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, value: &Value) {
        self.write_bytes(name, value.to_string().as_bytes());
    }

    pub(crate) fn write_bytes(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    /// The program in this folder, without a word of the launchers around the tests.
    pub(crate) fn command(&self) -> Command {
        self.wrapped(squad_4node())
    }

    /// Another program in the same surroundings.
    pub(crate) fn wrapped(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            let name_text = name.to_string_lossy();
            let launcher = [
                "PET_", "OMPI_", "PMI", "MPI_", "SLURM_", "AZULEJO_", "CCL_", "KMP_", "OMP_", "MASTER_",
            ];
            let rank = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"];
            if launcher.iter().any(|prefix| name_text.starts_with(prefix)) || rank.contains(&&*name_text) {
                command.env_remove(name);
            }
        }
        command
            .current_dir(self.folder.path())
            .env("TMPDIR", self.path("tmp"))
            .stdin(Stdio::null());
        command
    }

    /// A run of one process over the data here: two steps of training into `out`.
    pub(crate) fn training(&self) -> Command {
        let mut command = self.command();
        command.args(TRAINING);
        command
    }

    /// An evaluation of the model as it is, into `out`.
    pub(crate) fn evaluation(&self) -> Command {
        let mut command = self.command();
        command.args([
            "--model_name_or_path",
            "model",
            "--validation_file",
            "dev.json",
            "--do_eval",
        ]);
        command.args(["--output_dir", "out", "--max_seq_length", "160"]);
        command
    }

    /// Everything in the folder `name`: paths and contents.
    pub(crate) fn contents(&self, name: &str) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![self.path(name)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path.clone());
                    found.insert(path, Vec::new());
                } else {
                    found.insert(path.clone(), std::fs::read(&path).unwrap());
                }
            }
        }
        found
    }

    /// The steps of the whole checkpoints in a folder.
    pub(crate) fn checkpoints(&self, folder: &str) -> impl Iterator<Item = u64> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let whole = paths.filter(|path| path.join("trainer_state.json").is_file());
        whole.filter_map(|path| path.file_name()?.to_str()?.strip_prefix("checkpoint-")?.parse().ok())
    }

    /// The step of the last whole checkpoint in a folder.
    pub(crate) fn last_checkpoint(&self, folder: &str) -> u64 {
        self.checkpoints(folder).max().expect("a checkpoint")
    }

    /// No temporary file is left, be it of a save or of a meeting.
    pub(crate) fn assert_tidy(&self) {
        let left: Vec<PathBuf> = self.contents("tmp").into_keys().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        let partial = |path: &PathBuf| path.to_string_lossy().contains(".partial");
        let left: Vec<PathBuf> = self.contents("").into_keys().filter(partial).collect();
        assert!(left.is_empty(), "half-written: {left:?}");
    }
}

/// The arguments of [`Place::training`].
pub(crate) const TRAINING: [&str; 15] = [
    "--report_to",
    "none",
    "--model_name_or_path",
    "model",
    "--train_file",
    "train.json",
    "--do_train",
    "--output_dir",
    "out",
    "--max_steps",
    "2",
    "--per_device_train_batch_size",
    "4",
    "--max_seq_length",
    "160",
];

/// Twelve passages with two questions each, about things that the model's vocabulary knows.
fn data(name: &str) -> Value {
    let passage = |i: usize| {
        let names = ["anna", "bert", "clara", "david"];
        let (who, town) = (names[i % 4], names[(i + 1) % 4]);
        let context = format!("{who} lives in the town of {town}. the number of the house is {i}.");
        let ask = |k: usize, question: &str, text: &str| {
            json!({
                "id": format!("{name}-{i}-{k}"),
                "question": question,
                "answers": [{"text": text, "answer_start": context.rfind(text).unwrap()}],
            })
        };
        let qas = [
            ask(0, "what is the town called?", town),
            ask(1, "what is the number of the house?", &i.to_string()),
        ];
        json!({"context": context, "qas": qas})
    };
    let paragraphs: Vec<Value> = (0..QUESTIONS / 2).map(passage).collect();
    json!({"version": "1.1", "data": [{"title": "towns", "paragraphs": paragraphs}]})
}

/// A process under way, with what it has said so far.
pub(crate) struct Running {
    child: Child,
    said: [Arc<Mutex<Vec<u8>>>; 2],
    readers: Vec<JoinHandle<()>>,
    started: Instant,
    command: String,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
    pub(crate) elapsed: Duration,
    command: String,
}

/// Starts a command and reads what it says.
pub(crate) fn start(command: &mut Command) -> Running {
    let words = command
        .get_args()
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{:?}: {e}", command.get_program()));
    let said = [Arc::default(), Arc::default()];
    let readers = vec![
        read(child.stdout.take().unwrap(), &said[0]),
        read(child.stderr.take().unwrap(), &said[1]),
    ];
    Running {
        child,
        said,
        readers,
        started: Instant::now(),
        command: words,
    }
}

/// Starts a command and waits for its end.
pub(crate) fn run(command: &mut Command) -> Ended {
    start(command).finish(LIMIT)
}

fn read(mut from: impl std::io::Read + Send + 'static, to: &Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    let to = to.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(n) = from.by_ref().read(&mut bytes)
            && n > 0
        {
            to.lock().unwrap().extend_from_slice(&bytes[..n]);
        }
    })
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.said[0].lock().unwrap()).into_owned()
    }

    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.said[1].lock().unwrap()).into_owned()
    }

    /// Waits until it has said `word`, on either output.
    pub(crate) fn wait_for(&mut self, word: &str) {
        let end = Instant::now() + LIMIT;
        loop {
            // Asked first: what was said before the end is read after it.
            let ended = self.child.try_wait().unwrap().is_some();
            if self.out().contains(word) || self.err().contains(word) {
                return;
            }
            assert!(
                Instant::now() < end && !ended,
                "{} did not say {word:?}:\n{}{}",
                self.command,
                self.out(),
                self.err()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a file is there.
    pub(crate) fn wait_for_file(&self, path: &Path) {
        self.wait_until(&path.display().to_string(), || path.exists());
    }

    /// Waits until the folder `out` of a place has a whole checkpoint.
    pub(crate) fn wait_for_checkpoint(&self, place: &Place) {
        self.wait_until("checkpoint", || place.checkpoints("out").next().is_some());
    }

    fn wait_until(&self, what: &str, mut there: impl FnMut() -> bool) {
        let end = Instant::now() + LIMIT;
        while !there() {
            assert!(Instant::now() < end, "no {what}:\n{}{}", self.out(), self.err());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// How it ends, which must be soon.
    pub(crate) fn finish(mut self, within: Duration) -> Ended {
        let end = Instant::now() + within;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < end,
                "{} has not ended within {within:?}:\n{}{}",
                self.command,
                self.out(),
                self.err()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        let elapsed = self.started.elapsed();
        for reader in self.readers.drain(..) {
            reader.join().unwrap();
        }
        Ended {
            status: status.code(),
            out: self.out(),
            err: self.err(),
            elapsed,
            command: std::mem::take(&mut self.command),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a process that has ended this is an error without meaning.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// It ended well.
    pub(crate) fn good(self) -> Ended {
        self.with(0, &[])
    }

    /// It failed, and said so in these words on its standard error.
    pub(crate) fn failed(self, words: &[&str]) -> Ended {
        self.with(1, words)
    }

    /// It ended with this status, and these words are on its standard error. Nobody panicked.
    pub(crate) fn with(self, status: i32, words: &[&str]) -> Ended {
        let Ended { command, out, err, .. } = &self;
        assert_eq!(self.status, Some(status), "{command}\n{out}{err}");
        for word in words {
            assert!(err.contains(word), "{command}\nexpected {word:?} in\n{err}");
        }
        for word in ["panicked", "RUST_BACKTRACE"] {
            assert!(!err.contains(word) && !out.contains(word), "{command}\n{err}");
        }
        self
    }

    /// How often a word stands on standard error.
    pub(crate) fn count(&self, word: &str) -> usize {
        self.err.matches(word).count()
    }
}
