//! Changes of links, addresses, routes and rules, as they happen.
//!
//! ```text
//!   multicast groups -> socket -> parse -> links as last seen -> Event
//!                                          (only differences)
//! ```

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd},
};

use packet::Waker;
use rtnetlink::{
    MulticastGroup,
    packet_core::{NetlinkBuffer, NetlinkMessage, NetlinkPayload},
    packet_route::{AddressFamily, RouteNetlinkMessage, link::LinkMessage},
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

use super::{Link, Netlink};
use crate::wake::{Waited, Wake};

/// What a [`Monitor`] hears of.
const GROUPS: [MulticastGroup; 7] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
    MulticastGroup::Ipv4Route,
    MulticastGroup::Ipv6Route,
    MulticastGroup::Ipv4Rule,
    MulticastGroup::Ipv6Rule,
];

/// Bytes of one read: the kernel puts no more than 32 KiB into one
/// (NLMSG_GOODSIZE and `max_recvmsg_len`, net/netlink/af_netlink.c).
pub(super) const READ: usize = 64 * 1024;

/// Bytes of the socket's buffer: bringing a full routing table up or down must
/// fit in, or the news is [`Event::Lost`].
pub(super) const BUFFER: u32 = 1024 * 1024;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A link is administratively up.
    LinkUp {
        /// The interface's index.
        index: u32,
    },
    /// A link is administratively down.
    LinkDown {
        /// The interface's index.
        index: u32,
    },
    /// A link is gone.
    LinkDeleted {
        /// The index it had.
        index: u32,
    },
    /// A link has another MTU.
    MtuChanged {
        /// The interface's index.
        index: u32,
        /// The MTU in bytes.
        mtu: u32,
    },
    /// Routes were added or removed, in either family. It stands for all such changes
    /// that came together.
    RoutesChanged,
    /// Policy rules were, likewise.
    RulesChanged,
    /// Addresses were, likewise. The kernel may not have changed the routes to their
    /// networks yet.
    AddressesChanged,
    /// More happened than the socket's buffer holds: read anew what matters.
    Lost,
}

/// Listens for changes in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    wake: Wake,
    /// MTU and whether up, of each link as last seen.
    links: HashMap<u32, (u32, bool)>,
    events: VecDeque<Event>,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Listens from now on.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(BUFFER)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group as u32)?;
        }
        // Asked behind the subscription, so that no change falls between.
        let links = Netlink::open()?.links()?;
        Ok(Self {
            socket,
            wake: Wake::new()?,
            links: links.into_iter().map(|link| (link.index, (link.mtu, link.up))).collect(),
            events: VecDeque::new(),
            buffer: Vec::with_capacity(READ),
        })
    }

    /// Waits for the next change; `None` when it was woken.
    ///
    /// # Errors
    /// The socket failed.
    #[expect(clippy::should_implement_trait, reason = "an iterator has no place for the error")]
    pub fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            if self.wake.wait(Some(self.socket.as_fd()))? == Waited::Woken {
                return Ok(None);
            }
        }
    }

    /// The next change, where there is one.
    ///
    /// # Errors
    /// The socket failed.
    pub fn try_next(&mut self) -> io::Result<Option<Event>> {
        while self.events.is_empty() && self.read()? {}
        Ok(self.events.pop_front())
    }

    /// Ends a wait in [`Monitor::next`].
    pub fn waker(&self) -> Waker {
        self.wake.waker()
    }

    /// Reads once; whether there was something.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let read = self.socket.recv(&mut buffer, libc::MSG_DONTWAIT);
        let answer = match read {
            Ok(_) => {
                messages(&buffer).for_each(|message| self.handle_message(message));
                Ok(true)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN) => Ok(false),
                Some(libc::EINTR) => Ok(true),
                Some(libc::ENOBUFS) => {
                    self.push(Event::Lost);
                    Ok(true)
                }
                _ => Err(error),
            },
        };
        self.buffer = buffer;
        answer
    }

    fn handle_message(&mut self, message: RouteNetlinkMessage) {
        use RouteNetlinkMessage as M;
        match message {
            M::NewLink(message) if is_whole_link(&message) => self.handle_link(&message),
            M::DelLink(message) if is_whole_link(&message) => {
                let index = message.header.index;
                self.links.remove(&index);
                self.push(Event::LinkDeleted { index });
            }
            M::NewAddress(_) | M::DelAddress(_) => self.push(Event::AddressesChanged),
            M::NewRoute(_) | M::DelRoute(_) => self.push(Event::RoutesChanged),
            M::NewRule(_) | M::DelRule(_) => self.push(Event::RulesChanged),
            _ => {}
        }
    }

    fn handle_link(&mut self, message: &LinkMessage) {
        let Link { index, mtu, up, .. } = Link::from_message(message);
        let before = self.links.insert(index, (mtu, up));
        if before.is_some_and(|(before, _)| before != mtu) {
            self.push(Event::MtuChanged { index, mtu });
        }
        // A new link is news only when it is up.
        if before.is_some_and(|(_, up)| up) != up {
            self.push(if up { Event::LinkUp { index } } else { Event::LinkDown { index } });
        }
    }

    fn push(&mut self, event: Event) {
        if self.events.back() != Some(&event) {
            self.events.push_back(event);
        }
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A bridge also tells of its ports as links of family AF_BRIDGE, deletes them
/// as such, and IPv6 tells of its settings as AF_INET6.
pub(super) fn is_whole_link(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}

/// The messages of one read. One that cannot be understood is left out.
pub(super) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = RouteNetlinkMessage> {
    std::iter::from_fn(move || {
        while let Ok(header) = NetlinkBuffer::new_checked(bytes) {
            let len = header.length() as usize;
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes);
            // Messages are aligned to 4 bytes (NLMSG_ALIGNTO).
            bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
            if let Ok(NetlinkMessage { payload: NetlinkPayload::InnerMessage(inner), .. }) = message
            {
                return Some(inner);
            }
        }
        None
    })
}
