//! Nodes and their owners.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};

use super::Record;
use crate::keys::{DiscoPublic, MachinePublic, NodePublic};
use crate::{nil, raw_json::Json};

/// Capabilities with their parameters.
pub type CapMap = BTreeMap<String, Json>;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    /// The number.
    #[serde(rename = "ID", deserialize_with = "nil::deserialize")]
    pub id: i64,
    /// The stable ID.
    #[serde(rename = "StableID", deserialize_with = "nil::deserialize")]
    pub stable_id: String,
    /// The full name with the final dot.
    #[serde(deserialize_with = "nil::deserialize")]
    pub name: String,
    /// The owner.
    #[serde(deserialize_with = "nil::deserialize")]
    pub user: i64,
    /// The node key.
    #[serde(deserialize_with = "nil::deserialize")]
    pub key: NodePublic,
    /// The expiry of the key; Go's zero time if it never expires.
    pub key_expiry: Option<String>,
    /// The tailnet-lock signature of the key, in base64.
    #[serde(deserialize_with = "nil::deserialize")]
    pub key_signature: String,
    /// The machine key.
    #[serde(deserialize_with = "nil::deserialize")]
    pub machine: MachinePublic,
    /// The key for disco messages.
    #[serde(deserialize_with = "nil::deserialize")]
    pub disco_key: DiscoPublic,
    /// The addresses in the network.
    #[serde(with = "nil")]
    pub addresses: Vec<IpNet>,
    /// The allowed source networks; absent means the addresses.
    #[serde(rename = "AllowedIPs")]
    pub allowed_ips: Option<Vec<IpNet>>,
    /// The endpoints. Unreadable ones, such as those with an interface name, are left out.
    #[serde(serialize_with = "nil::serialize", deserialize_with = "readable")]
    pub endpoints: Vec<SocketAddr>,
    /// The region of the home relay in the old format.
    #[serde(rename = "DERP", deserialize_with = "nil::deserialize")]
    pub legacy_derp: String,
    /// The region of the home relay.
    #[serde(rename = "HomeDERP", deserialize_with = "nil::deserialize")]
    pub home_derp: u16,
    /// The node's own description.
    #[serde(deserialize_with = "nil::deserialize")]
    pub hostinfo: Hostinfo,
    /// The time of the registration.
    pub created: Option<String>,
    /// The capability version.
    #[serde(deserialize_with = "nil::deserialize")]
    pub cap: u32,
    /// Its tags.
    #[serde(with = "nil")]
    pub tags: Vec<String>,
    /// The subnets that are routed to it, of those that several nodes advertise.
    #[serde(with = "nil")]
    pub primary_routes: Vec<IpNet>,
    /// The time of its last connection.
    pub last_seen: Option<String>,
    /// Whether it is connected, if known.
    pub online: Option<bool>,
    /// Whether an administrator approved it.
    #[serde(deserialize_with = "nil::deserialize")]
    pub machine_authorized: bool,
    /// The capabilities in the old format.
    #[serde(with = "nil")]
    pub capabilities: Vec<String>,
    /// The capabilities.
    #[serde(with = "nil")]
    pub cap_map: CapMap,
    /// Whether its key is unsigned and only its HTTP server may be used.
    #[serde(rename = "UnsignedPeerAPIOnly", deserialize_with = "nil::deserialize")]
    pub unsigned_peer_api_only: bool,
    /// The first label of its name.
    #[serde(deserialize_with = "nil::deserialize")]
    pub computed_name: String,
    /// Whether the coordinator considers the key expired.
    #[serde(deserialize_with = "nil::deserialize")]
    pub expired: bool,
    /// The IPv4 address that this WireGuard-only exit node expects as source.
    #[serde(rename = "SelfNodeV4MasqAddrForThisPeer")]
    pub masquerade_v4: Option<IpAddr>,
    /// The IPv6 address that this WireGuard-only exit node expects as source.
    #[serde(rename = "SelfNodeV6MasqAddrForThisPeer")]
    pub masquerade_v6: Option<IpAddr>,
    /// Whether it supports only WireGuard.
    #[serde(deserialize_with = "nil::deserialize")]
    pub is_wire_guard_only: bool,
    /// Whether it may not start connections to this node.
    #[serde(deserialize_with = "nil::deserialize")]
    pub is_jailed: bool,
}

