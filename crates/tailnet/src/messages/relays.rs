//! The relays.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde::{Deserialize, Serialize};

use super::nil;

/// All relays, by region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DerpMap {
    /// How the home is chosen; absent means unchanged.
    pub home_params: Option<HomeParams>,
    /// The regions; absent means unchanged. A region that is `null` is gone.
    pub regions: Option<BTreeMap<u16, Option<DerpRegion>>>,
    /// Whether Tailscale's own are left out.
    pub omit_default_regions: bool,
}

/// How the home is chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HomeParams {
    /// What a region's latency is multiplied by.
    #[serde(with = "nil")]
    pub region_score: BTreeMap<u16, f64>,
}

/// Relays that know each other's clients.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DerpRegion {
    /// Its number.
    #[serde(rename = "RegionID")]
    pub region_id: u16,
    /// Its short name.
    pub region_code: String,
    /// Its name.
    pub region_name: String,
    /// Whether it is nobody's home.
    pub avoid: bool,
    /// Whether it is not measured either.
    pub no_measure_no_home: bool,
    /// Its relays, in the order in which they are tried.
    #[serde(with = "nil")]
    pub nodes: Vec<DerpNode>,
}

/// A relay.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DerpNode {
    /// Its name.
    pub name: String,
    /// Its region.
    #[serde(rename = "RegionID")]
    pub region_id: u16,
    /// The name of its host.
    pub host_name: String,
    /// What its certificate is for, where that is another name; `sha256-raw:` and a hash for one
    /// that it signed itself.
    pub cert_name: String,
    /// Its address; `none` if it has none.
    #[serde(rename = "IPv4")]
    pub ipv4: String,
    /// Its address; `none` if it has none.
    #[serde(rename = "IPv6")]
    pub ipv6: String,
    /// The port of STUN: 0 is 3478, and -1 none.
    #[serde(rename = "STUNPort")]
    pub stun_port: i32,
    /// Whether it has nothing but STUN.
    #[serde(rename = "STUNOnly")]
    pub stun_only: bool,
    /// The port of relaying: 0 is 443.
    #[serde(rename = "DERPPort")]
    pub derp_port: u16,
    /// Whether its certificate is not checked.
    pub insecure_for_tests: bool,
    /// Another address for STUN, of tests.
    #[serde(rename = "STUNTestIP")]
    pub stun_test_ip: String,
    /// Whether it also answers at port 80.
    #[serde(rename = "CanPort80")]
    pub can_port80: bool,
}

impl DerpNode {
    /// Where it is in IPv4.
    pub fn ipv4(&self) -> RelayAddress<Ipv4Addr> {
        RelayAddress::read(&self.ipv4)
    }

    /// Where it is in IPv6.
    pub fn ipv6(&self) -> RelayAddress<Ipv6Addr> {
        RelayAddress::read(&self.ipv6)
    }

    /// The port of STUN, where it has any.
    pub fn stun_port(&self) -> Option<u16> {
        match self.stun_port {
            0 => Some(3478),
            port => u16::try_from(port).ok(),
        }
    }

    /// The port of relaying.
    pub fn derp_port(&self) -> u16 {
        if self.derp_port == 0 { 443 } else { self.derp_port }
    }

    /// Addresses that are said, so that no name has to be asked for.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.ipv4().address().map(IpAddr::V4);
        v4.into_iter().chain(self.ipv6().address().map(IpAddr::V6))
    }
}

/// Where a relay is, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelayAddress<A> {
    /// There.
    At(A),
    /// Where its name says.
    ByName,
    /// Nowhere: its name must not be asked for either.
    Nowhere,
}

impl<A: std::str::FromStr> RelayAddress<A> {
    /// Anything that is not empty and no address switches the family off (`tailcfg/derpmap.go`).
    fn read(text: &str) -> Self {
        match text {
            "" => Self::ByName,
            text => text.parse().map_or(Self::Nowhere, Self::At),
        }
    }
}

impl<A> RelayAddress<A> {
    /// The address, if it was said.
    pub fn address(self) -> Option<A> {
        match self {
            Self::At(address) => Some(address),
            Self::ByName | Self::Nowhere => None,
        }
    }
}
