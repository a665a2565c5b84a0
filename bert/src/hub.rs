//! Models and data sets of the Hugging Face Hub, through the cache that the Python libraries keep.
//!
//! ```text
//! HF_HOME/hub/models--ORG--NAME/refs/main                  the commit that "main" stood for
//!                               blobs/ETAG                 files by their checksum
//!                               snapshots/COMMIT/FILE  ->  ../../blobs/ETAG
//! ```
//!
//! A file that is in the cache is not fetched again, whoever put it there. The environment is honoured as there:
//! `HF_HOME`, `HF_HUB_CACHE`, `HF_ENDPOINT`, `HF_HUB_OFFLINE`, `HF_TOKEN`. Processes that want the same file wait for
//! the one that fetches it. A broken connection is taken up where it broke; what arrives is held against its length
//! and its SHA-256, where the Hub tells it.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use crate::error::{Error, Result};

/// What a repository holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

/// Told while a file is fetched: its name, bytes so far, bytes in all (0 if not known).
pub type Watcher<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// The way to the Hub and its cache.
#[derive(Debug)]
pub struct Hub {
    endpoint: String,
    cache: PathBuf,
    token: Option<String>,
    /// Set by the environment, or once the Hub could not be reached.
    offline: Cell<bool>,
    tries: u32,
    pause: Duration,
    agent: Agent,
}

/// A repository at a revision.
#[derive(Debug, Clone, Copy)]
struct Repo<'a> {
    kind: Kind,
    name: &'a str,
    revision: &'a str,
}

/// What a HEAD request says about a file.
#[derive(Debug)]
struct Metadata {
    commit: String,
    etag: String,
    size: Option<u64>,
}

/// Files that a model folder may have beside `config.json` and the weights.
const TOKENIZER_FILES: [&str; 4] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
];

const REDIRECTS: u32 = 10;
/// A server that says nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// The longest pause that a server may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

impl Hub {
    /// The Hub as the environment describes it. `variable` looks a variable up: `|name| std::env::var_os(name)`.
    pub fn new(variable: impl Fn(&str) -> Option<OsString>) -> Hub {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());
        let home = set("HF_HOME").map(PathBuf::from).unwrap_or_else(|| {
            let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
            let cache = cache.unwrap_or_else(|| PathBuf::from(set("HOME").unwrap_or_default()).join(".cache"));
            cache.join("huggingface")
        });
        let saved = || fs::read_to_string(home.join("token")).ok();
        let token = text("HF_TOKEN")
            .or_else(|| text("HUGGING_FACE_HUB_TOKEN"))
            .or_else(saved);
        let yes = |value: String| matches!(value.to_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE");
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Hub {
            endpoint: endpoint.trim_end_matches('/').into(),
            cache: set("HF_HUB_CACHE")
                .or_else(|| set("HUGGINGFACE_HUB_CACHE"))
                .map_or_else(|| home.join("hub"), PathBuf::from),
            token: token
                .map(|token| token.trim().to_owned())
                .filter(|token| !token.is_empty()),
            offline: Cell::new(
                ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                    .iter()
                    .any(|name| text(name).is_some_and(yes)),
            ),
            tries: 5,
            pause: Duration::from_secs(1),
            agent: Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .max_redirects_will_error(false)
                .timeout_connect(Some(SILENCE))
                .timeout_recv_response(Some(SILENCE))
                .user_agent(concat!("azulejo/", env!("CARGO_PKG_VERSION")))
                .build()
                .into(),
        }
    }

    /// Another cache folder (`--cache_dir`).
    pub fn cache_dir(mut self, folder: &Path) -> Hub {
        self.cache = folder.to_owned();
        self
    }

    /// Another token (`--token`).
    pub fn token(mut self, token: &str) -> Hub {
        self.token = Some(token.to_owned());
        self
    }

    /// Another pause before a request is made again; it doubles each time.
    pub fn pause(mut self, pause: Duration) -> Hub {
        self.pause = pause;
        self
    }

