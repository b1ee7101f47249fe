//! Routes through a device, and the MTU on the way to an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use rtnetlink::{
    RouteMessageBuilder,
    packet_core::{NLM_F_CREATE, NLM_F_EXCL},
    packet_route::{
        RouteNetlinkMessage,
        route::{
            RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteMetric, RouteScope,
            RouteType,
        },
    },
};

use super::{Family, MAIN_TABLE, Netlink, NetlinkError};

/// A route straight through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// What it leads to; bits behind the prefix are ignored.
    pub destination: IpNet,
    /// The index of the interface it leads through.
    pub device: u32,
    /// The routing table, [`MAIN_TABLE`] for the usual one.
    pub table: u32,
    /// The metric; `None` is the kernel's default for the family.
    pub metric: Option<u32>,
}

impl Netlink {
    /// Adds a route.
    ///
    /// # Errors
    /// The kernel's refusal: EEXIST where the table has one to the same destination
    /// with the same metric, whoever made it; ENETDOWN where the device is down.
    pub fn add_route(&self, route: &Route) -> Result<(), NetlinkError> {
        let message = RouteNetlinkMessage::NewRoute(route.to_message());
        self.change(message, NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes a route.
    ///
    /// # Errors
    /// The kernel's refusal: ESRCH where there is no such route.
    pub fn delete_route(&self, route: &Route) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::DelRoute(route.to_message()), 0)
    }

    /// The unicast routes of a family in a table that lead through one device,
    /// directly or by a gateway.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn routes(&self, family: Family, table: u32) -> Result<Vec<Route>, NetlinkError> {
        let mut routes = Vec::new();
        self.dump_routes(family, |message| {
            if let Some(route) = Route::from_message(message).filter(|r| r.table == table) {
                routes.push(route);
            }
        })?;
        Ok(routes)
    }

    /// Whether a table already leads everything in `destination` through
    /// `device`, by a route to it or to a prefix around it. This is what
    /// `ip route show dev DEVICE match DESTINATION` answers.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn has_route(
        &self,
        destination: IpNet,
        device: u32,
        table: u32,
    ) -> Result<bool, NetlinkError> {
        let routes = self.routes(Family::of(destination.addr()), table)?;
        let covers = |route: &Route| {
            route.device == device
                && route.destination.prefix_len() <= destination.prefix_len()
                && route.destination.contains(&destination.addr())
        };
        Ok(routes.iter().any(covers))
    }

    /// The largest packet that goes to `to` whole, in bytes: the MTU of the
    /// route, a learned path MTU included, else that of the interface. `None`
    /// where no route leads there. A `fwmark` other than 0 takes the way that
    /// packets with this mark take.
    ///
    /// # Errors
    /// The kernel's refusal, other than that there is no route.
    pub fn mtu_to(&self, to: IpAddr, fwmark: u32) -> Result<Option<u32>, NetlinkError> {
        self.way_to(to, fwmark)?.map_or(Ok(None), |way| self.mtu_of(&way))
    }

    /// The way to an address, or `None` where no route leads there.
    pub(super) fn way_to(&self, to: IpAddr, fwmark: u32) -> Result<Option<Way>, NetlinkError> {
        let host = IpNet::from(to);
        let mut message = RouteMessage::default();
        message.header.address_family = Family::of(to).into();
        message.header.destination_prefix_length = host.prefix_len();
        message.attributes.push(RouteAttribute::Destination(to.into()));
        if fwmark != 0 {
            message.attributes.push(RouteAttribute::Mark(fwmark));
        }
        let mut way = None;
        let asked = self.request(RouteNetlinkMessage::GetRoute(message), 0, |answer| {
            if let RouteNetlinkMessage::NewRoute(message) = answer {
                way = Some(Way::from_message(&message));
            }
        });
        match asked {
            Ok(()) => Ok(way),
            Err(error)
                if matches!(
                    error.errno(),
                    Some(libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL)
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The MTU of the default route with the least metric, IPv4 before IPv6, or
    /// `None` where there is no default route.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn default_route_mtu(&self) -> Result<Option<u32>, NetlinkError> {
        for family in [Family::V4, Family::V6] {
            let mut best: Option<(u32, Way)> = None;
            self.dump_routes(family, |message| {
                let is_default = message.header.destination_prefix_length == 0
                    && message.header.kind == RouteType::Unicast
                    && table_of(message) == MAIN_TABLE;
                let metric = metric_of(message).unwrap_or(0);
                if is_default && best.as_ref().is_none_or(|(least, _)| metric < *least) {
                    best = Some((metric, Way::from_message(message)));
                }
            })?;
            if let Some((_, way)) = best
                && let Some(mtu) = self.mtu_of(&way)?
            {
                return Ok(Some(mtu));
            }
        }
        Ok(None)
    }

    fn mtu_of(&self, way: &Way) -> Result<Option<u32>, NetlinkError> {
        match (way.mtu, way.device) {
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
        self.dump(RouteNetlinkMessage::GetRoute(message), |answer| match answer {
            // Cloned routes are learned path MTUs and the like, no configuration.
            RouteNetlinkMessage::NewRoute(message)
                if !message.header.flags.contains(RouteFlags::Cloned) =>
            {
                each(&message);
            }
            _ => {}
        })
    }
}

impl Route {
    fn to_message(self) -> RouteMessage {
        let net = self.destination.trunc();
        let mut message = match net {
            IpNet::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(v4.addr(), v4.prefix_len())
                .scope(RouteScope::Link)
                .table_id(self.table)
                .output_interface(self.device)
                .build(),
            IpNet::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(v6.addr(), v6.prefix_len())
                .table_id(self.table)
                .output_interface(self.device)
                .build(),
        };
        message.attributes.extend(self.metric.map(RouteAttribute::Priority));
        message
    }

    fn from_message(message: &RouteMessage) -> Option<Self> {
        if message.header.kind != RouteType::Unicast {
            return None;
        }
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
        Some(Self {
            destination: IpNet::new(destination, message.header.destination_prefix_length).ok()?,
            device: Way::from_message(message).device?,
            table: table_of(message),
            metric: metric_of(message),
        })
    }
}

/// What a route says of the way behind it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Way {
    pub device: Option<u32>,
    mtu: Option<u32>,
}

impl Way {
    fn from_message(message: &RouteMessage) -> Self {
        let mut way = Self::default();
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Oif(index) => way.device = Some(*index),
                RouteAttribute::Metrics(metrics) => {
                    way.mtu = metrics.iter().find_map(|metric| match metric {
                        RouteMetric::Mtu(mtu) if *mtu > 0 => Some(*mtu),
                        _ => None,
                    });
                }
                _ => {}
            }
        }
        way
    }
}

/// The attribute holds what the header's byte has no room for.
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
