//! A small process that keeps the rights of root that a confined peer has use for, and uses them
//! for a few fixed things. The peer itself has none left.
//!
//! ```text
//!   peer, before its sandbox -- interface, sockets' files --> helper: this program anew, so that
//!     |                                                        | it has neither keys nor TUN
//!     |                         (it confines itself) ready <-- |
//!     | routes and rules that may come and go, and no more --> |
//!     | a UDP socket of this port and mark ------------------> |
//!     | <------------------------------------- the socket ---- |
//!     | this socket's mark, that route, that rule, ... ------> |
//!     x  ends, somehow --------------------------------------> ends
//! ```
//!
//! No verb names an interface, a table or a file: these were told before anybody else could speak
//! for the peer. What is no verb is refused.

mod serve;
mod wire;

use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
};

use ipnet::IpNet;

use crate::{line, netlink::Rule};
pub use serve::serve_standard_input;
pub use wire::{Charge, ENTRIES, Entry, MAX, Message, Verb};

/// What this program is called as a helper: the whole of its first argument.
const NAME: &str = "linerate-helper";
/// This program, also where its file was replaced.
const PROGRAM: &str = "/proc/self/exe";
/// Why nothing comes of a verb.
const GONE: &str = "the helper process is gone: this takes rights that it had, until a restart";

/// The line to a helper. The helper ends when it is dropped.
#[derive(Debug)]
pub struct Helper {
    /// One message and its answer at a time.
    line: Mutex<OwnedFd>,
}

impl Helper {
    /// Starts one with this charge, and waits until it is ready.
    ///
    /// # Errors
    /// There is no such process to be had, a file is no socket, or the sandbox was refused.
    pub fn start(charge: &Charge) -> io::Result<Self> {
        let (ours, theirs) = line::pair()?;
        let mut command = Command::new(PROGRAM);
        command.arg0(NAME).stdin(Stdio::from(theirs));
        // Who waits for the end of these waits for the peer, not for its helper.
        command.stdout(Stdio::null()).stderr(Stdio::null()).current_dir("/").spawn()?;
        // Only its own end of the line is left, which it cuts where it ends.
        drop(command);
        Self::charge(ours, charge)
    }

    fn charge(line: OwnedFd, charge: &Charge) -> io::Result<Self> {
        let this = Self { line: Mutex::new(line) };
        this.say(&charge.encode()?, None)?;
        Ok(this)
    }

    /// Whether this process was started as a helper.
    pub fn asked_for(mut arguments: impl Iterator<Item = OsString>) -> bool {
        arguments.next().is_some_and(|name| name == NAME)
    }

    /// Tells the routes and rules that it is asked for later, by their places, and that there
    /// will be no others.
    ///
    /// # Errors
    /// It has heard of some before, or is gone.
    pub fn tell(&self, routes: &[IpNet], rules: &[Rule]) -> io::Result<()> {
        let routes = routes.iter().copied().map(Entry::Route);
        let entries: Vec<_> = routes.chain(rules.iter().copied().map(Entry::Rule)).collect();
        for entries in entries.chunks(ENTRIES) {
            self.say(&Entry::encode_all(entries), None)?;
        }
        self.say(&Message::END, None).map(drop)
    }

    /// A bound UDP socket with its options, as [`crate::UdpSocket::bind`] makes it.
    pub(crate) fn socket(&self, port: u16, fwmark: u32) -> io::Result<OwnedFd> {
        let made = self.ask(Verb::Socket { port, fwmark }, None)?;
        made.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no socket came"))
    }

    /// Gives a UDP socket a mark.
    pub(crate) fn mark(&self, socket: BorrowedFd<'_>, fwmark: u32) -> io::Result<()> {
        self.ask(Verb::Mark { fwmark }, Some(socket)).map(drop)
    }

    /// Sets the interface down.
    ///
    /// # Errors
    /// The kernel's refusal, or it is gone.
    pub fn set_down(&self) -> io::Result<()> {
        self.ask(Verb::Down, None).map(drop)
    }

    /// Deletes the interface.
    ///
    /// # Errors
    /// The kernel's refusal, or it is gone.
    pub fn delete_link(&self) -> io::Result<()> {
        self.ask(Verb::Delete, None).map(drop)
    }

    /// Adds or deletes the route of this place to the interface.
    ///
    /// # Errors
    /// The kernel's refusal: EEXIST and ESRCH where it is so already. Or it is gone.
    pub fn route(&self, place: usize, there: bool) -> io::Result<()> {
        let place = u32::try_from(place).map_err(io::Error::other)?;
        self.ask(Verb::Route { place, there }, None).map(drop)
    }

    /// Adds the rule of this place.
    ///
    /// # Errors
    /// The kernel's refusal: EEXIST where there is one like it. Or it is gone.
    pub fn add_rule(&self, place: usize) -> io::Result<()> {
        let place = u32::try_from(place).map_err(io::Error::other)?;
        self.ask(Verb::Rule { place }, None).map(drop)
    }

    /// Removes the files of sockets.
    ///
    /// # Errors
    /// The kernel's refusal, or it is gone.
    pub fn remove_sockets(&self) -> io::Result<()> {
        self.ask(Verb::Remove, None).map(drop)
    }

    fn ask(&self, verb: Verb, with: Option<BorrowedFd<'_>>) -> io::Result<Option<OwnedFd>> {
        self.say(&verb.encode(), with)
    }

    fn say(&self, message: &[u8], with: Option<BorrowedFd<'_>>) -> io::Result<Option<OwnedFd>> {
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, GONE);
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line::send(line.as_fd(), message, with).map_err(gone)?;
        let mut answer = [0; size_of::<i32>()];
        let (length, fd) = line::receive(line.as_fd(), &mut answer).map_err(gone)?;
        if length < answer.len() {
            return Err(gone(io::ErrorKind::UnexpectedEof.into()));
        }
        match i32::from_le_bytes(answer) {
            0 => Ok(fd),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests;
