//! Nodes, and who owns them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Json, Record, nil};
use crate::keys::{DiscoPublic, MachinePublic, NodePublic};
pub use crate::local::UserProfile;

/// What a node may do, and its parameters.
pub type CapMap = BTreeMap<String, Json>;

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    /// Its number.
    #[serde(rename = "ID", deserialize_with = "nil::deserialize")]
    pub id: i64,
    /// Its name for other services.
    #[serde(rename = "StableID", deserialize_with = "nil::deserialize")]
    pub stable_id: String,
    /// Its full name, with a dot at its end.
    #[serde(deserialize_with = "nil::deserialize")]
    pub name: String,
    /// Its owner.
    #[serde(deserialize_with = "nil::deserialize")]
    pub user: i64,
    /// Its key.
    #[serde(deserialize_with = "nil::deserialize")]
    pub key: NodePublic,
    /// When that expires; Go's zero time if never.
    pub key_expiry: Option<String>,
    /// The signature of its key by tailnet lock, in base64.
    #[serde(deserialize_with = "nil::deserialize")]
    pub key_signature: String,
    /// The key of its machine.
    #[serde(deserialize_with = "nil::deserialize")]
    pub machine: MachinePublic,
    /// The key of its disco messages.
    #[serde(deserialize_with = "nil::deserialize")]
    pub disco_key: DiscoPublic,
    /// Its addresses.
    #[serde(with = "nil")]
    pub addresses: Vec<IpNet>,
    /// The networks that it may send from; absent means its addresses.
    #[serde(rename = "AllowedIPs")]
    pub allowed_ips: Option<Vec<IpNet>>,
    /// Where it may be reached. What names a link of its own machine is left out.
    #[serde(serialize_with = "nil::serialize", deserialize_with = "readable")]
    pub endpoints: Vec<SocketAddr>,
    /// The region of its home, as it was said before.
    #[serde(rename = "DERP", deserialize_with = "nil::deserialize")]
    pub legacy_derp: String,
    /// The region of its home.
    #[serde(rename = "HomeDERP", deserialize_with = "nil::deserialize")]
    pub home_derp: u16,
    /// What it says of itself.
    #[serde(deserialize_with = "nil::deserialize")]
    pub hostinfo: Hostinfo,
    /// When it was registered.
    pub created: Option<String>,
    /// What it speaks.
    #[serde(deserialize_with = "nil::deserialize")]
    pub cap: u32,
    /// Its tags.
    #[serde(with = "nil")]
    pub tags: Vec<String>,
    /// The networks that go to it, of those that several advertise.
    #[serde(with = "nil")]
    pub primary_routes: Vec<IpNet>,
    /// When it was last connected.
    pub last_seen: Option<String>,
    /// Whether it is connected, if that is known.
    pub online: Option<bool>,
    /// Whether it was approved.
    #[serde(deserialize_with = "nil::deserialize")]
    pub machine_authorized: bool,
    /// What it may do, as it was said before.
    #[serde(with = "nil")]
    pub capabilities: Vec<String>,
    /// What it may do.
    #[serde(with = "nil")]
    pub cap_map: CapMap,
    /// Whether it may only be spoken to by its HTTP server.
    #[serde(rename = "UnsignedPeerAPIOnly", deserialize_with = "nil::deserialize")]
    pub unsigned_peer_api_only: bool,
    /// Its first name.
    #[serde(deserialize_with = "nil::deserialize")]
    pub computed_name: String,
    /// Whether its key has expired, in the coordinator's opinion.
    #[serde(deserialize_with = "nil::deserialize")]
    pub expired: bool,
    /// What an exit node has as its address, for one that speaks WireGuard alone.
    #[serde(rename = "SelfNodeV4MasqAddrForThisPeer")]
    pub masquerade_v4: Option<IpAddr>,
    /// The same of IPv6.
    #[serde(rename = "SelfNodeV6MasqAddrForThisPeer")]
    pub masquerade_v6: Option<IpAddr>,
    /// Whether it speaks WireGuard alone.
    #[serde(deserialize_with = "nil::deserialize")]
    pub is_wire_guard_only: bool,
    /// Whether it may not begin anything here.
    #[serde(deserialize_with = "nil::deserialize")]
    pub is_jailed: bool,
}

