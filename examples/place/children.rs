//! Several copies of this program, each of which becomes one rank; ends when all have ended.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two looks at the children.
const LOOK: Duration = Duration::from_millis(20);
/// From the request to end until the children are killed.
const GRACE: Duration = Duration::from_secs(10);

/// Starts `ranks` copies and waits for them. The first failure ends the others; its status is the answer. An interrupt or
/// a request to terminate is passed on to the children, and the answer is then 130.
pub(crate) fn run(program: &[String], ranks: usize, prepare: impl Fn(&mut Command, usize)) -> u8 {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // Fails for signals that cannot be caught only, which these are not.
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    let this = match std::env::current_exe() {
        Ok(path) => path,
        Err(error) => {
            eprintln!("place: cannot find this program to start it again: {error}");
            return 1;
        }
    };
    let mut children: Vec<(usize, Child)> = Vec::new();
    let mut status = 0;
    for rank in 0..ranks {
        let mut command = Command::new(&this);
        prepare(&mut command, rank);
        match command.args(program).spawn() {
            Ok(child) => children.push((rank, child)),
            Err(error) => {
                eprintln!("place: cannot start rank {rank}: {error}");
                status = 1;
                break;
            }
        }
    }
    let mut since = None;
    while !children.is_empty() {
        let stopped = stop.load(Ordering::SeqCst);
        if (status != 0 || stopped) && since.is_none() {
            since = Some(std::time::Instant::now());
            if stopped && status == 0 {
                status = 130;
            }
            for (_, child) in &children {
                terminate(child);
            }
        }
        let late = since.is_some_and(|since| since.elapsed() > GRACE);
        children.retain_mut(|(rank, child)| {
            if late {
                // It has ended by itself when this fails.
                let _ = child.kill();
            }
            let Ok(Some(end)) = child.try_wait() else { return true };
            let code = end.code().unwrap_or_else(|| 128 + end.signal().unwrap_or(0));
            if code != 0 && status == 0 {
                eprintln!("place: rank {rank} ended with status {code}; the others are stopped");
                status = u8::try_from(code).unwrap_or(1);
            }
            false
        });
        std::thread::sleep(LOOK);
    }
    status
}

/// Asks a child to end, as `kill` does.
fn terminate(child: &Child) {
    // The standard library can only kill; the tool of that name is on every system that has processes.
    let _ = Command::new("kill").arg(child.id().to_string()).status();
}
