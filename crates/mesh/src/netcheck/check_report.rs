//! The report of a check.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde::Serialize;

use super::MAX_REFLEXIVE_ADDRESSES;

/// The report of a check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The start of the check.
    pub began: Duration,
    /// The lowest latency of each region.
    pub latencies: BTreeMap<u16, Duration>,
    /// The lowest latency of each region over IPv4 and UDP.
    pub v4_latencies: BTreeMap<u16, Duration>,
    /// The lowest latency of each region over IPv6 and UDP.
    pub v6_latencies: BTreeMap<u16, Duration>,
    /// Whether UDP works at all.
    pub udp: bool,
    /// The addresses of this machine that servers observed, in the order of the answers.
    pub reflexive_addresses: Vec<ReflexiveAddress>,
}

/// The address of this machine that a server observed (RFC 8489, "reflexive transport address").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReflexiveAddress {
    /// The server.
    pub server: SocketAddr,
    /// This machine.
    pub own: SocketAddr,
}

/// The report to the coordinator (`tailcfg/tailcfg.go`).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct NetInfo {
    /// Whether servers observed different addresses.
    #[serde(rename = "MappingVariesByDestIP", skip_serializing_if = "Option::is_none")]
    pub mapping_varies_by_dest_ip: Option<bool>,
    /// Whether IPv6 works.
    #[serde(rename = "WorkingIPv6", skip_serializing_if = "Option::is_none")]
    pub working_ipv6: Option<bool>,
    /// Whether this machine has IPv6.
    #[serde(rename = "OSHasIPv6", skip_serializing_if = "Option::is_none")]
    pub os_has_ipv6: Option<bool>,
    /// Whether UDP works.
    #[serde(rename = "WorkingUDP", skip_serializing_if = "Option::is_none")]
    pub working_udp: Option<bool>,
    /// Whether the router maps a port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub have_port_map: bool,
    /// Whether the router supports NAT-PMP.
    #[serde(rename = "PMP", skip_serializing_if = "Option::is_none")]
    pub pmp: Option<bool>,
    /// Whether the router supports PCP.
    #[serde(rename = "PCP", skip_serializing_if = "Option::is_none")]
    pub pcp: Option<bool>,
    /// Whether the router supports UPnP.
    #[serde(rename = "UPnP", skip_serializing_if = "Option::is_none")]
    pub upnp: Option<bool>,
    /// The region of the home relay, without which peers cannot send through relays; 0 for none.
    #[serde(rename = "PreferredDERP", skip_serializing_if = "is_zero")]
    pub preferred_derp: u16,
    /// The latency of each region in seconds. The keys have the form `1-v4`.
    #[serde(rename = "DERPLatency", skip_serializing_if = "BTreeMap::is_empty")]
    pub derp_latency: BTreeMap<String, f64>,
}

fn is_zero(number: &u16) -> bool {
    *number == 0
}

impl Report {
    /// Returns the observed addresses of one family: the first, and others that several servers
    /// observed. An address that only one server observed is of no use to others.
    pub fn global(&self, v6: bool) -> Vec<SocketAddr> {
        let family = |seen: &&ReflexiveAddress| seen.own.is_ipv6() == v6;
        let mut global: Vec<SocketAddr> = Vec::new();
        for seen in self.reflexive_addresses.iter().filter(family) {
            let count =
                self.reflexive_addresses.iter().filter(|other| other.own == seen.own).count();
            if (global.is_empty() || count > 1) && !global.contains(&seen.own) {
                global.push(seen.own);
            }
        }
        global
    }

    /// Returns whether the NAT maps destinations differently; `None` until two IPv4 servers
    /// answered.
    pub fn mapping_varies(&self) -> Option<bool> {
        let mut v4 = self.reflexive_addresses.iter().filter(|seen| seen.own.is_ipv4());
        let first = v4.next()?;
        let others = v4.filter(|other| other.server != first.server);
        others.map(|other| other.own != first.own).reduce(|one, other| one | other)
    }

    /// Returns the report to the coordinator with this home.
    pub fn net_info(&self, home: Option<u16>, has_ipv6: bool) -> NetInfo {
        let of = |latencies: &BTreeMap<u16, Duration>, family: &str| {
            let seconds = latencies.iter();
            let seconds = seconds.map(|(id, it)| (format!("{id}-{family}"), it.as_secs_f64()));
            seconds.collect::<Vec<_>>()
        };
        let latencies = [of(&self.v4_latencies, "v4"), of(&self.v6_latencies, "v6")];
        NetInfo {
            mapping_varies_by_dest_ip: self.mapping_varies(),
            working_ipv6: Some(!self.v6_latencies.is_empty()),
            os_has_ipv6: Some(has_ipv6),
            working_udp: Some(self.udp),
            have_port_map: false,
            pmp: None,
            pcp: None,
            upnp: None,
            preferred_derp: home.unwrap_or(0),
            derp_latency: latencies.into_iter().flatten().collect(),
        }
    }

    /// Returns whether another answer of a region would add information.
    pub(super) fn wants(&self, region: u16, v6: bool) -> bool {
        let missing = !self.latencies.contains_key(&region);
        missing || (v6 && self.v6_latencies.is_empty()) || (!v6 && self.mapping_varies().is_none())
    }

    /// Adds a server's answer.
    pub(super) fn note(&mut self, region: u16, seen: ReflexiveAddress, latency: Duration) {
        self.udp = true;
        self.note_latency(region, latency);
        let v6 = seen.server.is_ipv6();
        let latencies = if v6 { &mut self.v6_latencies } else { &mut self.v4_latencies };
        note(latencies, region, latency);
        if self.reflexive_addresses.len() < MAX_REFLEXIVE_ADDRESSES {
            self.reflexive_addresses.push(seen);
        }
    }

    /// Adds the latency of a region, over UDP or TCP.
    pub(super) fn note_latency(&mut self, region: u16, latency: Duration) {
        note(&mut self.latencies, region, latency);
    }
}

fn note(latencies: &mut BTreeMap<u16, Duration>, region: u16, latency: Duration) {
    let lowest = latencies.entry(region).or_insert(latency);
    *lowest = latency.min(*lowest);
}
