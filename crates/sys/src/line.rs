//! The line between a peer and a process that works for it: messages that come whole, each with at
//! most one file descriptor.
#![expect(unsafe_code, reason = "file descriptors that come over a socket")]

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
        sendmsg, socketpair,
    },
};

/// The descriptors that one message may bring (kernel `SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

/// Both ends.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?)
}

/// Sends a message.
pub(crate) fn send(
    line: BorrowedFd<'_>,
    message: &[u8],
    with: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let fds: Vec<RawFd> = with.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights };
    let slices = [io::IoSlice::new(message)];
    loop {
        match sendmsg::<()>(line.as_raw_fd(), &slices, control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// The next message, cut to the room there is: its length, 0 where the line was cut, and the first
/// descriptor that came with it. There is room for all that a message may bring, so that none is
/// left open behind.
pub(crate) fn receive(
    line: BorrowedFd<'_>,
    room: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut slices = [io::IoSliceMut::new(room)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(line.as_raw_fd(), &mut slices, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(more) = control {
            // SAFETY: the kernel has just made these descriptors for us; nobody else has their
            // numbers.
            fds.extend(more.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, fds.into_iter().next()))
}