/// A node's description of itself, as other nodes receive it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Hostinfo {
    /// The operating system.
    #[serde(rename = "OS", deserialize_with = "nil::deserialize")]
    pub os: String,
    /// The hostname.
    #[serde(deserialize_with = "nil::deserialize")]
    pub hostname: String,
    /// The advertised networks.
    #[serde(rename = "RoutableIPs", with = "nil")]
    pub routable_ips: Vec<IpNet>,
}

/// A user (`tailcfg.UserProfile`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UserProfile {
    /// The number.
    #[serde(rename = "ID", deserialize_with = "nil::deserialize")]
    pub id: i64,
    /// For example an e-mail address.
    #[serde(deserialize_with = "nil::deserialize")]
    pub login_name: String,
    /// For example a person's name.
    #[serde(deserialize_with = "nil::deserialize")]
    pub display_name: String,
    /// A picture.
    #[serde(
        rename = "ProfilePicURL",
        skip_serializing_if = "String::is_empty",
        deserialize_with = "nil::deserialize"
    )]
    pub profile_pic_url: String,
}

/// A change of parts of a peer.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerChange {
    /// Whose.
    #[serde(rename = "NodeID", deserialize_with = "nil::deserialize")]
    pub node_id: i64,
    /// The region of the home relay; 0 means unchanged.
    #[serde(rename = "DERPRegion", deserialize_with = "nil::deserialize")]
    pub derp_region: u16,
    /// The capability version; 0 means unchanged.
    #[serde(deserialize_with = "nil::deserialize")]
    pub cap: u32,
    /// The capabilities.
    pub cap_map: Option<CapMap>,
    /// The endpoints.
    #[serde(deserialize_with = "some_readable")]
    pub endpoints: Option<Vec<SocketAddr>>,
    /// The node key.
    pub key: Option<NodePublic>,
    /// The tailnet-lock signature of the key.
    pub key_signature: Option<String>,
    /// The key for disco messages.
    pub disco_key: Option<DiscoPublic>,
    /// Whether it is connected.
    pub online: Option<bool>,
    /// The time of its last connection.
    pub last_seen: Option<String>,
    /// The expiry of the key.
    pub key_expiry: Option<String>,
    /// The capabilities in the old format.
    pub capabilities: Option<Vec<String>>,
}

impl Record for Node {
    /// A router lists its networks three times. 30,000 IPv4 networks fit.
    const LONGEST: usize = 2 << 20;

    /// Without these values a peer could not be reached or identified.
    fn check(&self) -> Result<(), &'static str> {
        match self {
            _ if self.id == 0 => Err("it has no number"),
            _ if self.key.is_zero() => Err("it has no key"),
            _ if self.addresses.is_empty() => Err("it has no address"),
            _ => Ok(()),
        }
    }
}

impl Record for PeerChange {
    const LONGEST: usize = 256 << 10;

    fn check(&self) -> Result<(), &'static str> {
        match &self.key {
            Some(key) if key.is_zero() => Err("it removes the key"),
            _ => Ok(()),
        }
    }
}

impl Record for UserProfile {
    /// The URL may contain the picture.
    const LONGEST: usize = 64 << 10;
}

impl Node {
    /// Returns the region of the home relay, if it has one.
    pub fn home(&self) -> Option<u16> {
        // `127.3.3.40:` and the number of the region.
        let legacy = || self.legacy_derp.rsplit_once(':')?.1.parse().ok();
        Some(self.home_derp).filter(|home| *home != 0).or_else(legacy).filter(|home| *home != 0)
    }

    /// Removes redundant values and spare capacity, because large networks have many nodes.
    pub fn compacted(mut self) -> Self {
        if let Some(home) = self.home() {
            self.home_derp = home;
            self.legacy_derp = String::new();
        }
        self.allowed_ips.take_if(|nets| *nets == self.addresses);
        self.addresses.shrink_to_fit();
        self.allowed_ips.iter_mut().for_each(Vec::shrink_to_fit);
        self.endpoints.shrink_to_fit();
        self.tags.shrink_to_fit();
        self.capabilities.shrink_to_fit();
        self.primary_routes.shrink_to_fit();
        self.hostinfo.routable_ips.shrink_to_fit();
        self
    }

    /// Returns the allowed source networks.
    pub fn allowed_ips(&self) -> &[IpNet] {
        self.allowed_ips.as_deref().unwrap_or(&self.addresses)
    }

    /// Returns whether the node has a capability.
    pub fn has_capability(&self, capability: &str) -> bool {
        self.cap_map.contains_key(capability)
            || self.capabilities.iter().any(|own| own == capability)
    }

