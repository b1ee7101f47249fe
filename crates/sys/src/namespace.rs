//! A private network namespace. A small child process lives in it and passes its TUN and sockets to
//! this process, which stays outside.
//!
//! ```text
//!   this process -- fork --> child: enters a new user and network namespace,
//!     | <---- TUN ---------    | sets up lo, the TUN, its addresses and a route
//!     | ----- "a TCP socket" ->| drops its privileges, files and system calls
//!     | <---- socket --------  | creates sockets, and nothing else
//!     x  exits --------------> exits, and the namespace with it
//! ```
//!
//! A socket stays in the network namespace that it was created in, whoever uses it. Only a process
//! with a single thread can enter a user namespace, and it cannot leave it again; hence a child,
//! forked before any thread is started.
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
    /// The TUN's name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its addresses, with their host bits. Each family has a default route into the TUN, as the
    /// child cannot add routes later.
    pub addresses: Vec<IpNet>,
    /// Whether the child runs in a sandbox, where it can only create sockets.
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

/// Why there is no private namespace.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Neither a user namespace nor, as root, a network namespace may be created here.
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
        /// The kernel's answer.
        error: io::Error,
    },
    /// Other threads are running, or there are no resources for a child.
    #[error("cannot fork: {0}")]
    Fork(#[source] io::Error),
    /// The child exited without a reply.
    #[error("the process in the private network namespace is gone")]
    ChildExited,
}

impl NamespaceError {
    /// Whether this user or system is not allowed to have a namespace, or a TUN in it.
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
    Rights,
}

impl Namespace {
    /// Creates a namespace with a TUN, which is up. The child first calls `forget`, which must wipe
    /// the secrets in its copy of this process's memory. Call this before any thread is started;
    /// after [`process::Signals::block`], so that a signal to the process group does not end the
    /// child; and before [`process::harden`], which would forbid it to map its user.
    ///
    /// # Errors
    /// See [`NamespaceError`].
    pub fn open(
        plan: &Plan,
        forget: impl FnOnce(),
    ) -> Result<(Self, OwnedFd, TunInfo), NamespaceError> {
        process::only_thread().map_err(NamespaceError::Fork)?;
        let (ours, theirs) = channel::pair().map_err(NamespaceError::Fork)?;
        // SAFETY: this thread is the only one, so the child has no locks held by others and may do
        // all that the parent may.
        match unsafe { fork() }.map_err(|errno| NamespaceError::Fork(errno.into()))? {
            ForkResult::Child => {
                drop(ours);
                forget();
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
    /// The child's errno, or `BrokenPipe` if the child is gone.
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
        // Whatever the result, the child is gone.
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

/// Receives a reply and the file descriptor that came with it.
fn receive(channel: &OwnedFd) -> io::Result<(Reply, Option<OwnedFd>)> {
    // One byte more, so that a longer message is not taken for a reply.
    let mut text = [0; reply::REPLY_LEN + 1];
    let (len, fd) = channel::receive(channel.as_fd(), &mut text)?;
    let reply = Reply::parse(&text[..len]).ok_or(io::ErrorKind::BrokenPipe)?;
    Ok((reply, fd))
}

/// Receives a reply as [`Namespace`] does and encodes it again, for the fuzzer.
///
/// # Errors
/// There is no message, or it is not a reply.
#[doc(hidden)]
pub fn receive_reply(channel: &OwnedFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let (reply, fd) = receive(channel)?;
    Ok((reply.encode().to_vec(), fd))
}

/// Serves requests as the child does until the channel is closed, for the fuzzer.
#[doc(hidden)]
pub fn serve(channel: &OwnedFd) {
    child::serve(channel);
}

/// Binds a socket of [`Namespace::socket`]. Low ports are allowed even if they are not outside: the
/// user who created the namespace is privileged in it.
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
            Self::Rights => "giving up rights",
        })
    }
}

#[cfg(test)]
mod tests;
