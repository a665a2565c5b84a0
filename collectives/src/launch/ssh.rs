//! Starts the ranks of several machines through the user's own `ssh`.
//!
//! One ssh a rank. The secret goes through its standard input, never on a command line; the same pipe brings Ctrl-C
//! and SIGTERM afterwards, and its end is the end of the rank, so nothing is left behind when the launcher dies.
//! ssh is told to ask nothing and to trust known hosts only.

use std::ffi::OsString;
use std::io::BufRead as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Signal, getpid, kill_process};

use super::local::{Outcome, Supervised};
use super::{Host, env, place};
use crate::auth::Secret;
use crate::error::{Error, Result};

/// torchrun's own default, so that one rule of a firewall serves both.
const DEFAULT_PORT: u16 = 29500;
/// Status of a rank whose launcher has ended.
const LOST: i32 = 1;

/// A job over the hosts of a host file.
#[derive(Clone, Debug)]
pub struct Remote {
    program: PathBuf,
    arguments: Vec<OsString>,
    hosts: Vec<Host>,
    ranks: usize,
    per_host: Option<usize>,
    port: u16,
    ssh: Vec<OsString>,
    variables: Vec<(String, String)>,
}

impl Remote {
    /// `ranks` ranks of `program` over `hosts`, `per_host` on each or as many as the host file says.
    pub fn new(program: impl Into<PathBuf>, hosts: Vec<Host>, ranks: usize, per_host: Option<usize>) -> Self {
        let ssh = [
            "ssh",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "ConnectTimeout=10",
        ];
        Self {
            program: program.into(),
            arguments: Vec::new(),
            hosts,
            ranks: ranks.max(1),
            per_host,
            port: DEFAULT_PORT,
            ssh: ssh.into_iter().map(Into::into).collect(),
            variables: Vec::new(),
        }
    }

    /// The program's arguments.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments = arguments.into_iter().map(Into::into).collect();
        self
    }

    /// The port on the first host where the ranks meet.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Another program in place of ssh, with its first arguments; host and command follow them.
    pub fn shell(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.ssh = words.into_iter().map(Into::into).collect();
        self
    }

    /// A variable that all ranks get. The environment is not passed on otherwise.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// For each rank its host and the command there.
    fn commands(&self) -> Vec<(&Host, String)> {
        let hosts = place(&self.hosts, self.ranks, self.per_host);
        let folder = std::env::current_dir()
            .map(|path| path.display().to_string())
            .unwrap_or_else(|_| ".".into());
        let first = self
            .hosts
            .first()
            .map(|host| host.name.rsplit('@').next().unwrap_or_default())
            .unwrap_or_default();
        let command = |(rank, &host): (usize, &usize)| {
            let local_rank = hosts[..rank].iter().filter(|&&other| other == host).count();
            let local_size = hosts.iter().filter(|&&other| other == host).count();
            let own = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", self.ranks.to_string()),
                ("LOCAL_RANK", local_rank.to_string()),
                ("LOCAL_WORLD_SIZE", local_size.to_string()),
                ("GROUP_RANK", host.to_string()),
                ("MASTER_ADDR", first.to_string()),
                ("MASTER_PORT", self.port.to_string()),
                (env::LIFELINE, "stdin".into()),
            ];
            let given = self
                .variables
                .iter()
                .map(|(name, value)| (name.as_str(), value.clone()));
            let mut words = vec!["cd".into(), quote(&folder), "&&".into(), "exec".into(), "env".into()];
            words.extend(
                own.into_iter()
                    .chain(given)
                    .map(|(name, value)| format!("{name}={}", quote(&value))),
            );
            words.push(quote(&self.program.to_string_lossy()));
            words.extend(self.arguments.iter().map(|word| quote(&word.to_string_lossy())));
            (&self.hosts[host], words.join(" "))
        };
        hosts.iter().enumerate().map(command).collect()
    }

    /// What would be started, one line a rank; nothing is. The secret is in none of them.
    pub fn dry_run(&self) -> Vec<String> {
        let ssh: Vec<String> = self.ssh.iter().map(|word| quote(&word.to_string_lossy())).collect();
        let line =
            |(host, command): (&Host, String)| format!("{} {} {}", ssh.join(" "), quote(&host.name), quote(&command));
        self.commands().into_iter().map(line).collect()
    }

    /// Starts the ranks and stays until all have ended.
    pub fn run(&self) -> Result<Outcome> {
        let Some((shell, first)) = self.ssh.split_first() else {
            let source = std::io::Error::from(std::io::ErrorKind::InvalidInput);
            return Err(Error::process("start ranks: the remote shell is empty", source));
        };
        let secret = Secret::generate()?;
        let greeting = format!("{}\n", secret.expose());
        let mut ranks = Supervised::new()?;
        for (rank, (host, command)) in self.commands().into_iter().enumerate() {
            let mut ssh = Command::new(shell);
            ssh.args(first).arg(&host.name).arg(command).stdin(Stdio::piped());
            ranks.start(rank, rank == 0, ssh, Some(&greeting))?;
        }
        ranks.supervise()
    }
}

/// One word for a shell.
pub(super) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Reads the secret from standard input where the launcher sends it there, and from then on listens for its words
/// and for its end.
pub(super) fn take_lifeline(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<String>> {
    static TAKEN: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    if variable(env::LIFELINE).as_deref() != Some("stdin") {
        return Ok(None);
    }
    if let Some(secret) = TAKEN.get() {
        return Ok(Some(secret.clone()));
    }
    let mut secret = String::new();
    let fail = |e| Error::process("read the job's secret from standard input", e);
    std::io::stdin().lock().read_line(&mut secret).map_err(fail)?;
    let listen = || {
        for line in std::io::stdin().lock().lines() {
            let signal = match line.as_deref().map(str::trim) {
                Ok("interrupt") => Signal::INT,
                Ok("terminate") => Signal::TERM,
                Ok(_) => continue,
                Err(_) => break,
            };
            // The process's own handlers decide what a signal means.
            let _ = kill_process(getpid(), signal);
        }
        // The launcher has ended, and this rank with it.
        std::process::exit(LOST);
    };
    std::thread::Builder::new()
        .name("lifeline".into())
        .spawn(listen)
        .map_err(fail)?;
    let secret = secret.trim().to_string();
    Ok(Some(TAKEN.get_or_init(|| secret).clone()))
}
