//! Output for programs. The schema is `docs/json.md`, which changes with this file.

use config::uapi::{OffloadStats, ProxyStats, Service, Stats};
use serde_json::{Map, Value, json};
use wg::{PresharedKey, config::PeerState};

use crate::interface::Interface;

/// Incremented when a key is removed or changes its meaning, but not for new keys.
const SCHEMA: u32 = 1;

pub(super) fn describe(interfaces: &[Interface]) -> Value {
    json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "interfaces": interfaces.iter().map(interface).collect::<Vec<_>>(),
    })
}

fn interface(interface: &Interface) -> Value {
    json!({
        "name": interface.name,
        "public_key": interface.public_key.as_ref().map(wg::PublicKey::to_base64),
        "listen_port": interface.listen_port,
        "fwmark": interface.fwmark,
        "peers": interface.peers.iter().map(peer).collect::<Vec<_>>(),
        "linerate": interface.own.as_ref().map(own),
    })
}

fn peer(peer: &PeerState) -> Value {
    let keepalive = Some(peer.persistent_keepalive).filter(|seconds| *seconds != 0);
    let allowed_ips: Vec<_> = peer.allowed_ips.iter().map(ToString::to_string).collect();
    json!({
        "public_key": peer.public_key.to_base64(),
        "has_preshared_key": peer.preshared_key != PresharedKey::default(),
        "endpoint": peer.endpoint.map(|endpoint| endpoint.to_string()),
        "allowed_ips": allowed_ips,
        "persistent_keepalive": keepalive,
        "last_handshake": peer.last_handshake.map(|time| time.as_secs_f64()),
        "rx_bytes": peer.rx_bytes,
        "tx_bytes": peer.tx_bytes,
        "path_mtu": peer.path_mtu,
        "post_quantum": peer.post_quantum.map(|time| time.as_secs()),
    })
}

fn own(own: &Stats) -> Value {
    let offload = |offload: &OffloadStats| {
        let state = json!({ "wanted": offload.wanted, "demotions": offload.demotions });
        (offload.name.clone(), state)
    };
    let drops = own.losses().into_iter();
    let drops = drops.map(|(reason, count)| (reason.to_owned(), json!(count)));
    let part = |(what, state): &(String, String)| json!({ "what": what, "state": state });
    let sandbox = json!({
        "parts": own.sandbox.iter().map(part).collect::<Vec<_>>(),
        "off": own.sandbox_off,
    });
    let is_reported = own.sandbox_off.is_some() || !own.sandbox.is_empty();
    json!({
        "version": own.version,
        "aead": own.aead,
        "receive_buffer": own.socket.receive_buffer,
        "send_buffer": own.socket.send_buffer,
        "load": {
            "out_batches": own.load.outbound.count,
            "out_packets": own.load.outbound.sum,
            "in_batches": own.load.inbound.count,
            "in_packets": own.load.inbound.sum,
            "queue_rounds": own.load.queued.count,
            "queue_micros": own.load.queued.sum,
            "handshakes": own.load.handshakes.count,
            "handshake_micros": own.load.handshakes.sum,
        },
        "offloads": own.offloads.iter().map(offload).collect::<Map<_, _>>(),
        "drops": drops.collect::<Map<_, _>>(),
        "sandbox": is_reported.then_some(sandbox),
        "offers": own.offers.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "proxy": own.proxy.as_ref().map(proxy),
    })
}

