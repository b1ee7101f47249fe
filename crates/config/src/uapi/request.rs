//! Parses requests.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use wg::{
    PresharedKey, PrivateKey, PublicKey,
    config::{AllowedIpChange, PeerChange},
};

use super::{CaptureOptions, Change, Reason, Request, UapiError};
use crate::{
    EndpointName,
    value::{self, ValueError, Wanted},
};

const DEVICE_KEYS: [&str; 4] = ["private_key", "listen_port", "fwmark", "replace_peers"];
const PEER_KEYS: [&str; 8] = [
    "remove",
    "update_only",
    "preshared_key",
    "endpoint",
    "persistent_keepalive_interval",
    "replace_allowed_ips",
    "allowed_ip",
    "protocol_version",
];

impl Request {
    /// Parses a whole request. The empty line at its end is optional.
    ///
    /// # Errors
    /// A line is invalid. The error text contains no key material.
    pub fn parse(text: &str) -> Result<Self, UapiError> {
        let (head, rest) = text.split_once("\n\n").unwrap_or((text, ""));
        let head = head.strip_suffix('\n').unwrap_or(head);
        let mut lines = (1..).zip(head.split('\n'));
        let verb = lines.next().map_or("", |(_, line)| line);
        let request = match verb {
            "get=1" => Self::Get,
            "set=1" => Self::Set(change(&mut lines)?),
            "linerate-stats=1" => Self::Stats,
            "linerate-down=1" => Self::Down,
            "linerate-offload=1" => Self::Offload(offloads(&mut lines)?),
            "linerate-capture=1" => Self::Capture(capture(&mut lines)?),
            "linerate-ping=1" => Self::Ping(host(&mut lines)?),
            "linerate-endpoint-names=1" => Self::EndpointNames(endpoint_names(&mut lines)?),
            _ => return Err(UapiError { line: 1, key: None, reason: Reason::UnknownVerb }),
        };
        let trailing = |line| UapiError { line, key: None, reason: Reason::TrailingLines };
        match lines.next() {
            Some((line, _)) => Err(trailing(line)),
            // After the lines of the request and the empty line.
            None if !rest.is_empty() => Err(trailing(head.split('\n').count() + 2)),
            None => Ok(request),
        }
    }
}

/// Lines `NAME=on` and `NAME=off`.
fn offloads<'a>(
    lines: impl Iterator<Item = (usize, &'a str)>,
) -> Result<Vec<(String, bool)>, UapiError> {
    let offload = |(line, text): (usize, &str)| match text.split_once('=') {
        Some((name, "on")) => Ok((name.to_owned(), true)),
        Some((name, "off")) => Ok((name.to_owned(), false)),
        Some((name, value)) => Err(UapiError {
            line,
            key: Some(value::key_name(name)),
            reason: ValueError::new(Wanted::OnOff, value).into(),
        }),
        None => Err(UapiError { line, key: None, reason: Reason::NotAPair }),
    };
    lines.map(offload).collect()
}

/// The line `host=HOST`.
fn host<'a>(mut lines: impl Iterator<Item = (usize, &'a str)>) -> Result<String, UapiError> {
    let (line, text) = lines.next().unwrap_or((2, ""));
    let host = text.strip_prefix("host=").map(str::to_owned);
    host.ok_or(UapiError { line, key: None, reason: Reason::UnknownKey })
}

/// Pairs of lines `public_key=KEY` and `endpoint=HOST:PORT`, as [`write_endpoint_names`] writes them.
fn endpoint_names<'a>(
    mut lines: impl Iterator<Item = (usize, &'a str)>,
) -> Result<Vec<(PublicKey, EndpointName)>, UapiError> {
    let mut names = Vec::new();
    let mut next = |wanted: &'static str| {
        let (line, text) = lines.next()?;
        let value = text.strip_prefix(wanted).and_then(|rest| rest.strip_prefix('='));
        let wrong = UapiError { line, key: None, reason: Reason::UnknownKey };
        Some(value.map(|value| (line, value)).ok_or(wrong))
    };
    while let Some(key) = next("public_key") {
        let (line, key) = key?;
        let wrong = |line, reason: ValueError| UapiError { line, key: None, reason: reason.into() };
        let key = public_key(key).map_err(|reason| wrong(line, reason))?;
        let missing = UapiError { line: line + 1, key: None, reason: Reason::NotAPair };
        let (line, name) = next("endpoint").unwrap_or(Err(missing))?;
        let (host, port) = value::endpoint(name).map_err(|reason| wrong(line, reason))?;
        names.push((key, EndpointName { host: host.to_owned(), port }));
    }
    Ok(names)
}

