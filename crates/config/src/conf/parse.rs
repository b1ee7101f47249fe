//! The second pass: the values of each section.

use std::{borrow::Cow, collections::HashMap, fmt, net::IpAddr};

use ipnet::IpNet;
use wg::{Crypto, PostQuantum, PresharedKey, PrivateKey, PublicKey};

use super::{
    Conf, ConfError, Dns, EndpointName, Hooks, Interface, Peer, Reason, Section, Table,
    error::Fault,
    lines::{self, Entries, Key},
    places::Places,
    policy::Policy,
    proxy::{self, Proxy},
    router::Router,
};
use crate::value::{self, ValueError, Wanted};

impl Conf {
    /// Reads a file. `file_name` is for its errors and warnings.
    ///
    /// # Errors
    /// The first fault found. No error text holds a key.
    pub fn parse(file_name: &str, text: &str) -> Result<Self, ConfError> {
        Self::read(file_name, text).map_err(|fault| fault.in_file(file_name))
    }

    fn read(file_name: &str, text: &str) -> Result<Self, Fault> {
        let sections = lines::read(text)?;
        let mut interface = Interface::read(&sections.interface)?;
        interface.proxy = Proxy::read(&sections.interface, file_name)?;
        let mut peers = Vec::with_capacity(sections.peers.len());
        let mut lines = HashMap::new();
        let mut owners = Owners { file_name, lines: HashMap::new(), warnings: Vec::new() };
        for entries in &sections.peers {
            let peer = Peer::read(entries, &mut owners)?;
            let line = entries.of(Key::PublicKey).next().map_or(entries.line, |entry| entry.line);
            if let Some(first) = lines.insert(peer.public_key, line) {
                return Err(fault(line, Key::PublicKey, Reason::DuplicatePeer(first)));
            }
            peers.push(peer);
        }
        // A file that is saved may have lost the peer that they are for.
        if !interface.save_config {
            interface.policy.suits(&sections.interface, &peers)?;
        }
        Ok(Self {
            interface,
            peers,
            warnings: owners.warnings,
            file_name: file_name.to_owned(),
            interface_line: sections.interface.line,
            proxy_key: proxy::first_key(&sections.interface, |entry| entry.key.is_of_proxy()),
            up_key: proxy::first_key(&sections.interface, |entry| entry.key.is_of_up()),
            hook_key: proxy::first_key(&sections.interface, |entry| entry.is_command()),
            places: Places::read(&sections),
            origin: None,
        })
    }
}

impl Interface {
    fn read(entries: &Entries<'_>) -> Result<Self, Fault> {
        Ok(Self {
            private_key: entries.one(Key::PrivateKey, private_key)?,
            listen_port: entries.one(Key::ListenPort, value::port)?,
            fwmark: entries.one(Key::FwMark, |text| or_off(text, value::mark))?,
            addresses: entries.list(Key::Address, value::address)?,
            dns: Dns::read(entries)?,
            mtu: entries.one(Key::Mtu, value::mtu)?,
            table: entries.one(Key::Table, table)?.unwrap_or_default(),
            save_config: entries.one(Key::SaveConfig, boolean)?.unwrap_or_default(),
            hooks: Hooks {
                pre_up: entries.commands(Key::PreUp),
                post_up: entries.commands(Key::PostUp),
                pre_down: entries.commands(Key::PreDown),
                post_down: entries.commands(Key::PostDown),
            },
            proxy: Proxy::default(),
            policy: Policy::read(entries)?,
            router: Router::read(entries)?,
            path_mtu: entries.one(Key::PathMtu, on_off)?,
            post_quantum: entries.one(Key::PostQuantum, post_quantum)?,
            crypto: entries.one(Key::Crypto, crypto)?,
            reresolve: entries.one(Key::ReresolveEndpoints, on_off)?,
        })
    }
}

