//! A small privileged process, which executes a few fixed commands for a confined peer. The peer
//! itself drops all privileges.
//!
//! ```text
//!   peer, before its sandbox -- Job: interface, sockets' files --> helper: this program, executed
//!     |                                                             | again: no keys, no TUN
//!     |                             (it confines itself) ready <--- |
//!     | routes and rules that may be changed ------------------> |
//!     | Command: a UDP socket with this port and mark ------------> |
//!     | <------------------------------------------ the socket ---- |
//!     | Command: mark this socket, add that route, ... -----------> |
//!     x exits ----------------------------------------------------> exits
//! ```
//!
//! A command cannot contain an interface, a table or a file. Those are fixed by the job, which is
//! sent before the peer reads from the network. All other messages are rejected.

mod messages;

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{self, Stdio},
    sync::{Mutex, PoisonError},
};

use ipnet::IpNet;

use crate::{channel, errno::Errno, netlink::Rule};
pub use messages::{Command, Entry, Job, MAX_ENTRIES, MAX_MESSAGE, Message};

/// `argv[0]` of a helper.
pub(crate) const NAME: &str = "linerate-helper";
/// The running program, even if its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// The error after the helper has exited.
pub(crate) const GONE: &str = "the helper process has exited: restart the interface and try again";

/// The channel to a helper, which exits when this is dropped.
#[derive(Debug)]
pub struct Helper {
    /// Locked from each message until its reply.
    channel: Mutex<OwnedFd>,
}

impl Helper {
    /// Starts a helper, and waits until it is ready.
    ///
    /// # Errors
    /// The process could not be started, a file of the job is not a socket, or the sandbox failed.
    pub fn start(job: &Job) -> io::Result<Self> {
        let (ours, theirs) = channel::pair()?;
        let mut command = process::Command::new(PROGRAM);
        command.arg0(NAME).stdin(Stdio::from(theirs));
        // A caller that reads our output until it is closed must not wait for the helper.
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").spawn()?;
        // Closes the helper's end in this process, so that its exit is noticed.
        drop(command);
        Self::assign(ours, job)
    }

    pub(crate) fn assign(channel: OwnedFd, job: &Job) -> io::Result<Self> {
        let this = Self { channel: Mutex::new(channel) };
        this.request(&job.encode()?, None)?;
        Ok(this)
    }

    /// Whether these arguments start a helper.
    pub fn is_requested(mut arguments: impl Iterator<Item = OsString>) -> bool {
        arguments.next().is_some_and(|name| name == NAME)
    }

    /// Registers the routes and rules that later commands may change. This is allowed once.
    ///
    /// # Errors
    /// Some were registered before, or the helper has exited.
    pub fn register(&self, routes: &[IpNet], rules: &[Rule]) -> io::Result<()> {
        let routes = routes.iter().copied().map(Entry::Route);
        let entries: Vec<_> = routes.chain(rules.iter().copied().map(Entry::Rule)).collect();
        for entries in entries.chunks(MAX_ENTRIES) {
            self.request(&Entry::encode_all(entries), None)?;
        }
        self.request(&Message::END, None).map(drop)
    }

    /// A bound UDP socket with the options of [`crate::UdpSocket::bind`].
    pub(crate) fn socket(&self, port: u16, fwmark: u32) -> io::Result<OwnedFd> {
        let socket = self.run(Command::Socket { port, fwmark }, None)?;
        socket
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the helper sent no socket"))
    }

    /// Sets the mark of a UDP socket.
    pub(crate) fn mark(&self, socket: BorrowedFd<'_>, fwmark: u32) -> io::Result<()> {
        self.run(Command::Mark { fwmark }, Some(socket)).map(drop)
    }

    /// Takes the interface down.
    ///
    /// # Errors
    /// The kernel refused, or the helper has exited.
    pub fn set_down(&self) -> io::Result<()> {
        self.run(Command::Down, None).map(drop)
    }

    /// Deletes the interface.
    ///
    /// # Errors
    /// The kernel refused, or the helper has exited.
    pub fn delete_link(&self) -> io::Result<()> {
        self.run(Command::Delete, None).map(drop)
    }

    /// Adds or deletes the registered route at this position.
    ///
    /// # Errors
    /// The kernel refused (EEXIST or ESRCH if the change is already made), or the helper has
    /// exited.
    pub fn route(&self, position: usize, add: bool) -> io::Result<()> {
        let position = u32::try_from(position).map_err(io::Error::other)?;
        self.run(Command::Route { position, add }, None).map(drop)
    }

    /// Adds the registered rule at this position.
    ///
    /// # Errors
    /// The kernel refused (EEXIST if the rule exists), or the helper has exited.
    pub fn add_rule(&self, position: usize) -> io::Result<()> {
        let position = u32::try_from(position).map_err(io::Error::other)?;
        self.run(Command::Rule { position }, None).map(drop)
    }

    /// Removes the job's socket files.
    ///
    /// # Errors
    /// The kernel refused, or the helper has exited.
    pub fn remove_sockets(&self) -> io::Result<()> {
        self.run(Command::Remove, None).map(drop)
    }

    pub(crate) fn run(
        &self,
        command: Command,
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<OwnedFd>> {
        self.request(&command.encode(), fd)
    }

    pub(crate) fn request(
        &self,
        message: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<Option<OwnedFd>> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, GONE);
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        channel::send(channel.as_fd(), message, fd).map_err(gone)?;
        let mut reply = [0; size_of::<i32>()];
        let (length, fd) = channel::receive(channel.as_fd(), &mut reply).map_err(gone)?;
        if length < reply.len() {
            return Err(gone(io::ErrorKind::UnexpectedEof.into()));
        }
        match i32::from_le_bytes(reply) {
            0 => Ok(fd),
            errno => Err(Errno::from_raw(errno).into()),
        }
    }
}
