//! Arbitrary device states and changes for property tests.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    time::Duration,
};

use ipnet::IpNet;
use proptest::{collection, option, prelude::*};
use wg::{
    DropReason, PresharedKey, PrivateKey, PublicKey,
    config::{AllowedIpChange, DeviceChange, PeerChange, PeerState},
};

use crate::uapi::{
    Change, DeviceState, LoadStats, OffloadStats, ProxyStats, Service, SocketStats, StackDrops,
    Stats, Sum,
};

pub fn device_state() -> impl Strategy<Value = DeviceState> {
    let private_key =
        option::of(any::<[u8; 32]>().prop_map(|bytes| PrivateKey::from_bytes(&bytes)));
    // A map, because the keys of a device's peers are distinct.
    let peers = collection::btree_map(any::<[u8; 32]>(), peer(), 0..6);
    (private_key, any::<u16>(), prop_oneof![Just(0), any::<u32>()], peers).prop_map(
        |(private_key, listen_port, fwmark, peers)| DeviceState {
            private_key,
            listen_port,
            fwmark,
            peers: peers
                .into_iter()
                .map(|(key, peer)| PeerState { public_key: PublicKey::from(key), ..peer })
                .collect(),
        },
    )
}

fn peer() -> impl Strategy<Value = PeerState> {
    (
        prop_oneof![Just([0; 32]), any::<[u8; 32]>()],
        option::of(endpoint()),
        option::of((any::<u32>(), 0..1_000_000_000_u32)),
        any::<[u64; 2]>(),
        prop_oneof![Just(0), any::<u16>()],
        collection::vec(network(), 0..5),
    )
        .prop_map(
            |(psk, endpoint, handshake, [rx_bytes, tx_bytes], keepalive, allowed_ips)| PeerState {
                public_key: PublicKey::from([0; 32]),
                preshared_key: PresharedKey::from_bytes(&psk),
                endpoint,
                last_handshake: handshake.map(|(secs, nanos)| Duration::new(secs.into(), nanos)),
                rx_bytes,
                tx_bytes,
                persistent_keepalive: keepalive,
                allowed_ips,
                path_mtu: None,
                post_quantum: None,
            },
        )
}

pub fn change() -> impl Strategy<Value = Change> {
    let private_key = prop_oneof![
        Just(None),
        Just(Some(None)),
        any::<[u8; 32]>().prop_map(|bytes| Some(Some(PrivateKey::from_bytes(&bytes)))),
    ];
    let peers = collection::vec(peer_change(), 0..4);
    let outer = (option::of(any::<u16>()), option::of(any::<u32>()));
    (outer, private_key, any::<bool>(), peers).prop_map(
        |((listen_port, fwmark), private_key, replace_peers, peers)| Change {
            listen_port,
            fwmark,
            device: DeviceChange { private_key, replace_peers, peers },
        },
    )
}

fn peer_change() -> impl Strategy<Value = PeerChange> {
    let allowed_ip = (network(), any::<bool>());
    (
        any::<[u8; 32]>(),
        any::<[bool; 3]>(),
        option::of(any::<[u8; 32]>()),
        option::of(endpoint()),
        option::of(any::<u16>()),
        collection::vec(allowed_ip.prop_map(|(net, remove)| AllowedIpChange { net, remove }), 0..4),
    )
        .prop_map(|(key, flags, psk, endpoint, persistent_keepalive, allowed_ips)| {
            let [remove, update_only, replace_allowed_ips] = flags;
            PeerChange {
                public_key: key.into(),
                remove,
                update_only,
                preshared_key: psk.map(|psk| PresharedKey::from_bytes(&psk)),
                endpoint,
                roaming: None,
                persistent_keepalive,
                replace_allowed_ips,
                allowed_ips,
            }
        })
}

fn endpoint() -> impl Strategy<Value = SocketAddr> {
    let v4 = (any::<Ipv4Addr>(), any::<u16>()).prop_map(SocketAddr::from);
    let v6 = (any::<Ipv6Addr>(), any::<u16>(), prop_oneof![Just(0), any::<u32>()])
        .prop_map(|(ip, port, scope)| SocketAddrV6::new(ip, port, 0, scope).into());
    prop_oneof![v4, v6]
}

fn network() -> impl Strategy<Value = IpNet> {
    (any::<IpAddr>(), 0..=128_u8).prop_map(|(ip, prefix)| {
        let bits = if ip.is_ipv4() { 32 } else { 128 };
        IpNet::new(ip, prefix.min(bits)).expect("no longer than the address").trunc()
    })
}

/// Arbitrary statistics.
pub fn stats() -> impl Strategy<Value = Stats> {
    let text = || "[!-~]([ -~]{0,10}[!-~])?";
    let word = || "[a-z-]{1,10}";
    let sum = || (any::<u64>(), any::<u64>()).prop_map(|(count, sum)| Sum { count, sum });
    let socket = [(); 4].map(|()| any::<u64>());
    let socket = socket.prop_map(|[overflow, truncated, receive_buffer, send_buffer]| {
        SocketStats { overflow, truncated, receive_buffer, send_buffer }
    });
    let load = (sum(), sum(), sum(), sum());
    let load = load.prop_map(|(outbound, inbound, queued, handshakes)| LoadStats {
        outbound,
        inbound,
        queued,
        handshakes,
    });
    let drops = collection::vec(any::<u64>(), 0..=DropReason::ALL.len())
        .prop_map(|counts| DropReason::ALL.iter().copied().zip(counts).collect());
    // A map, because names are distinct.
    let offloads =
        collection::btree_map(word(), (any::<bool>(), any::<u64>()), 0..4).prop_map(|offloads| {
            let one = |(name, (wanted, demotions))| OffloadStats { name, wanted, demotions };
            offloads.into_iter().map(one).collect()
        });
    let path = (any::<[u8; 32]>().prop_map(PublicKey::from), any::<u16>());
    let agreed = (any::<[u8; 32]>().prop_map(PublicKey::from), any::<u64>());
    let part = (text(), prop_oneof!["wholly", "partly", "not"]);
    let service = (word(), text()).prop_map(|(kind, place)| Service { kind, place });
    let proxy = (text(), collection::vec(service, 0..3), [(); 15].map(|()| any::<u64>()));
    let proxy = proxy.prop_map(|(stack, services, counters)| ProxyStats {
        stack,
        services,
        refused_source: counters[0],
        refused_service: counters[1],
        refused_all: counters[2],
        evicted_idle: counters[3],
        evicted_asking: counters[4],
        dropped: StackDrops {
            not_ours: counters[5],
            malformed: counters[6],
            stray: counters[7],
            backlog: counters[8],
            datagrams: counters[9],
            answers: counters[10],
            fragments_overlap: counters[11],
            fragments_late: counters[12],
            fragments_full: counters[13],
            fragments_checksum: counters[14],
        },
    });
    let own = (option::of(text()), option::of(text()), option::of(text()));
    let lists = (
        offloads,
        (collection::vec(path, 0..3), collection::vec(agreed, 0..3)),
        collection::vec(part, 0..3),
        collection::vec(network(), 0..3),
    );
    (own, drops, socket, load, lists, option::of(proxy)).prop_map(
        |((version, aead, sandbox_off), drops, socket, load, lists, proxy)| {
            let (offloads, (path_mtus, post_quantum), sandbox, offers) = lists;
            Stats {
                version,
                aead,
                drops,
                socket,
                load,
                offloads,
                path_mtus,
                post_quantum,
                sandbox,
                sandbox_off,
                offers,
                proxy,
            }
        },
    )
}
