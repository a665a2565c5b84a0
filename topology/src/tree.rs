//! Small files below a root: the running system, a recording of another machine in a folder, or one in memory.
//!
//! A file that is missing is `None`; a file that is there and cannot be understood is noted and then counts as missing.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use crate::cpuset::CpuSet;

/// Where the files are.
enum Files<'a> {
    Folder(PathBuf),
    /// By path without the leading slash. A symbolic link is a file that holds its target.
    Memory(&'a BTreeMap<String, String>),
}

/// A root, and what was odd below it.
pub(crate) struct Tree<'a> {
    files: Files<'a>,
    notes: RefCell<Vec<String>>,
}

impl<'a> Tree<'a> {
    pub(crate) fn folder(root: &Path) -> Self {
        Tree {
            files: Files::Folder(root.to_owned()),
            notes: RefCell::default(),
        }
    }

    pub(crate) fn memory(files: &'a BTreeMap<String, String>) -> Self {
        Tree {
            files: Files::Memory(files),
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
        match &self.files {
            Files::Folder(root) => root.join(relative(path)),
            Files::Memory(_) => PathBuf::from(relative(path)),
        }
    }

    /// The text of a file without surrounding white space.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        match &self.files {
            Files::Folder(root) => {
                // A recording may hold bytes that are not UTF-8 in files that do not matter here.
                let bytes = fs::read(root.join(relative(path))).ok()?;
                Some(String::from_utf8_lossy(&bytes).trim().to_owned())
            }
            Files::Memory(files) => Some(files.get(relative(path))?.trim().to_owned()),
        }
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

    /// Names of the entries of a folder, sorted; empty when it is missing.
    pub(crate) fn entries(&self, path: &str) -> Vec<String> {
        let mut names: Vec<String> = match &self.files {
            Files::Folder(root) => match fs::read_dir(root.join(relative(path))) {
                Ok(entries) => entries
                    .flatten()
                    .filter_map(|entry| entry.file_name().into_string().ok())
                    .collect(),
                Err(_) => Vec::new(),
            },
            Files::Memory(files) => entries_in(files, relative(path)),
        };
        names.sort();
        // A link in memory is a file and, for what lies behind it, a folder.
        names.dedup();
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
        match &self.files {
            Files::Folder(root) => root.join(relative(path)).exists(),
            Files::Memory(files) => files.contains_key(relative(path)),
        }
    }

    /// The target of a symbolic link, as it is written.
    pub(crate) fn link(&self, path: &str) -> Option<String> {
        match &self.files {
            Files::Folder(root) => fs::read_link(root.join(relative(path)))
                .ok()?
                .into_os_string()
                .into_string()
                .ok(),
            Files::Memory(files) => files.get(relative(path)).cloned(),
        }
    }
}

fn relative(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// The names directly below a folder, found by jumping over what lies deeper.
fn entries_in(files: &BTreeMap<String, String>, folder: &str) -> Vec<String> {
    let prefix = format!("{folder}/");
    let mut names = Vec::new();
    let mut from = Bound::Included(prefix.clone());
    while let Some((path, _)) = files.range((from, Bound::Unbounded)).next() {
        let Some(rest) = path.strip_prefix(&prefix) else { break };
        from = match rest.split_once('/') {
            Some((name, _)) => {
                names.push(name.to_owned());
                // The character after the slash: the first path that is not inside the folder of that name.
                Bound::Included(format!("{prefix}{name}0"))
            }
            None => {
                names.push(rest.to_owned());
                Bound::Excluded(path.clone())
            }
        };
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_memory_are_listed_as_folders_are() {
        let files: BTreeMap<String, String> = ["a/b", "a/b-c/d", "a/c/x", "a/c/y/z", "a/c0", "ab/q", "e"]
            .iter()
            .map(|path| ((*path).to_owned(), " text\n".to_owned()))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in &files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let (memory, disk) = (Tree::memory(&files), Tree::folder(folder.path()));
        for path in ["/a", "/a/c", "/ab", "/none"] {
            assert_eq!(memory.entries(path), disk.entries(path), "{path}");
        }
        assert_eq!(memory.entries("/a"), ["b", "b-c", "c", "c0"]);
        assert_eq!(memory.text("/a/b").as_deref(), Some("text"));
        assert_eq!(memory.text("/a/b"), disk.text("/a/b"));
        assert!(memory.exists("/a/c0") && !memory.exists("/a/none"));
    }
}
