//! The second pass: parses the values of each section.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map},
    net::Ipv4Addr,
};

use ipnet::IpNet;
use wg::{Crypto, PostQuantum, PresharedKey, PrivateKey, PublicKey};
use zeroize::Zeroizing;

use super::{
    Conf, ConfError, Dns, Features, Hooks, Interface, NameServer, Names, Peer, Reason, Section,
    allowed_ips, endpoint,
    error::Fault,
    lines::{self, Entries, Entry, Key},
    locations::Locations,
    policy::Policy,
    proxy::{self, Proxy},
    router::Router,
    text,
    warnings::Warnings,
};
use crate::value::{self, ValueError, Wanted};

impl Conf {
    /// Parses a text. Errors and warnings contain `file_name`. Names of tables and services are unknown.
    ///
    /// # Errors
    /// The first error. Its text contains no key material.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ConfError> {
        Self::parse_file(file_name, text.as_bytes(), &Names::default())
    }

    /// Parses a file. Errors and warnings contain `file_name`. Only comments may contain invalid UTF-8.
    ///
    /// # Errors
    /// The first error. Its text contains no key material.
    pub fn parse_file(file_name: &str, bytes: &[u8], names: &Names) -> Result<Self, ConfError> {
        let mut warnings = Warnings::new(file_name);
        let decoded;
        let text = match str::from_utf8(bytes) {
            // Not copied, because it contains keys.
            Ok(text) if !bytes.contains(&0) => text,
            _ => {
                let read = text::decode(bytes, &mut warnings);
                decoded = read.map_err(|fault| fault.in_file(file_name))?;
                &*decoded
            }
        };
        let read = Self::read(file_name, text, names, warnings);
        read.map_err(|fault| fault.in_file(file_name))
    }

    fn read(
        file_name: &str,
        text: &str,
        names: &Names,
        mut warnings: Warnings<'_>,
    ) -> Result<Self, Fault> {
        let sections = lines::read(text, &mut warnings)?;
        let mut interface = Interface::read(&sections.interface, names, &mut warnings)?;
        interface.proxy = Proxy::read(&sections.interface, file_name)?;
        let mut peers = Peers::with_capacity(sections.peers.len());
        for entries in &sections.peers {
            peers.add(entries, names, &mut warnings)?;
        }
        let (peers, networks) = peers.into_all();
        // SaveConfig may have removed the peer that these keys are for.
        if !interface.save_config {
            interface.policy.suits(&sections.interface, &peers)?;
        }
        Ok(Self {
            interface,
            peers,
            warnings: warnings.into_all(),
            file_name: file_name.to_owned(),
            interface_line: sections.interface.line,
            proxy_key: proxy::first_key(&sections.interface, |entry| entry.key.is_of_proxy()),
            up_key: proxy::first_key(&sections.interface, |entry| entry.key.is_of_up()),
            hook_key: proxy::first_key(&sections.interface, |entry| entry.is_command()),
            locations: Locations::read(&sections.interface, networks),
            origin: None,
        })
    }
}

impl Interface {
    fn read(
        entries: &Entries<'_>,
        names: &Names,
        warnings: &mut Warnings<'_>,
    ) -> Result<Self, Fault> {
        let table = entries.last(Key::Table, |text| names.table(text))?.unwrap_or_default();
        Ok(Self {
            private_key: entries.one(Key::PrivateKey, private_key)?,
            listen_port: entries.one(Key::ListenPort, |text| names.port(text))?,
            fwmark: entries.one(Key::FwMark, |text| or_off(text, value::mark))?,
            addresses: addresses(entries, warnings)?,
            dns: Dns::read(entries)?,
            mtu: entries.last(Key::Mtu, mtu)?.flatten(),
            table,
            save_config: entries.one(Key::SaveConfig, boolean)?.unwrap_or_default(),
            hooks: Hooks {
                pre_up: entries.commands(Key::PreUp),
                post_up: entries.commands(Key::PostUp),
                pre_down: entries.commands(Key::PreDown),
                post_down: entries.commands(Key::PostDown),
            },
            proxy: Proxy::default(),
            policy: Policy::read(entries, table)?,
            router: Router::read(entries)?,
            features: Features {
                path_mtu: entries.one(Key::PathMtu, on_off)?,
                post_quantum: entries.one(Key::PostQuantum, post_quantum)?,
                crypto: entries.one(Key::Crypto, crypto)?,
                reresolve: entries.one(Key::ReresolveEndpoints, on_off)?,
            },
        })
    }
}

impl Dns {
    fn read(entries: &Entries<'_>) -> Result<Self, Fault> {
        let mut dns = Self::default();
        for word in entries.list(Key::Dns, dns_word)? {
            match word {
                DnsWord::Server(server) => dns.servers.push(server),
                DnsWord::SearchDomain(domain) => dns.search_domains.push(domain),
            }
        }
        Ok(dns)
    }
}

