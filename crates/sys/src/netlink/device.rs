//! What kind of device a link is, and through which one a way leads.

use std::net::IpAddr;

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, InfoPortKind, LinkAttribute, LinkInfo, LinkLayerType, LinkMessage},
};

use super::{Link, Netlink, NetlinkError};

/// A link, and what it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The link.
    pub link: Link,
    /// Whether it carries Ethernet frames.
    pub ethernet: bool,
    /// Whether it is a bridge or one of a bridge's ports.
    pub bridged: bool,
}

impl Netlink {
    /// All devices.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn devices(&self) -> Result<Vec<Device>, NetlinkError> {
        let mut devices = Vec::new();
        self.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(message) = message {
                devices.push(Device::from_message(&message));
            }
        })?;
        Ok(devices)
    }

    /// The index of the device by which packets with this mark go to `to`, or `None`
    /// where no route leads there.
    ///
    /// # Errors
    /// The kernel's refusal, other than that there is no route.
    pub fn device_to(&self, to: IpAddr, fwmark: u32) -> Result<Option<u32>, NetlinkError> {
        Ok(self.way_to(to, fwmark)?.and_then(|way| way.device))
    }
}

impl Device {
    fn from_message(message: &LinkMessage) -> Self {
        let bridged = message.attributes.iter().any(|attribute| match attribute {
            LinkAttribute::LinkInfo(infos) => infos.iter().any(|info| {
                matches!(
                    info,
                    LinkInfo::Kind(InfoKind::Bridge) | LinkInfo::PortKind(InfoPortKind::Bridge)
                )
            }),
            _ => false,
        });
        Self {
            link: Link::from_message(message),
            ethernet: message.header.link_layer_type == LinkLayerType::Ether,
            bridged,
        }
    }
}
