//! One interface, followed through the network namespaces that it is moved to.
//!
//! ```text
//!   RTM_DELLINK with the other namespace and index -> moved there, else deleted
//!   RTM_NEWLINK of where it is -----------------------> up, down, MTU
//! ```
//!
//! The socket stays where it was opened. It hears of other namespaces (NETLINK_LISTEN_ALL_NSID) as
//! far as its own has a number for them, which the move gives to the first one, and as far as the
//! process had CAP_NET_BROADCAST there when the socket was opened (`do_one_broadcast`,
//! net/netlink/af_netlink.c).

use std::{
    collections::VecDeque,
    io::{self, IoSliceMut},
    os::fd::{AsFd as _, AsRawFd as _},
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};
use rtnetlink::{
    MulticastGroup,
    packet_route::{
        RouteNetlinkMessage,
        link::{LinkAttribute, LinkMessage},
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

use super::{
    Link, Netlink,
    monitor::{BUFFER, READ, is_whole_link, messages},
};
use crate::poll;

/// Bytes of what stands beside a message: one number, and its header.
const BESIDE: usize = 64;

/// What became of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Followed {
    /// It is administratively up.
    Up,
    /// It is administratively down.
    Down,
    /// It has another MTU.
    Mtu(u32),
    /// It went to another namespace. Where it is down the next event says so, if it is seen.
    Away {
        /// Whether this process may see what becomes of it there.
        is_seen: bool,
    },
    /// It came back, with this index.
    Home(u32),
    /// It was deleted.
    Deleted,
    /// More happened than the socket's buffer holds: read anew what matters.
    Lost,
}

/// Listens for what becomes of one interface.
#[derive(Debug)]
pub struct Follow {
    socket: Socket,
    at: At,
    /// MTU and whether up, as last seen where it is.
    last: Option<(u32, bool)>,
    /// Whether the kernel tells of other namespaces.
    is_seen: bool,
    events: VecDeque<Followed>,
    buffer: Vec<u8>,
}

/// Where the interface is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In the socket's namespace, with this index.
    Home(u32),
    /// In the one of this number, with this index.
    Abroad(i32, u32),
    /// On the way from the one of this number, to where it has this index.
    Leaving(i32, u32),
    /// In one that the socket does not hear of.
    Unseen,
}

impl Follow {
    /// Follows the link of this index, from now on.
    ///
    /// # Errors
    /// No socket could be opened.
    pub fn open(index: u32) -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.set_non_blocking(true)?;
        socket.set_rx_buf_sz(BUFFER)?;
        let is_seen = socket.set_listen_all_namespaces(true).is_ok();
        socket.bind(&SocketAddr::new(0, 0))?;
        socket.add_membership(MulticastGroup::Link as u32)?;
        // Asked behind the subscription, so that no change falls between.
        let link = Netlink::open()?.link(index)?;
        let mut follow = Self {
            socket,
            at: At::Home(index),
            last: link.as_ref().map(|link| (link.mtu, link.up)),
            is_seen,
            events: VecDeque::new(),
            buffer: vec![0; READ],
        };
        if link.is_none() {
            follow.at = At::Unseen;
            follow.events.push_back(Followed::Away { is_seen: false });
        }
        Ok(follow)
    }

    /// Waits for the next change.
    ///
    /// # Errors
    /// The socket failed.
    #[expect(clippy::should_implement_trait, reason = "an iterator has no place for the error")]
    pub fn next(&mut self) -> io::Result<Followed> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            poll::readable([self.socket.as_fd()], None)?;
        }
    }

    /// The next change, where there is one.
    ///
    /// # Errors
    /// The socket failed.
    pub fn try_next(&mut self) -> io::Result<Option<Followed>> {
        while self.events.is_empty() && self.read()? {}
        Ok(self.events.pop_front())
    }

    /// Reads once; whether there was something.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let read = receive(&self.socket, &mut buffer);
        let answer = match read {
            Ok((len, nsid)) => {
                messages(&buffer[..len]).for_each(|message| self.handle_message(nsid, &message));
                Ok(true)
            }
            Err(Errno::EAGAIN) => Ok(false),
            Err(Errno::EINTR) => Ok(true),
            Err(Errno::ENOBUFS) => {
                match self.at {
                    At::Leaving(..) => self.at = At::Unseen,
                    // Of the news that were lost one was that it left, or was deleted, which
                    // its TUN device tells as well.
                    At::Home(index) if is_absent(index) => {
                        self.at = At::Unseen;
                        self.events.push_back(Followed::Away { is_seen: false });
                    }
                    _ => {}
                }
                self.events.push_back(Followed::Lost);
                Ok(true)
            }
            Err(errno) => Err(errno.into()),
        };
        self.buffer = buffer;
        answer
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
        let here = At::new(nsid, link.header.index);
        if let At::Leaving(from, index) = self.at {
            // The arrival is the next that the kernel tells of any link, if it is told at all
            // (__dev_change_net_namespace, net/core/dev.c).
            let arrives = !is_gone && link.header.index == index && nsid != Some(from);
            self.at = if arrives { here } else { At::Unseen };
            if let At::Home(index) = self.at {
                self.events.push_back(Followed::Home(index));
            }
        }
        match (self.at == here, is_gone) {
            (false, _) => {}
            (true, false) => self.handle_link(link),
            (true, true) => self.handle_departure(link),
        }
    }

    fn handle_link(&mut self, message: &LinkMessage) {
        let Link { mtu, up, .. } = Link::from_message(message);
        let before = self.last.replace((mtu, up));
        if before.is_none_or(|(before, _)| before != mtu) {
            self.events.push_back(Followed::Mtu(mtu));
        }
        if before.is_none_or(|(_, before)| before != up) {
            self.events.push_back(if up { Followed::Up } else { Followed::Down });
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
            self.events.push_back(Followed::Deleted);
            return;
        };
        self.last = None;
        self.at = match self.at {
            // The number is one of the namespace that it leaves.
            At::Home(_) if nsid >= 0 => At::Abroad(nsid, index),
            At::Abroad(from, _) => At::Leaving(from, index),
            _ => At::Unseen,
        };
        self.events.push_back(Followed::Away { is_seen: self.is_seen });
    }
}

impl At {
    fn new(nsid: Option<i32>, index: u32) -> Self {
        nsid.map_or(Self::Home(index), |nsid| Self::Abroad(nsid, index))
    }
}

/// Receives messages, and the number of the namespace that they are of where it is another.
fn receive(socket: &Socket, buffer: &mut [u8]) -> Result<(usize, Option<i32>), Errno> {
    let mut beside = vec![0; BESIDE];
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut beside), flags)?;
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

/// Whether no link has this index; not where that cannot be told.
fn is_absent(index: u32) -> bool {
    Netlink::open().and_then(|netlink| netlink.link(index)).is_ok_and(|link| link.is_none())
}
