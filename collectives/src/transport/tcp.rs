//! A TCP connection as a pipe: between hosts, and between ranks of one host that share no memory.

use std::io::{self, IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use super::link::Pipe;

pub(super) struct Socket(TcpStream);

impl Socket {
    /// A connection whose handshake is over.
    pub(super) fn new(stream: TcpStream, silence: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let socket = socket2::SockRef::from(&stream);
        // Data that the other side does not acknowledge mean that it is cut off; the worker's own limit on silence
        // covers the rest.
        socket.set_tcp_user_timeout(Some(silence))?;
        socket.set_keepalive(true)?;
        Ok(Self(stream))
    }
}

impl Pipe for Socket {
    fn send(&mut self, first: &[u8], second: &[u8]) -> io::Result<usize> {
        self.0.write_vectored(&[IoSlice::new(first), IoSlice::new(second)])
    }

    fn receive(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if first.is_empty() {
            self.0.read(second)
        } else {
            self.0
                .read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(second)])
        }
    }

    fn shut(&mut self) {
        // An error means that the connection is over already, which shows when it is read.
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
