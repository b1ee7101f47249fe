//! A private network namespace: a small child process lives in it, and hands out
//! the file descriptors that this process, which stays outside, works with.
//!
//! ```text
//!   this process -- fork --> child: enters a new user and network namespace,
//!     | <---- TUN ---------    | makes lo, the TUN, its addresses and a route
//!     | ----- "a TCP socket" ->| gives up its rights, files and calls
//!     | <---- socket --------  | makes sockets, and nothing else
//!     x  ends, somehow ------> ends, and the namespace with it
//! ```
//!
//! A socket stays in the network namespace it was made in, whoever uses it. The way
//! into a user namespace is only open to a process of one thread, and there is no
//! way back; hence the child, made before any thread.
#![expect(unsafe_code, reason = "fork")]

mod inside;
mod wire;

use std::{
    fmt, io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use ipnet::IpNet;
use nix::{
    sys::{
        socket::{MsgFlags, SockaddrStorage, send},
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork},
};

use crate::{line, process, tun::TunInfo};
use wire::Word;

/// What the namespace is to have.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The TUN's name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its addresses, with their host bits. All else of their families is routed into it:
    /// once the child has no rights, it can add no route.
    pub addresses: Vec<IpNet>,
    /// Whether its process keeps no file, and no call but those that make sockets.
    pub sandbox: bool,
}

/// A kind of socket that the namespace makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP over IPv4.
    Udp4,
    /// UDP over IPv6.
    Udp6,
    /// ICMP echo (icmp(7)).
    Ping4,
    /// ICMPv6 echo.
    Ping6,
}

/// A private network namespace. It ends when this is dropped, as far as no socket or
/// TUN holds it.
#[derive(Debug)]
pub struct Namespace {
    /// One request and its answer at a time.
    line: Mutex<OwnedFd>,
    child: Pid,
}

/// Why there is no private namespace.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Neither a user namespace nor, with the right of root, a network namespace may
    /// be made here.
    #[error(
        "no private network namespace may be made here ({0}): this system forbids user \
         namespaces; look at the sysctls user.max_user_namespaces, \
         kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns, \
         and in a container at its seccomp profile, or run as root"
    )]
    Forbidden(#[source] io::Error),
    /// It was made but could not be set up.
    #[error("the private network namespace: {step}: {error}")]
    Setup {
        /// What failed.
        step: Step,
        /// The kernel's answer.
        error: io::Error,
    },
    /// Other threads run already.
    #[error("no child could be made: {0}")]
    Fork(#[source] io::Error),
    /// The child ended without a word.
    #[error("the process in the private network namespace is gone")]
    Gone,
}

impl NamespaceError {
    /// Whether another user, or another system, could have had it: there is no right to
    /// it here, or no TUN device.
    pub fn is_for_want_of_right(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::Setup { step: Step::Tun, .. })
    }
}

/// A step on the way to a namespace that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// The namespaces themselves.
    Enter,
    /// The loopback device.
    Loopback,
    /// `/dev/net/tun`.
    Tun,
    /// The MTU.
    Mtu,
    /// The addresses.
    Address,
    /// The routes.
    Route,
    /// The rights of the child, given up.
    Rights,
}

impl Namespace {
    /// Makes it, with a TUN of this plan that is up. The child begins with `forget`, which is to
    /// wipe what secrets its copy of this process's memory has. Call it before any thread is
    /// started, behind [`process::Signals::block`], so that a signal to the whole
    /// group leaves the child its work, and before [`process::harden`], which would
    /// forbid it to map its user.
    ///
    /// # Errors
    /// See [`NamespaceError`].
    pub fn open(
        plan: &Plan,
        forget: impl FnOnce(),
    ) -> Result<(Self, OwnedFd, TunInfo), NamespaceError> {
        process::only_thread().map_err(NamespaceError::Fork)?;
        let (ours, theirs) = line::pair().map_err(NamespaceError::Fork)?;
        // SAFETY: this thread is the only one, so that the child has all there is
        // of the process and may do all that the parent may.
        match unsafe { fork() }.map_err(|errno| NamespaceError::Fork(errno.into()))? {
            ForkResult::Child => {
                drop(ours);
                forget();
                inside::run(&theirs, plan);
                std::process::exit(0)
            }
            ForkResult::Parent { child } => {
                drop(theirs);
                let namespace = Self { line: Mutex::new(ours), child };
                let (tun, index) = match namespace.first_word() {
                    Ok(word) => word,
                    Err(error) => {
                        namespace.end();
                        return Err(error);
                    }
                };
                let info = TunInfo { name: plan.name.clone(), index, mtu: plan.mtu };
                Ok((namespace, tun, info))
            }
        }
    }

    /// A socket in the namespace: close-on-exec, not blocking, not bound.
    ///
    /// # Errors
    /// The kernel's answer to the child, or `BrokenPipe` where the child is gone.
    pub fn socket(&self, kind: Kind) -> io::Result<OwnedFd> {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        send(line.as_raw_fd(), &[kind as u8], MsgFlags::MSG_NOSIGNAL)?;
        match receive(&line)? {
            (Word::Socket, Some(fd)) => Ok(fd),
            (Word::Refused { errno, .. }, _) => Err(io::Error::from_raw_os_error(errno)),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The process that lives in it.
    pub fn pid(&self) -> i32 {
        self.child.as_raw()
    }

    /// Waits for the child, which ends with the line.
    fn end(self) {
        let Self { line, child } = self;
        drop(line);
        // Whatever is said of it, it is no child of ours any more.
        let _ = waitpid(child, None);
    }

    fn first_word(&self) -> Result<(OwnedFd, u32), NamespaceError> {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        match receive(&line).map_err(|_| NamespaceError::Gone)? {
            (Word::Tun { index }, Some(tun)) => Ok((tun, index)),
            (Word::Refused { step, errno }, _) => {
                let error = io::Error::from_raw_os_error(errno);
                Err(match step {
                    Step::Enter => NamespaceError::Forbidden(error),
                    step => NamespaceError::Setup { step, error },
                })
            }
            _ => Err(NamespaceError::Gone),
        }
    }
}

/// Reads one message and the file descriptor that came with it.
fn receive(line: &OwnedFd) -> io::Result<(Word, Option<OwnedFd>)> {
    // A longer one is none.
    let mut text = [0; wire::WORD_LEN + 1];
    let (len, fd) = line::receive(line.as_fd(), &mut text)?;
    let word = Word::parse(&text[..len]).ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((word, fd))
}

/// Reads one message of a child as [`Namespace`] does, and encodes it again: what the fuzzer
/// talks to.
///
/// # Errors
/// It is no message, or there is none.
#[doc(hidden)]
pub fn hear(line: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (word, fd) = receive(line)?;
    Ok((word.encode().to_vec(), fd))
}

/// Answers requests as the child does, until the line is cut: what the fuzzer talks to.
#[doc(hidden)]
pub fn serve(line: &OwnedFd) {
    inside::serve(line);
}

/// Binds a socket of [`Namespace::socket`]. A right to a low port that is missing here
/// is one that the user has inside, who made the namespace.
///
/// # Errors
/// The kernel's answer.
pub fn bind(socket: &OwnedFd, at: SocketAddr) -> io::Result<()> {
    Ok(nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(at))?)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enter => "entering it",
            Self::Loopback => "lo",
            Self::Tun => "/dev/net/tun",
            Self::Mtu => "the MTU",
            Self::Address => "an address",
            Self::Route => "a route",
            Self::Rights => "giving up rights",
        })
    }
}

#[cfg(test)]
mod tests;
