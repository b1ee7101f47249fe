//! Properties of every box, for any traffic.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use proptest::prelude::*;
use sim::{Dependence, Link, Nat, Network, Ports, Realm, Socket, Timeouts};

use crate::support::{exchange, outer, reaches, remotes};

fn dependence() -> impl Strategy<Value = Dependence> {
    prop_oneof![
        Just(Dependence::EndpointIndependent),
        Just(Dependence::AddressDependent),
        Just(Dependence::AddressAndPortDependent),
    ]
}

fn any_box() -> impl Strategy<Value = Nat> {
    let ports = prop_oneof![Just(Ports::Preserved), Just(Ports::Random)];
    (dependence(), dependence(), ports, any::<[bool; 2]>()).prop_map(
        |(mapping, filtering, ports, [tracks_input, hairpin])| Nat {
            mapping,
            filtering,
            ports,
            tracks_input,
            hairpin,
            ..Nat::PORT_RESTRICTED
        },
    )
}

/// The sender, the receiver, and the seconds after each datagram.
fn moves() -> impl Strategy<Value = Vec<(usize, usize, u64)>> {
    prop::collection::vec((0..3usize, 0..4usize, 0..40u64), 1..40)
}

/// Hosts behind a box, two of them with the same port.
fn hosts(network: &Network, nat: Nat) -> [Socket; 3] {
    let realm = network.add_nat(Realm::INTERNET, nat, &[outer(1)]);
    ["10.0.0.2:51820", "10.0.0.3:51820", "10.0.0.4:9"]
        .map(|address| network.bind(realm, address.parse().unwrap()))
}

/// Whether a filter treats both addresses alike.
fn same(dependence: Dependence, one: SocketAddr, other: SocketAddr) -> bool {
    match dependence {
        Dependence::EndpointIndependent => true,
        Dependence::AddressDependent => one.ip() == other.ip(),
        Dependence::AddressAndPortDependent => one == other,
    }
}

proptest! {
    #[test]
    fn answer_reaches_only_its_requester(
        nat in any_box(), moves in moves(), seed: u64,
    ) {
        let network = Network::new(seed, Link::CLEAN);
        let (hosts, remotes) = (hosts(&network, nat), remotes(&network));
        for (host, remote, pause) in moves {
            let scenario = exchange(&network, &hosts[host], &remotes[remote]).unwrap();
            prop_assert_eq!(scenario.ip(), outer(1));
            prop_assert!(reaches(&network, &remotes[remote], scenario, &hosts[host]));
            prop_assert!(hosts.iter().all(|host| host.receive().is_none()));
            network.pass(Duration::from_secs(pause));
        }
    }

    #[test]
    fn mappings_and_filters_follow_their_dependence(
        nat in any_box(), order in prop::collection::vec(0..4usize, 1..12), seed: u64,
    ) {
        let network = Network::new(seed, Link::CLEAN);
        let ([host, ..], remotes) = (hosts(&network, nat), remotes(&network));
        let mut scenario = HashMap::new();
        for remote in &order {
            let mapped = exchange(&network, &host, &remotes[*remote]).unwrap();
            prop_assert_eq!(*scenario.entry(*remote).or_insert(mapped), mapped);
        }
        // Two random ports may coincide, but one mapping has only one port.
        for (one, mapped) in &scenario {
            for (other, beside) in &scenario {
                let [one, other] = [one, other].map(|remote| remotes[*remote].address);
                prop_assert!(!same(nat.mapping, one, other) || mapped == beside);
            }
        }
        let mapped = scenario[&order[0]];
        for (at, remote) in remotes.iter().enumerate() {
            let open = scenario.iter().any(|(sent_to, outer)| {
                *outer == mapped && same(nat.filtering, remotes[*sent_to].address, remote.address)
            });
            prop_assert_eq!(reaches(&network, remote, mapped, &host), open, "remote {}", at);
        }
    }

    #[test]
    fn entries_expire_on_time(
        nat in any_box(), timeout in 1..300u64, refreshes in 0..5usize, seed: u64,
    ) {
        let timeouts = Timeouts::outbound(Duration::from_secs(timeout));
        let network = Network::new(seed, Link::CLEAN);
        let nat = Nat { timeouts, ..nat };
        let ([host, ..], [remote, ..]) = (hosts(&network, nat), remotes(&network));
        let mapped = exchange(&network, &host, &remote).unwrap();
        for _ in 0..refreshes {
            network.pass(Duration::from_millis(timeout * 1_000 - 100));
            prop_assert_eq!(exchange(&network, &host, &remote), Some(mapped));
        }
        network.pass(Duration::from_millis(timeout * 1_000 - 100));
        prop_assert!(reaches(&network, &remote, mapped, &host));
        network.pass(Duration::from_millis(200));
        prop_assert!(!reaches(&network, &remote, mapped, &host));
    }

    #[test]
    fn clean_link_loses_nothing_and_preserves_order(
        lens in prop::collection::vec(0..1_500usize, 1..50), seed: u64, delay in 0..500u64,
    ) {
        let delay = Duration::from_millis(delay);
        let network = Network::new(seed, Link { delay, rate: Some(1_000_000), ..Link::CLEAN });
        let [one, other, ..] = remotes(&network);
        lens.iter().for_each(|len| one.send(other.address, &vec![7; *len]));
        network.pass(Duration::from_secs(1));
        let got: Vec<_> = std::iter::from_fn(|| other.receive()).collect();
        prop_assert_eq!(got.iter().map(|got| got.bytes.len()).collect::<Vec<_>>(), lens);
    }
}