/// The peers of a file. As in wg(8), a later section with the same public key replaces the allowed
/// IPs and the settings that it contains.
struct Peers {
    all: Vec<Peer>,
    /// For each public key, its index in `all` and its last line.
    known: HashMap<PublicKey, (usize, usize)>,
    /// For each network, the index of the last peer with this network, and the line.
    owners: HashMap<IpNet, (usize, usize)>,
}

impl Peers {
    fn with_capacity(peers: usize) -> Self {
        let all = Vec::with_capacity(peers);
        Self { all, known: HashMap::with_capacity(peers), owners: HashMap::new() }
    }

    fn add(
        &mut self,
        entries: &Entries<'_>,
        names: &Names,
        warnings: &mut Warnings<'_>,
    ) -> Result<(), Fault> {
        let allowed_ips = allowed_ips::read(entries)?;
        let peer = Peer::read(entries, names, warnings)?;
        let line = entries.of(Key::PublicKey).last().map_or(entries.line, |entry| entry.line);
        let place = match self.known.entry(peer.public_key) {
            hash_map::Entry::Vacant(entry) => {
                entry.insert((self.all.len(), line));
                self.all.push(peer);
                self.all.len() - 1
            }
            hash_map::Entry::Occupied(mut entry) => {
                let (place, former) = entry.insert((entry.get().0, line));
                let name = Key::PublicKey.name();
                let what = "the same peer as in line";
                warnings.add(line, name, format_args!("{what} {former}, which it replaces"));
                for net in &self.all[place].allowed_ips {
                    if self.owners.get(net).is_some_and(|(owner, _)| *owner == place) {
                        self.owners.remove(net);
                    }
                }
                self.all[place].be_replaced_by(peer);
                place
            }
        };
        for (line, address) in allowed_ips {
            self.give(place, line, address, warnings);
        }
        Ok(())
    }

    fn give(&mut self, place: usize, line: usize, address: IpNet, warnings: &mut Warnings<'_>) {
        let (net, key) = (address.trunc(), Key::AllowedIps.name());
        if net != address {
            warnings.add(line, key, format_args!("{address} has host bits and is taken as {net}"));
        }
        if let Some((other, other_line)) = self.owners.insert(net, (place, line))
            && other != place
        {
            let from = format_args!("the peer that has it in line {other_line}");
            warnings.add(line, key, format_args!("{net} is taken away from {from}"));
        }
        self.all[place].allowed_ips.push(net);
    }

    /// The peers; and for each network, the index of the last peer with this network, and the line.
    fn into_all(mut self) -> (Vec<Peer>, HashMap<IpNet, (usize, usize)>) {
        for peer in &mut self.all {
            peer.preshared_key.take_if(|key| key.is_zero());
        }
        (self.all, self.owners)
    }
}

impl Peer {
    /// Parses all settings except the allowed IPs. The preshared key may be all zero.
    fn read(
        entries: &Entries<'_>,
        names: &Names,
        warnings: &mut Warnings<'_>,
    ) -> Result<Self, Fault> {
        let public_key = entries
            .one(Key::PublicKey, public_key)?
            .ok_or_else(|| fault(entries.line, Key::PublicKey, Reason::Missing(Section::Peer)))?;
        let endpoint = entries.one(Key::Endpoint, |text| endpoint::parse(text, names))?;
        if let (Some(endpoint), Some(entry)) = (&endpoint, entries.of(Key::Endpoint).last())
            && endpoint.host.contains(':')
            && !entry.value.starts_with('[')
        {
            let name = Key::Endpoint.name();
            warnings.add(entry.line, name, format_args!("without brackets, taken as {endpoint}"));
        }
        Ok(Self {
            public_key,
            preshared_key: entries.one(Key::PresharedKey, preshared_key)?,
            allowed_ips: Vec::new(),
            endpoint,
            persistent_keepalive: entries
                .one(Key::PersistentKeepalive, |text| or_off(text, value::keepalive))?,
        })
    }

    /// Applies a later section with the same public key.
    fn be_replaced_by(&mut self, later: Self) {
        let keepalive = later.persistent_keepalive.or(self.persistent_keepalive);
        let former = std::mem::replace(self, later);
        self.preshared_key = self.preshared_key.take().or(former.preshared_key);
        self.endpoint = self.endpoint.take().or(former.endpoint);
        self.persistent_keepalive = keepalive;
    }
}

/// The addresses of the interface, with the syntax of `ip`.
fn addresses(entries: &Entries<'_>, warnings: &mut Warnings<'_>) -> Result<Vec<IpNet>, Fault> {
    let mut addresses = Vec::new();
    let read = |text: &str| Ok((value::interface_address(text)?, is_odd(text)));
    entries.each(Key::Address, read, |entry, (address, is_odd)| {
        if is_odd {
            warnings.add(entry.line, entry.key.name(), format_args!("taken as {address}"));
        }
        addresses.push(address);
    })?;
    Ok(addresses)
}

/// Whether an IPv4 address has another form than four decimal numbers.
fn is_odd(address: &str) -> bool {
    let address = address.split('/').next().unwrap_or_default();
    !address.contains(':') && address.parse::<Ipv4Addr>().is_err()
}