    /// The folder with a model's configuration, weights and tokenizer.
    ///
    /// # Errors
    /// [`Error::Hub`]: not a name, not there, not allowed, not reachable and not in the cache, or damaged on the way.
    pub fn model(&self, name: &str, revision: &str, watcher: Watcher) -> Result<PathBuf> {
        let repo = Repo {
            kind: Kind::Model,
            name,
            revision,
        };
        check_name(name)?;
        let missing = |what: &str| repo.error(&format!("it has no {what}"));
        let config = self
            .file(repo, "config.json", watcher)?
            .ok_or_else(|| missing("config.json"))?;
        let mut weights = self.file(repo, "model.safetensors", watcher)?;
        if weights.is_none() {
            weights = self.file(repo, "pytorch_model.bin", watcher)?;
        }
        weights.ok_or_else(|| missing("model.safetensors"))?;
        for file in TOKENIZER_FILES {
            self.file(repo, file, watcher)?;
        }
        Ok(config.parent().map(Path::to_owned).unwrap_or_default())
    }

    /// The parquet file of each split (`train`, `validation`, `test`) of a data set, in the order of their names. The
    /// configuration may be left out if there is one only.
    ///
    /// # Errors
    /// As [`Hub::model`].
    pub fn dataset(
        &self,
        name: &str,
        configuration: Option<&str>,
        revision: &str,
        watcher: Watcher,
    ) -> Result<Vec<(String, PathBuf)>> {
        let repo = Repo {
            kind: Kind::Dataset,
            name,
            revision,
        };
        check_name(name)?;
        let names = self.list(repo)?;
        let tables: Vec<(&str, &str, &str)> = names.iter().filter_map(|name| table_of(name)).collect();
        let mut configurations: Vec<&str> = tables.iter().map(|table| table.0).collect();
        configurations.dedup();
        let chosen = match configuration {
            Some(chosen) if configurations.contains(&chosen) => chosen,
            None if configurations.len() == 1 => configurations[0],
            _ if configurations.is_empty() => {
                return Err(repo.error("it has no parquet files named CONFIGURATION/SPLIT-*.parquet"));
            }
            given => {
                let given = given.map_or("no --dataset_config_name".to_owned(), |name| format!("not {name:?}"));
                return Err(repo.error(&format!(
                    "its configurations are {}, {given}",
                    configurations.join(", ")
                )));
            }
        };
        let mut splits: Vec<(String, PathBuf)> = Vec::new();
        for (_, split, file) in tables.iter().filter(|table| table.0 == chosen) {
            if splits.iter().any(|(other, _)| other == split) {
                return Err(repo.error(&format!("the split {split} has several files; one is supported")));
            }
            let path = self.file(repo, file, watcher)?;
            let path = path.ok_or_else(|| repo.error(&format!("{file} is listed, but not there")))?;
            splits.push(((*split).to_owned(), path));
        }
        Ok(splits)
    }

    /// A file's place in the cache, where it is put if need be; `None` if the repository does not have it.
    fn file(&self, repo: Repo, name: &str, watcher: Watcher) -> Result<Option<PathBuf>> {
        let folder = self.cache.join(repo.folder());
        if let Some(commit) = self.cached_commit(repo) {
            let path = folder.join("snapshots").join(&commit).join(name);
            // A full commit does not change; a branch may, so it is asked for unless that is not possible.
            if path.is_file() && (commit == repo.revision || self.offline.get()) {
                return Ok(Some(path));
            }
            if self.offline.get() {
                return Ok(None);
            }
        }
        if self.offline.get() {
            return Err(repo.error("it is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"));
        }
        let url = self.url(repo, name);
        let response = match self.request(repo, &url, true, None, false) {
            Ok(response) => response,
            // What the cache has is better than nothing when the Hub cannot be reached.
            Err(error) if self.cached_commit(repo).is_some() => {
                tracing::warn!("{error}: going on with the cache");
                self.offline.set(true);
                return self.file(repo, name, watcher);
            }
            Err(error) => return Err(error),
        };
        let Some(metadata) = self.metadata(repo, &url, &response)? else {
            return Ok(None);
        };
        let path = folder.join("snapshots").join(&metadata.commit).join(name);
        if !path.is_file() {
            self.fetch(repo, name, &metadata, &path, watcher)?;
        }
        if metadata.commit != repo.revision {
            let reference = folder.join("refs").join(repo.revision);
            write_atomically(&reference, metadata.commit.as_bytes())?;
        }
        Ok(Some(path))
    }

