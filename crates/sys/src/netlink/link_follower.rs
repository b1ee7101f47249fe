//! Follows one interface as it is moved between network namespaces.
//!
//! ```text
//!   RTM_DELLINK with another namespace and index -> moved there; without: deleted
//!   RTM_NEWLINK from its current namespace --------> up, down, MTU
//! ```
//!
//! The socket stays in its namespace. It receives notifications from another namespace
//! (NETLINK_LISTEN_ALL_NSID) under two conditions: its own namespace has an id for the other one,
//! which the first move assigns, and the process had CAP_NET_BROADCAST in the other one when the
//! socket was opened (`do_one_broadcast`, net/netlink/af_netlink.c).

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    os::fd::{AsFd, AsRawFd as _, BorrowedFd},
};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::{
    errno::Errno,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};

use super::{
    LISTENER_BUFFER, Link, Netlink, messages,
    monitor::{BUFFER, is_whole_link},
};
use crate::poll;

/// Length of the control message with a namespace id, in bytes.
const CONTROL_LEN: usize = 64;

/// A change of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkChange {
    /// It was brought up.
    Up,
    /// It was taken down.
    Down,
    /// Its MTU changed.
    Mtu(u32),
    /// It was moved to another namespace. If its changes there are visible, the next event is
    /// [`LinkChange::Down`].
    MovedAway {
        /// Whether this process receives notifications from that namespace.
        is_visible: bool,
    },
    /// It was moved back, and now has this index.
    MovedBack(u32),
    Deleted,
    /// The socket's buffer overflowed. Read the current state again.
    Lost,
}

/// Monitors one interface.
#[derive(Debug)]
pub struct LinkFollower {
    socket: Socket,
    location: Location,
    /// MTU and up state, as last reported in its current namespace.
    last: Option<(u32, bool)>,
    /// Whether the kernel reports changes in other namespaces.
    is_visible: bool,
    events: VecDeque<LinkChange>,
    buffer: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    /// In the socket's namespace, with this index.
    Home(u32),
    /// In the namespace with this id, with this index.
    Elsewhere(i32, u32),
    /// Moving from the namespace with this id to another one, in which it gets this index.
    Leaving(i32, u32),
    /// In a namespace from which the socket receives no notifications.
    Unseen,
}