/// What a node says of itself, as far as others are concerned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Hostinfo {
    /// Its system.
    #[serde(rename = "OS", deserialize_with = "nil::deserialize")]
    pub os: String,
    /// Its name.
    #[serde(deserialize_with = "nil::deserialize")]
    pub hostname: String,
    /// The networks that it advertises.
    #[serde(rename = "RoutableIPs", with = "nil")]
    pub routable_ips: Vec<IpNet>,
}

/// Parts of a peer that changed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerChange {
    /// Whose.
    #[serde(rename = "NodeID", deserialize_with = "nil::deserialize")]
    pub node_id: i64,
    /// The region of its home; 0 means unchanged.
    #[serde(rename = "DERPRegion", deserialize_with = "nil::deserialize")]
    pub derp_region: u16,
    /// What it speaks; 0 means unchanged.
    #[serde(deserialize_with = "nil::deserialize")]
    pub cap: u32,
    /// What it may do.
    pub cap_map: Option<CapMap>,
    /// Where it may be reached.
    #[serde(deserialize_with = "some_readable")]
    pub endpoints: Option<Vec<SocketAddr>>,
    /// Its key.
    pub key: Option<NodePublic>,
    /// The signature of its key.
    pub key_signature: Option<String>,
    /// The key of its disco messages.
    pub disco_key: Option<DiscoPublic>,
    /// Whether it is connected.
    pub online: Option<bool>,
    /// When it was last connected.
    pub last_seen: Option<String>,
    /// When its key expires.
    pub key_expiry: Option<String>,
    /// What it may do, as it was said before.
    pub capabilities: Option<Vec<String>>,
}

impl Record for Node {
    /// A router names its networks three times: 30,000 of IPv4 fit.
    const LONGEST: usize = 2 << 20;

    /// A peer without one of these could not be reached or be told from another.
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
            Some(key) if key.is_zero() => Err("it takes the key away"),
            _ => Ok(()),
        }
    }
}

impl Record for UserProfile {
    /// A picture may be in its address.
    const LONGEST: usize = 64 << 10;
}

impl Node {
    /// The region of its home, where it has one.
    pub fn home(&self) -> Option<u16> {
        // `127.3.3.40:` and the number.
        let legacy = || self.legacy_derp.rsplit_once(':')?.1.parse().ok();
        Some(self.home_derp).filter(|home| *home != 0).or_else(legacy).filter(|home| *home != 0)
    }

    /// The same without what others say already, and without room to spare: a large network has
    /// many.
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

    /// The networks that it may send from.
    pub fn allowed_ips(&self) -> &[IpNet] {
        self.allowed_ips.as_deref().unwrap_or(&self.addresses)
    }

    /// Whether it has a capability.
    pub fn has_capability(&self, capability: &str) -> bool {
        self.cap_map.contains_key(capability)
            || self.capabilities.iter().any(|own| own == capability)
    }

    /// Whether it can be an exit node.
    pub fn is_exit(&self) -> bool {
        let defaults = self.allowed_ips().iter().filter(|net| net.prefix_len() == 0);
        let (v4, v6): (Vec<&IpNet>, Vec<&IpNet>) = defaults.partition(|net| net.addr().is_ipv4());
        !v4.is_empty() && !v6.is_empty()
    }

    /// Whether its key has expired, at this time since 1970.
    pub fn has_expired(&self, now: Duration) -> bool {
        self.expired || self.key_expiry.as_deref().and_then(parse_time).is_some_and(|at| at <= now)
    }
}

/// A time as Go writes it (RFC 3339), since 1970; `None` for Go's zero time, and for what is none.
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

/// A time since 1970 as Go writes it, to the millisecond. Times beyond the year 9999 are its end.
pub fn format_time(since_1970: Duration) -> String {
    /// 9999-12-31T23:59:59Z.
    const LAST: u64 = 253_402_300_799;
    let seconds = since_1970.as_secs().min(LAST);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // The inverse of `parse_time`, by the same source.
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

/// Seconds that a zone is before UTC.
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
    fn times_are_read_as_go_writes_them() {
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
    fn times_are_written_as_they_are_read() {
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
    fn a_node_is_read_through_what_go_leaves_null() {
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
