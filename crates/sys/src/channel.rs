//! The socket pair between a peer and its helper process. It preserves message boundaries, and
//! each message may contain one file descriptor.
#![expect(unsafe_code, reason = "file descriptors received over a socket")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::socket::{
        AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recv,
        recvmsg, sendmsg, socketpair,
    },
};

/// One end of a socket pair with message boundaries. An end is open until all processes have
/// closed their copies of it.
#[derive(Debug)]
pub struct Channel(OwnedFd);

impl Channel {
    /// Both ends.
    ///
    /// # Errors
    /// The file descriptors are exhausted.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = pair()?;
        Ok((Self(one), Self(other)))
    }

    /// Sends a packet. If the buffer is full, it waits, unless [`Channel::set_nonblocking`] was
    /// called.
    ///
    /// # Errors
    /// The other end is closed, or the buffer is full and the channel is non-blocking.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        send(self.0.as_fd(), packet, None)
    }

    /// Sends a packet with a descriptor.
    ///
    /// # Errors
    /// As [`Channel::send`].
    pub fn send_with(&self, packet: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
        send(self.0.as_fd(), packet, Some(descriptor))
    }

    /// Receives a packet and its descriptor.
    ///
    /// # Errors
    /// As [`Channel::receive`].
    pub fn receive_with(&self, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        receive(self.0.as_fd(), buffer)
    }

    /// Receives a packet, truncated if it is longer than `buffer`. Returns its length, 0 if the
    /// other end is closed.
    ///
    /// # Errors
    /// The channel is non-blocking, and no packet is available.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(self.0.as_raw_fd(), buffer, MsgFlags::empty()) {
                Err(Errno::EINTR) => {}
                received => return Ok(received?),
            }
        }
    }

    /// Makes this end non-blocking, in all processes that have copies of it.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        let flags = OFlag::from_bits_retain(fcntl(&self.0, FcntlArg::F_GETFL)?);
        Ok(fcntl(&self.0, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).map(drop)?)
    }
}

impl From<OwnedFd> for Channel {
    fn from(end: OwnedFd) -> Self {
        Self(end)
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The maximum number of descriptors in one message (kernel `SCM_MAX_FD`).
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

/// Receives a message into `buffer`, truncated if it is longer. Returns its length, 0 if the other
/// end is closed, and its first descriptor. Further descriptors are closed.
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
            // SAFETY: the kernel has just created these descriptors in this process, so they are
            // not owned yet.
            fds.extend(more.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok((message.bytes, fds.into_iter().next()))
}
