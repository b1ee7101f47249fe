//! The socket pair between a peer and its helper process. Messages keep their boundaries, and each
//! may carry one file descriptor.
#![expect(unsafe_code, reason = "file descriptors received over a socket")]

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

/// The most descriptors in one message (kernel `SCM_MAX_FD`).
pub(crate) const MAX_DESCRIPTORS: usize = 253;

pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SockFlag::SOCK_CLOEXEC;
    Ok(socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags)?)
}

pub(crate) fn send(
    channel: BorrowedFd<'_>,
    message: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let fds: Vec<RawFd> = fd.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let control = if fds.is_empty() { &[][..] } else { &rights };
    let slices = [io::IoSlice::new(message)];
    loop {
        match sendmsg::<()>(channel.as_raw_fd(), &slices, control, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            sent => return Ok(sent.map(drop)?),
        }
    }
}

/// Receives a message into `buffer`, truncated where it is longer. Returns its length, 0 when the
/// other end is closed, and the first descriptor that came with it; any others are closed.
pub(crate) fn receive(
    channel: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = nix::cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let mut slices = [io::IoSliceMut::new(buffer)];
    let message = loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        match recvmsg::<()>(channel.as_raw_fd(), &mut slices, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            message => break message?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(more) = control {
            // SAFETY: the kernel has just created these descriptors in this process, and nothing
            // else owns them.
            fds.extend(more.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, fds.into_iter().next()))
}
