//! Information that a machine reports about itself. Texts and lists are truncated to limits that no real machine
//! exceeds.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use tailnet::nil;

/// The maximum length of a text, in bytes.
const MAX_TEXT: usize = 256;
/// The maximum length of an SSH host key line, in bytes: RSA with 16,384 bits.
const MAX_KEY: usize = 3 << 10;
/// The maximum number of networks and of tags.
const MAX_ITEMS: usize = 256;
/// The maximum number of SSH host keys. OpenSSH makes three kinds.
const MAX_KEYS: usize = 16;
/// The maximum number of services of the protocol itself. There are four kinds.
const MAX_SERVICES: usize = 8;

/// Information about a machine (tailscale `tailcfg.Hostinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Hostinfo {
    /// The version of the client.
    #[serde(rename = "IPNVersion", skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// The operating system.
    #[serde(rename = "OS", skip_serializing_if = "String::is_empty")]
    pub os: String,
    /// The version of the operating system.
    #[serde(rename = "OSVersion", skip_serializing_if = "String::is_empty")]
    pub os_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The advertised routes.
    #[serde(rename = "RoutableIPs", with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub routable: Vec<IpNet>,
    /// The requested tags.
    #[serde(rename = "RequestTags", with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Listening services of the protocol itself.
    #[serde(with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// The SSH host keys.
    #[serde(rename = "sshHostKeys", with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// The network status.
    #[serde(skip_serializing, deserialize_with = "or_default")]
    pub net_info: NetInfo,
}

/// A listening service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Service {
    /// The protocol, like `peerapi4`.
    pub proto: String,
    /// The port or a version.
    pub port: u16,
}

/// The network status of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetInfo {
    /// The region of the home relay.
    #[serde(rename = "PreferredDERP")]
    pub home_relay: u16,
}

impl Hostinfo {
    /// Truncates texts and lists to their limits.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.program, &mut self.os, &mut self.os_version, &mut self.hostname] {
            truncate(text);
        }
        self.routable.iter_mut().for_each(|net| *net = net.trunc());
        self.routable.sort_unstable();
        self.routable.dedup();
        self.routable.truncate(MAX_ITEMS);
        self.tags.retain(|tag| tag.len() <= MAX_TEXT);
        self.tags.sort_unstable();
        self.tags.dedup();
        self.tags.truncate(MAX_ITEMS);
        // Other services of a machine are private.
        self.services.retain(|service| {
            service.proto.starts_with("peerapi") && service.proto.len() <= MAX_TEXT
        });
        self.services.truncate(MAX_SERVICES);
        self.ssh_keys.retain(|key| key.len() <= MAX_KEY);
        self.ssh_keys.truncate(MAX_KEYS);
        // The capacity of a list may be many times as large as the remaining items.
        self.tags.shrink_to_fit();
        self.services.shrink_to_fit();
        self.ssh_keys.shrink_to_fit();
        self.routable.shrink_to_fit();
        self
    }
}

fn truncate(text: &mut String) {
    text.truncate(text.floor_char_boundary(MAX_TEXT));
}

/// Go writes `null` for absent values.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostinfo_of_go_is_read_without_private_fields() {
        let info = r#"{"IPNVersion":"1.102.5","OS":"linux","Hostname":"a","RoutableIPs":null,
            "Services":[{"Proto":"peerapi4","Port":80},{"Proto":"tcp","Port":22,"Description":"x"}],
            "NetInfo":{"PreferredDERP":999,"WorkingUDP":true},"Unknown":[1]}"#;
        let read: Hostinfo = serde_json::from_str(info).unwrap();
        let bounded = read.bounded();
        assert_eq!((bounded.services.len(), bounded.net_info.home_relay), (1, 999));
        let written = serde_json::to_value(&bounded).unwrap();
        assert_eq!(written["Services"][0]["Proto"], "peerapi4");
        assert!(written.get("NetInfo").is_none() && written.get("RoutableIPs").is_none());
    }

    #[test]
    fn long_texts_and_lists_are_truncated() {
        let info = Hostinfo {
            hostname: "é".repeat(1000),
            tags: vec!["t".repeat(MAX_TEXT + 1), "tag:a".into(), "tag:a".into()],
            routable: (0..=255)
                .flat_map(|a| [format!("10.{a}.0.0/16"), format!("11.{a}.0.0/16")])
                .map(|net| net.parse().unwrap())
                .collect(),
            ssh_keys: [MAX_KEY + 1, 9].map(|length| vec!["k".repeat(length); 99]).concat(),
            services: vec![Service { proto: "peerapi4".into(), port: 1 }; 2 * MAX_SERVICES],
            ..Hostinfo::default()
        };
        let bounded = info.bounded();
        assert_eq!((bounded.services.len(), bounded.ssh_keys.len()), (MAX_SERVICES, MAX_KEYS));
        assert!(bounded.hostname.len() <= MAX_TEXT && bounded.routable.len() == MAX_ITEMS);
        assert_eq!((bounded.tags, &*bounded.ssh_keys[0]), (vec!["tag:a".to_owned()], "kkkkkkkkk"));
    }
}
