//! The output of ranks: rank 0's passes through untouched, the others' lines are marked with their rank.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::thread::JoinHandle;

/// A line longer than this is passed on in parts.
const LONGEST: u64 = 64 << 10;

/// Copies `from` to `to` line by line, marked, until it ends.
pub(super) fn mark(
    rank: usize,
    from: impl Read + Send + 'static,
    mut to: impl Write + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("output of rank {rank}"))
        .spawn(move || {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            loop {
                line.clear();
                match from.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
                if line.last() != Some(&b'\n') {
                    line.push(b'\n');
                }
                let mark = format!("[rank {rank}] ");
                // One write, so that lines of different ranks do not mix. Nobody reading is no reason to stop the rank.
                let _ = to
                    .write_all(&[mark.as_bytes(), &line].concat())
                    .and_then(|()| to.flush());
            }
        })
}