    /// The commit that the cache knows for a revision.
    fn cached_commit(&self, repo: Repo) -> Option<String> {
        let folder = self.cache.join(repo.folder());
        if is_commit(repo.revision) {
            return folder
                .join("snapshots")
                .join(repo.revision)
                .is_dir()
                .then(|| repo.revision.to_owned());
        }
        let commit = fs::read_to_string(folder.join("refs").join(repo.revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Names of the files of a repository.
    fn list(&self, repo: Repo) -> Result<Vec<String>> {
        if self.offline.get() {
            let commit = self.cached_commit(repo);
            let commit =
                commit.ok_or_else(|| repo.error("it is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"))?;
            let snapshot = self.cache.join(repo.folder()).join("snapshots").join(commit);
            let mut names = Vec::new();
            walk(&snapshot, &snapshot, &mut names)?;
            names.sort();
            return Ok(names);
        }
        let kind = match repo.kind {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        };
        let url = format!("{}/api/{kind}/{}/revision/{}", self.endpoint, repo.name, repo.revision);
        let mut response = self.request(repo, &url, false, None, true)?;
        self.refuse(repo, &response)?;
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|e| repo.error(&format!("{url}: {e}")))?;
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| repo.error(&format!("{url}: {e}")))?;
        let files = value["siblings"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<String> = files
            .iter()
            .filter_map(|file| file["rfilename"].as_str().map(str::to_owned))
            .collect();
        names.sort();
        Ok(names)
    }

    fn url(&self, repo: Repo, file: &str) -> String {
        let kind = match repo.kind {
            Kind::Model => "",
            Kind::Dataset => "datasets/",
        };
        format!("{}/{kind}{}/resolve/{}/{file}", self.endpoint, repo.name, repo.revision)
    }

    /// What the Hub says about a file; `None` if it is not there.
    fn metadata(&self, repo: Repo, url: &str, response: &Response<Body>) -> Result<Option<Metadata>> {
        let header = |name: &str| text_of(response.headers(), name);
        if response.status() == 404 && header("x-error-code").as_deref() == Some("EntryNotFound") {
            return Ok(None);
        }
        self.refuse(repo, response)?;
        let (Some(commit), Some(etag)) = (header("x-repo-commit"), header("x-linked-etag").or(header("etag"))) else {
            return Err(repo.error(&format!("{url}: the answer lacks X-Repo-Commit or ETag")));
        };
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        let safe =
            |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !is_commit(&commit) || !safe(&etag) {
            return Err(repo.error(&format!("{url}: commit {commit:?} or ETag {etag:?} is not one")));
        }
        let redirected = response.status().is_redirection();
        let length = header("x-linked-size").or_else(|| header("content-length").filter(|_| !redirected));
        let size = length.and_then(|size| size.parse().ok());
        Ok(Some(Metadata { commit, etag, size }))
    }

    /// Fetches a file into the cache, unless another process does.
    fn fetch(&self, repo: Repo, name: &str, metadata: &Metadata, path: &Path, watcher: Watcher) -> Result<()> {
        let folder = repo.folder();
        let blob = self.cache.join(&folder).join("blobs").join(&metadata.etag);
        let lock = self
            .cache
            .join(".locks")
            .join(&folder)
            .join(format!("{}.lock", metadata.etag));
        create_parent(&blob)?;
        create_parent(&lock)?;
        create_parent(path)?;
        let lock_file = File::create(&lock).map_err(Error::io(&lock))?;
        lock_file.lock().map_err(Error::io(&lock))?; // until it is dropped
        if !blob.is_file() {
            let partial = blob.with_file_name(format!("{}.incomplete", metadata.etag));
            self.fetch_blob(repo, name, metadata, &partial, watcher)?;
            fs::rename(&partial, &blob).map_err(Error::io(&blob))?;
        }
        if !path.is_file() {
            link(&blob, path)?;
        }
        Ok(())
    }

    /// Fetches bytes until all are there, going on after what `partial` holds already.
    fn fetch_blob(&self, repo: Repo, name: &str, metadata: &Metadata, partial: &Path, watcher: Watcher) -> Result<()> {
        let url = self.url(repo, name);
        let mut out = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(partial)
            .map_err(Error::io(partial))?;
        let mut trouble = String::new();
        for attempt in 0..self.tries {
            if attempt > 0 {
                std::thread::sleep(self.pause * 2u32.pow(attempt - 1));
            }
            let have = out.seek(SeekFrom::End(0)).map_err(Error::io(partial))?;
            let complete = metadata.size.is_some_and(|size| have >= size);
            if !complete {
                let response = self.request(repo, &url, false, (have > 0).then_some(have), true)?;
                self.refuse(repo, &response)?;
                if have > 0 && response.status() != 206 {
                    // The server sends everything again.
                    out.set_len(0).map_err(Error::io(partial))?;
                    out.seek(SeekFrom::Start(0)).map_err(Error::io(partial))?;
                }
                if let Err(reason) = copy(response, &mut out, name, metadata.size, watcher) {
                    trouble = reason;
                    continue;
                }
            }
            match check(&mut out, metadata).map_err(Error::io(partial))? {
                None => return out.sync_all().map_err(Error::io(partial)),
                Some(Damage::Short(reason)) => trouble = reason,
                Some(Damage::Wrong(reason)) => {
                    trouble = reason;
                    out.set_len(0).map_err(Error::io(partial))?;
                }
            }
        }
        Err(repo.error(&format!("{name}: {trouble}, {} times", self.tries)))
    }

    /// A request, made again when the server is busy or the connection fails. Redirects are followed: those to another
    /// server only where `leave` says so, and then without the token.
    fn request(&self, repo: Repo, url: &str, head: bool, from: Option<u64>, leave: bool) -> Result<Response<Body>> {
        let mut trouble = String::new();
        for attempt in 0..self.tries {
            let mut pause = self.pause * 2u32.pow(attempt.saturating_sub(1));
            match self.follow(url, head, from, leave) {
                Ok(response) if response.status() == 429 || response.status().is_server_error() => {
                    trouble = format!("the server answers {}", response.status());
                    let asked = text_of(response.headers(), "retry-after").and_then(|text| text.parse().ok());
                    pause = asked.map_or(pause, Duration::from_secs).min(LONGEST_PAUSE);
                }
                Ok(response) => return Ok(response),
                Err(reason) => trouble = reason,
            }
            if attempt + 1 < self.tries {
                std::thread::sleep(pause);
            }
        }
        Err(repo.error(&format!("{url}: {trouble}, {} times", self.tries)))
    }

    fn follow(
        &self,
        url: &str,
        head: bool,
        from: Option<u64>,
        leave: bool,
    ) -> std::result::Result<Response<Body>, String> {
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let mut request = if head {
                self.agent.head(&url)
            } else {
                self.agent.get(&url)
            };
            // Compressed bodies would have other lengths than files.
            request = request.header("Accept-Encoding", "identity");
            if let Some(token) = &self.token
                && origin(&url) == origin(&self.endpoint)
            {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let response = request.call().map_err(|e| e.to_string())?;
            let location = text_of(response.headers(), "location").filter(|_| response.status().is_redirection());
            let Some(location) = location else {
                return Ok(response);
            };
            let next = if location.starts_with('/') {
                origin(&url).to_owned() + &location
            } else {
                location
            };
            if !leave && origin(&next) != origin(&url) {
                return Ok(response);
            }
            url = next;
        }
        Err(format!("more than {REDIRECTS} redirects"))
    }

    /// An error for an answer that is neither the file nor a way to it.
    fn refuse(&self, repo: Repo, response: &Response<Body>) -> Result<()> {
        let status = response.status();
        if status.is_success() || status.is_redirection() {
            return Ok(());
        }
        let code = text_of(response.headers(), "x-error-code").unwrap_or_default();
        let with = if self.token.is_some() {
            "with this token"
        } else {
            "without a token (HF_TOKEN)"
        };
        Err(match (status.as_u16(), code.as_str()) {
            (_, "GatedRepo") => repo.error(&format!(
                "access must be asked for on its page; it is not granted {with}"
            )),
            (404, "RevisionNotFound") => repo.error(&format!("it has no revision {:?}", repo.revision)),
            (401 | 403 | 404, _) => repo.error(&format!(
                "there is no such repository, or it is private and not readable {with} ({status})"
            )),
            _ => repo.error(&format!("the server answers {status}")),
        })
    }
}

impl Repo<'_> {
    fn folder(self) -> String {
        let kind = match self.kind {
            Kind::Model => "models",
            Kind::Dataset => "datasets",
        };
        format!("{kind}--{}", self.name.replace('/', "--"))
    }

    fn error(self, reason: &str) -> Error {
        let what = match self.kind {
            Kind::Model => "model",
            Kind::Dataset => "data set",
        };
        Error::Hub {
            what: format!("{what} {:?} of the Hub", self.name),
            reason: reason.to_owned(),
        }
    }
}

/// Names are `NAME` or `ORG/NAME`.
fn check_name(name: &str) -> Result<()> {
    let part = |part: &str| {
        let plain = part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        plain
            && !part.is_empty()
            && !part.starts_with(['-', '.'])
            && !part.ends_with(['-', '.'])
            && !part.contains("..")
    };
    if name.split('/').count() <= 2 && name.split('/').all(part) {
        return Ok(());
    }
    Err(Error::Hub {
        what: format!("{name:?}"),
        reason: "it is neither a folder here nor the name of a repository on the Hub (NAME or ORGANISATION/NAME)"
            .into(),
    })
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Configuration and split of a table's file: `plain_text/train-00000-of-00001.parquet`.
fn table_of(name: &str) -> Option<(&str, &str, &str)> {
    let (configuration, file) = name.split_once('/')?;
    let stem = file.strip_suffix(".parquet")?;
    let split = stem.split_once('-').map_or(stem, |(split, _)| split);
    (!file.contains('/')).then_some((configuration, split, name))
}

/// `https://host:port` of an address.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find('/').map_or(url.len(), |at| host + at);
    &url[..end]
}

fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Appends a body to a file.
fn copy(
    response: Response<Body>,
    out: &mut File,
    name: &str,
    size: Option<u64>,
    watcher: Watcher,
) -> std::result::Result<(), String> {
    let mut body = response.into_body().into_reader();
    let mut done = out.stream_position().map_err(|e| e.to_string())?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        match body.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => {
                out.write_all(&buffer[..n]).map_err(|e| e.to_string())?;
                done += n as u64;
                watcher(name, done, size.unwrap_or(0));
            }
            Err(e) => return Err(format!("the connection broke after {done} bytes: {e}")),
        }
    }
}

