//! Routes through a device, and the device and MTU towards an address.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteProtocol,
        RouteScope, RouteType, RouteVia,
    },
};

use super::{Family, MAIN_TABLE, Netlink, NetlinkError};
use crate::errno::Errno;

/// A route through a device, without a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination; bits after the prefix are ignored.
    pub destination: IpNet,
    /// The interface's index.
    pub device: u32,
    /// The routing table, usually [`MAIN_TABLE`].
    pub table: u32,
    /// The metric; `None` is the kernel's default for the family.
    pub metric: Option<u32>,
}

/// The next hop of a default route. Without a default route both fields are `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefaultRoute {
    /// The device's index.
    pub device: Option<u32>,
    /// The gateway, if the route has one of IPv4.
    pub gateway: Option<Ipv4Addr>,
}

impl Netlink {
    /// Adds a route.
    ///
    /// # Errors
    /// An error of the kernel: EEXIST if the table has a route to that destination with that metric;
    /// ENETDOWN if the device is down.
    pub fn add_route(&self, route: &Route) -> Result<(), NetlinkError> {
        let message = RouteNetlinkMessage::NewRoute(route.to_message());
        self.change(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes a route.
    ///
    /// # Errors
    /// An error of the kernel: ESRCH if the route does not exist.
    pub fn delete_route(&self, route: &Route) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::DelRoute(route.to_message()), 0)
    }

    /// The unicast routes of a family in a table that lead through a single device, with or without
    /// a gateway.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn routes(&self, family: Family, table: u32) -> Result<Vec<Route>, NetlinkError> {
        let mut routes = Vec::new();
        self.dump_routes(family, |message| {
            if let Some(route) = Route::from_message(message).filter(|r| r.table == table) {
                routes.push(route);
            }
        })?;
        Ok(routes)
    }

    /// The numbers of all routing tables that contain a route of any kind, of IPv4 or IPv6.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn tables(&self) -> Result<BTreeSet<u32>, NetlinkError> {
        let mut tables = BTreeSet::new();
        for family in [Family::V4, Family::V6] {
            self.dump_routes(family, |message| {
                tables.insert(table_of(message));
            })?;
        }
        Ok(tables)
    }

    /// The MTU towards `to` in bytes: that of the route, including a learned path MTU, otherwise
    /// that of the interface. `None` without a route. If `fwmark` is not 0, the route of packets
    /// with that mark is used.
    ///
    /// # Errors
    /// An error of the kernel other than a missing route.
    pub fn mtu_to(&self, to: IpAddr, fwmark: u32) -> Result<Option<u32>, NetlinkError> {
        self.next_hop(to, None, fwmark)?.map_or(Ok(None), |hop| self.mtu_of(&hop))
    }

    /// The index of the outgoing device of packets with this mark to `to`. If `from` is given,
    /// they are sent from that address of this host. `None` without a route.
    ///
    /// # Errors
    /// An error of the kernel other than a missing route.
    pub fn device_to(
        &self,
        to: IpAddr,
        from: Option<IpAddr>,
        fwmark: u32,
    ) -> Result<Option<u32>, NetlinkError> {
        Ok(self.next_hop(to, from, fwmark)?.and_then(|hop| hop.device))
    }

    /// The next hop towards an address; `None` without a route.
    fn next_hop(
        &self,
        to: IpAddr,
        from: Option<IpAddr>,
        fwmark: u32,
    ) -> Result<Option<NextHop>, NetlinkError> {
        let host = IpNet::from(to);
        let mut message = RouteMessage::default();
        message.header.address_family = Family::of(to).into();
        message.header.destination_prefix_length = host.prefix_len();
        message.attributes.push(RouteAttribute::Destination(to.into()));
        if let Some(from) = from {
            message.header.source_prefix_length = IpNet::from(from).prefix_len();
            message.attributes.push(RouteAttribute::Source(from.into()));
        }
        if fwmark != 0 {
            message.attributes.push(RouteAttribute::Mark(fwmark));
        }
        let mut hop = None;
        let result = self.get(RouteNetlinkMessage::GetRoute(message), |reply| {
            if let RouteNetlinkMessage::NewRoute(message) = reply {
                hop = Some(NextHop::from_message(&message));
            }
        });
        match result {
            Ok(()) => Ok(hop),
            Err(error)
                if matches!(
                    error.errno(),
                    Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH | Errno::EACCES | Errno::EINVAL)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The MTU of the default route with the lowest metric, IPv4 before IPv6; `None` without a
    /// default route.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn default_route_mtu(&self) -> Result<Option<u32>, NetlinkError> {
        for family in [Family::V4, Family::V6] {
            if let Some(hop) = self.default_hop(family)?
                && let Some(mtu) = self.mtu_of(&hop)?
            {
                return Ok(Some(mtu));
            }
        }
        Ok(None)
    }

    /// The gateway of the IPv4 default route with the lowest metric; `None` without such a route,
    /// or if it leads directly to a device.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn default_gateway(&self) -> Result<Option<Ipv4Addr>, NetlinkError> {
        Ok(self.default_hop(Family::V4)?.and_then(|hop| hop.gateway))
    }

    /// The default routes of IPv4 and IPv6. If two results are equal, their next hops are the
    /// same.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn default_routes(&self) -> Result<[DefaultRoute; 2], NetlinkError> {
        let way = |family| {
            let hop = self.default_hop(family)?;
            let way = hop.map(|hop| DefaultRoute { device: hop.device, gateway: hop.gateway });
            Ok::<_, NetlinkError>(way.unwrap_or_default())
        };
        Ok([way(Family::V4)?, way(Family::V6)?])
    }

    /// The next hop of a family's default route with the lowest metric.
    fn default_hop(&self, family: Family) -> Result<Option<NextHop>, NetlinkError> {
        let mut best: Option<(u32, NextHop)> = None;
        self.dump_routes(family, |message| {
            let is_default = message.header.destination_prefix_length == 0
                && message.header.kind == RouteType::Unicast
                && table_of(message) == MAIN_TABLE;
            let metric = metric_of(message).unwrap_or(0);
            if is_default && best.as_ref().is_none_or(|(least, _)| metric < *least) {
                best = Some((metric, NextHop::from_message(message)));
            }
        })?;
        Ok(best.map(|(_, hop)| hop))
    }

    /// Destinations and next hops of a family's local and unicast routes through links other than
    /// `except`. Omitted are the destinations of default routes, and of the two halves of the
    /// address space, with which some VPNs replace a default route.
    pub(super) fn routed_networks(
        &self,
        family: Family,
        except: u32,
    ) -> Result<Vec<IpNet>, NetlinkError> {
        let mut networks = Vec::new();
        self.dump_routes(family, |message| {
            let is_used = matches!(message.header.kind, RouteType::Unicast | RouteType::Local);
            if !is_used || NextHop::from_message(message).device == Some(except) {
                return;
            }
            networks.extend(destination_of(message).filter(|net| net.prefix_len() > 1));
            gateways(&message.attributes, &mut networks);
        })?;
        Ok(networks)
    }

    fn mtu_of(&self, hop: &NextHop) -> Result<Option<u32>, NetlinkError> {
        match (hop.mtu, hop.device) {
            (Some(mtu), _) => Ok(Some(mtu)),
            (None, Some(device)) => Ok(self.link(device)?.map(|link| link.mtu)),
            (None, None) => Ok(None),
        }
    }

    fn dump_routes(
        &self,
        family: Family,
        mut each: impl FnMut(&RouteMessage),
    ) -> Result<(), NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family.into();
        self.dump(RouteNetlinkMessage::GetRoute(message), |reply| match reply {
            // Cloned routes are not configuration but, for example, learned path MTUs. A kernel
            // without IPv6 answers a request for its routes with those of all families.
            RouteNetlinkMessage::NewRoute(message)
                if !message.header.flags.contains(RouteFlags::Cloned)
                    && message.header.address_family == family.into() =>
            {
                each(&message);
            }
            _ => {}
        })
    }
}

