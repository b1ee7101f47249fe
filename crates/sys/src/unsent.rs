//! Limits the unsent data of a TCP connection in the kernel.

use std::{io, os::fd::BorrowedFd};

use socket2::SockRef;

/// Makes the socket writable only while fewer bytes are unsent (`TCP_NOTSENT_LOWAT`, tcp(7)). The
/// program then queues other data itself, and can drop or reorder it.
///
/// # Errors
/// It is not a TCP socket.
pub fn limit_unsent(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    SockRef::from(&socket).set_tcp_notsent_lowat(bytes)
}
