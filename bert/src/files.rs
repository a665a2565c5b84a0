//! Files that are whole or absent: written under a temporary name beside their place, synced, renamed.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Replaces the file at `path` by one with these bytes. After an error the old file, if there was one, is still there.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| file.write_all(bytes))
}

/// The same with the contents written piece by piece.
pub fn write_with(path: &Path, contents: impl FnOnce(&mut File) -> std::io::Result<()>) -> Result<()> {
    let temporary = beside(path);
    let result = File::create(&temporary)
        .and_then(|mut file| contents(&mut file).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path))
        .and_then(|()| sync_folder(path));
    result.map_err(|e| {
        // What is left of the attempt is worthless; that it cannot be removed either would say nothing new.
        let _ = fs::remove_file(&temporary);
        Error::io(path)(e)
    })
}

/// Fills a new folder through `fill` and gives it its name at the end, replacing a folder that had the name.
pub fn write_folder(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let temporary = beside(path);
    let attempt = || {
        if temporary.exists() {
            fs::remove_dir_all(&temporary).map_err(Error::io(&temporary))?;
        }
        fs::create_dir_all(&temporary).map_err(Error::io(&temporary))?;
        fill(&temporary)?;
        if path.exists() {
            fs::remove_dir_all(path).map_err(Error::io(path))?;
        }
        fs::rename(&temporary, path).map_err(Error::io(path))?;
        sync_folder(path).map_err(Error::io(path))
    };
    attempt().inspect_err(|_| {
        let _ = fs::remove_dir_all(&temporary);
    })
}

/// The name of an attempt: hidden, in the same folder (a rename cannot cross file systems), one for each process.
fn beside(path: &Path) -> PathBuf {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    path.with_file_name(format!(".{name}.{}.tmp", std::process::id()))
}

fn sync_folder(path: &Path) -> std::io::Result<()> {
    let parent = path
        .parent()
        .filter(|p| !p.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_file_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        write(&path, b"old").unwrap();
        let failure = write_with(&path, |file| {
            file.write_all(b"half")?;
            Err(std::io::Error::other("no space left"))
        });
        assert!(failure.unwrap_err().to_string().contains("state.json: no space left"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint-1");
        write_folder(&path, |f| write(&f.join("a"), b"1")).unwrap();
        let failure = write_folder(&path, |f| {
            write(&f.join("a"), b"2")?;
            Err(Error::file(f, "stopped"))
        });
        assert!(failure.is_err());
        assert_eq!(fs::read(path.join("a")).unwrap(), b"1");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        write_folder(&path, |f| write(&f.join("b"), b"3")).unwrap();
        assert!(!path.join("a").exists());
    }
}
