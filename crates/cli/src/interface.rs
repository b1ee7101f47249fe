//! The state of a running peer, parsed once. Private keys do not leave this module.

use std::{collections::HashMap, fs, time::Duration};

use clap::Args;
use config::uapi::{Stats, parse_state};
use host::{
    resolve_scopes,
    sockets::{find_socket, folders},
};
use wg::{PublicKey, config::PeerState};

use crate::client::{Client, in_this_namespace, only_name};

/// One interface.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Interface {
    pub name: String,
    pub public_key: Option<PublicKey>,
    pub listen_port: Option<u16>,
    pub fwmark: Option<u32>,
    pub peers: Vec<PeerState>,
    /// Statistics that only linerate reports; absent if another implementation serves the interface.
    pub own: Option<Stats>,
}

/// The interface that a command is for.
#[derive(Args, Clone, Default)]
pub(crate) struct InterfaceSelector {
    /// The interface, or the name of the proxy; optional if only one runs on this machine.
    #[arg(value_name = "IFACE")]
    positional: Option<String>,
    /// The same as an option.
    #[arg(short, long, value_name = "IFACE", conflicts_with = "positional")]
    interface: Option<String>,
}

impl InterfaceSelector {
    /// The name, if it was given.
    pub(crate) fn given(&self) -> Option<&str> {
        self.interface.as_deref().or(self.positional.as_deref())
    }

    /// The name that was given, or that of the only interface.
    ///
    /// # Errors
    /// No interface runs, or several run.
    pub(crate) fn name(&self) -> anyhow::Result<String> {
        if let Some(name) = self.given() {
            return Ok(name.to_owned());
        }
        let named = running().into_iter().map(|name| (find_socket(&name), name));
        let absent = "no interface and no proxy of linerate runs on this machine";
        only_name(&in_this_namespace(named), "interfaces", absent)
    }
}