impl Dns {
    fn read(entries: &Entries<'_>) -> Result<Self, Fault> {
        let mut dns = Self::default();
        for word in entries.list(Key::Dns, dns_word)? {
            match word {
                DnsWord::Server(address) => dns.servers.push(address),
                DnsWord::SearchDomain(domain) => dns.search_domains.push(domain),
            }
        }
        Ok(dns)
    }
}

impl Peer {
    fn read(entries: &Entries<'_>, owners: &mut Owners<'_>) -> Result<Self, Fault> {
        let public_key = entries
            .one(Key::PublicKey, public_key)?
            .ok_or_else(|| fault(entries.line, Key::PublicKey, Reason::Missing(Section::Peer)))?;
        let mut allowed_ips = Vec::new();
        entries.each(Key::AllowedIps, allowed_ip, |line, address| {
            let net = address.trunc();
            owners.note(entries.line, line, address);
            allowed_ips.push(net);
        })?;
        Ok(Self {
            public_key,
            preshared_key: entries
                .one(Key::PresharedKey, preshared_key)?
                .filter(|key| !key.is_none()),
            allowed_ips,
            endpoint: entries.one(Key::Endpoint, EndpointName::parse)?,
            persistent_keepalive: entries
                .one(Key::PersistentKeepalive, |text| or_off(text, value::keepalive))?,
        })
    }
}

/// Whose which network is, to warn of what is hardly meant.
struct Owners<'a> {
    file_name: &'a str,
    /// For each network, the line of its last peer's section, and its own.
    lines: HashMap<IpNet, (usize, usize)>,
    warnings: Vec<String>,
}

impl Owners<'_> {
    fn note(&mut self, peer_line: usize, line: usize, address: IpNet) {
        let net = address.trunc();
        if net != address {
            self.warn(line, format_args!("{address} has host bits and is taken as {net}"));
        }
        if let Some((other_peer, other_line)) = self.lines.insert(net, (peer_line, line))
            && other_peer != peer_line
        {
            let other = format_args!("the peer that has it in line {other_line}");
            self.warn(line, format_args!("{net} is taken away from {other}"));
        }
    }

    fn warn(&mut self, line: usize, warning: fmt::Arguments<'_>) {
        let key = Key::AllowedIps.name();
        self.warnings.push(format!("{}:{line}: {key}: {warning}", self.file_name));
    }
}

