//! Notifications of changes of links, addresses, routes and rules.
//!
//! ```text
//!   multicast groups -> socket -> parse -> compare with last state of links -> Event
//! ```

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, BorrowedFd},
};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, link::LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use packet::Waker;

use super::{LISTENER_BUFFER, Link, Netlink, messages};
use crate::{
    errno::{Errno, errno},
    wake::{Waited, Wake},
};

/// The multicast groups of a [`Monitor`].
const GROUPS: [u32; 7] = [
    libc::RTNLGRP_LINK,
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
    libc::RTNLGRP_IPV4_RULE,
    libc::RTNLGRP_IPV6_RULE,
];

/// Size of the socket's buffer in bytes. If notifications do not fit, the event is
/// [`Event::Lost`]. Those of a full routing table should fit.
pub(super) const BUFFER: u32 = 1024 * 1024;

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A link was brought up.
    LinkUp {
        index: u32,
    },
    /// A link was taken down.
    LinkDown {
        index: u32,
    },
    LinkDeleted {
        index: u32,
    },
    MtuChanged {
        index: u32,
        mtu: u32,
    },
    /// Routes of IPv4 or IPv6 were added or removed. Consecutive changes are one event.
    RoutesChanged,
    /// Policy rules were added or removed. Consecutive changes are one event.
    RulesChanged,
    /// Addresses were added or removed. Consecutive changes are one event. The kernel may not have
    /// changed the routes to their networks yet.
    AddressesChanged,
    /// The socket's buffer overflowed. Read the current state again.
    Lost,
}

impl Event {
    /// Whether routes, rules or addresses may have changed.
    pub fn is_network_change(&self) -> bool {
        matches!(
            self,
            Self::RoutesChanged | Self::RulesChanged | Self::AddressesChanged | Self::Lost
        )
    }
}

/// Monitors the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Monitor {
    socket: Socket,
    wake: Wake,
    /// MTU and up state of each link, as last reported.
    links: HashMap<u32, (u32, bool)>,
    events: VecDeque<Event>,
    buffer: Vec<u8>,
}

impl Monitor {
    /// Starts monitoring.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(BUFFER)?;
        socket.bind(&SocketAddr::new(0, 0))?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        // After the subscription, so that no change is missed.
        let links = Netlink::open()?.links()?;
        Ok(Self {
            socket,
            wake: Wake::new()?,
            links: links.into_iter().map(|link| (link.index, (link.mtu, link.up))).collect(),
            events: VecDeque::new(),
            buffer: Vec::with_capacity(LISTENER_BUFFER),
        })
    }

    /// Waits for the next change; `None` if the waker was called.
    ///
    /// # Errors
    /// The socket failed.
    #[expect(clippy::should_implement_trait, reason = "an iterator has no place for the error")]
    pub fn next(&mut self) -> io::Result<Option<Event>> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(Some(event));
            }
            if self.wake.wait(Some(self.socket.as_fd()), None)? == Waited::Woken {
                return Ok(None);
            }
        }
    }

    /// The next change; `None` if no change is pending.
    ///
    /// # Errors
    /// The socket failed.
    pub fn try_next(&mut self) -> io::Result<Option<Event>> {
        while self.events.is_empty() && self.read()? {}
        Ok(self.events.pop_front())
    }

    /// Ends [`Monitor::next`].
    pub fn waker(&self) -> Waker {
        self.wake.waker()
    }

    /// Reads once. Returns whether data was available.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let read = self.socket.recv(&mut buffer, libc::MSG_DONTWAIT);
        let result = match read {
            Ok(_) => {
                messages(&buffer).for_each(|message| {
                    if let NetlinkPayload::InnerMessage(message) = message.payload {
                        self.handle_message(message);
                    }
                });
                Ok(true)
            }
            Err(error) => match errno(&error) {
                Some(Errno::EAGAIN) => Ok(false),
                Some(Errno::EINTR) => Ok(true),
                Some(Errno::ENOBUFS) => {
                    self.push(Event::Lost);
                    Ok(true)
                }
                _ => Err(error),
            },
        };
        self.buffer = buffer;
        result
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
        // A new link is reported only if it is up.
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

/// Whether a message describes a link itself. Bridges also report their ports as links of family
/// AF_BRIDGE, even as deleted links, and IPv6 reports its settings as AF_INET6.
pub(super) fn is_whole_link(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}
