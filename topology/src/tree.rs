//! Small files below a root directory: the running system, or a recording of another machine.
//!
//! A file that is missing is `None`; a file that is there and cannot be understood is noted and then counts as missing.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use crate::cpuset::CpuSet;

/// A root directory, and what was odd below it.
pub(crate) struct Tree {
    root: PathBuf,
    notes: RefCell<Vec<String>>,
}

impl Tree {
    pub(crate) fn new(root: &Path) -> Self {
        Tree {
            root: root.to_owned(),
            notes: RefCell::default(),
        }
    }

    pub(crate) fn note(&self, text: String) {
        self.notes.borrow_mut().push(text);
    }

    pub(crate) fn into_notes(self) -> Vec<String> {
        self.notes.into_inner()
    }

    /// The place of `path` (absolute on the machine described) below the root.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file without surrounding white space.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        // A recording may hold bytes that are not UTF-8 in files that do not matter here.
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    pub(crate) fn number(&self, path: &str) -> Option<i64> {
        let text = self.text(path)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.note(format!("{path}: expected a number, got {text:?}"));
        }
        number
    }

    /// A set in list form.
    pub(crate) fn list(&self, path: &str) -> Option<CpuSet> {
        let text = self.text(path)?;
        let set = CpuSet::parse_list(&text);
        if set.is_none() {
            self.note(format!("{path}: expected a list such as 0-3,8, got {text:?}"));
        }
        set
    }

    /// A set in mask form.
    pub(crate) fn mask(&self, path: &str) -> Option<CpuSet> {
        let text = self.text(path)?;
        let set = CpuSet::parse_mask(&text);
        if set.is_none() {
            self.note(format!(
                "{path}: expected a mask such as 00000001,ffffffff, got {text:?}"
            ));
        }
        set
    }

    /// Names of the entries of a folder; empty when it is missing.
    pub(crate) fn entries(&self, path: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.path(path)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The numbers `n` for which the folder has an entry called `prefix` followed by `n`.
    pub(crate) fn numbered(&self, path: &str, prefix: &str) -> CpuSet {
        let number = |name: &String| {
            name.strip_prefix(prefix)
                .and_then(CpuSet::parse_list)
                .filter(|set| set.len() == 1)
        };
        self.entries(path)
            .iter()
            .filter_map(number)
            .filter_map(|set| set.first())
            .collect()
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The target of a symbolic link, as it is written.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.path(path)).ok()?.into_os_string().into_string().ok()
    }
}