/// What is wrong with a file that has arrived.
enum Damage {
    /// The rest is missing.
    Short(String),
    /// It must be fetched anew.
    Wrong(String),
}

fn check(file: &mut File, metadata: &Metadata) -> std::io::Result<Option<Damage>> {
    let have = file.seek(SeekFrom::End(0))?;
    if let Some(size) = metadata.size {
        if have < size {
            return Ok(Some(Damage::Short(format!("{have} of {size} bytes came"))));
        }
        if have > size {
            return Ok(Some(Damage::Wrong(format!("{have} bytes came, expected {size}"))));
        }
    }
    // Large files are known by their SHA-256, small ones by another checksum of git's.
    if metadata.etag.len() == 64 && metadata.etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        file.seek(SeekFrom::Start(0))?;
        let mut hash = Sha256::new();
        std::io::copy(file, &mut hash)?;
        let hash: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
        if !hash.eq_ignore_ascii_case(&metadata.etag) {
            return Ok(Some(Damage::Wrong(format!(
                "its SHA-256 is {hash}, expected {}",
                metadata.etag
            ))));
        }
    }
    Ok(None)
}

fn create_parent(path: &Path) -> Result<()> {
    match path.parent() {
        Some(folder) => fs::create_dir_all(folder).map_err(Error::io(folder)),
        None => Ok(()),
    }
}