/// Writes the lines of a request `linerate-endpoint-names=1`.
pub fn write_endpoint_names<'a>(
    names: impl IntoIterator<Item = (&'a PublicKey, &'a EndpointName)>,
) -> String {
    let pair = |(key, name): (&PublicKey, &EndpointName)| {
        format!("public_key={}\nendpoint={name}\n", key.to_hex())
    };
    names.into_iter().map(pair).collect()
}

/// Lines `snaplen=BYTES` and `public_key=KEY`, which may be absent.
fn capture<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<CaptureOptions, UapiError> {
    let mut options = CaptureOptions { snaplen: usize::MAX, peer: None };
    for (line, text) in lines {
        let (key, value) =
            text.split_once('=').ok_or(UapiError { line, key: None, reason: Reason::NotAPair })?;
        let mut set = || -> Result<(), Reason> {
            match key {
                "snaplen" => options.snaplen = snaplen(value)?,
                "public_key" => options.peer = Some(public_key(value)?),
                _ => return Err(Reason::UnknownKey),
            }
            Ok(())
        };
        set().map_err(|reason| UapiError { line, key: Some(value::key_name(key)), reason })?;
    }
    Ok(options)
}

fn snaplen(text: &str) -> Result<usize, ValueError> {
    value::decimal(text).ok_or_else(|| ValueError::new(Wanted::Bytes, text))
}

fn change<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Change, UapiError> {
    let mut change = Change::default();
    for (line, text) in lines {
        let (key, value) =
            text.split_once('=').ok_or(UapiError { line, key: None, reason: Reason::NotAPair })?;
        set(&mut change, key, value).map_err(|reason| UapiError {
            line,
            key: Some(value::key_name(key)),
            reason,
        })?;
    }
    Ok(change)
}

fn set(change: &mut Change, key: &str, value: &str) -> Result<(), Reason> {
    if key == "public_key" {
        change.device.peers.push(PeerChange::new(public_key(value)?));
        return Ok(());
    }
    match change.device.peers.last_mut() {
        None => set_device(change, key, value),
        Some(peer) => set_peer(peer, key, value),
    }
}

fn set_device(change: &mut Change, key: &str, value: &str) -> Result<(), Reason> {
    match key {
        "private_key" => change.device.private_key = Some(private_key(value)?),
        "listen_port" => change.listen_port = Some(value::port(value)?),
        "fwmark" if value.is_empty() => change.fwmark = Some(0),
        "fwmark" => change.fwmark = Some(value::mark(value)?),
        "replace_peers" => change.device.replace_peers = truth(value)?,
        _ if PEER_KEYS.contains(&key) => return Err(Reason::NoPeer),
        _ => return Err(Reason::UnknownKey),
    }
    Ok(())
}

fn set_peer(peer: &mut PeerChange, key: &str, value: &str) -> Result<(), Reason> {
    match key {
        "remove" => peer.remove = truth(value)?,
        "update_only" => peer.update_only = truth(value)?,
        "preshared_key" => peer.preshared_key = Some(preshared_key(value)?),
        "endpoint" => peer.endpoint = Some(endpoint(value)?),
        "persistent_keepalive_interval" => {
            peer.persistent_keepalive = Some(value::keepalive(value)?);
        }
        "replace_allowed_ips" => {
            peer.replace_allowed_ips = truth(value)?;
            // Lines apply in their order, but a `PeerChange` replaces first.
            peer.allowed_ips.clear();
        }
        "allowed_ip" => peer.allowed_ips.push(allowed_ip(value)?),
        "protocol_version" if value == "1" => {}
        "protocol_version" => return Err(Reason::ProtocolVersion),
        _ if DEVICE_KEYS.contains(&key) => return Err(Reason::DeviceKeyAfterPeer),
        _ => return Err(Reason::UnknownKey),
    }
    Ok(())
}

