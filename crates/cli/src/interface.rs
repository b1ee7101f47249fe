//! The state of a running peer, parsed once. Private keys do not leave this module.

use std::{fs, time::Duration};

use host::sockets::folders;
use wg::{PrivateKey, PublicKey};

use crate::client::Client;

/// One interface.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Interface {
    pub name: String,
    pub public_key: Option<PublicKey>,
    pub listen_port: Option<u16>,
    pub fwmark: Option<u32>,
    pub peers: Vec<Peer>,
    /// What only linerate reports; absent if another implementation serves the interface.
    pub own: Option<Own>,
}

/// One peer of an interface.
#[derive(Debug, PartialEq)]
pub(crate) struct Peer {
    pub public_key: String,
    pub has_preshared_key: bool,
    pub endpoint: Option<String>,
    /// In seconds.
    pub persistent_keepalive: Option<u16>,
    /// The time of the last handshake since the Unix epoch.
    pub last_handshake: Option<Duration>,
    pub rx_bytes: u64,
    pub tx_bytes: u64,
    pub allowed_ips: Vec<String>,
    /// The longest packet inside the tunnel that arrives there, in bytes; only of linerate, once
    /// measured.
    pub path_mtu: Option<u16>,
}

/// What only linerate reports.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Own {
    pub version: Option<String>,
    /// The encryption code in use.
    pub aead: Option<String>,
    /// The sizes of the socket's buffers in bytes.
    pub receive_buffer: u64,
    pub send_buffer: u64,
    pub offloads: Vec<Offload>,
    /// Dropped packets by reason, including zeros.
    pub drops: Vec<(String, u64)>,
    pub load: Load,
    /// Each part of the sandbox, and whether the kernel enforces it `wholly`, `partly` or `not`.
    pub sandbox: Vec<(String, String)>,
    /// Why there is no sandbox.
    pub sandbox_off: Option<String>,
    /// Networks that it offers to its peers.
    pub offers: Vec<String>,
    /// Of a proxy: its stack, and its services with their addresses.
    pub stack: Option<String>,
    pub services: Vec<(String, String)>,
}

/// Load counters since the daemon's start, each a count and a sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Load {
    /// Batches to the network, and the datagrams in all of them.
    pub outbound: (u64, u64),
    /// Batches from the network, and the data messages in all of them.
    pub inbound: (u64, u64),
    /// Rounds with queued packets, and the microseconds that the oldest of each waited, summed.
    pub queued: (u64, u64),
    /// Our handshakes that were answered, and the microseconds until then, summed.
    pub handshakes: (u64, u64),
}

/// An offload of the kernel.
#[derive(Debug, PartialEq)]
pub(crate) struct Offload {
    pub name: String,
    pub wanted: bool,
    /// How often the kernel refused it.
    pub demotions: u64,
}

/// The named interface, or all that answer.
///
/// # Errors
/// The named interface does not answer.
pub(crate) fn ask(name: Option<&str>) -> anyhow::Result<Vec<Interface>> {
    let names = name.map_or_else(running, |name| vec![name.to_owned()]);
    let mut interfaces = Vec::new();
    for name_of_one in names {
        let mut client = match Client::connect(&name_of_one) {
            Ok(client) => client,
            // The socket of a dead process.
            Err(_) if name.is_none() => continue,
            Err(error) => return Err(error),
        };
        let mut interface = Interface::parse(name_of_one, &client.ask("get")?);
        if let Ok(counters) = client.ask("linerate-stats") {
            interface.learn(&counters);
        }
        interfaces.push(interface);
    }
    Ok(interfaces)
}

/// Every interface with a socket.
fn running() -> Vec<String> {
    let entries = folders().filter_map(|folder| fs::read_dir(folder).ok());
    let mut names: Vec<String> = entries
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".sock").map(str::to_owned))
        .collect();
    names.sort();
    names.dedup();
    names
}

impl Interface {
    /// Reads the answer to `get=1`.
    pub fn parse(name: String, state: &str) -> Self {
        let mut interface = Self { name, ..Self::default() };
        for (key, value) in pairs(state) {
            match (key, interface.peers.last_mut()) {
                ("public_key", _) => interface.peers.push(Peer::new(value)),
                (_, Some(peer)) => peer.take(key, value),
                ("private_key", None) => {
                    let key = PrivateKey::from_hex(value).ok();
                    interface.public_key = key.map(|key| key.public_key());
                }
                ("listen_port", None) => interface.listen_port = value.parse().ok(),
                ("fwmark", None) => interface.fwmark = value.parse().ok(),
                _ => {}
            }
        }
        interface
    }

