//! Links, addresses, routes and rules, over rtnetlink (rtnetlink(7)).
//!
//! A call sends one request and waits for its reply. The socket stays in the network namespace of
//! the thread that opened it.

mod link;
mod link_follower;
mod monitor;
mod route;
mod rule;

use std::{
    io,
    sync::{Mutex, PoisonError},
};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::errno::{Errno, errno};

pub use link::Link;
pub use link_follower::{LinkChange, LinkFollower};
pub use monitor::{Event, Monitor};
pub use route::{DefaultRoute, Route};
pub use rule::{Family, FwMark, Rule};

/// The default routing table (`RT_TABLE_MAIN`).
pub const MAIN_TABLE: u32 = libc::RT_TABLE_MAIN as u32;

/// Buffer size of one read in bytes. The kernel writes at most 32 KiB at once (NLMSG_GOODSIZE and
/// `max_recvmsg_len`, net/netlink/af_netlink.c).
const READ: usize = 64 * 1024;
/// Buffer size of a listener in bytes. It is large enough that malloc maps it separately from the
/// heap ([`crate::process::pin_mmap_threshold`]), so that only the used part is resident.
const LISTENER_BUFFER: usize = 2 * READ;

/// An error of a netlink request.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The socket could not be opened.
    #[error("no netlink socket: {0}")]
    Open(#[source] io::Error),
    /// The kernel refused the request.
    #[error(transparent)]
    Refused(io::Error),
    /// The request could not be sent, or its reply could not be received.
    #[error("the netlink socket failed: {0}")]
    Failed(#[source] io::Error),
}

impl NetlinkError {
    pub fn errno(&self) -> Option<Errno> {
        let (Self::Open(error) | Self::Refused(error) | Self::Failed(error)) = self;
        errno(error)
    }
}

impl From<NetlinkError> for io::Error {
    fn from(error: NetlinkError) -> Self {
        let (NetlinkError::Open(error)
        | NetlinkError::Refused(error)
        | NetlinkError::Failed(error)) = error;
        error
    }
}

/// A netlink socket for requests.
#[derive(Debug)]
pub struct Netlink {
    /// Locked from each request until its reply.
    connection: Mutex<Connection>,
}

#[derive(Debug)]
struct Connection {
    socket: Socket,
    /// The number of the last request.
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the thread's network namespace.
    ///
    /// # Errors
    /// [`NetlinkError::Open`].
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = Socket::new(NETLINK_ROUTE).map_err(NetlinkError::Open)?;
        Ok(Self { connection: Mutex::new(Connection { socket, sequence: 0 }) })
    }

    /// The number of sent requests. A test compares it before and after an operation.
    pub fn requests(&self) -> u32 {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).sequence
    }

    /// Requests a change.
    fn change(&self, message: RouteNetlinkMessage, flags: u16) -> Result<(), NetlinkError> {
        self.request(message, NLM_F_ACK | flags, |_| {})
    }

    /// Requests one object.
    fn get(
        &self,
        message: RouteNetlinkMessage,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        self.request(message, NLM_F_ACK, each)
    }

    /// Requests all objects of a kind.
    fn dump(
        &self,
        message: RouteNetlinkMessage,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        self.request(message, NLM_F_DUMP, each)
    }

    fn request(
        &self,
        message: RouteNetlinkMessage,
        flags: u16,
        each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.send(message, NLM_F_REQUEST | flags).map_err(NetlinkError::Failed)?;
        connection.receive(each)
    }
}

impl Connection {
    fn send(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut request = NetlinkMessage::from(message);
        request.header.flags = flags;
        request.header.sequence_number = self.sequence;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// Receives the reply to the last request. It ends with an acknowledgement, an error, or
    /// `NLMSG_DONE` after a dump.
    fn receive(&self, mut each: impl FnMut(RouteNetlinkMessage)) -> Result<(), NetlinkError> {
        let mut buffer = Vec::with_capacity(READ);
        loop {
            buffer.clear();
            let sender = match self.socket.recv_from(&mut buffer, 0) {
                Ok((_, sender)) => sender,
                Err(error) if errno(&error) == Some(Errno::EINTR) => continue,
                Err(error) => return Err(NetlinkError::Failed(error)),
            };
            // Port 0 is the kernel.
            if sender.port_number() != 0 {
                continue;
            }
            let replies = messages(&buffer);
            for reply in replies.filter(|reply| reply.header.sequence_number == self.sequence) {
                match reply.payload {
                    NetlinkPayload::InnerMessage(message) => each(message),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(NetlinkError::Refused(error.to_io()));
                    }
                    NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(()),
                    _ => {}
                }
            }
        }
    }
}

/// The messages of one read. Those that cannot be parsed are skipped.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    std::iter::from_fn(move || {
        while let Ok(header) = NetlinkBuffer::new_checked(bytes) {
            let len = header.length() as usize;
            let message = NetlinkMessage::deserialize(bytes);
            // Messages are aligned to 4 bytes (NLMSG_ALIGNTO).
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
            if let Ok(message) = message {
                return Some(message);
            }
        }
        None
    })
}

/// Whether the object of a request does not exist.
fn is_absent(error: &NetlinkError) -> bool {
    matches!(
        error.errno(),
        Some(Errno::ENOENT | Errno::ESRCH | Errno::ENODEV | Errno::EADDRNOTAVAIL | Errno::ENXIO)
    )
}

#[cfg(test)]
mod tests;