fn write_atomically(path: &Path, contents: &[u8]) -> Result<()> {
    /// Threads of one process may write the same file.
    static WRITES: AtomicU64 = AtomicU64::new(0);
    create_parent(path)?;
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{write}.partial", std::process::id()));
    fs::write(&temporary, contents).map_err(Error::io(&temporary))?;
    fs::rename(&temporary, path).map_err(Error::io(path))
}

/// Makes `path` point to a blob, relative to it, so that the cache can be moved.
fn link(blob: &Path, path: &Path) -> Result<()> {
    let depth = path.components().count() - blob.parent().map_or(0, |blobs| blobs.components().count());
    let mut target: PathBuf = std::iter::repeat_n("..", depth).collect();
    target.push("blobs");
    target.push(blob.file_name().unwrap_or_default());
    #[cfg(unix)]
    let made = std::os::unix::fs::symlink(&target, path);
    #[cfg(not(unix))]
    let made = fs::copy(blob, path).map(|_| ());
    match made {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
}

/// Names of all files below a folder, relative to `root`, with `/` between.
fn walk(root: &Path, folder: &Path, names: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        if path.is_dir() {
            walk(root, &path, names)?;
        } else if let Ok(name) = path.strip_prefix(root) {
            let parts: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
            names.push(parts.join("/"));
        }
    }
    Ok(())
}