impl Entries<'_> {
    /// The value of a key; the last one if there are several.
    pub(super) fn one<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Option<T>, Fault> {
        let mut last = None;
        for entry in self.of(key) {
            last = Some(entry.read(&parse)?);
        }
        Ok(last)
    }

    /// The last value of a key. wg-quick(8) does not check the others.
    fn last<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Option<T>, Fault> {
        self.of(key).last().map(|entry| entry.read(parse)).transpose()
    }

    /// Each word of a list, with its line.
    fn each<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
        mut take: impl FnMut(&Entry<'_>, T),
    ) -> Result<(), Fault> {
        for entry in self.of(key) {
            for word in words(entry.value) {
                take(entry, parse(word).map_err(|e| entry.fault(Reason::Value(e)))?);
            }
        }
        Ok(())
    }

    pub(super) fn list<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Vec<T>, Fault> {
        let mut list = Vec::new();
        self.each(key, parse, |_, value| list.push(value))?;
        Ok(list)
    }

    /// The lines of a hook, without empty ones.
    fn commands(&self, key: Key) -> Vec<String> {
        let commands = self.of(key).filter(|entry| !entry.value.is_empty());
        commands.map(|entry| entry.value.to_owned()).collect()
    }
}

impl Entry<'_> {
    /// The value. wg(8) removes all blanks from the values of its keys.
    fn read<T>(&self, parse: impl Fn(&str) -> Result<T, ValueError>) -> Result<T, Fault> {
        let has_blanks = self.value.contains(|c: char| c.is_ascii_whitespace());
        let value = if has_blanks && self.key.is_of_wg() {
            // Allocated once, because it may be a key.
            let mut joined = Zeroizing::new(String::with_capacity(self.value.len()));
            self.value.split_ascii_whitespace().for_each(|part| joined.push_str(part));
            parse(&joined)
        } else {
            parse(self.value)
        };
        value.map_err(|error| self.fault(Reason::Value(error)))
    }
}

fn fault(line: usize, key: Key, reason: Reason) -> Fault {
    Fault { line, key: Some(Cow::Borrowed(key.name())), reason }
}

/// The words of a list, which commas and spaces separate.
pub(super) fn words(list: &str) -> impl Iterator<Item = &str> {
    let separator = |c: char| c == ',' || c.is_whitespace();
    list.split(separator).filter(|word| !word.is_empty())
}

/// Parses a number; `off` is zero.
pub(super) fn or_off<T: Default>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> Result<T, ValueError> {
    if text.eq_ignore_ascii_case("off") { Ok(T::default()) } else { parse(text) }
}

fn private_key(text: &str) -> Result<PrivateKey, ValueError> {
    // Compared before it becomes a `PrivateKey`, which is clamped.
    if preshared_key(text)?.is_zero() {
        return Err(ValueError::secret(Wanted::NonZeroKey));
    }
    PrivateKey::from_base64(text).map_err(|_| ValueError::secret(Wanted::Base64Key))
}

fn public_key(text: &str) -> Result<PublicKey, ValueError> {
    PublicKey::from_base64(text).map_err(|_| ValueError::secret(Wanted::Base64Key))
}

fn preshared_key(text: &str) -> Result<PresharedKey, ValueError> {
    PresharedKey::from_base64(text).map_err(|_| ValueError::secret(Wanted::Base64Key))
}

pub(super) fn boolean(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(ValueError::new(Wanted::Bool, text)),
    }
}

fn on_off(text: &str) -> Result<bool, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(ValueError::new(Wanted::OnOff, text)),
    }
}

fn post_quantum(text: &str) -> Result<PostQuantum, ValueError> {
    PostQuantum::from_name(text).ok_or_else(|| ValueError::new(Wanted::OffOnRequire, text))
}

fn crypto(text: &str) -> Result<Crypto, ValueError> {
    Crypto::from_name(text).ok_or_else(|| ValueError::new(Wanted::FastestLibrary, text))
}

/// An empty value means that the MTU is computed, as in wg-quick(8).
fn mtu(text: &str) -> Result<Option<u16>, ValueError> {
    if text.is_empty() { Ok(None) } else { value::mtu(text).map(Some) }
}

enum DnsWord {
    Server(NameServer),
    SearchDomain(String),
}

