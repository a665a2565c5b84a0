//! The meeting point of ranks on one machine: a file of the user's with rank 0's address and the job's secret.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::Path;

use crate::auth::Secret;
use crate::error::{Error, Result};

/// The file: address and secret, readable by its owner alone, there at once or not at all.
pub(super) fn write(path: &Path, address: &SocketAddr, secret: &Secret) -> Result<()> {
    use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
    let fail = |e| Error::address(path.display(), "write the meeting file", e);
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(fail)?;
        check_owner(folder).map_err(fail)?;
    }
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(fail)?;
    file.write_all(format!("{address} {}\n", secret.expose()).as_bytes())
        .map_err(fail)?;
    fs::rename(&temporary, path).map_err(fail)
}

pub(super) fn read(path: &Path) -> Result<(SocketAddr, Secret), String> {
    if let Some(folder) = path.parent() {
        check_owner(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (address, secret) = text.trim().split_once(' ').ok_or("the meeting file is damaged")?;
    let address = address
        .parse()
        .map_err(|e| format!("the meeting file is damaged: {e}"))?;
    Ok((address, Secret::new(secret).map_err(|e| e.to_string())?))
}

/// The folder must be this user's own and closed to others, or somebody could place another file in it.
fn check_owner(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let about = fs::metadata(folder)?;
    let own = about.uid() == rustix::process::geteuid().as_raw();
    if own && about.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(std::io::Error::new(
            ErrorKind::PermissionDenied,
            "the folder is open to other users",
        ))
    }
}
