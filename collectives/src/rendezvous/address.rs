//! Sockets for a meeting: on which address to listen, whom to reach, who is still there.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::{Error, Result};

/// A connection to the first address that answers.
pub(super) fn open(addresses: &[SocketAddr], time: Duration) -> Result<TcpStream, String> {
    let mut reason = "its name has no address".to_string();
    for address in addresses {
        match TcpStream::connect_timeout(address, time.max(Duration::from_millis(1))) {
            // A connection to a free port of this machine can meet itself.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                reason = "nobody listens there yet".into();
            }
            Ok(stream) => return Ok(stream),
            Err(e) => reason = format!("{address}: {e}"),
        }
    }
    Err(reason)
}

/// Listens on the first address that works, and on that alone.
pub(super) fn listen(addresses: Vec<SocketAddr>) -> Result<TcpListener> {
    let mut failure = None;
    for address in addresses {
        match TcpListener::bind(address) {
            Ok(listener) => return Ok(listener),
            Err(e) => {
                failure.get_or_insert(Error::address(address, "listen on", e));
            }
        }
    }
    Err(failure.unwrap_or_else(|| {
        Error::address(
            "no address",
            "listen on",
            std::io::Error::from(ErrorKind::AddrNotAvailable),
        )
    }))
}

/// Where it listens.
pub(super) fn local_address(listener: &TcpListener) -> Result<SocketAddr> {
    listener
        .local_addr()
        .map_err(|e| Error::address("the listener", "read the address of", e))
}

/// The addresses of the meeting point on rank 0's own machine.
pub(super) fn resolve_here(host: &str, port: u16, several_nodes: bool) -> Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|e| Error::address(format_args!("{host}:{port}"), "resolve", e))?
        .collect();
    // Debian maps a machine's own name to 127.0.1.1, where no other machine can reach it.
    let unreachable = several_nodes && host.parse::<IpAddr>().is_err() && host != "localhost";
    if unreachable && addresses.iter().all(|address| address.ip().is_loopback()) {
        let reason = format!(
            "{host} is {} here, which other nodes cannot reach: give an address of this machine's network",
            addresses
                .first()
                .map(|address| address.ip().to_string())
                .unwrap_or_default()
        );
        return Err(Error::Variable {
            name: "MASTER_ADDR".into(),
            reason,
        });
    }
    Ok(addresses)
}

/// Whether the other side has closed the connection.
pub(super) fn ended(stream: &TcpStream) -> bool {
    let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok() && fds[0].revents().intersects(gone)
}

/// Waits for a connection to accept.
pub(super) fn wait_readable(listener: &TcpListener, time: Duration) {
    let timeout = Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    };
    // However the wait ends, accepting is tried next.
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout));
}