impl Route {
    fn to_message(self) -> RouteMessage {
        let destination = self.destination.trunc();
        let mut message = RouteMessage::default();
        message.header.address_family = Family::of(destination.addr()).into();
        message.header.destination_prefix_length = destination.prefix_len();
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = match destination {
            IpNet::V4(_) => RouteScope::Link,
            IpNet::V6(_) => RouteScope::Universe,
        };
        message.attributes = vec![
            RouteAttribute::Destination(destination.addr().into()),
            RouteAttribute::Table(self.table),
            RouteAttribute::Oif(self.device),
        ];
        message.attributes.extend(self.metric.map(RouteAttribute::Priority));
        message
    }

    fn from_message(message: &RouteMessage) -> Option<Self> {
        if message.header.kind != RouteType::Unicast {
            return None;
        }
        Some(Self {
            destination: destination_of(message)?,
            device: NextHop::from_message(message).device?,
            table: table_of(message),
            metric: metric_of(message),
        })
    }
}

/// Adds the next hops of a route.
fn gateways(attributes: &[RouteAttribute], to: &mut Vec<IpNet>) {
    for attribute in attributes {
        match attribute {
            RouteAttribute::Gateway(RouteAddress::Inet(v4))
            | RouteAttribute::Via(RouteVia::Inet(v4)) => to.push(IpAddr::from(*v4).into()),
            RouteAttribute::Gateway(RouteAddress::Inet6(v6))
            | RouteAttribute::Via(RouteVia::Inet6(v6)) => to.push(IpAddr::from(*v6).into()),
            RouteAttribute::MultiPath(hops) => {
                hops.iter().for_each(|hop| gateways(&hop.attributes, to));
            }
            _ => {}
        }
    }
}

fn destination_of(message: &RouteMessage) -> Option<IpNet> {
    let mut destination = match Family::try_from(message.header.address_family).ok()? {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(v4)) => destination = (*v4).into(),
            RouteAttribute::Destination(RouteAddress::Inet6(v6)) => destination = (*v6).into(),
            _ => {}
        }
    }
    IpNet::new(destination, message.header.destination_prefix_length).ok()
}

/// The device, gateway and MTU of a route.
#[derive(Clone, Copy, Debug, Default)]
struct NextHop {
    device: Option<u32>,
    gateway: Option<Ipv4Addr>,
    mtu: Option<u32>,
}

impl NextHop {
    fn from_message(message: &RouteMessage) -> Self {
        let mut hop = Self::default();
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => hop.device = Some(*index),
                RouteAttribute::Gateway(RouteAddress::Inet(v4)) => hop.gateway = Some(*v4),
                RouteAttribute::Metrics(metrics) => {
                    hop.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        hop
    }
}

/// The attribute is used for table numbers that do not fit the header's byte.
fn table_of(message: &RouteMessage) -> u32 {
    let attribute = message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    attribute.unwrap_or_else(|| message.header.table.into())
}

fn metric_of(message: &RouteMessage) -> Option<u32> {
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Priority(metric) => Some(*metric),
        _ => None,
    })
}