/// Like wg-quick(8), treats a word with a colon, or of digits and dots only, as an address.
fn dns_word(text: &str) -> Result<DnsWord, ValueError> {
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let is_name = !numeric && text.chars().all(|c| c.is_alphanumeric() || "-._~".contains(c));
    match NameServer::parse(text) {
        Some(server) => Ok(DnsWord::Server(server)),
        None if is_name => Ok(DnsWord::SearchDomain(text.to_owned())),
        None => Err(ValueError::new(Wanted::NameServer, text)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*, sample};

    use super::*;
    use crate::{EndpointName, conf::Table};

    const PRIVATE: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
    const PUBLIC: &str = "xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=";
    const ZERO: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

    fn parsed(text: &str) -> Conf {
        Conf::parse("wg0.conf", &with_keys(text)).unwrap()
    }

    fn refused(text: &str) -> String {
        match Conf::parse("wg0.conf", &with_keys(text)) {
            Err(error) => error.to_string(),
            Ok(conf) => panic!("{text:?} is taken: {conf:?}"),
        }
    }

    /// `$S`, `$P` and `$0` stand for a private key, a public key and zeros.
    fn with_keys(text: &str) -> String {
        text.replace("$S", PRIVATE).replace("$P", PUBLIC).replace("$0", ZERO)
    }

    fn name_server_of(text: &str) -> NameServer {
        NameServer::parse(text).unwrap()
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn file_with_every_key_is_parsed() {
        let conf = parsed(
            "# laptop\n[Interface]\nPrivateKey = $S\nListenPort = 51820\nFwMark = 0xca6c\n\
             Address = 10.0.0.2/24, fd00::2/64\nDNS = 1.1.1.1, corp.example ,2606:4700::1111\n\
             MTU = 1420\nTable = 1234\nSaveConfig = true\nPreUp = echo pre up\n\
             PostUp = iptables -A FORWARD -i %i -j ACCEPT; true\nPreDown = x = y\nPostDown = d\n\n\
             [Peer]\nPublicKey = $P\nPresharedKey = $S\nAllowedIPs = 10.0.0.0/24, ::/0\n\
             Endpoint = vpn.example.com:51820\nPersistentKeepalive = 25\n",
        );
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            conf.interface,
            Interface {
                private_key: Some(PrivateKey::from_base64(PRIVATE).unwrap()),
                listen_port: Some(51820),
                fwmark: Some(0xca6c),
                addresses: nets(&["10.0.0.2/24", "fd00::2/64"]),
                dns: Dns {
                    servers: ["1.1.1.1", "2606:4700::1111"].map(name_server_of).into(),
                    search_domains: texts(&["corp.example"]),
                },
                mtu: Some(1420),
                table: Table::Id(1234),
                save_config: true,
                hooks: Hooks {
                    pre_up: texts(&["echo pre up"]),
                    post_up: texts(&["iptables -A FORWARD -i %i -j ACCEPT; true"]),
                    pre_down: texts(&["x = y"]),
                    post_down: texts(&["d"]),
                },
                proxy: Proxy::default(),
                policy: Policy::default(),
                router: Router::default(),
                features: Features::default(),
            }
        );
        let peer = Peer {
            public_key: PublicKey::from_base64(PUBLIC).unwrap(),
            preshared_key: Some(PresharedKey::from_base64(PRIVATE).unwrap()),
            allowed_ips: nets(&["10.0.0.0/24", "::/0"]),
            endpoint: Some(EndpointName { host: "vpn.example.com".to_owned(), port: 51820 }),
            persistent_keepalive: Some(25),
        };
        assert_eq!(conf.peers, [peer]);
        assert_eq!(conf.warnings, [""; 0]);
        assert!(conf.private_key().is_ok());
    }

    #[test]
    fn spaces_case_comments_and_line_endings_are_ignored() {
        let plain = parsed("[Interface]\nPrivateKey=$S\nDNS=1.1.1.1\n[Peer]\nPublicKey=$P\n");
        for text in [
            "[Interface]\r\nPrivateKey = $S\r\nDNS = 1.1.1.1\r\n[Peer]\r\nPublicKey = $P",
            "\u{feff}[interface]\nprivatekey =$S\ndns= 1.1.1.1,\n[PEER]\nPUBLICKEY\t=\t$P\t\n",
            "[ Interface ] # a\n PrivateKey = $S# b\nDNS=1.1.1.1 # c\n[Peer]#\n  PublicKey=$P",
            "[Interface]\nPrivateKey=$S\n[Peer]\nPublicKey=$P\n[Interface]\nDNS=1.1.1.1\nDNS=\n",
        ] {
            let conf = parsed(text);
            assert_eq!(
                (conf.interface, conf.peers),
                (plain.interface.clone(), plain.peers.clone())
            );
        }
    }

    #[test]
    fn repeated_list_keys_add_values() {
        let conf = parsed(
            "[Interface]\nAddress = 10.0.0.1\nAddress = 10.0.0.2/8,fd00::1\nPostUp = a\nPostUp =\n\
             PostUp = b '#' # c\n[Peer]\nPublicKey = $P\nAllowedIPs =\nAllowedIPs = 10.0.0.1,::/0,\n\
             AllowedIPs = 10.0.0.2\n",
        );
        let addresses = nets(&["10.0.0.1/32", "10.0.0.2/8", "fd00::1/128"]);
        assert_eq!(conf.interface.addresses, addresses);
        assert_eq!(conf.interface.hooks.post_up, ["a", "b '#' # c"]);
        assert_eq!(conf.peers[0].allowed_ips, nets(&["10.0.0.1/32", "::/0", "10.0.0.2/32"]));
    }

    #[test]
    fn off_and_auto_are_numbers() {
        assert_eq!(parsed("[Interface]\nFwMark = Off").interface.fwmark, Some(0));
        let path_mtu =
            |line: &str| parsed(&format!("[Interface]\n{line}")).interface.features.path_mtu;
        let read = ["", "PathMtu = On", "pathmtu=off"].map(path_mtu);
        assert_eq!(read, [None, Some(true), Some(false)]);
        let mode =
            |line: &str| parsed(&format!("[Interface]\n{line}")).interface.features.post_quantum;
        let read = ["", "PostQuantum = Off", "postquantum=on", "PostQuantum = require"].map(mode);
        let [off, on, require] = PostQuantum::ALL.map(Some);
        assert_eq!(read, [None, off, on, require]);
        let code = |line: &str| parsed(&format!("[Interface]\n{line}")).interface.features.crypto;
        let read = ["", "Crypto = Library", "crypto=fastest"].map(code);
        assert_eq!(read, [None, Some(Crypto::Library), Some(Crypto::Fastest)]);
        let again =
            |line: &str| parsed(&format!("[Interface]\n{line}")).interface.features.reresolve;
        let read = ["", "ReresolveEndpoints = On", "reresolveendpoints=off"].map(again);
        assert_eq!(read, [None, Some(true), Some(false)]);
        let peer = |line: &str| parsed(&format!("[Interface]\n[Peer]\nPublicKey=$P\n{line}"));
        assert_eq!(peer("PersistentKeepalive = off").peers[0].persistent_keepalive, Some(0));
        assert_eq!(peer("PresharedKey = $0").peers[0].preshared_key, None);
        assert_eq!(
            peer("Endpoint = [fe80::1%eth0]:1").peers[0].endpoint,
            Some(EndpointName { host: "fe80::1%eth0".to_owned(), port: 1 })
        );
    }

    #[test]
    fn last_value_of_a_repeated_wg_key_counts_with_a_warning() {
        let conf = parsed(
            "[Interface]\nMTU = x\nListenPort = 1\nTable = nosuch\nSaveConfig = true\n\
             listen port = 51 820\nMTU = 1400\nMTU =\nTable = off\nSaveConfig = false\n[Peer]\n\
             PublicKey = $S\nPersistentKeepalive = 15\n\nPublicKey = $P\nPersistentKeepalive = 25\n\
             [Interface]\nPrivateKey = $P\nPrivateKey = $S\nFwMark = 1\nFwMark = 0x 2\n",
        );
        let interface = conf.interface;
        assert_eq!((interface.listen_port, interface.fwmark), (Some(51820), Some(2)));
        assert_eq!((interface.mtu, interface.table), (None, Table::Off));
        assert_eq!(interface.private_key, Some(PrivateKey::from_base64(PRIVATE).unwrap()));
        assert!(!interface.save_config);
        assert_eq!(conf.peers[0].public_key, PublicKey::from_base64(PUBLIC).unwrap());
        assert_eq!(conf.peers[0].persistent_keepalive, Some(25));
        let warning = |(line, key, former): (usize, &str, usize)| {
            format!("wg0.conf:{line}: {key}: replaces the value in line {former}")
        };
        let expected = [
            (6, "ListenPort", 3),
            (7, "MTU", 2),
            (8, "MTU", 7),
            (9, "Table", 4),
            (10, "SaveConfig", 5),
            (15, "PublicKey", 12),
            (16, "PersistentKeepalive", 13),
            (19, "PrivateKey", 18),
            (21, "FwMark", 20),
        ];
        assert_eq!(conf.warnings, expected.map(warning));
    }

    #[test]
    fn replaced_value_of_a_wg_key_must_be_valid() {
        for (lines, error) in [
            ("ListenPort = x\nListenPort = 1", "2: ListenPort: \"x\" is not a port"),
            ("SaveConfig = x\nSaveConfig = true", "2: SaveConfig: \"x\" is not true or false"),
            ("MTU = 1400\nMTU = x", "3: MTU: \"x\" is not an MTU"),
        ] {
            let shown = refused(&format!("[Interface]\n{lines}"));
            assert!(shown.starts_with(&format!("wg0.conf:{error}")), "{shown}");
        }
    }

    #[test]
    fn repeated_peer_replaces_networks_and_given_settings() {
        let conf = parsed(
            "[Interface]\n[Peer]\nPublicKey = $P\nPresharedKey = $S\nEndpoint = a.example:1\n\
             AllowedIPs = 10.77.0.0/24, 10.79.0.0/24\nPersistentKeepalive = 25\n[Peer]\n\
             PublicKey = $S\nAllowedIPs = 10.1.0.0/16\n[Peer]\n\
             AllowedIPs = 10.78.0.0/24\nPublicKey = $P\nEndpoint = b.example:2\n\
             [Peer]\nPublicKey = $S\nPresharedKey = $0\nAllowedIPs = 10.77.0.0/24\n",
        );
        let [first, second] = &conf.peers[..] else { panic!("{:?}", conf.peers) };
        let endpoint = EndpointName { host: "b.example".to_owned(), port: 2 };
        let expected = Peer {
            public_key: PublicKey::from_base64(PUBLIC).unwrap(),
            preshared_key: Some(PresharedKey::from_base64(PRIVATE).unwrap()),
            allowed_ips: nets(&["10.78.0.0/24"]),
            endpoint: Some(endpoint),
            persistent_keepalive: Some(25),
        };
        assert_eq!(*first, expected);
        assert_eq!((&second.allowed_ips, &second.preshared_key), (&nets(&["10.77.0.0/24"]), &None));
        let warning = "PublicKey: the same peer as in line";
        assert_eq!(
            conf.warnings,
            [
                format!("wg0.conf:13: {warning} 3, which it replaces"),
                format!("wg0.conf:16: {warning} 9, which it replaces"),
            ]
        );
    }

    #[test]
    fn blanks_within_wg_keys_and_values_are_ignored() {
        let conf = parsed(
            "[Interface]\nPrivate\tKey = $S\nFw Mark = 0x ca6c\n[Peer]\nPublic Key = $P\n\
             Allowed IPs = 10.0.0.0 /8, fd00 :: / 8 , 10.1.0.1 10.2.0.1/16 ::/0\n\
             End point = vpn.example : 51 820\nPersistent Keepalive = 2 5\n",
        );
        assert_eq!(conf.interface.fwmark, Some(0xca6c));
        assert!(conf.private_key().is_ok());
        let peer = &conf.peers[0];
        let expected = ["10.0.0.0/8", "fd00::/8", "10.1.0.1/32", "10.2.0.0/16", "::/0"];
        assert_eq!(peer.allowed_ips, nets(&expected));
        assert_eq!(peer.endpoint.as_ref().unwrap().to_string(), "vpn.example:51820");
        assert_eq!(peer.persistent_keepalive, Some(25));
    }

    #[test]
    fn wg_quick_keys_without_a_value_are_ignored() {
        let conf = parsed("[Interface]\nMTU =\nTable = # none\nAddress=\nDNS =\nPostUp =\n");
        assert_eq!(conf.interface, Interface::default());
        assert_eq!(conf.warnings, [""; 0]);
    }

    #[test]
    fn ipv6_endpoint_without_brackets_has_a_warning() {
        let conf = parsed("[Interface]\n[Peer]\nPublicKey=$P\nEndpoint = 2001:db8:1::2:51820\n");
        let shown = conf.peers[0].endpoint.as_ref().unwrap().to_string();
        assert_eq!(shown, "[2001:db8:1::2]:51820");
        let warning = "wg0.conf:4: Endpoint: without brackets, taken as [2001:db8:1::2]:51820";
        assert_eq!(conf.warnings, [warning]);
    }

    #[test]
    fn mtu_and_table_parse_as_in_iproute2() {
        let mut names = Names::default();
        names.add_tables("100 vpn\n");
        names.add_services("wireguard 51820/udp\n");
        let text = with_keys(
            "[Interface]\nListenPort = wireguard\nTable = vpn\nMTU = 0x578\n\
             Address = 10.0.0.1/255.255.255.0, 10.1/16\nDNS = fe80::1%eth0, fd00::1\n\
             [Peer]\nPublicKey = $P\nEndpoint = fe80::1%eth0:wireguard\nAllowedIPs = +10.0.0.0/8",
        );
        let conf = Conf::parse_file("wg0.conf", text.as_bytes(), &names).unwrap();
        let interface = conf.interface;
        assert_eq!((interface.listen_port, interface.mtu), (Some(51820), Some(1400)));
        assert_eq!(interface.table, Table::Id(100));
        assert_eq!(interface.addresses, nets(&["10.0.0.1/24", "10.1.0.0/16"]));
        let shown: Vec<_> = interface.dns.servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["fe80::1%eth0", "fd00::1"]);
        assert_eq!(conf.peers[0].endpoint.as_ref().unwrap().to_string(), "[fe80::1%eth0]:51820");
        assert_eq!(conf.peers[0].allowed_ips, nets(&["10.0.0.0/8"]));
        assert_eq!(
            conf.warnings,
            [
                "wg0.conf:5: Address: taken as 10.1.0.0/16",
                "wg0.conf:9: Endpoint: without brackets, taken as [fe80::1%eth0]:51820",
            ]
        );
    }

    #[test]
    fn negated_networks_are_refused_with_the_remaining_list() {
        let refused = |nets: &str| {
            refused(&format!("[Interface]\n[Peer]\nPublicKey = $P\nAllowedIPs = {nets}\n"))
        };
        let error = "AllowedIPs: networks with ! or - are not supported; write instead:";
        for (nets, line, instead) in [
            (
                "0.0.0.0/0, ::/0\nAllowedIPs = !128.0.0.0/2, !fd00::1/1",
                5,
                "AllowedIPs = 0.0.0.0/1, 192.0.0.0/2, ::/1",
            ),
            ("10.0.0.0/30, -10.0.0.1", 4, "AllowedIPs = 10.0.0.0/32, 10.0.0.2/31"),
            ("10.0.0.0/8, 10.1.0.0/16, - 11.0.0.0/8", 4, "AllowedIPs = 10.0.0.0/8"),
            ("10.1.0.0/16, !10.0.0.0/8", 4, "no AllowedIPs, because no address remains"),
        ] {
            assert_eq!(refused(nets), format!("wg0.conf:{line}: {error} {instead}"), "{nets}");
        }
    }

    #[test]
    fn invalid_utf8_in_comments_and_zero_bytes_are_accepted() {
        let read = |bytes: &[u8]| Conf::parse_file("wg0.conf", bytes, &Names::default());
        let conf = read(b"# M\xfcnchen\n[Interface]\nMTU = 1400 # \xe4\n\0\0\0").unwrap();
        assert_eq!(conf.interface.mtu, Some(1400));
        assert_eq!(conf.warnings, ["wg0.conf: zero bytes are left out"]);
        let error = read(b"[Interface]\nDNS = m\xfcnchen.example\n").unwrap_err().to_string();
        assert_eq!(error, "wg0.conf:2: bytes that are not UTF-8, outside a comment");
    }

    #[test]
    fn missing_private_key_is_an_error_at_the_interface_line() {
        let conf = parsed("# no key\n[Interface]\nPostUp = wg set %i private-key /key\n");
        let error = conf.private_key().unwrap_err();
        assert_eq!(error.to_string(), "wg0.conf:2: PrivateKey: missing in this [Interface]");
        assert_eq!((error.line(), error.reason()), (2, &Reason::Missing(Section::Interface)));
    }

    #[test]
    fn syntax_errors_contain_line_and_key() {
        for (text, error) in [
            ("", "1: [Interface]: missing section"),
            ("[Peer]\nPublicKey = $P", "1: [Interface]: missing section"),
            ("[Interface]\nMTU", "2: neither a [Section] nor of the form key = value"),
            ("[Interface]\n$S", "2: …: unknown key"),
            ("[Interface]\n= 5", "2: …: unknown key"),
            ("\nMTU = 1420", "2: MTU: a key before the first [Interface] or [Peer]"),
            ("Foo = 1420", "1: Foo: a key before the first [Interface] or [Peer]"),
            ("[Intreface]", "1: [Intreface]: unknown section; did you mean [Interface]?"),
            ("[Peers]", "1: [Peers]: unknown section; did you mean [Peer]?"),
            ("[Peer", "1: [Peer: unknown section; did you mean [Peer]?"),
            ("[Server]", "1: [Server]: unknown section; there are [Interface] and [Peer]"),
            ("[Interface]\nPrivatKey = $S", "2: PrivatKey: unknown key; did you mean PrivateKey?"),
            (
                "[Interface]\nListen_Port = 1",
                "2: Listen_Port: unknown key; did you mean ListenPort?",
            ),
            ("[Interface]\nJc = 4", "2: Jc: unknown key"),
            ("[Peer]\nAllowedIP = ::/0", "2: AllowedIP: unknown key; did you mean AllowedIPs?"),
            ("[Interface]\nendpoint = h:1", "2: Endpoint: this key belongs in [Peer]"),
            ("[Peer]\ndns = 1.1.1.1", "2: DNS: this key belongs in [Interface]"),
            ("[Interface]\nPathMtu=on\n\npathmtu=on", "4: PathMtu: already given in line 2"),
            (
                "[Interface]\nCrypto=fastest\n[Peer]\nPublicKey=$P\n[Interface]\nCrypto=library",
                "6: Crypto: already given in line 2",
            ),
            ("[Interface]\nPath Mtu = on", "2: …: unknown key; did you mean PathMtu?"),
            ("[Interface]\nPost Up = true", "2: …: unknown key; did you mean PostUp?"),
            (
                "[Interface]\n[Peer]\nEndpoint = h:1\n[Peer]\nPublicKey = $P",
                "2: PublicKey: missing in this [Peer]",
            ),
        ] {
            assert_eq!(refused(text), format!("wg0.conf:{error}"), "{text:?}");
        }
    }

    #[test]
    fn invalid_values_are_refused() {
        for (line, error) in [
            ("PrivateKey = abc", "not a key of 44 base64 characters"),
            ("PrivateKey =", "not a key of 44 base64 characters"),
            ("PrivateKey = $0", "not a private key, all zero as it is"),
            ("ListenPort = 65536", "\"65536\" is not a port"),
            ("ListenPort =", "\"\" is not a port"),
            ("FwMark = on", "\"on\" is not a mark"),
            ("Address = 10.0.0.1/24, 10.0.0.1/33", "\"10.0.0.1/33\" is not an IP address"),
            ("Address = wg0", "\"wg0\" is not an IP address"),
            ("DNS = 1.1.1", "\"1.1.1\" is not the IP address of a name server"),
            ("DNS = 1.1.1.1; 8.8.8.8", "\"1.1.1.1;\" is not the IP address of a name server"),
            ("DNS = fe80::1%", "\"fe80::1%\" is not the IP address"),
            ("DNS = 10.0.0.1%eth0", "\"10.0.0.1%eth0\" is not the IP address"),
            ("Address = fe80::1%wg0/64", "\"fe80::1%wg0/64\" is not an IP address"),
            ("MTU = 67", "\"67\" is not an MTU, 68 to 65535"),
            ("MTU = 65536", "\"65536\" is not an MTU"),
            ("MTU = 1400x", "\"1400x\" is not an MTU"),
            ("SaveConfig =", "\"\" is not true or false"),
            ("Table = vpn", "\"vpn\" is not a routing table"),
            ("SaveConfig = yes", "\"yes\" is not true or false"),
            ("PathMtu = 1420", "\"1420\" is not on or off"),
            ("Crypto = none", "\"none\" is not fastest or library"),
            ("PostQuantum = yes", "\"yes\" is not off, on or require"),
            ("PublicKey = $P$P", "not a key of 44 base64 characters"),
            ("PresharedKey = 0", "not a key of 44 base64 characters"),
            ("AllowedIPs = 10.0.0.0/8 /9", "\"/9\" is not an IP address"),
            ("AllowedIPs = 10.0.0.0/255.0.0.0", "\"10.0.0.0/255.0.0.0\" is not an IP address"),
            ("AllowedIPs = !10", "\"!10\" is not an IP address"),
            ("AllowedIPs = ++10.0.0.0/8", "\"++10.0.0.0/8\" is not an IP address"),
            ("Endpoint = vpn.example.com", "\"vpn.example.com\" is not an endpoint"),
            ("Endpoint = 2001:db8::1", "\"2001:db8::1\" is not an endpoint"),
            ("Endpoint = vpn.example.com:https", "\"https\" is not a port"),
            ("Endpoint = vpn.example.com:70000", "\"70000\" is not a port"),
            ("PersistentKeepalive = 65536", "\"65536\" is not a number of seconds"),
        ] {
            let key = line.split(" =").next().unwrap();
            let of_interface =
                Key::ALL.iter().any(|k| k.name() == key && k.section() == Section::Interface);
            let section = if of_interface { "[Interface]" } else { "[Interface]\n[Peer]" };
            let number = section.lines().count() + 1;
            let public = if of_interface || key == "PublicKey" { "" } else { "\nPublicKey = $P" };
            let shown = refused(&format!("{section}\n{line}{public}"));
            let expected = format!("wg0.conf:{number}: {key}: {error}");
            assert!(shown.starts_with(&expected), "{line}: {shown}");
        }
    }

    #[test]
    fn errors_never_contain_key_material() {
        let peer = "[Interface]\n[Peer]\nPublicKey = $P\n";
        let mut texts: Vec<String> = Key::ALL
            .iter()
            .flat_map(|key| ["", "[Interface]\n", peer].map(|head| (head, key.name())))
            .map(|(head, key)| format!("{head}{key} = $S\n{key} = $Sx\n{key} = x$S/\n[x"))
            .collect();
        for line in ["$S", "PrivateKey $S", "$S = 1", "PrivatKey = $S", "PrivateKey : $S", "[$S]"] {
            texts.push(format!("[Interface]\n{line}"));
        }
        for text in texts {
            let error = Conf::parse("wg0.conf", &with_keys(&text)).unwrap_err();
            for shown in [error.to_string(), format!("{error:?}")] {
                assert!(!shown.contains(&PRIVATE[4..12]), "{text}: {shown}");
            }
        }
    }

    #[test]
    fn unusual_networks_have_warnings() {
        let conf = parsed(
            "[Interface]\n[Peer]\nPublicKey = $P\nAllowedIPs = 10.0.0.0/24, 10.0.0.0/24\n\
             [Peer]\nPublicKey = $S\nAllowedIPs = ::/0\nAllowedIPs = 10.0.0.7/24",
        );
        assert_eq!(
            conf.warnings,
            [
                "wg0.conf:8: AllowedIPs: 10.0.0.7/24 has host bits and is taken as 10.0.0.0/24",
                "wg0.conf:8: AllowedIPs: 10.0.0.0/24 is taken away from the peer that has it in \
                 line 4",
            ]
        );
        assert_eq!(conf.peers[1].allowed_ips, nets(&["::/0", "10.0.0.0/24"]));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in collection::vec(any::<u8>(), 0..200)) {
            let read = |bytes: &[u8]| Conf::parse_file("wg0.conf", bytes, &Names::default());
            let _ = read(&bytes);
            let _ = read(&[b"[Interface]\n", &bytes[..]].concat());
        }

        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = Conf::parse("wg0.conf", &text);
            let _ = Conf::parse("wg0.conf", &format!("[Interface]\n{text}"));
        }

        #[test]
        fn lines_with_known_keys_never_panic(
            lines in collection::vec((sample::select(&Key::ALL[..]), "[-+!0-9a-fx.:/%,# \\[\\]]{0,24}"), 0..6),
        ) {
            for head in ["[Interface]", "[Interface]\n[Peer]"] {
                let lines = lines.iter().map(|(key, value)| format!("\n{} = {value}", key.name()));
                let _ = Conf::parse("wg0.conf", &(head.to_owned() + &lines.collect::<String>()));
            }
        }
    }
}
