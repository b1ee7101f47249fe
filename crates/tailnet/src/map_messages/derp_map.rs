//! The relays.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

use crate::nil;

/// All relays by region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DerpMap {
    /// The parameters of the home selection; absent means unchanged.
    pub home_params: Option<HomeParams>,
    /// The regions; absent means unchanged. A region that is `null` was removed.
    pub regions: Option<BTreeMap<u16, Option<DerpRegion>>>,
    /// Whether Tailscale's relays are omitted.
    pub omit_default_regions: bool,
}

/// The parameters of the home selection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HomeParams {
    /// The factor for the latency of each region.
    #[serde(with = "nil")]
    pub region_score: BTreeMap<u16, f64>,
}

/// A region of relays that share their lists of clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DerpRegion {
    /// The ID.
    #[serde(rename = "RegionID")]
    pub region_id: u16,
    /// The short name.
    pub region_code: String,
    /// The name.
    pub region_name: String,
    /// Whether the region must not be selected as home.
    pub avoid: bool,
    /// Whether the region must not be selected or measured.
    pub no_measure_no_home: bool,
    /// The relays in the order of connection attempts.
    #[serde(with = "nil")]
    pub nodes: Vec<DerpNode>,
}

/// A relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DerpNode {
    /// The name.
    pub name: String,
    /// The ID of the region.
    #[serde(rename = "RegionID")]
    pub region_id: u16,
    /// The hostname.
    pub host_name: String,
    /// The name in the certificate, if it differs from the hostname; `sha256-raw:` and a hash for a
    /// self-signed certificate.
    pub cert_name: String,
    /// The IPv4 address; `none` to disable IPv4.
    #[serde(rename = "IPv4")]
    pub ipv4: String,
    /// The IPv6 address; `none` to disable IPv6.
    #[serde(rename = "IPv6")]
    pub ipv6: String,
    /// The STUN port: 0 is 3478, and -1 disables STUN.
    #[serde(rename = "STUNPort")]
    pub stun_port: i32,
    /// Whether it only supports STUN.
    #[serde(rename = "STUNOnly")]
    pub stun_only: bool,
    /// The port of the relay: 0 is 443.
    #[serde(rename = "DERPPort")]
    pub derp_port: u16,
    /// Whether its certificate is not checked.
    pub insecure_for_tests: bool,
    /// The address of STUN in tests.
    #[serde(rename = "STUNTestIP")]
    pub stun_test_ip: String,
    /// Whether it also listens on port 80.
    #[serde(rename = "CanPort80")]
    pub can_port80: bool,
}

impl DerpNode {
    /// Returns the IPv4 address.
    pub fn ipv4(&self) -> RelayAddress<Ipv4Addr> {
        RelayAddress::read(&self.ipv4)
    }

    /// Returns the IPv6 address.
    pub fn ipv6(&self) -> RelayAddress<Ipv6Addr> {
        RelayAddress::read(&self.ipv6)
    }

    /// Returns the STUN port, if STUN is enabled.
    pub fn stun_port(&self) -> Option<u16> {
        match self.stun_port {
            0 => Some(3478),
            port => u16::try_from(port).ok(),
        }
    }

    /// Returns the port of the relay.
    pub fn derp_port(&self) -> u16 {
        if self.derp_port == 0 { 443 } else { self.derp_port }
    }

    /// Returns the addresses in the map, which need no DNS query.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.ipv4().address().map(IpAddr::V4);
        v4.into_iter().chain(self.ipv6().address().map(IpAddr::V6))
    }
}

/// The address of a relay in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayAddress<A> {
    /// There.
    At(A),
    /// The addresses of its hostname.
    ByName,
    /// None: its hostname must not be resolved either.
    Nowhere,
}

impl<A: std::str::FromStr> RelayAddress<A> {
    /// A text that is neither empty nor an address disables the family (`tailcfg/derpmap.go`).
    fn read(text: &str) -> Self {
        match text {
            "" => Self::ByName,
            text => text.parse().map_or(Self::Nowhere, Self::At),
        }
    }
}

impl<A> RelayAddress<A> {
    /// Returns the address, if the map contains it.
    pub fn address(self) -> Option<A> {
        match self {
            Self::At(address) => Some(address),
            Self::ByName | Self::Nowhere => None,
        }
    }
}