/// Returns `None` if the key is all zero.
fn private_key(text: &str) -> Result<Option<PrivateKey>, ValueError> {
    // Compared before it becomes a `PrivateKey`, which is clamped.
    if preshared_key(text)?.is_zero() {
        return Ok(None);
    }
    PrivateKey::from_hex(text).map(Some).map_err(|_| ValueError::secret(Wanted::HexKey))
}

fn public_key(text: &str) -> Result<PublicKey, ValueError> {
    PublicKey::from_hex(text).map_err(|_| ValueError::secret(Wanted::HexKey))
}

fn preshared_key(text: &str) -> Result<PresharedKey, ValueError> {
    PresharedKey::from_hex(text).map_err(|_| ValueError::secret(Wanted::HexKey))
}

fn truth(text: &str) -> Result<bool, ValueError> {
    if text == "true" { Ok(true) } else { Err(ValueError::new(Wanted::True, text)) }
}

fn endpoint(text: &str) -> Result<SocketAddr, ValueError> {
    let (host, port) = value::endpoint(text)?;
    let numeric = || ValueError::new(Wanted::NumericEndpoint, text);
    match host.split_once('%') {
        None => Ok((host.parse::<IpAddr>().map_err(|_| numeric())?, port).into()),
        Some((address, scope)) => {
            let address = address.parse::<Ipv6Addr>().map_err(|_| numeric())?;
            let scope =
                value::decimal(scope).ok_or_else(|| ValueError::new(Wanted::NumericScope, text))?;
            Ok(SocketAddrV6::new(address, port, 0, scope).into())
        }
    }
}

