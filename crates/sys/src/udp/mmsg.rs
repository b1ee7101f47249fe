//! `sendmmsg` and `recvmmsg`: many datagrams in one system call.
//!
//! The arrays are made once. Their pointers are set anew for each call, from
//! what the call borrows, and mean nothing between calls.
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
    cmsg::{Beside, Control},
    socket::set_gro,
};
use crate::time::Time;

/// The most datagrams of one call. Past it a system call costs nothing beside
/// the datagrams it carries, while the arrays would no longer stay in the cache.
pub(super) const MAX_MESSAGES: usize = 128;

/// The system calls of both halves: the kernel's, or, in tests, those of a kernel
/// that refuses what it is told to refuse.
pub trait Calls: Time + Send + 'static {
    /// Sends the first [`MAX_MESSAGES`] of `datagrams` at most, without waiting.
    /// Returns how many went. The error is that of the first.
    fn send<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        family: Family,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> Result<usize, Errno>;

    /// Receives into the first [`MAX_MESSAGES`] of `slots` at most, without
    /// waiting. Returns how many came; [`Calls::received`] tells of each.
    fn receive<'a>(
        &mut self,
        fd: BorrowedFd<'_>,
        slots: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Errno>;

    /// What the last [`Calls::receive`] brought in its slot `at`.
    fn received(&self, at: usize) -> Received;

    /// Lets datagrams come coalesced, or not.
    fn set_gro(&self, fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno>;
}

/// Datagrams to be sent as one.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    pub(super) payload: &'a [u8],
    /// The length of each but the last, where there are several.
    pub(super) segment: Option<u16>,
    pub(super) remote: SocketAddr,
    pub(super) local: Option<Local>,
    pub(super) tos: Tos,
}

/// What `sendmmsg` or `recvmmsg` is given: a header a datagram, each with one
/// buffer, one address and control messages.
pub struct Messages {
    headers: Box<[libc::mmsghdr]>,
    buffers: Box<[libc::iovec]>,
    names: Box<[Name]>,
    controls: Box<[Control]>,
}

// SAFETY: the raw pointers in `headers` and `buffers` are written before each
// use and followed by nobody in between, so that another thread can go on.
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

    /// Makes header `at` point at its name, control and buffer.
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

impl Time for Messages {}

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
        // SAFETY: the first `count` headers point into `names`, `controls` and
        // `buffers`, and those at payloads that `'a` keeps borrowed; the kernel
        // only reads them.
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
        // SAFETY: the first `count` headers point into `names`, `controls` and
        // `buffers`, with their full lengths, and those at slots that `'a` keeps
        // borrowed for writing, no two the same. No time-out is given.
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
            beside: self.controls[at].parse(header.msg_hdr.msg_controllen),
        }
    }

    fn set_gro(&self, fd: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
        set_gro(fd, on)
    }
}

/// What came with one slot.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub(super) len: usize,
    /// Whether all of it fitted.
    pub(super) is_whole: bool,
    /// The sender, IPv4 in its mapped form on a dual-stack socket.
    pub(super) remote: Option<SocketAddr>,
    pub(super) beside: Beside,
}
