//! `sendmmsg` and `recvmmsg`: many datagrams in one system call.
//!
//! The arrays are allocated once. Their pointers are set for each call, from the call's borrows,
//! and are invalid between calls.
#![expect(unsafe_code, reason = "the two system calls, and the pointers they take")]

use std::{
    mem,
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use nix::errno::Errno;
use packet::{Local, Tos};

use super::{
    address::{Family, Name},
    cmsg::{Ancillary, Control},
    socket::set_gro,
};
use crate::time::Clock;

/// The maximum number of datagrams of one call. Larger calls hardly lower the cost of the call
/// itself, and the arrays would exceed the cache.
pub(super) const MAX_MESSAGES: usize = 128;

/// The system calls of both halves. Tests replace the kernel by a simulation that can refuse
/// calls.
pub trait Calls: Clock + Send + 'static {
    /// Sends at most the first [`MAX_MESSAGES`] of `datagrams`, without waiting. Returns the
    /// number of sent ones. An error is that of the first.
    fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        family: Family,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> Result<usize, Errno>;

    /// Receives into at most the first [`MAX_MESSAGES`] of `slots`, without waiting. Returns the
    /// number of filled slots; see [`Calls::received`].
    fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        slots: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Errno>;

    /// The contents of slot `at` after the last [`Calls::receive`].
    fn received(&self, at: usize) -> Received;

    /// Enables or disables GRO.
    fn set_gro(&self, fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno>;
}

/// A message to send: one datagram, or a GSO message that the kernel segments.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub(super) payload: &'a [u8],
    /// The length of each datagram except the last in a GSO message.
    pub(super) segment: Option<u16>,
    pub(super) remote: SocketAddr,
    pub(super) local: Option<Local>,
    pub(super) tos: Tos,
}

/// The arguments of `sendmmsg` and `recvmmsg`: for each datagram a header with one buffer, one
/// address and control messages.
pub struct Messages {
    headers: Box<[libc::mmsghdr]>,
    buffers: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

// SAFETY: the raw pointers in `headers` and `buffers` are written before each use and not
// dereferenced between uses, so the thread may change.
unsafe impl Send for Messages {}

impl Messages {
    pub(super) fn new() -> Self {
        // SAFETY: all-zero bytes are a valid mmsghdr: integers and null pointers.
        let header: libc::mmsghdr = unsafe { mem::zeroed() };
        let buffer = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        Self {
            headers: vec![header; MAX_MESSAGES].into(),
            buffers: vec![buffer; MAX_MESSAGES].into(),
            names: vec![Name::EMPTY; MAX_MESSAGES].into(),
            controls: vec![Control::EMPTY; MAX_MESSAGES].into(),
        }
    }

    /// Points header `at` at its name, control messages and buffer.
    fn link(&mut self, at: usize, base: *mut u8, len: usize, name_len: usize, control_len: usize) {
        self.buffers[at] = libc::iovec { iov_base: base.cast(), iov_len: len };
        let header = &mut self.headers[at].msg_hdr;
        header.msg_name = (&raw mut self.names[at].bytes).cast();
        header.msg_namelen = name_len as libc::socklen_t;
        header.msg_iov = &raw mut self.buffers[at];
        header.msg_iovlen = 1;
        header.msg_control = (&raw mut self.controls[at].bytes).cast();
        header.msg_controllen = control_len;
        header.msg_flags = 0;
    }
}

impl Clock for Messages {}

impl Calls for Messages {
    fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        family: Family,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        for (at, datagram) in datagrams.take(MAX_MESSAGES).enumerate() {
            let (name, name_len) = Name::new(datagram.remote, family);
            self.names[at] = name;
            let Outgoing { remote, local, tos, segment, .. } = datagram;
            let control_len = self.controls[at].write(remote.is_ipv4(), local, tos, segment);
            let payload = datagram.payload;
            self.link(at, payload.as_ptr().cast_mut(), payload.len(), name_len, control_len);
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` headers point into `names`, `controls` and `buffers`, and
        // those at payloads that are borrowed for `'a`. The kernel only reads them.
        let sent = unsafe {
            libc::sendmmsg(fd.as_raw_fd(), self.headers.as_mut_ptr(), count as u32, flags)
        };
        Errno::result(sent).map(|sent| sent as usize)
    }

    fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        slots: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        for (at, slot) in slots.take(MAX_MESSAGES).enumerate() {
            let name_len = self.names[at].bytes.len();
            let control_len = self.controls[at].bytes.len();
            self.link(at, slot.as_mut_ptr(), slot.len(), name_len, control_len);
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the first `count` headers point into `names`, `controls` and `buffers`, with
        // their full lengths, and those at distinct slots that are mutably borrowed for `'a`. The
        // time-out is null.
        let received = unsafe {
            libc::recvmmsg(
                fd.as_raw_fd(),
                self.headers.as_mut_ptr(),
                count as u32,
                flags,
                ptr::null_mut(),
            )
        };
        Errno::result(received).map(|received| received as usize)
    }

    fn received(&self, at: usize) -> Received {
        let header = &self.headers[at];
        Received {
            len: header.msg_len as usize,
            is_whole: header.msg_hdr.msg_flags & libc::MSG_TRUNC == 0,
            remote: self.names[at].parse(header.msg_hdr.msg_namelen as usize),
            ancillary: self.controls[at].parse(header.msg_hdr.msg_controllen),
        }
    }

    fn set_gro(&self, fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
        set_gro(fd, on)
    }
}

/// The contents of a filled slot.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub(super) len: usize,
    /// Whether it was not truncated.
    pub(super) is_whole: bool,
    /// The sender. On a dual-stack socket IPv4 is in its mapped form.
    pub(super) remote: Option<SocketAddr>,
    pub(super) ancillary: Ancillary,
}