impl Entries<'_> {
    /// The value of a key that does not repeat.
    pub(super) fn one<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
    ) -> Result<Option<T>, Fault> {
        let entry = self.of(key).next();
        entry.map(|entry| parse(entry.value).map_err(|e| entry.fault(Reason::Value(e)))).transpose()
    }

    /// Every word of a key that takes lists, and its line.
    fn each<T>(
        &self,
        key: Key,
        parse: impl Fn(&str) -> Result<T, ValueError>,
        mut take: impl FnMut(usize, T),
    ) -> Result<(), Fault> {
        for entry in self.of(key) {
            for word in words(entry.value) {
                take(entry.line, parse(word).map_err(|e| entry.fault(Reason::Value(e)))?);
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

    /// The lines of a hook. An empty one does nothing and is left out.
    fn commands(&self, key: Key) -> Vec<String> {
        let commands = self.of(key).filter(|entry| !entry.value.is_empty());
        commands.map(|entry| entry.value.to_owned()).collect()
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

/// Zero where it is `off`.
pub(super) fn or_off<T: Default>(
    text: &str,
    parse: impl Fn(&str) -> Result<T, ValueError>,
) -> Result<T, ValueError> {
    if text.eq_ignore_ascii_case("off") { Ok(T::default()) } else { parse(text) }
}

fn private_key(text: &str) -> Result<PrivateKey, ValueError> {
    // Not a `PrivateKey` yet, which clamps.
    if preshared_key(text)?.is_none() {
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
    PostQuantum::named(text).ok_or_else(|| ValueError::new(Wanted::OffOnRequire, text))
}

fn crypto(text: &str) -> Result<Crypto, ValueError> {
    Crypto::named(text).ok_or_else(|| ValueError::new(Wanted::FastestLibrary, text))
}

/// The names are those of iproute2's `rt_tables`.
pub(super) fn table(text: &str) -> Result<Table, ValueError> {
    match text.to_ascii_lowercase().as_str() {
        "auto" => Ok(Table::Auto),
        "off" => Ok(Table::Off),
        "default" => Ok(Table::Id(253)),
        "main" => Ok(Table::Id(254)),
        "local" => Ok(Table::Id(255)),
        number => value::u32_of_either_base(number)
            .filter(|&id| id != 0)
            .map(Table::Id)
            .ok_or_else(|| ValueError::new(Wanted::Table, text)),
    }
}

enum DnsWord {
    Server(IpAddr),
    SearchDomain(String),
}

/// As wg-quick(8) tells them apart: what has a colon, or only digits and dots,
/// is to be an address.
fn dns_word(text: &str) -> Result<DnsWord, ValueError> {
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    let is_name = !numeric && text.chars().all(|c| c.is_alphanumeric() || "-._~".contains(c));
    match text.parse() {
        Ok(address) => Ok(DnsWord::Server(address)),
        Err(_) if is_name => Ok(DnsWord::SearchDomain(text.to_owned())),
        Err(_) => Err(ValueError::new(Wanted::NameServer, text)),
    }
}

/// With its host bits, to warn of them.
pub(super) fn allowed_ip(text: &str) -> Result<IpNet, ValueError> {
    if text.starts_with(['+', '-']) {
        return Err(ValueError::new(Wanted::UnsignedNetwork, text));
    }
    value::address(text)
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*, sample};

    use super::*;

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

    /// `$S`, `$P` and `$0` stand for a private key, a public one and zeros.
    fn with_keys(text: &str) -> String {
        text.replace("$S", PRIVATE).replace("$P", PUBLIC).replace("$0", ZERO)
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_file_with_every_key_is_read_whole() {
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
                    servers: vec!["1.1.1.1".parse().unwrap(), "2606:4700::1111".parse().unwrap()],
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
                path_mtu: None,
                post_quantum: None,
                crypto: None,
                reresolve: None,
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
    fn spaces_case_comments_and_line_ends_do_not_matter() {
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
    fn lists_go_on_over_lines() {
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
    fn words_stand_for_numbers() {
        for (text, table) in [
            ("auto", Table::Auto),
            ("off", Table::Off),
            ("OFF", Table::Off),
            ("main", Table::Id(254)),
            ("default", Table::Id(253)),
            ("local", Table::Id(255)),
            ("0x10", Table::Id(16)),
            ("4294967295", Table::Id(u32::MAX)),
        ] {
            assert_eq!(parsed(&format!("[Interface]\nTable={text}")).interface.table, table);
        }
        assert_eq!(parsed("[Interface]\nFwMark = Off").interface.fwmark, Some(0));
        let path_mtu = |line: &str| parsed(&format!("[Interface]\n{line}")).interface.path_mtu;
        let read = ["", "PathMtu = On", "pathmtu=off"].map(path_mtu);
        assert_eq!(read, [None, Some(true), Some(false)]);
        let mode = |line: &str| parsed(&format!("[Interface]\n{line}")).interface.post_quantum;
        let read = ["", "PostQuantum = Off", "postquantum=on", "PostQuantum = require"].map(mode);
        let [off, on, require] = PostQuantum::ALL.map(Some);
        assert_eq!(read, [None, off, on, require]);
        let code = |line: &str| parsed(&format!("[Interface]\n{line}")).interface.crypto;
        let read = ["", "Crypto = Library", "crypto=fastest"].map(code);
        assert_eq!(read, [None, Some(Crypto::Library), Some(Crypto::Fastest)]);
        let again = |line: &str| parsed(&format!("[Interface]\n{line}")).interface.reresolve;
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
    fn a_missing_private_key_is_told_at_the_interface_when_it_is_needed() {
        let conf = parsed("# no key\n[Interface]\nPostUp = wg set %i private-key /key\n");
        let error = conf.private_key().unwrap_err();
        assert_eq!(error.to_string(), "wg0.conf:2: PrivateKey: missing in this [Interface]");
        assert_eq!((error.line(), error.reason()), (2, &Reason::Missing(Section::Interface)));
    }

    #[test]
    fn faults_of_form_name_line_and_key() {
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
            ("[Interface]\nMTU=1420\n\nmtu=1420", "4: MTU: already given in line 2"),
            (
                "[Interface]\nPrivateKey=$S\n[Peer]\nPublicKey=$P\n[Interface]\nPrivateKey=$S",
                "6: PrivateKey: already given in line 2",
            ),
            (
                "[Interface]\n[Peer]\nPublicKey = $P\nPublicKey = $P",
                "4: PublicKey: already given in line 3",
            ),
            (
                "[Interface]\n[Peer]\nEndpoint = h:1\n[Peer]\nPublicKey = $P",
                "2: PublicKey: missing in this [Peer]",
            ),
            (
                "[Interface]\n[Peer]\nPublicKey = $P\n[Peer]\n\nPublicKey = $P",
                "6: PublicKey: the same peer as in line 3",
            ),
        ] {
            assert_eq!(refused(text), format!("wg0.conf:{error}"), "{text:?}");
        }
    }

    #[test]
    fn values_that_are_not_what_the_key_wants_are_refused() {
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
            ("DNS = fe80::1%eth0", "\"fe80::1%eth0\" is not the IP address"),
            ("MTU = 67", "\"67\" is not an MTU, 68 to 65535"),
            ("MTU = 65536", "\"65536\" is not an MTU"),
            ("Table = 0", "\"0\" is not a routing table"),
            ("Table = vpn", "\"vpn\" is not a routing table"),
            ("SaveConfig = yes", "\"yes\" is not true or false"),
            ("PathMtu = 1420", "\"1420\" is not on or off"),
            ("Crypto = none", "\"none\" is not fastest or library"),
            ("PostQuantum = yes", "\"yes\" is not off, on or require"),
            ("PublicKey = $P$P", "not a key of 44 base64 characters"),
            ("PresharedKey = 0", "not a key of 44 base64 characters"),
            ("AllowedIPs = 10.0.0.0/8 /9", "\"/9\" is not an IP address"),
            ("AllowedIPs = +10.0.0.0/8", "\"+10.0.0.0/8\" is not a network without sign"),
            ("AllowedIPs = -10.0.0.0/8", "\"-10.0.0.0/8\" is not a network without sign"),
            ("Endpoint = vpn.example.com", "\"vpn.example.com\" is not an endpoint"),
            ("Endpoint = 2001:db8::1:51820", "\"2001:db8::1:51820\" is not an endpoint"),
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
    fn no_error_shows_a_key_in_whatever_place_it_stands() {
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
    fn networks_hardly_meant_are_warned_of() {
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
        fn no_text_panics(text in any::<String>()) {
            let _ = Conf::parse("wg0.conf", &text);
            let _ = Conf::parse("wg0.conf", &format!("[Interface]\n{text}"));
        }

        #[test]
        fn no_lines_of_known_keys_panic(
            lines in collection::vec((sample::select(&Key::ALL[..]), "[-+0-9a-fx.:/%,# \\[\\]]{0,24}"), 0..6),
        ) {
            for head in ["[Interface]", "[Interface]\n[Peer]"] {
                let lines = lines.iter().map(|(key, value)| format!("\n{} = {value}", key.name()));
                let _ = Conf::parse("wg0.conf", &(head.to_owned() + &lines.collect::<String>()));
            }
        }
    }
}