impl AsFd for LinkFollower {
    /// Readable when a change may be pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl LinkFollower {
    /// Follows the link with this index from now on.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open(index: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(BUFFER)?;
        let is_visible = socket.set_listen_all_namespaces(true).is_ok();
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(libc::RTNLGRP_LINK)?;
        // After the subscription, so that no change is missed.
        let link = Netlink::open()?.link(index)?;
        let mut follow = Self {
            socket,
            location: Location::Home(index),
            last: link.as_ref().map(|link| (link.mtu, link.up)),
            is_visible,
            events: VecDeque::new(),
            buffer: vec![0; LISTENER_BUFFER],
        };
        if link.is_none() {
            follow.location = Location::Unseen;
            follow.events.push_back(LinkChange::MovedAway { is_visible: false });
        }
        Ok(follow)
    }

    /// Waits for the next change.
    ///
    /// # Errors
    /// The socket failed.
    #[expect(clippy::should_implement_trait, reason = "an iterator has no place for the error")]
    pub fn next(&mut self) -> io::Result<LinkChange> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            poll::readable([self.socket.as_fd()], None)?;
        }
    }

    /// The next change; `None` if no change is pending.
    ///
    /// # Errors
    /// The socket failed.
    pub fn try_next(&mut self) -> io::Result<Option<LinkChange>> {
        while self.events.is_empty() && self.read()? {}
        Ok(self.events.pop_front())
    }

    /// Reads once. Returns whether data was available.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = receive(&self.socket, &mut buffer);
        let result = match read {
            Ok((len, nsid)) => {
                messages(&buffer[..len]).for_each(|message| {
                    if let NetlinkPayload::InnerMessage(message) = message.payload {
                        self.handle_message(nsid, &message);
                    }
                });
                Ok(true)
            }
            Err(Errno::EAGAIN) => Ok(false),
            Err(Errno::EINTR) => Ok(true),
            Err(Errno::ENOBUFS) => {
                match self.location {
                    Location::Leaving(..) => self.location = Location::Unseen,
                    // It was moved or deleted. The TUN device also reports a deletion.
                    Location::Home(index) if is_absent(index) => {
                        self.location = Location::Unseen;
                        self.events.push_back(LinkChange::MovedAway { is_visible: false });
                    }
                    _ => {}
                }
                self.events.push_back(LinkChange::Lost);
                Ok(true)
            }
            Err(errno) => Err(errno.into()),
        };
        self.buffer = buffer;
        result
    }

    fn handle_message(&mut self, nsid: Option<i32>, message: &RouteNetlinkMessage) {
        let (link, is_gone) = match message {
            RouteNetlinkMessage::NewLink(link) => (link, false),
            RouteNetlinkMessage::DelLink(link) => (link, true),
            _ => return,
        };
        if !is_whole_link(link) {
            return;
        }
        let here = Location::new(nsid, link.header.index);
        if let Location::Leaving(from, index) = self.location {
            // If the arrival is reported at all, it is the next notification of any link
            // (__dev_change_net_namespace, net/core/dev.c).
            let arrives = !is_gone && link.header.index == index && nsid != Some(from);
            self.location = if arrives { here } else { Location::Unseen };
            if let Location::Home(index) = self.location {
                self.events.push_back(LinkChange::MovedBack(index));
            }
        }
        match (self.location == here, is_gone) {
            (false, _) => {}
            (true, false) => self.handle_link(link),
            (true, true) => self.handle_departure(link),
        }
    }

    fn handle_link(&mut self, message: &LinkMessage) {
        let Link { mtu, up, .. } = Link::from_message(message);
        let before = self.last.replace((mtu, up));
        if before.is_none_or(|(before, _)| before != mtu) {
            self.events.push_back(LinkChange::Mtu(mtu));
        }
        if before.is_none_or(|(_, before)| before != up) {
            self.events.push_back(if up { LinkChange::Up } else { LinkChange::Down });
        }
    }

    fn handle_departure(&mut self, message: &LinkMessage) {
        let (mut to, mut index) = (None, message.header.index);
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::NewNetnsId(nsid) => to = Some(*nsid),
                LinkAttribute::NewIfIndex(new) => index = u32::try_from(*new).unwrap_or(index),
                _ => {}
            }
        }
        let Some(nsid) = to else {
            self.events.push_back(LinkChange::Deleted);
            return;
        };
        self.last = None;
        self.location = match self.location {
            // The id is valid in the previous namespace.
            Location::Home(_) if nsid >= 0 => Location::Elsewhere(nsid, index),
            Location::Elsewhere(from, _) => Location::Leaving(from, index),
            _ => Location::Unseen,
        };
        self.events.push_back(LinkChange::MovedAway { is_visible: self.is_visible });
    }
}

impl Location {
    fn new(nsid: Option<i32>, index: u32) -> Self {
        nsid.map_or(Self::Home(index), |nsid| Self::Elsewhere(nsid, index))
    }
}

/// Receives messages, and the id of their namespace if it is not the socket's own.
fn receive(socket: &Socket, buffer: &mut [u8]) -> Result<(usize, Option<i32>), Errno> {
    let mut control = vec![0; CONTROL_LEN];
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags)?;
    let nsid = received.cmsgs()?.find_map(|message| match message {
        ControlMessageOwned::Unknown(message)
            if message.cmsg_header.cmsg_level == libc::SOL_NETLINK
                && message.cmsg_header.cmsg_type == libc::NETLINK_LISTEN_ALL_NSID =>
        {
            message.data_bytes.first_chunk().map(|nsid| i32::from_ne_bytes(*nsid))
        }
        _ => None,
    });
    Ok((received.bytes, nsid))
}

/// Whether no link has this index; `false` if that cannot be determined.
fn is_absent(index: u32) -> bool {
    Netlink::open().and_then(|netlink| netlink.link(index)).is_ok_and(|link| link.is_none())
}