/// Queries the named interface, or all that answer.
///
/// # Errors
/// The named interface does not answer.
pub(crate) fn query(name: Option<&str>) -> anyhow::Result<Vec<Interface>> {
    let names = name.map_or_else(running, |name| vec![name.to_owned()]);
    let mut interfaces = Vec::new();
    for each in names {
        let mut client = match Client::connect(&each) {
            Ok(client) => client,
            // The socket of a dead process.
            Err(_) if name.is_none() => continue,
            Err(error) => return Err(error),
        };
        let mut interface = Interface::parse(each, &client.request("get")?);
        if let Ok(counters) = client.request("linerate-stats") {
            interface.read_stats(&counters);
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
    pub(crate) fn parse(name: String, state: &str) -> Self {
        let numbered = resolve_scopes(state);
        let state = parse_state(numbered.as_ref().map_or(state, |numbered| numbered.as_str()));
        Self {
            name,
            public_key: state.private_key.map(|key| key.public_key()),
            listen_port: Some(state.listen_port).filter(|port| *port != 0),
            fwmark: Some(state.fwmark).filter(|mark| *mark != 0),
            peers: state.peers,
            own: None,
        }
    }

    /// Reads the answer to `linerate-stats=1`.
    pub(crate) fn read_stats(&mut self, stats: &str) {
        let stats = Stats::parse(stats);
        let mut peers: HashMap<PublicKey, &mut PeerState> =
            self.peers.iter_mut().map(|peer| (peer.public_key, peer)).collect();
        for (key, mtu) in &stats.path_mtus {
            peers.get_mut(key).into_iter().for_each(|peer| peer.path_mtu = Some(*mtu));
        }
        for (key, agreed) in &stats.post_quantum {
            let agreed = Some(Duration::from_secs(*agreed));
            peers.get_mut(key).into_iter().for_each(|peer| peer.post_quantum = agreed);
        }
        self.own = Some(stats);
    }
}

#[cfg(test)]
mod tests {
    use config::uapi::{LoadStats, OffloadStats, ProxyStats, Service, SocketStats, Sum};
    use wg::{DropReason, PresharedKey, PrivateKey};

    use super::*;

    #[test]
    fn state_is_parsed_peer_by_peer() {
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
        let expected = PeerState {
            preshared_key: PresharedKey::from_hex(&key).unwrap(),
            endpoint: Some("[fe80::1%2]:1".parse().unwrap()),
            persistent_keepalive: 25,
            last_handshake: Some(Duration::new(5, 6)),
            rx_bytes: 2048,
            tx_bytes: u64::MAX,
            allowed_ips: vec!["10.0.0.0/8".parse().unwrap(), "::/0".parse().unwrap()],
            ..PeerState::new(PublicKey::from_hex(&key).unwrap())
        };
        let bare = PeerState::new(PublicKey::from_hex(&other).unwrap());
        assert_eq!((first, second), (&expected, &bare));
    }

    #[test]
    fn a_path_mtu_belongs_to_its_peer() {
        let keys = ["a8".repeat(32), "b9".repeat(32)];
        let state = format!("public_key={}\npublic_key={}\n", keys[0], keys[1]);
        let mut interface = Interface::parse("wg0".into(), &state);
        let second = interface.peers[1].public_key.to_base64();
        interface.read_stats(&format!("path_mtu=invalid 9000\npath_mtu={second} 1380\n"));
        let mtus: Vec<_> = interface.peers.iter().map(|peer| peer.path_mtu).collect();
        assert_eq!(mtus, [None, Some(1380)]);
        let own = interface.own.unwrap();
        assert_eq!((own.path_mtus.len(), own.drops.len()), (1, 0), "it is counted as a drop");
    }

    #[test]
    fn statistics_are_read_into_their_types() {
        let own = Stats::parse(
            "in_forged=3\nin_replayed=0\nudp_receive_buffer=4194304\nudp_send_buffer=9\nversion=1.2.3\naead=avx2\n\
             load_out_batches=2\nload_out_packets=9\nload_in_batches=3\nload_in_packets=4\n\
             load_queue_rounds=5\nload_queue_micros=6\n\
             load_handshakes=7\nload_handshake_micros=8\n\
             offload_tun-tso=on\ndemotions_tun-tso=0\noffload_udp-gso=off\n\
             demotions_udp-gso=2\nsandbox=files (landlock): partly\nsandbox=calls: wholly\n\
             sandbox_off=no\noffers=::/0\nstack=namespace\nservice=socks5 127.0.0.1:1080\nerrno=0\n",
        );
        let offload =
            |name: &str, wanted, demotions| OffloadStats { name: name.into(), wanted, demotions };
        let sum = |count, sum| Sum { count, sum };
        let expected = Stats {
            version: Some("1.2.3".into()),
            aead: Some("avx2".into()),
            socket: SocketStats { receive_buffer: 4_194_304, send_buffer: 9, ..Default::default() },
            offloads: vec![offload("tun-tso", true, 0), offload("udp-gso", false, 2)],
            drops: vec![(DropReason::InForged, 3), (DropReason::InReplayed, 0)],
            sandbox: [("files (landlock)", "partly"), ("calls", "wholly")]
                .map(|(what, state)| (what.into(), state.into()))
                .into(),
            sandbox_off: Some("no".into()),
            offers: vec!["::/0".parse().unwrap()],
            load: LoadStats {
                outbound: sum(2, 9),
                inbound: sum(3, 4),
                queued: sum(5, 6),
                handshakes: sum(7, 8),
            },
            proxy: Some(ProxyStats {
                stack: "namespace".into(),
                services: vec![Service { kind: "socks5".into(), place: "127.0.0.1:1080".into() }],
                ..ProxyStats::default()
            }),
            path_mtus: Vec::new(),
            post_quantum: Vec::new(),
        };
        assert_eq!(own, expected);
    }
}
