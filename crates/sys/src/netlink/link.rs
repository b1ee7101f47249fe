//! Links and their addresses.

use std::net::IpAddr;

use ipnet::IpNet;
use rtnetlink::{
    AddressMessageBuilder, LinkUnspec,
    packet_core::{NLM_F_CREATE, NLM_F_EXCL},
    packet_route::{
        RouteNetlinkMessage,
        address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
        link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    },
};

use super::{Netlink, NetlinkError, is_absent};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface's index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is a TUN device, or a TAP device.
    pub is_tun: bool,
}

impl Netlink {
    /// The link of this name, or `None` where there is none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn link_by_name(&self, name: &str) -> Result<Option<Link>, NetlinkError> {
        self.one_link(LinkUnspec::new_with_name(name).build())
    }

    /// The link of this index, or `None` where there is none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn link(&self, index: u32) -> Result<Option<Link>, NetlinkError> {
        self.one_link(LinkUnspec::new_with_index(index).build())
    }

    /// All links.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let mut links = Vec::new();
        self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(message) = message {
                links.push(Link::from_message(&message));
            }
        })?;
        Ok(links)
    }

    /// Sets a link's MTU, in bytes.
    ///
    /// # Errors
    /// The kernel's refusal: EINVAL where the device cannot have that MTU.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        self.set_link(LinkUnspec::new_with_index(index).mtu(mtu).build())
    }

    /// Sets a link administratively up.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        self.set_link(LinkUnspec::new_with_index(index).up().build())
    }

    /// Sets a link administratively down. The kernel removes its routes.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_down(&self, index: u32) -> Result<(), NetlinkError> {
        self.set_link(LinkUnspec::new_with_index(index).down().build())
    }

    /// Deletes a link.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn delete_link(&self, index: u32) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(index).build();
        self.change(RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Gives a link an address, with the route to its prefix. It is not looked for
    /// among neighbours, which a tunnel does not have, so that it can be bound to
    /// as soon as this returns. What is sent *to* an IPv6 address may be lost for
    /// some microseconds more, until the kernel's work queue has made it local.
    ///
    /// # Errors
    /// The kernel's refusal: EEXIST where the link has it.
    pub fn add_address(&self, index: u32, address: IpNet) -> Result<(), NetlinkError> {
        let mut message = address_message(index, address);
        // Without it an IPv6 address is tentative until a work queue has run, on
        // a link without neighbours too (addrconf_dad_start, net/ipv6/addrconf.c).
        message.header.flags.insert(AddressHeaderFlags::Nodad);
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Takes an address from a link.
    ///
    /// # Errors
    /// The kernel's refusal: EADDRNOTAVAIL where the link does not have it.
    pub fn delete_address(&self, index: u32, address: IpNet) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::DelAddress(address_message(index, address)), 0)
    }

    /// The addresses of a link.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn addresses(&self, index: u32) -> Result<Vec<IpNet>, NetlinkError> {
        let mut addresses = Vec::new();
        self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && message.header.index == index
            {
                addresses.extend(address_of(&message));
            }
        })?;
        Ok(addresses)
    }

    /// The networks that links which are up are connected to, but for the link
    /// `but`, tunnels and other links of two ends, and loopback. The link-local one,
    /// which every link has, is none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn connected_networks(&self, but: u32) -> Result<Vec<IpNet>, NetlinkError> {
        let mut links = Vec::new();
        self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(LinkMessage { header, .. }) = message {
                let other = LinkFlags::Pointopoint | LinkFlags::Loopback;
                if header.index != but
                    && header.flags.contains(LinkFlags::Up)
                    && !header.flags.intersects(other)
                {
                    links.push(header.index);
                }
            }
        })?;
        let mut networks = Vec::new();
        self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && links.contains(&message.header.index)
            {
                networks.extend(address_of(&message).map(|address| address.trunc()));
            }
        })?;
        networks.retain(|network| {
            let is_local = matches!(network, IpNet::V6(v6) if v6.addr().is_unicast_link_local());
            !is_local && network.prefix_len() < network.max_prefix_len()
        });
        Ok(networks)
    }

    fn one_link(&self, message: LinkMessage) -> Result<Option<Link>, NetlinkError> {
        let mut link = None;
        let asked = self.request(RouteNetlinkMessage::GetLink(message), 0, |answer| {
            if let RouteNetlinkMessage::NewLink(message) = answer {
                link = Some(Link::from_message(&message));
            }
        });
        match asked {
            Ok(()) => Ok(link),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn set_link(&self, message: LinkMessage) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }
}

impl Link {
    pub(super) fn from_message(message: &LinkMessage) -> Self {
        let mut link = Self {
            index: message.header.index,
            name: String::new(),
            mtu: 0,
            up: message.header.flags.contains(LinkFlags::Up),
            is_tun: false,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::LinkInfo(infos) => {
                    link.is_tun = infos.contains(&LinkInfo::Kind(InfoKind::Tun));
                }
                _ => {}
            }
        }
        link
    }
}

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    match address {
        IpNet::V4(v4) => AddressMessageBuilder::<std::net::Ipv4Addr>::new()
            .index(index)
            .address(v4.addr(), v4.prefix_len())
            .build(),
        IpNet::V6(v6) => AddressMessageBuilder::<std::net::Ipv6Addr>::new()
            .index(index)
            .address(v6.addr(), v6.prefix_len())
            .build(),
    }
}

/// IFA_LOCAL is our own address where there is one: IFA_ADDRESS is the other
/// end's on a point-to-point link (linux/if_addr.h).
fn address_of(message: &AddressMessage) -> Option<IpNet> {
    let mut found: Option<IpAddr> = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => found = Some(*address),
            AddressAttribute::Address(address) => found = found.or(Some(*address)),
            _ => {}
        }
    }
    IpNet::new(found?, message.header.prefix_len).ok()
}
