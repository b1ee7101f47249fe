//! The UDP side: one socket for IPv4 and IPv6, which can be replaced while its halves are in use.
//!
//! ```text
//!   UdpSocket ---- bind, close ---> Option<Arc<Socket>> (the wake is set)
//!                                      |           |
//!   kernel -- recvmmsg --> RecvBatch <-+           |   UdpReceiver
//!   kernel <-- sendmmsg -- SendBatch <-------------+   UdpSender (any number)
//!   kernel <-- sendmsg --- a control datagram <--------- UdpSocket, any thread
//! ```
//!
//! Each half copies the reference for each batch, so that the lock is never held during a system
//! call.

mod address;
mod cmsg;
mod control_datagrams;
mod flood_filter;
mod gates;
mod mmsg;
mod probe_sockets;
mod receive;
mod refusal;
mod send;
mod socket;
mod tun_udp_poll;

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
pub use probe_sockets::{ProbeDatagram, ProbeSockets};
pub use receive::UdpReceiver;
pub use send::UdpSender;
pub use socket::BufferSizes;
use socket::Socket;
pub use tun_udp_poll::TunUdpPoll;

use crate::{offload::Offloads, process::Helper, wake::Wake};

/// How long to wait until the halves have released a replaced socket and its port is free. They
/// need one system call or, if all queues are full, `send::TIMEOUT`.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// The interval of these checks.
const RELEASE_STEP: Duration = Duration::from_micros(100);

/// A handle to a UDP socket. Clones share it.
#[derive(Clone, Debug)]
pub struct UdpSocket {
    shared: Arc<Shared>,
}

/// An error of [`UdpSocket::bind`].
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    #[error("the port is in use")]
    InUse,
    /// A port below 1024 requires `CAP_NET_BIND_SERVICE`, a mark `CAP_NET_ADMIN`.
    #[error("no permission for this port or mark")]
    Permission,
    #[error(transparent)]
    Os(#[from] io::Error),
}

impl UdpSocket {
    /// A handle without a socket, as for an interface that is down, and its receiving half.
    ///
    /// # Errors
    /// The file descriptors are exhausted.
    pub fn unbound(offloads: &Arc<Offloads>) -> io::Result<(Self, UdpReceiver)> {
        Self::unbound_with_helper(offloads, None)
    }

    /// Like [`UdpSocket::unbound`], with an optional helper that creates and marks the sockets.
    ///
    /// # Errors
    /// The file descriptors are exhausted.
    pub fn unbound_with_helper(
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

    /// The helper that creates the sockets.
    pub fn helper(&self) -> Option<&Helper> {
        self.shared.helper()
    }

    /// Creates a sending half. Several may exist.
    pub fn sender(&self) -> UdpSender {
        UdpSender::new(self.shared.clone())
    }

    /// Binds to `port` on all addresses, or to a random port for 0, and marks sent packets with
    /// `fwmark`. Returns the port.
    ///
    /// A previous socket is closed after the new one is bound. If it has that port already, it
    /// stays and only its mark changes.
    ///
    /// # Errors
    /// See [`BindError`]. A previous socket is not changed.
    pub fn bind(&self, port: u16, fwmark: u32) -> Result<u16, BindError> {
        let _guard = self.shared.change();
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
        let _guard = self.shared.change();
        self.shared.replace(None);
    }

    /// Sets the mark of packets that are sent later; 0 for no mark. Without a socket this has no
    /// effect, as [`UdpSocket::bind`] sets the mark.
    ///
    /// # Errors
    /// [`BindError::Permission`] without `CAP_NET_ADMIN`.
    pub fn set_fwmark(&self, fwmark: u32) -> Result<(), BindError> {
        let _guard = self.shared.change();
        let helper = self.shared.helper();
        self.shared.socket().map_or(Ok(()), |socket| socket.set_fwmark(fwmark, helper))
    }

    /// The port; `None` without a socket.
    pub fn port(&self) -> Option<u16> {
        self.shared.socket().map(|socket| socket.port())
    }

    /// The sizes of the socket's buffers; `None` without a socket.
    pub fn buffers(&self) -> Option<BufferSizes> {
        self.shared.socket().map(|socket| socket.buffers())
    }

    /// The number of datagrams that the kernel dropped because the receive buffer was full, of all
    /// sockets of this handle. The kernel reports it with the next received datagram.
    pub fn overflow(&self) -> u64 {
        self.shared.overflow.load(Ordering::Relaxed)
    }

    /// The number of datagrams that were dropped because they did not fit a slot.
    pub fn truncated(&self) -> u64 {
        self.shared.truncated.load(Ordering::Relaxed)
    }
}

/// A bound socket with all options, which is then passed to another process.
///
/// # Errors
/// See [`BindError`].
pub(crate) fn bound_socket(port: u16, fwmark: u32) -> Result<OwnedFd, BindError> {
    Ok(Socket::bind(port, fwmark, None)?.into_fd())
}

pub(crate) fn enable_gro(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    socket::set_gro(fd, true)
}

/// Shared by the handle and the halves.
#[derive(Debug)]
struct Shared {
    socket: RwLock<Option<Arc<Socket>>>,
    /// Locked while the socket is replaced or marked.
    changing: Mutex<()>,
    wake: Wake,
    overflow: AtomicU64,
    truncated: AtomicU64,
    offloads: Arc<Offloads>,
    /// Creates and marks sockets after this process has dropped its privileges.
    helper: Option<Arc<Helper>>,
}

impl Shared {
    fn helper(&self) -> Option<&Helper> {
        self.helper.as_deref()
    }

    /// Enables or disables GRO according to its switch.
    fn apply_gro(&self, socket: &Socket, calls: &impl Calls) {
        let gro = &self.offloads.udp_gro;
        if !socket.set_gro(calls, gro.is_enabled()) {
            gro.mark_unsupported();
        }
    }

    fn socket(&self) -> Option<Arc<Socket>> {
        self.socket.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the socket, and closes the old one after the halves have released it.
    fn replace(&self, socket: Option<Arc<Socket>>) {
        let mut current = self.socket.write().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *current, socket);
        drop(current);
        self.wake.wake();
        let Some(old) = old else { return };
        let mut waited = Duration::ZERO;
        while Arc::strong_count(&old) > 1 && waited < RELEASE_TIMEOUT {
            std::thread::sleep(RELEASE_STEP);
            waited += RELEASE_STEP;
        }
    }
}

#[cfg(test)]
mod tests;
