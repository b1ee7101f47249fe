//! The line of each setting, for errors that occur when it is applied.

use std::collections::HashMap;

use ipnet::IpNet;

use super::{
    Conf,
    lines::{Entries, Key},
    parse::words,
};

/// A setting that is applied to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// The address at this index of [`super::Interface::addresses`].
    Address(usize),
    /// A network of a peer.
    AllowedIp(IpNet),
    /// The UDP port.
    ListenPort,
    /// Name servers and search domains.
    Dns,
    /// The MTU.
    Mtu,
    /// The rules of a router.
    Router,
}

/// The lines of settings.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Locations {
    /// The keys of `[Interface]`, in the order of the file.
    keys: Vec<(Key, usize)>,
    addresses: Vec<usize>,
    /// For each network, the index of the last peer with this network, and the line.
    networks: HashMap<IpNet, (usize, usize)>,
}

impl Conf {
    /// The location of a setting for errors: `FILE:LINE: KEY`, or `FILE: KEY` if the file does not
    /// contain the setting.
    pub fn location(&self, setting: Setting) -> String {
        let (key, line) = self.locations.of(setting);
        match line {
            Some(line) => format!("{}:{line}: {}", self.file_name, key.name()),
            None => format!("{}: {}", self.file_name, key.name()),
        }
    }
}

impl Locations {
    /// Collects the lines of an `[Interface]` section and of the networks of all peers.
    pub(super) fn read(interface: &Entries<'_>, networks: HashMap<IpNet, (usize, usize)>) -> Self {
        let addresses = interface.of(Key::Address);
        Self {
            keys: interface.entries.iter().map(|entry| (entry.key, entry.line)).collect(),
            addresses: addresses.flat_map(|entry| words(entry.value).map(|_| entry.line)).collect(),
            networks,
        }
    }

    fn of(&self, setting: Setting) -> (Key, Option<usize>) {
        match setting {
            Setting::Address(position) => (Key::Address, self.addresses.get(position).copied()),
            Setting::AllowedIp(net) => {
                (Key::AllowedIps, self.networks.get(&net).map(|(_, line)| *line))
            }
            Setting::ListenPort => self.last(&[Key::ListenPort]),
            Setting::Dns => self.last(&[Key::Dns]),
            Setting::Mtu => self.last(&[Key::Mtu]),
            Setting::Router => self.last(&[Key::OfferRoutes, Key::ClampMss]),
        }
    }

    /// The last line of the first of these keys that the file contains.
    fn last(&self, keys: &[Key]) -> (Key, Option<usize>) {
        let line = |key| self.keys.iter().rev().find(|(known, _)| *known == key);
        let found = keys.iter().find_map(|&key| line(key));
        found.map_or((keys[0], None), |&(key, line)| (key, Some(line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_of_a_setting_is_its_line() {
        let key = format!("{}E=", "A".repeat(42));
        let text = format!(
            "[Interface]\nAddress = 10.0.0.1/24, fd00::1/64\nMTU = 1400\nAddress = 10.0.0.2\n\
             ClampMss = true\n[Peer]\nPublicKey = {key}\nAllowedIPs = 10.1.0.9/16\n\
             AllowedIPs = 10.2.0.0/16 ::/0\n"
        );
        let conf = Conf::parse("wg0.conf", &text).unwrap();
        let net = |text: &str| Setting::AllowedIp(text.parse().unwrap());
        for (setting, location) in [
            (Setting::Address(0), "wg0.conf:2: Address"),
            (Setting::Address(1), "wg0.conf:2: Address"),
            (Setting::Address(2), "wg0.conf:4: Address"),
            (Setting::Address(3), "wg0.conf: Address"),
            (Setting::Mtu, "wg0.conf:3: MTU"),
            (Setting::Dns, "wg0.conf: DNS"),
            (Setting::Router, "wg0.conf:5: ClampMss"),
            (net("10.1.0.0/16"), "wg0.conf:8: AllowedIPs"),
            (net("::/0"), "wg0.conf:9: AllowedIPs"),
        ] {
            assert_eq!(conf.location(setting), location, "{setting:?}");
        }
    }
}
