//! The UDP side: one socket for IPv4 and IPv6, that can be replaced while its
//! halves are at work.
//!
//! ```text
//!   UdpSocket ---- bind, close ---> Option<Arc<Socket>> (the wake is set)
//!                                      |           |
//!   kernel -- recvmmsg --> RecvBatch <-+           |   UdpReceiver
//!   kernel <-- sendmmsg -- SendBatch <-------------+   UdpSender (any number)
//! ```
//!
//! A half takes its own reference for the length of one batch: the lock is held
//! for that copy alone, never across a system call.

mod address;
mod cmsg;
mod gates;
mod mmsg;
mod receive;
mod refusal;
mod send;
mod socket;

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use mmsg::Calls;
use nix::errno::Errno;
pub use receive::UdpReceiver;
pub use send::UdpSender;
pub use socket::Buffers;
use socket::Socket;

use crate::{offload::Offloads, process::Helper, wake::Wake};

/// How long a replaced socket is waited for until the halves have let go of it,
/// so that its port is free again. A half lets go within one system call or,
/// with all queues full, within `send::PATIENCE`.
const RELEASE_PATIENCE: Duration = Duration::from_millis(500);
/// How often that is looked at.
const RELEASE_STEP: Duration = Duration::from_micros(100);

/// The handle of a UDP socket. Clones are the same socket.
#[derive(Clone, Debug)]
pub struct UdpSocket {
    shared: Arc<Shared>,
}

/// Why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Somebody else has the port.
    #[error("the port is in use")]
    InUse,
    /// The right is missing: to a port below 1024 (`CAP_NET_BIND_SERVICE`), or
    /// to a mark (`CAP_NET_ADMIN`).
    #[error("no permission for this port or mark")]
    Permission,
    /// Any other answer of the kernel.
    #[error(transparent)]
    Os(#[from] io::Error),
}

impl UdpSocket {
    /// A handle without a socket, as of an interface that is down, and its
    /// receiving half. Of `offloads` it takes those of the outer socket.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn unbound(offloads: &Arc<Offloads>) -> io::Result<(Self, UdpReceiver)> {
        Self::unbound_by(offloads, None)
    }

    /// The same, whose sockets and marks are a helper's work where there is one.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn unbound_by(
        offloads: &Arc<Offloads>,
        helper: Option<Arc<Helper>>,
    ) -> io::Result<(Self, UdpReceiver)> {
        let shared = Arc::new(Shared {
            offloads: offloads.clone(),
            socket: RwLock::new(None),
            changing: Mutex::new(()),
            wake: Wake::new()?,
            overflow: AtomicU64::new(0),
            truncated: AtomicU64::new(0),
            helper,
        });
        Ok((Self { shared: shared.clone() }, UdpReceiver::new(shared)))
    }

    /// Who makes its sockets, where that is not this process.
    pub fn helper(&self) -> Option<&Helper> {
        self.shared.helper()
    }

    /// A sending half. There may be several.
    pub fn sender(&self) -> UdpSender {
        UdpSender::new(self.shared.clone())
    }

    /// Binds to `port` on all addresses, or to a random port for 0, and marks
    /// what is sent with `fwmark`. Returns the port.
    ///
    /// A socket that was there before goes only when the new one stands. Where
    /// it has the wanted port already, it stays, and takes the mark.
    ///
    /// # Errors
    /// See [`BindError`]; the socket that was there before is as it was.
    pub fn bind(&self, port: u16, fwmark: u32) -> Result<u16, BindError> {
        let _turn = self.shared.change();
        if let Some(socket) = self.shared.socket()
            && socket.port() == port
        {
            socket.set_fwmark(fwmark, self.shared.helper())?;
            return Ok(port);
        }
        let socket = Socket::bind(port, fwmark, self.shared.helper())?;
        let port = socket.port();
        self.shared.replace(Some(Arc::new(socket)));
        Ok(port)
    }

    /// Closes the socket. The port is free when this returns.
    pub fn close(&self) {
        let _turn = self.shared.change();
        self.shared.replace(None);
    }

    /// Marks what is sent from now on; 0 is no mark. Without a socket nothing is
    /// to be done: the next [`UdpSocket::bind`] brings its own mark.
    ///
    /// # Errors
    /// [`BindError::Permission`] without `CAP_NET_ADMIN`.
    pub fn set_fwmark(&self, fwmark: u32) -> Result<(), BindError> {
        let _turn = self.shared.change();
        let helper = self.shared.helper();
        self.shared.socket().map_or(Ok(()), |socket| socket.set_fwmark(fwmark, helper))
    }

    /// The port, while there is a socket.
    pub fn port(&self) -> Option<u16> {
        self.shared.socket().map(|socket| socket.port())
    }

    /// What the kernel granted of the wanted buffers, while there is a socket.
    pub fn buffers(&self) -> Option<Buffers> {
        self.shared.socket().map(|socket| socket.buffers())
    }

    /// How many datagrams the kernel dropped because the receive buffer was
    /// full, over all sockets this handle had. Known as far as a datagram that
    /// came later was read.
    pub fn overflow(&self) -> u64 {
        self.shared.overflow.load(Ordering::Relaxed)
    }

    /// How many datagrams were dropped because they were longer than a slot.
    pub fn truncated(&self) -> u64 {
        self.shared.truncated.load(Ordering::Relaxed)
    }
}

/// A bound socket with its options, for another process.
///
/// # Errors
/// See [`BindError`].
pub(crate) fn bound_socket(port: u16, fwmark: u32) -> Result<OwnedFd, BindError> {
    Ok(Socket::bind(port, fwmark, None)?.into_fd())
}

/// Has a socket take coalesced datagrams.
pub(crate) fn take_coalesced(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    socket::set_gro(fd, true)
}

/// What handle and halves have in common.
#[derive(Debug)]
struct Shared {
    socket: RwLock<Option<Arc<Socket>>>,
    /// Held by the one handle that replaces or marks the socket.
    changing: Mutex<()>,
    wake: Wake,
    overflow: AtomicU64,
    truncated: AtomicU64,
    offloads: Arc<Offloads>,
    /// Who makes and marks sockets, where this process gave up the right to.
    helper: Option<Arc<Helper>>,
}

impl Shared {
    fn helper(&self) -> Option<&Helper> {
        self.helper.as_deref()
    }

    /// Lets datagrams come coalesced as far as that is wanted.
    fn tell_gro(&self, socket: &Socket, calls: &impl Calls) {
        let gro = &self.offloads.udp_gro;
        if !socket.set_gro(calls, gro.wanted()) {
            gro.lack();
        }
    }

    fn socket(&self) -> Option<Arc<Socket>> {
        self.socket.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `socket` in place and closes the old one, as soon as the halves
    /// have left it.
    fn replace(&self, socket: Option<Arc<Socket>>) {
        let mut place = self.socket.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *place, socket);
        drop(place);
        self.wake.wake();
        let Some(old) = old else { return };
        let mut waited = Duration::ZERO;
        while Arc::strong_count(&old) > 1 && waited < RELEASE_PATIENCE {
            std::thread::sleep(RELEASE_STEP);
            waited += RELEASE_STEP;
        }
    }
}

#[cfg(test)]
mod tests;
