//! Links and their addresses.

use std::{collections::HashSet, net::IpAddr};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressHeaderFlags, AddressMessage},
    link::{
        AfSpecInet6, AfSpecUnspec, InfoKind, InfoPortKind, LinkAttribute, LinkFlags, LinkInfo,
        LinkLayerType, LinkMessage,
    },
};

use super::{Family, Netlink, NetlinkError, is_absent};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface's index.
    pub index: u32,
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is a TUN or TAP device.
    pub is_tun: bool,
    /// Whether it carries Ethernet frames.
    pub ethernet: bool,
    /// Whether it is a bridge or a port of one.
    pub bridged: bool,
    /// Whether `disable_ipv6` is on; `None` if the kernel lacks IPv6, or removed it from the link
    /// because of a small MTU.
    pub disable_ipv6: Option<bool>,
}

impl Netlink {
    /// The link with this name; `None` if it does not exist.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn link_by_name(&self, name: &str) -> Result<Option<Link>, NetlinkError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        self.one_link(message)
    }

    /// The link with this index; `None` if it does not exist.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn link(&self, index: u32) -> Result<Option<Link>, NetlinkError> {
        self.one_link(link_message(index))
    }

    /// All links.
    ///
    /// # Errors
    /// An error of the kernel.
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
    /// An error of the kernel: EINVAL if the device cannot have that MTU.
    pub fn set_mtu(&self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        let mut message = link_message(index);
        message.attributes.push(LinkAttribute::Mtu(mtu));
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Brings a link up.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn set_up(&self, index: u32) -> Result<(), NetlinkError> {
        self.set_flags(index, LinkFlags::Up)
    }

    /// Takes a link down. The kernel removes its routes.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn set_down(&self, index: u32) -> Result<(), NetlinkError> {
        self.set_flags(index, LinkFlags::empty())
    }

    /// Deletes a link.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn delete_link(&self, index: u32) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::DelLink(link_message(index)), 0)
    }

    /// Adds an address to a link, with the route to its prefix. Duplicate address detection is
    /// skipped, as a tunnel lacks neighbours, so the address can be bound at once. Packets *to* an
    /// IPv6 address may still be lost for some microseconds, until the kernel's work queue has
    /// made it local.
    ///
    /// # Errors
    /// An error of the kernel: EEXIST if the link has it.
    pub fn add_address(&self, index: u32, address: IpNet) -> Result<(), NetlinkError> {
        let mut message = address_message(index, address);
        // Otherwise an IPv6 address is tentative until a work queue has run, even on a link
        // without neighbours (addrconf_dad_start, net/ipv6/addrconf.c).
        message.header.flags.insert(AddressHeaderFlags::Nodad);
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes an address from a link.
    ///
    /// # Errors
    /// An error of the kernel: EADDRNOTAVAIL if the link does not have it.
    pub fn delete_address(&self, index: u32, address: IpNet) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::DelAddress(address_message(index, address)), 0)
    }

    /// The addresses of a link.
    ///
    /// # Errors
    /// An error of the kernel.
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

    /// The directly connected networks of all links that are up, except for link `except`,
    /// loopback and point-to-point links such as tunnels. Link-local networks are omitted.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn connected_networks(&self, except: u32) -> Result<HashSet<IpNet>, NetlinkError> {
        let mut links = HashSet::new();
        self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(LinkMessage { header, .. }) = message {
                let other = LinkFlags::Pointopoint | LinkFlags::Loopback;
                if header.index != except
                    && header.flags.contains(LinkFlags::Up)
                    && !header.flags.intersects(other)
                {
                    links.insert(header.index);
                }
            }
        })?;
        let mut networks = HashSet::new();
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

    /// The networks that this machine uses on links other than `except`: its own addresses, next
    /// hops, and destinations of routes other than default routes.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn networks_in_use(&self, except: u32) -> Result<Vec<IpNet>, NetlinkError> {
        let mut networks = Vec::new();
        self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()), |message| {
            if let RouteNetlinkMessage::NewAddress(message) = message
                && message.header.index != except
            {
                networks.extend(address_of(&message));
            }
        })?;
        for family in [Family::V4, Family::V6] {
            networks.extend(self.routed_networks(family, except)?);
        }
        Ok(networks)
    }

    fn one_link(&self, message: LinkMessage) -> Result<Option<Link>, NetlinkError> {
        let mut link = None;
        let result = self.get(RouteNetlinkMessage::GetLink(message), |reply| {
            if let RouteNetlinkMessage::NewLink(message) = reply {
                link = Some(Link::from_message(&message));
            }
        });
        match result {
            Ok(()) => Ok(link),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sets or clears the flag `IFF_UP`.
    fn set_flags(&self, index: u32, flags: LinkFlags) -> Result<(), NetlinkError> {
        let mut message = link_message(index);
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
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
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            bridged: false,
            disable_ipv6: None,
        };
        for attribute in &message.attributes {
            match attribute {
                LinkAttribute::IfName(name) => link.name.clone_from(name),
                LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
                LinkAttribute::LinkInfo(infos) => {
                    link.is_tun = infos.contains(&LinkInfo::Kind(InfoKind::Tun));
                    link.bridged = infos.contains(&LinkInfo::Kind(InfoKind::Bridge))
                        || infos.contains(&LinkInfo::PortKind(InfoPortKind::Bridge));
                }
                LinkAttribute::AfSpecUnspec(families) => {
                    link.disable_ipv6 = families.iter().find_map(disable_ipv6);
                }
                _ => {}
            }
        }
        link
    }
}

fn disable_ipv6(family: &AfSpecUnspec) -> Option<bool> {
    let AfSpecUnspec::Inet6(attributes) = family else { return None };
    attributes.iter().find_map(|attribute| match attribute {
        AfSpecInet6::DevConf(settings) => Some(settings.disable_ipv6 != 0),
        _ => None,
    })
}

/// A message about the link with this index.
pub(super) fn link_message(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn address_message(index: u32, address: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = Family::of(address.addr()).into();
    message.header.index = index;
    message.header.prefix_len = address.prefix_len();
    let ip = address.addr();
    message.attributes = vec![AddressAttribute::Address(ip), AddressAttribute::Local(ip)];
    if let IpNet::V4(v4) = address
        && v4.prefix_len() < 31
    {
        message.attributes.push(AddressAttribute::Broadcast(v4.broadcast()));
    }
    message
}

/// On a point-to-point link, IFA_ADDRESS is the address of the other end, and IFA_LOCAL is ours
/// (linux/if_addr.h).
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