    /// Returns whether the node can be an exit node.
    pub fn is_exit(&self) -> bool {
        let defaults = self.allowed_ips().iter().filter(|net| net.prefix_len() == 0);
        let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) = defaults.partition(|net| net.addr().is_ipv4());
        !v4.is_empty() && !v6.is_empty()
    }

    /// Returns whether the key is expired at a time since 1970.
    pub fn has_expired(&self, now: Duration) -> bool {
        self.expired || self.key_expiry.as_deref().and_then(parse_time).is_some_and(|at| at <= now)
    }
}

/// Parses a time in Go's format (RFC 3339) as the time since 1970; `None` for Go's zero time and
/// for invalid text.
pub fn parse_time(text: &str) -> Option<Duration> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<u32>().ok();
    let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if !marks.iter().all(|&(at, mark)| text.as_bytes().get(at) == Some(&mark)) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if year < 1970 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since 1970 (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let shifted = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (shifted / 400, shifted % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let local = i64::from(days) * 86_400 + i64::from(hour * 3600 + minute * 60 + second);
    let zone = text[19..].trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    u64::try_from(local - offset(zone)?).ok().map(Duration::from_secs)
}

/// Formats a time since 1970 in Go's format with milliseconds. Times after the year 9999 are
/// replaced by its end.
pub fn format_time(since_1970: Duration) -> String {
    /// 9999-12-31T23:59:59Z.
    const LAST: u64 = 253_402_300_799;
    let seconds = since_1970.as_secs().min(LAST);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // The inverse of `parse_time`, from the same source.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    let date = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    match since_1970.subsec_millis() {
        0 => format!("{date}Z"),
        milli => format!("{date}.{milli:03}Z"),
    }
}

/// Returns the offset of a time zone in seconds east of UTC.
fn offset(zone: &str) -> Option<i64> {
    let Some((sign, rest)) = zone.split_at_checked(1).filter(|_| zone != "Z") else {
        return (zone == "Z").then_some(0);
    };
    let (hours, minutes) = rest.split_once(':')?;
    let number = |text: &str| text.parse::<u8>().ok().map(i64::from);
    let seconds = number(hours)? * 3600 + number(minutes)? * 60;
    match sign {
        "+" => Some(seconds),
        "-" => Some(-seconds),
        _ => None,
    }
}

fn readable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<SocketAddr>, D::Error> {
    some_readable(deserializer).map(Option::unwrap_or_default)
}

fn some_readable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<SocketAddr>>, D::Error> {
    let texts = Option::<Vec<String>>::deserialize(deserializer)?;
    Ok(texts.map(|texts| texts.iter().filter_map(|text| text.parse().ok()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_gos_format_are_parsed() {
        for (text, seconds) in [
            ("1970-01-01T00:02:03Z", Some(123)),
            ("2026-11-23T04:06:23Z", Some(1_795_406_783)),
            ("2026-11-23T05:06:23.123456789+01:00", Some(1_795_406_783)),
            ("2024-02-29T23:59:59Z", Some(1_709_251_199)),
            ("0001-01-01T00:00:00Z", None),
            ("2026-11-23", None),
            ("2026-11-23T04:06:23", None),
            ("2026-13-23T04:06:23Z", None),
            ("", None),
            ("2026-11-23T04:06:23+9223372036854775807:00", None),
            ("20é6-11-23T04:06:23Z", None),
        ] {
            assert_eq!(parse_time(text), seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn formatted_times_are_parsed_back() {
        let spread = (0..3000u64).map(|step| step * 84_467_440 + step % 61);
        for seconds in spread.chain([0, 951_782_400, 1_709_251_199, 253_402_300_799]) {
            let time = Duration::from_secs(seconds);
            let text = format_time(time);
            assert_eq!(parse_time(&text), Some(time), "{text}");
        }
        assert_eq!(
            format_time(Duration::from_millis(1_795_406_783_045)),
            "2026-11-23T04:06:23.045Z"
        );
        assert_eq!(format_time(Duration::MAX), "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn node_with_null_fields_is_read() {
        let node: Node = serde_json::from_str(
            r#"{"ID":1,"Key":"","Addresses":null,"Endpoints":null,"Hostinfo":null,"AllowedIPs":null,
               "DERP":"127.3.3.40:7","CapMap":null,"Tags":null,"Unknown":{"a":[1]}}"#,
        )
        .unwrap();
        assert_eq!((node.home(), node.allowed_ips().len()), (Some(7), 0));
        let node = Node { home_derp: 9, ..node };
        assert_eq!(node.home(), Some(9));
    }
}