fn proxy(proxy: &ProxyStats) -> Value {
    let service = |Service { kind, place }: &Service| json!({ "kind": kind, "at": place });
    let services: Vec<_> = proxy.services.iter().map(service).collect();
    json!({ "stack": proxy.stack, "services": services })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_shown_except_secrets() {
        let (key, preshared) = ("a8".repeat(32), "b9".repeat(32));
        let state = format!(
            "private_key={key}\nlisten_port=51820\npublic_key={}\npreshared_key={preshared}\n\
             endpoint=192.0.2.1:1\nlast_handshake_time_sec=4\nlast_handshake_time_nsec=500000000\n\
             rx_bytes=18446744073709551615\ntx_bytes=5\npersistent_keepalive_interval=0\n\
             allowed_ip=10.0.0.0/8\nerrno=0\n\n",
            "c7".repeat(32)
        );
        let counters = "in_forged=3\nin_replayed=0\nudp_receive_buffer=8\nudp_send_buffer=6\nversion=1.2.3\n\
                        aead=avx512\nsandbox=files (landlock): wholly\noffers=10.0.0.0/8\nload_out_batches=2\nload_out_packets=9\n\
                        load_queue_micros=6\nload_handshakes=3\noffload_udp-gso=off\ndemotions_udp-gso=2\nerrno=0\n";
        let mut one = Interface::parse("wg0".into(), &state);
        let peer = one.peers[0].public_key.to_base64();
        one.read_stats(&format!(
            "path_mtu={peer} 1380\npost_quantum={peer} 1700000000\n{counters}"
        ));
        let public = wg::PrivateKey::from_hex(&key).unwrap().public_key().to_base64();
        let described = describe(&[one]);
        assert_eq!(
            described,
            json!({
                "schema": 1,
                "version": env!("CARGO_PKG_VERSION"),
                "interfaces": [{
                    "name": "wg0",
                    "public_key": public,
                    "listen_port": 51820,
                    "fwmark": null,
                    "peers": [{
                        "public_key": wg::PublicKey::from([0xc7; 32]).to_base64(),
                        "has_preshared_key": true,
                        "endpoint": "192.0.2.1:1",
                        "allowed_ips": ["10.0.0.0/8"],
                        "persistent_keepalive": null,
                        "last_handshake": 4.5,
                        "rx_bytes": u64::MAX,
                        "tx_bytes": 5,
                        "path_mtu": 1380,
                        "post_quantum": 1_700_000_000,
                    }],
                    "linerate": {
                        "version": "1.2.3",
                        "aead": "avx512",
                        "receive_buffer": 8,
                        "send_buffer": 6,
                        "load": {
                            "out_batches": 2, "out_packets": 9, "in_batches": 0,
                            "in_packets": 0, "queue_rounds": 0, "queue_micros": 6,
                            "handshakes": 3, "handshake_micros": 0,
                        },
                        "offloads": { "udp-gso": { "wanted": false, "demotions": 2 } },
                        "drops": {
                            "in_forged": 3, "in_replayed": 0, "udp_overflow": 0, "udp_truncated": 0,
                        },
                        "sandbox": {
                            "parts": [{ "what": "files (landlock)", "state": "wholly" }],
                            "off": null,
                        },
                        "offers": ["10.0.0.0/8"],
                        "proxy": null,
                    },
                }],
            })
        );
        let base64 = |hex: &str| wg::PublicKey::from_hex(hex).unwrap().to_base64();
        for secret in [&key, &preshared, &base64(&key), &base64(&preshared)] {
            assert!(!described.to_string().contains(&secret[..12]));
        }
    }

    #[test]
    fn another_implementation_and_a_bare_interface_have_nulls() {
        let described = describe(&[Interface::parse("wg0".into(), "errno=0\n\n")]);
        let interface = &described["interfaces"][0];
        assert_eq!(interface["linerate"], Value::Null);
        assert_eq!((&interface["public_key"], &interface["peers"]), (&Value::Null, &json!([])));
    }

    #[test]
    fn proxy_services_are_described() {
        let own = Stats::parse("stack=in-process\nservice=socks5 127.0.0.1:1080\n");
        let proxy = json!({
            "stack": "in-process",
            "services": [{ "kind": "socks5", "at": "127.0.0.1:1080" }],
        });
        assert_eq!(super::own(&own)["proxy"], proxy);
    }
}