    /// Reads the answer to `linerate-stats=1`.
    pub fn learn(&mut self, counters: &str) {
        self.own = Some(Own::parse(counters));
        let paths = pairs(counters).filter(|(key, _)| *key == "path_mtu");
        for (key, mtu) in paths.filter_map(|(_, path)| path.split_once(' ')) {
            let peer = self.peers.iter_mut().find(|peer| peer.public_key == key);
            peer.into_iter().for_each(|peer| peer.path_mtu = mtu.parse().ok());
        }
    }
}

impl Peer {
    fn new(key: &str) -> Self {
        let public_key = PublicKey::from_hex(key).map_or_else(|_| key.into(), |k| k.to_base64());
        Self {
            public_key,
            has_preshared_key: false,
            endpoint: None,
            persistent_keepalive: None,
            last_handshake: None,
            rx_bytes: 0,
            tx_bytes: 0,
            allowed_ips: Vec::new(),
            path_mtu: None,
        }
    }

    fn take(&mut self, key: &str, value: &str) {
        let number = || value.parse::<u64>().unwrap_or_default();
        match key {
            "preshared_key" => self.has_preshared_key = value.contains(|digit| digit != '0'),
            "endpoint" => self.endpoint = Some(value.to_owned()),
            "persistent_keepalive_interval" => {
                self.persistent_keepalive = value.parse().ok().filter(|seconds| *seconds != 0);
            }
            "last_handshake_time_sec" if value != "0" => {
                self.last_handshake = Some(Duration::from_secs(number()));
            }
            "last_handshake_time_nsec" => {
                let nanos = Duration::from_nanos(number());
                self.last_handshake = self.last_handshake.map(|seconds| seconds + nanos);
            }
            "rx_bytes" => self.rx_bytes = number(),
            "tx_bytes" => self.tx_bytes = number(),
            "allowed_ip" => self.allowed_ips.push(value.to_owned()),
            _ => {}
        }
    }
}

impl Own {
    pub fn parse(counters: &str) -> Self {
        let mut own = Self::default();
        for (key, value) in pairs(counters) {
            let number = || value.parse().unwrap_or_default();
            if let Some(name) = key.strip_prefix("offload_") {
                let (name, wanted) = (name.to_owned(), value == "on");
                own.offloads.push(Offload { name, wanted, demotions: 0 });
            } else if let Some(name) = key.strip_prefix("demotions_") {
                let offload = own.offloads.iter_mut().find(|offload| offload.name == name);
                offload.into_iter().for_each(|offload| offload.demotions = number());
            } else {
                match key {
                    "version" => own.version = Some(value.to_owned()),
                    "aead" => own.aead = Some(value.to_owned()),
                    "sandbox" => {
                        let (what, state) = value.rsplit_once(": ").unwrap_or((value, ""));
                        own.sandbox.push((what.to_owned(), state.to_owned()));
                    }
                    "sandbox_off" => own.sandbox_off = Some(value.to_owned()),
                    "offers" => own.offers.push(value.to_owned()),
                    "stack" => own.stack = Some(value.to_owned()),
                    "service" => {
                        let (kind, place) = value.split_once(' ').unwrap_or((value, ""));
                        own.services.push((kind.to_owned(), place.to_owned()));
                    }
                    "udp_receive_buffer" => own.receive_buffer = number(),
                    "udp_send_buffer" => own.send_buffer = number(),
                    "load_out_batches" => own.load.outbound.0 = number(),
                    "load_out_packets" => own.load.outbound.1 = number(),
                    "load_in_batches" => own.load.inbound.0 = number(),
                    "load_in_packets" => own.load.inbound.1 = number(),
                    "load_queue_rounds" => own.load.queued.0 = number(),
                    "load_queue_micros" => own.load.queued.1 = number(),
                    "load_handshakes" => own.load.handshakes.0 = number(),
                    "load_handshake_micros" => own.load.handshakes.1 = number(),
                    // Of a peer.
                    "path_mtu" | "errno" => {}
                    reason => own.drops.push((reason.to_owned(), number())),
                }
            }
        }
        own
    }
}

fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_peer_by_peer() {
        let (key, other) = ("a8".repeat(32), "b9".repeat(32));
        let state = format!(
            "private_key={key}\nlisten_port=51820\nfwmark=7\npublic_key={key}\n\
             preshared_key={key}\nendpoint=[fe80::1%2]:1\nlast_handshake_time_sec=5\n\
             last_handshake_time_nsec=6\nrx_bytes=2048\ntx_bytes=18446744073709551615\n\
             persistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\nallowed_ip=::/0\n\
             public_key={other}\npreshared_key={}\nlast_handshake_time_sec=0\n\
             last_handshake_time_nsec=0\npersistent_keepalive_interval=0\nerrno=0\n\n",
            "0".repeat(64)
        );
        let interface = Interface::parse("wg0".into(), &state);
        let private = PrivateKey::from_hex(&key).unwrap();
        assert_eq!(interface.public_key, Some(private.public_key()));
        assert_eq!((interface.listen_port, interface.fwmark), (Some(51820), Some(7)));
        let [first, second] = &interface.peers[..] else { panic!("{interface:?}") };
        let expected = Peer {
            has_preshared_key: true,
            endpoint: Some("[fe80::1%2]:1".into()),
            persistent_keepalive: Some(25),
            last_handshake: Some(Duration::new(5, 6)),
            rx_bytes: 2048,
            tx_bytes: u64::MAX,
            allowed_ips: vec!["10.0.0.0/8".into(), "::/0".into()],
            ..Peer::new(&key)
        };
        assert_eq!((first, second), (&expected, &Peer::new(&other)));
    }

    #[test]
    fn a_path_mtu_belongs_to_its_peer() {
        let keys = ["a8".repeat(32), "b9".repeat(32)];
        let state = format!("public_key={}\npublic_key={}\n", keys[0], keys[1]);
        let mut interface = Interface::parse("wg0".into(), &state);
        let second = interface.peers[1].public_key.clone();
        interface.learn(&format!("path_mtu=somebody 9000\npath_mtu={second} 1380\n"));
        let mtus: Vec<_> = interface.peers.iter().map(|peer| peer.path_mtu).collect();
        assert_eq!(mtus, [None, Some(1380)]);
        assert_eq!(interface.own, Some(Own::default()), "it is counted as a drop");
    }

    #[test]
    fn unknown_counters_are_drops() {
        let own = Own::parse(
            "in_forged=3\nin_replayed=0\nudp_receive_buffer=4194304\nudp_send_buffer=9\nversion=1.2.3\naead=avx2\n\
             load_out_batches=2\nload_out_packets=9\nload_in_batches=3\nload_in_packets=4\n\
             load_queue_rounds=5\nload_queue_micros=6\n\
             load_handshakes=7\nload_handshake_micros=8\n\
             offload_tun-tso=on\ndemotions_tun-tso=0\noffload_udp-gso=off\n\
             demotions_udp-gso=2\nsandbox=files (landlock): partly\nsandbox=calls: wholly\n\
             sandbox_off=no\noffers=::/0\nstack=namespace\nservice=socks5 127.0.0.1:1080\nerrno=0\n",
        );
        let offload =
            |name: &str, wanted, demotions| Offload { name: name.into(), wanted, demotions };
        let expected = Own {
            version: Some("1.2.3".into()),
            aead: Some("avx2".into()),
            receive_buffer: 4_194_304,
            send_buffer: 9,
            offloads: vec![offload("tun-tso", true, 0), offload("udp-gso", false, 2)],
            drops: vec![("in_forged".into(), 3), ("in_replayed".into(), 0)],
            sandbox: [("files (landlock)", "partly"), ("calls", "wholly")]
                .map(|(what, state)| (what.into(), state.into()))
                .into(),
            sandbox_off: Some("no".into()),
            offers: vec!["::/0".into()],
            stack: Some("namespace".into()),
            load: Load { outbound: (2, 9), inbound: (3, 4), queued: (5, 6), handshakes: (7, 8) },
            services: vec![("socks5".into(), "127.0.0.1:1080".into())],
        };
        assert_eq!(own, expected);
    }
}
