//! A private network namespace. A small child process lives in it and passes its TUN and sockets to
//! this process, which stays outside.
//!
//! ```text
//!   this process -- fork --> child: enters a new user and network namespace,
//!     | <---- TUN ---------    | configures lo, the TUN, addresses and routes
//!     | ----- "a TCP socket" ->| drops its privileges, files and system calls
//!     | <---- socket --------  | only creates sockets
//!     x  exits --------------> exits, and the namespace with it
//! ```
//!
//! A socket stays in the network namespace in which it was created, even if another process uses
//! it. Only a process with a single thread can enter a user namespace, and it cannot leave it
//! again. Therefore a child is forked before any thread is started.
#![expect(unsafe_code, reason = "fork")]

mod child;
mod reply;

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

use crate::{channel, errno::Errno, process, tun::TunInfo};
use reply::Reply;

/// The configuration of a namespace.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// The name of the TUN.
    pub name: String,
    /// The MTU of the TUN in bytes.
    pub mtu: u32,
    /// The addresses of the TUN, with their host bits. Each family gets a default route into the
    /// TUN, because the child cannot add routes later.
    pub addresses: Vec<IpNet>,
    /// Whether the child runs in a sandbox, which lets it only create sockets.
    pub sandbox: bool,
}

/// A kind of socket to create in a namespace.
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

/// A private network namespace. The kernel removes it once this is dropped and its sockets and TUN
/// are closed.
#[derive(Debug)]
pub struct Namespace {
    /// Locked from each request until its reply.
    channel: Mutex<OwnedFd>,
    child: Pid,
}

/// An error of a private namespace.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// This process may create neither a user namespace nor, as root, a network namespace.
    #[error(
        "cannot create a private network namespace ({0}): this system forbids user \
         namespaces; check the sysctls user.max_user_namespaces, \
         kernel.unprivileged_userns_clone and kernel.apparmor_restrict_unprivileged_userns, \
         and the seccomp profile if this is a container, or run as root"
    )]
    Forbidden(#[source] io::Error),
    /// It was created but could not be set up.
    #[error("cannot set up the private network namespace: {step}: {error}")]
    Setup {
        /// The step that failed.
        step: Step,
        /// The error of the kernel.
        error: io::Error,
    },
    /// Other threads are running, or the resources for a child are exhausted.
    #[error("cannot fork: {0}")]
    Fork(#[source] io::Error),
    /// The child exited without a reply.
    #[error("the process in the private network namespace has exited")]
    ChildExited,
}

impl NamespaceError {
    /// Whether this user or system may not have a namespace, or a TUN in it.
    pub fn is_not_permitted(&self) -> bool {
        matches!(self, Self::Forbidden(_) | Self::Setup { step: Step::Tun, .. })
    }
}

/// A step of setting up a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// Entering the namespaces.
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
    /// Dropping the child's privileges.
    Privileges,
}

impl Namespace {
    /// Creates a namespace with a TUN, which is up. The child first calls `wipe_secrets`, which
    /// must wipe the secrets in its copy of this process's memory. Call this before any thread is
    /// started, after [`process::Signals::block`], so that a signal to the process group does not
    /// end the child, and before [`process::harden`], after which the child could not map its
    /// user.
    ///
    /// # Errors
    /// See [`NamespaceError`].
    pub fn open(
        plan: &Plan,
        wipe_secrets: impl FnOnce(),
    ) -> Result<(Self, OwnedFd, TunInfo), NamespaceError> {
        process::only_thread().map_err(NamespaceError::Fork)?;
        let (ours, theirs) = channel::pair().map_err(NamespaceError::Fork)?;
        // SAFETY: this is the only thread, so other threads cannot hold locks in the child, and
        // the child may make the same calls as the parent.
        match unsafe { fork() }.map_err(|errno| NamespaceError::Fork(errno.into()))? {
            ForkResult::Child => {
                drop(ours);
                wipe_secrets();
                child::run(&theirs, plan);
                std::process::exit(0)
            }
            ForkResult::Parent { child } => {
                drop(theirs);
                let namespace = Self { channel: Mutex::new(ours), child };
                let (tun, index) = match namespace.first_reply() {
                    Ok(reply) => reply,
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

    /// Creates a socket in the namespace: close-on-exec, non-blocking, unbound.
    ///
    /// # Errors
    /// The child's errno, or `BrokenPipe` if the child has exited.
    pub fn socket(&self, kind: Kind) -> io::Result<OwnedFd> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        send(channel.as_raw_fd(), &[kind as u8], MsgFlags::MSG_NOSIGNAL)?;
        match receive(&channel)? {
            (Reply::Socket, Some(fd)) => Ok(fd),
            (Reply::Refused { errno, .. }, _) => Err(Errno::from_raw(errno).into()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The child's process id.
    pub fn pid(&self) -> i32 {
        self.child.as_raw()
    }

    /// Waits for the child, which exits when the channel is closed.
    fn end(self) {
        let Self { channel, child } = self;
        drop(channel);
        // The child has exited in every case.
        let _ = waitpid(child, None);
    }

    fn first_reply(&self) -> Result<(OwnedFd, u32), NamespaceError> {
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        match receive(&channel).map_err(|_| NamespaceError::ChildExited)? {
            (Reply::Tun { index }, Some(tun)) => Ok((tun, index)),
            (Reply::Refused { step, errno }, _) => {
                let error = io::Error::from(Errno::from_raw(errno));
                Err(match step {
                    Step::Enter => NamespaceError::Forbidden(error),
                    step => NamespaceError::Setup { step, error },
                })
            }
            _ => Err(NamespaceError::ChildExited),
        }
    }
}

/// Receives a reply and its file descriptor.
fn receive(channel: &OwnedFd) -> io::Result<(Reply, Option<OwnedFd>)> {
    // One byte more, so that a longer message is not accepted as a reply.
    let mut text = [0; reply::REPLY_LEN + 1];
    let (len, fd) = channel::receive(channel.as_fd(), &mut text)?;
    let reply = Reply::parse(&text[..len]).ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((reply, fd))
}

/// Receives a reply as [`Namespace`] does and encodes it again. Used by the fuzzer.
///
/// # Errors
/// No message arrived, or it is not a reply.
#[doc(hidden)]
pub fn receive_reply(channel: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (reply, fd) = receive(channel)?;
    Ok((reply.encode().to_vec(), fd))
}

/// Serves requests as the child does until the channel is closed. Used by the fuzzer.
#[doc(hidden)]
pub fn serve(channel: &OwnedFd) {
    child::serve(channel);
}

/// Binds a socket of [`Namespace::socket`]. Low ports are allowed even if this process may not
/// bind them outside, because the user that created the namespace is privileged in it.
///
/// # Errors
/// The kernel refused.
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
            Self::Privileges => "dropping privileges",
        })
    }
}

#[cfg(test)]
mod tests;
