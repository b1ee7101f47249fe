//! What a machine says of itself, as far as it is kept. All of it is bounded: what is longer or more
//! than any machine has is cut off.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, Serialize};
use tailnet::messages::nil;

/// The longest text, in bytes.
const LONGEST: usize = 256;
/// The longest key of SSH as one line, in bytes: RSA of 16,384 bits.
const LONGEST_KEY: usize = 3 << 10;
/// The most networks and tags.
const MOST: usize = 256;
/// The most keys of SSH: OpenSSH makes three kinds.
const MOST_KEYS: usize = 16;
/// The most services of the protocol itself: there are four kinds.
const MOST_SERVICES: usize = 8;

/// What a machine says of itself (tailscale `tailcfg.Hostinfo`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Hostinfo {
    /// The version of its program.
    #[serde(rename = "IPNVersion", skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Its system.
    #[serde(rename = "OS", skip_serializing_if = "String::is_empty")]
    pub os: String,
    /// The version of its system.
    #[serde(rename = "OSVersion", skip_serializing_if = "String::is_empty")]
    pub os_version: String,
    /// Its name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hostname: String,
    /// The networks that it would route.
    #[serde(rename = "RoutableIPs", with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub routable: Vec<IpNet>,
    /// The tags that it asks for.
    #[serde(rename = "RequestTags", with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What listens on it, of the protocol itself.
    #[serde(with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<Service>,
    /// Its keys of SSH.
    #[serde(rename = "sshHostKeys", with = "nil", skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// How it is connected.
    #[serde(skip_serializing, deserialize_with = "or_default")]
    pub net_info: NetInfo,
}

/// Something that listens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Service {
    /// `peerapi4` and the like.
    pub proto: String,
    /// The port, or a version.
    pub port: u16,
}

/// How a machine is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetInfo {
    /// The region of its home.
    #[serde(rename = "PreferredDERP")]
    pub home_relay: u16,
}

impl Hostinfo {
    /// Without what is too long or too much.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.program, &mut self.os, &mut self.os_version, &mut self.hostname] {
            cut(text);
        }
        self.routable.iter_mut().for_each(|net| *net = net.trunc());
        self.routable.sort_unstable();
        self.routable.dedup();
        self.routable.truncate(MOST);
        self.tags.retain(|tag| tag.len() <= LONGEST);
        self.tags.sort_unstable();
        self.tags.dedup();
        self.tags.truncate(MOST);
        // What others listen on is nobody's business but the machine's.
        self.services.retain(|service| {
            service.proto.starts_with("peerapi") && service.proto.len() <= LONGEST
        });
        self.services.truncate(MOST_SERVICES);
        self.ssh_keys.retain(|key| key.len() <= LONGEST_KEY);
        self.ssh_keys.truncate(MOST_KEYS);
        // A list of empty items was many times as large as its text.
        self.tags.shrink_to_fit();
        self.services.shrink_to_fit();
        self.ssh_keys.shrink_to_fit();
        self.routable.shrink_to_fit();
        self
    }
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(LONGEST));
}

/// Go writes `null` for what is not there.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_go_writes_is_read_and_only_what_others_may_know_is_kept() {
        let said = r#"{"IPNVersion":"1.102.5","OS":"linux","Hostname":"a","RoutableIPs":null,
            "Services":[{"Proto":"peerapi4","Port":80},{"Proto":"tcp","Port":22,"Description":"x"}],
            "NetInfo":{"PreferredDERP":999,"WorkingUDP":true},"Unknown":[1]}"#;
        let read: Hostinfo = serde_json::from_str(said).unwrap();
        let kept = read.bounded();
        assert_eq!((kept.services.len(), kept.net_info.home_relay), (1, 999));
        let written = serde_json::to_value(&kept).unwrap();
        assert_eq!(written["Services"][0]["Proto"], "peerapi4");
        assert!(written.get("NetInfo").is_none() && written.get("RoutableIPs").is_none());
    }

    #[test]
    fn what_is_too_long_or_too_much_is_cut() {
        let said = Hostinfo {
            hostname: "é".repeat(1000),
            tags: vec!["t".repeat(LONGEST + 1), "tag:a".into(), "tag:a".into()],
            routable: (0..=255)
                .flat_map(|a| [format!("10.{a}.0.0/16"), format!("11.{a}.0.0/16")])
                .map(|net| net.parse().unwrap())
                .collect(),
            ssh_keys: [LONGEST_KEY + 1, 9].map(|length| vec!["k".repeat(length); 99]).concat(),
            services: vec![Service { proto: "peerapi4".into(), port: 1 }; 2 * MOST_SERVICES],
            ..Hostinfo::default()
        };
        let kept = said.bounded();
        assert_eq!((kept.services.len(), kept.ssh_keys.len()), (MOST_SERVICES, MOST_KEYS));
        assert!(kept.hostname.len() <= LONGEST && kept.routable.len() == MOST);
        assert_eq!((kept.tags, &*kept.ssh_keys[0]), (vec!["tag:a".to_owned()], "kkkkkkkkk"));
    }
}