fn allowed_ip(text: &str) -> Result<AllowedIpChange, ValueError> {
    let (remove, net) = match text.strip_prefix('-') {
        Some(net) => (true, net),
        None => (false, text),
    };
    Ok(AllowedIpChange { net: value::network(net)?, remove })
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*, sample};

    use super::*;
    use crate::uapi::{DeviceState, write_errno, write_state};

    const KEY: &str = "b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33";

    fn changed(lines: &str) -> Change {
        match Request::parse(&format!("set=1\n{lines}\n\n")) {
            Ok(Request::Set(change)) => change,
            other => panic!("{other:?}"),
        }
    }

    fn changed_peer(lines: &str) -> PeerChange {
        changed(&format!("public_key={KEY}\n{lines}")).device.peers.remove(0)
    }

    fn refused(text: &str) -> (i32, String) {
        let error = Request::parse(text).unwrap_err();
        (error.errno(), error.to_string())
    }

    #[test]
    fn offloads_are_turned_on_and_off_by_name() {
        let request = Request::parse("linerate-offload=1\ntun-tso=off\nudp-gso=on\n\n");
        let expected = vec![("tun-tso".to_owned(), false), ("udp-gso".to_owned(), true)];
        assert_eq!(request, Ok(Request::Offload(expected)));
        let error = Request::parse("linerate-offload=1\ntun-tso=maybe\n\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: tun-tso: \"maybe\" is not on or off");
    }

    #[test]
    fn ping_contains_its_host() {
        let request = Request::parse("linerate-ping=1\nhost=a.example\n\n");
        assert_eq!(request, Ok(Request::Ping("a.example".into())));
        for text in
            ["linerate-ping=1\n\n", "linerate-ping=1\nto=a\n\n", "linerate-ping=1\nhost=a\nx\n\n"]
        {
            assert!(Request::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn verb_without_lines_parses_with_and_without_the_empty_line() {
        for (verb, request) in [
            ("get=1", Request::Get),
            ("set=1", Request::Set(Change::default())),
            ("linerate-stats=1", Request::Stats),
            ("linerate-down=1", Request::Down),
        ] {
            for end in ["", "\n", "\n\n"] {
                assert_eq!(Request::parse(&format!("{verb}{end}")), Ok(request.clone()), "{verb}");
            }
        }
    }

    #[test]
    fn request_of_wg_is_parsed() {
        let psk = "188515093e952f5f22e865cef3012e72f8b5f0b598ac0309d5dacce3b70fcf52";
        let change = changed(&format!(
            "private_key={KEY}\nlisten_port=12912\nfwmark=51820\nreplace_peers=true\n\
             public_key={KEY}\npreshared_key={psk}\nendpoint=[abcd:23::33%2]:51820\n\
             persistent_keepalive_interval=25\nreplace_allowed_ips=true\n\
             allowed_ip=192.168.4.4/32\nallowed_ip=-fd00::1/64\nprotocol_version=1\n\
             public_key={psk}\nupdate_only=true\nendpoint=182.122.22.19:3233\n\
             public_key={KEY}\nremove=true"
        ));
        assert_eq!((change.listen_port, change.fwmark), (Some(12912), Some(51820)));
        let device = change.device;
        assert_eq!(device.private_key, Some(Some(PrivateKey::from_hex(KEY).unwrap())));
        assert!(device.replace_peers);
        let key = PublicKey::from_hex(KEY).unwrap();
        let other = PublicKey::from_hex(psk).unwrap();
        let first = PeerChange {
            preshared_key: Some(PresharedKey::from_hex(psk).unwrap()),
            endpoint: Some("[abcd:23::33%2]:51820".parse().unwrap()),
            persistent_keepalive: Some(25),
            replace_allowed_ips: true,
            allowed_ips: vec![
                AllowedIpChange { net: "192.168.4.4/32".parse().unwrap(), remove: false },
                AllowedIpChange { net: "fd00::/64".parse().unwrap(), remove: true },
            ],
            ..PeerChange::new(key)
        };
        let second = PeerChange {
            update_only: true,
            endpoint: Some("182.122.22.19:3233".parse().unwrap()),
            ..PeerChange::new(other)
        };
        let third = PeerChange { remove: true, ..PeerChange::new(key) };
        assert_eq!(device.peers, [first, second, third]);
    }

    #[test]
    fn private_key_of_zeros_removes_the_key() {
        let change = changed(&format!("private_key={}", "0".repeat(64)));
        assert_eq!(change.device.private_key, Some(None));
    }

    #[test]
    fn a_mark_is_decimal_or_hexadecimal_or_absent() {
        for (text, mark) in [("", 0), ("0", 0), ("51820", 51820), ("0xca6c", 51820)] {
            assert_eq!(changed(&format!("fwmark={text}")).fwmark, Some(mark), "{text}");
        }
    }

    #[test]
    fn the_last_of_repeated_values_counts() {
        assert_eq!(changed("listen_port=1\nlisten_port=2").listen_port, Some(2));
        assert_eq!(
            changed_peer("endpoint=1.1.1.1:1\nendpoint=1.1.1.1:2").endpoint.unwrap().port(),
            2
        );
    }

    #[test]
    fn replace_allowed_ips_drops_earlier_lines() {
        let peer = changed_peer("allowed_ip=10.0.0.0/8\nreplace_allowed_ips=true\nallowed_ip=::/0");
        assert!(peer.replace_allowed_ips);
        assert_eq!(peer.allowed_ips.len(), 1);
        assert_eq!(peer.allowed_ips[0].net.to_string(), "::/0");
    }

    #[test]
    fn capture_has_all_bytes_of_all_peers_by_default() {
        let read = |lines: &str| match Request::parse(&format!("linerate-capture=1\n{lines}\n")) {
            Ok(Request::Capture(options)) => Ok(options),
            Err(error) => Err(error.to_string()),
            other => panic!("{other:?}"),
        };
        let all = CaptureOptions { snaplen: usize::MAX, peer: None };
        assert_eq!(read(""), Ok(all));
        let peer = Some(PublicKey::from_hex(KEY).unwrap());
        let lines = format!("snaplen=96\npublic_key={KEY}\n");
        assert_eq!(read(&lines), Ok(CaptureOptions { snaplen: 96, peer }));
        let refused = read("snaplen=-1\n").unwrap_err();
        assert_eq!(refused, "line 2: snaplen: \"-1\" is not a number of bytes");
        assert!(read("public_key=zz\n").is_err());
    }

    #[test]
    fn malformed_lines_are_protocol_errors() {
        for (text, error) in [
            ("", "line 1: a request starts with"),
            ("\n\n", "line 1: a request starts with"),
            ("get=2", "line 1: a request starts with"),
            ("listen_port=1", "line 1: a request starts with"),
            ("get=1\nlisten_port=1", "line 2: the request should have ended"),
            ("linerate-down=1\nx", "line 2: the request should have ended"),
            ("get=1\n\nget=1\n\n", "line 3: the request should have ended"),
            ("set=1\nlisten_port=1\n\n\n", "line 4: the request should have ended"),
            ("linerate-capture=1\nsnaplen", "line 2: not of the form"),
            ("linerate-capture=1\ncount=1", "line 2: count: unknown key"),
            ("set=1\nlisten_port", "line 2: not of the form key=value"),
            ("set=1\nlisten_prt=1", "line 2: listen_prt: unknown key"),
            ("set=1\n=1", "line 2: …: unknown key"),
            ("set=1\nListen_Port=1", "line 2: Listen_Port: unknown key"),
            ("set=1\nendpoint=1.1.1.1:1", "line 2: endpoint: a key of a peer, before any"),
            ("set=1\nprotocol_version=1", "line 2: protocol_version: a key of a peer"),
            ("set=1\npublic_key=K\nfwmark=1", "line 3: fwmark: a key of the device, after"),
            ("set=1\npublic_key=K\nprotocol_version=2", "line 3: protocol_version: the only"),
            ("set=1\npublic_key=K\nrx_bytes=2", "line 3: rx_bytes: unknown key"),
        ] {
            let (errno, shown) = refused(&text.replace('K', KEY));
            assert_eq!(errno, 71, "{text:?}");
            assert!(shown.starts_with(error), "{text:?}: {shown}");
        }
    }

    #[test]
    fn invalid_values_are_einval() {
        for (line, error) in [
            ("private_key=", "not a key of 64"),
            ("private_key=00", "not a key of 64"),
            ("listen_port=65536", "\"65536\" is not a port"),
            ("listen_port=1\r", "\"1\\r\" is not a port"),
            ("fwmark=-1", "\"-1\" is not a mark"),
            ("replace_peers=false", "\"false\" is not true"),
            ("public_key=zz", "not a key of 64"),
        ] {
            let key = line.split_once('=').unwrap().0;
            let (errno, shown) = refused(&format!("set=1\n{line}\n\n"));
            assert_eq!(errno, 22, "{line}");
            assert!(shown.starts_with(&format!("line 2: {key}: {error}")), "{line}: {shown}");
        }
        for (line, error) in [
            ("remove=1", "\"1\" is not true"),
            ("update_only=", "\"\" is not true"),
            ("preshared_key=0", "not a key of 64"),
            ("endpoint=example.com:51820", "\"example.com:51820\" is not an endpoint: 192."),
            ("endpoint=[fe80::1%eth0]:1", "\"[fe80::1%eth0]:1\" is not an endpoint: the scope"),
            ("endpoint=[fe80::1%4294967296]:1", "\"[fe80::1%4294967296]:1\" is not"),
            ("endpoint=1.1.1.1:99999", "\"99999\" is not a port"),
            ("persistent_keepalive_interval=off", "\"off\" is not a number of seconds"),
            ("replace_allowed_ips=yes", "\"yes\" is not true"),
            ("allowed_ip=--10.0.0.0/8", "\"-10.0.0.0/8\" is not an IP address or network"),
            ("allowed_ip=", "\"\" is not an IP address or network"),
        ] {
            let key = line.split_once('=').unwrap().0;
            let (errno, shown) = refused(&format!("set=1\npublic_key={KEY}\n{line}\n\n"));
            assert_eq!(errno, 22, "{line}");
            assert!(shown.starts_with(&format!("line 3: {key}: {error}")), "{line}: {shown}");
        }
    }

    #[test]
    fn errors_never_contain_key_material() {
        let keys = DEVICE_KEYS.iter().chain(&PEER_KEYS).chain(&["public_key", "x", ""]);
        let lines = keys.map(|key| format!("{key}={KEY}0")).chain([
            KEY.to_owned(),
            format!("{KEY}="),
            format!("allowed_ip={KEY}/0"),
            format!("endpoint={KEY}:1"),
            format!("endpoint=1.1.1.1:{KEY}"),
        ]);
        for line in lines {
            for head in ["", "set=1\n", &format!("set=1\npublic_key={KEY}\n")] {
                let error = Request::parse(&format!("{head}{line}")).unwrap_err();
                for shown in [error.to_string(), format!("{error:?}")] {
                    assert!(!shown.contains(&KEY[8..16]), "{shown}");
                }
            }
        }
    }

    #[test]
    fn twenty_thousand_peers_are_parsed() {
        let mut text = "set=1\nreplace_peers=true\n".to_owned();
        for i in 0..20_000_u32 {
            let ip = i.to_be_bytes();
            text += &format!(
                "public_key={i:064x}\npreshared_key={KEY}\nendpoint=192.0.2.{}:{}\n\
                 persistent_keepalive_interval=25\nreplace_allowed_ips=true\n\
                 allowed_ip=10.{}.{}.{}/32\nallowed_ip=fd00::{i:x}:0/112\n",
                i % 256,
                1 + i % 65535,
                ip[1],
                ip[2],
                ip[3],
            );
        }
        let Ok(Request::Set(change)) = Request::parse(&text) else { panic!() };
        assert_eq!(change.device.peers.len(), 20_000);
        assert_eq!(change.device.peers[19_999].allowed_ips.len(), 2);
    }

    /// The change that sets a state read by `get`.
    fn as_change(state: &DeviceState) -> Change {
        let peers = state.peers.iter().map(|peer| PeerChange {
            preshared_key: Some(peer.preshared_key.clone()),
            endpoint: peer.endpoint,
            persistent_keepalive: Some(peer.persistent_keepalive),
            allowed_ips: peer
                .allowed_ips
                .iter()
                .map(|&net| AllowedIpChange { net, remove: false })
                .collect(),
            ..PeerChange::new(peer.public_key)
        });
        let mut change = Change {
            listen_port: (state.listen_port != 0).then_some(state.listen_port),
            fwmark: (state.fwmark != 0).then_some(state.fwmark),
            ..Change::default()
        };
        change.device.private_key = state.private_key.clone().map(Some);
        change.device.peers = peers.collect();
        change
    }

    proptest! {
        #[test]
        fn written_state_reads_back_as_the_same_change(state in crate::strategies::device_state()) {
            let mut answer = String::new();
            write_state(&mut answer, &state);
            write_errno(&mut answer, 0);
            let mut request = "set=1\n".to_owned();
            for line in answer.lines() {
                let key = line.split('=').next().unwrap();
                let only_told = key.starts_with("last_handshake_time_") || key.ends_with("x_bytes");
                if !only_told && key != "errno" {
                    request += &format!("{line}\n");
                }
            }
            prop_assert_eq!(Request::parse(&request), Ok(Request::Set(as_change(&state))));
        }

        #[test]
        fn arbitrary_text_never_panics(text in any::<String>()) {
            let _ = Request::parse(&text);
            let _ = Request::parse(&format!("set=1\n{text}"));
        }

        #[test]
        fn lines_with_known_keys_never_panic(
            lines in collection::vec(
                (sample::select([&DEVICE_KEYS[..], &PEER_KEYS].concat()), "[-0-9a-fx.:/%\\[\\]]{0,24}"),
                0..8,
            ),
        ) {
            for head in ["set=1", &format!("set=1\npublic_key={KEY}")] {
                let lines = lines.iter().map(|(key, value)| format!("\n{key}={value}"));
                let _ = Request::parse(&(head.to_owned() + &lines.collect::<String>()));
            }
        }
    }
}
