//! How much of a TCP stream waits in the kernel to be sent for the first time.

use std::{io, os::fd::BorrowedFd};

use socket2::SockRef;

/// Has the socket be writable only while fewer bytes wait (`TCP_NOTSENT_LOWAT`, tcp(7)): what waits
/// longer stays with the program, which may drop it or send something else first.
///
/// # Errors
/// It is no TCP socket.
pub fn limit_unsent(socket: BorrowedFd<'_>, bytes: u32) -> io::Result<()> {
    SockRef::from(&socket).set_tcp_notsent_lowat(bytes)
}
