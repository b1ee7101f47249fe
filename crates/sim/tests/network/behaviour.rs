//! The boxes compared with the definitions of RFC 4787: one host, and two remote addresses with two
//! ports each.

use std::{net::SocketAddr, time::Duration};

use sim::{Dependence, Link, Nat, Network, Ports, Realm, Socket, Timeouts};

use crate::support::{INNER, converse, exchange, nested, outer, reaches, remotes};

/// A host behind a box, and four remote endpoints.
struct Scenario {
    network: Network,
    realm: Realm,
    host: Socket,
    remotes: [Socket; 4],
}

impl Scenario {
    fn behind(nat: Nat) -> Self {
        let network = Network::new(1, Link::CLEAN);
        let realm = network.add_nat(Realm::INTERNET, nat, &[outer(1)]);
        let host = network.bind(realm, INNER);
        let remotes = remotes(&network);
        Self { network, realm, host, remotes }
    }

    /// The host's mapped address for a remote endpoint.
    fn mapped(&self, remote: usize) -> SocketAddr {
        exchange(&self.network, &self.host, &self.remotes[remote]).expect("a way out")
    }

    /// Whether a datagram from a remote endpoint to `to` reaches the host.
    fn admits(&self, remote: usize, to: SocketAddr) -> bool {
        reaches(&self.network, &self.remotes[remote], to, &self.host)
    }
}

const MAPPINGS: [(Nat, [bool; 3]); 5] = [
    (Nat::FULL_CONE, [true, true, true]),
    (Nat::PORT_RESTRICTED, [true, true, true]),
    (with_mapping(Dependence::AddressDependent), [true, false, false]),
    (Nat::SYMMETRIC, [false, false, false]),
    (with_mapping(Dependence::AddressAndPortDependent), [false, false, false]),
];

const fn with_mapping(mapping: Dependence) -> Nat {
    Nat { mapping, ports: Ports::Random, ..Nat::PORT_RESTRICTED }
}

/// RFC 4787 section 4.1.
#[test]
fn mapping_is_reused_as_its_dependence_allows() {
    for (nat, same) in MAPPINGS {
        let scenario = Scenario::behind(nat);
        let first = scenario.mapped(0);
        assert_eq!(scenario.mapped(0), first, "the same endpoint");
        let others = [1, 2, 3].map(|remote| scenario.mapped(remote) == first);
        assert_eq!(others, same, "another port, another address, both: {nat:?}");
    }
}

/// RFC 4787 section 5.
#[test]
fn unsolicited_senders_are_admitted_as_the_filter_allows() {
    for (nat, admitted) in [
        (Nat::FULL_CONE, [true, true, true, true]),
        (Nat::ADDRESS_RESTRICTED, [true, true, false, false]),
        (Nat::PORT_RESTRICTED, [true, false, false, false]),
        (Nat::NO_INPUT_DROP, [true, false, false, false]),
        (Nat::SYMMETRIC, [true, false, false, false]),
    ] {
        let scenario = Scenario::behind(nat);
        let mapped = scenario.mapped(0);
        let got = [0, 1, 2, 3].map(|remote| scenario.admits(remote, mapped));
        assert_eq!(got, admitted, "the same, another port, another address, both: {nat:?}");
        let beside = SocketAddr::new(mapped.ip(), mapped.port() ^ 1);
        assert!(!scenario.admits(0, beside), "nothing is mapped there");
    }
}

#[test]
fn blocked_udp_passes_in_no_direction() {
    let scenario = Scenario::behind(Nat::UDP_BLOCKED);
    assert_eq!(exchange(&scenario.network, &scenario.host, &scenario.remotes[0]), None);
    assert!(!scenario.admits(0, SocketAddr::new(outer(1), INNER.port())));
}

/// RFC 4787 section 4.2.1.
#[test]
fn port_is_preserved_unless_another_host_uses_it() {
    let scenario = Scenario::behind(Nat::PORT_RESTRICTED);
    assert_eq!(scenario.mapped(0), SocketAddr::new(outer(1), INNER.port()));
    let other = scenario.network.bind(scenario.realm, "10.0.0.3:51820".parse().unwrap());
    let moved = exchange(&scenario.network, &other, &scenario.remotes[0]).unwrap();
    assert_eq!(moved.ip(), outer(1));
    assert_ne!(moved.port(), INNER.port());
    // As in Linux: replies of another remote would not be ambiguous.
    let beside = exchange(&scenario.network, &other, &scenario.remotes[3]).unwrap();
    assert_eq!(beside, moved, "and yet its mapping stays one");
    assert!(!reaches(&scenario.network, &scenario.remotes[0], moved, &scenario.host));
    assert!(reaches(&scenario.network, &scenario.remotes[0], moved, &other));

    let random = Scenario::behind(Nat { ports: Ports::Random, ..Nat::PORT_RESTRICTED });
    assert_ne!(random.mapped(0).port(), INNER.port());
}

/// RFC 4787 section 6, and REQ-9: the source is the outer address.
#[test]
fn outer_addresses_work_behind_one_box_only_with_hairpinning() {
    for hairpin in [true, false] {
        for nat in [Nat::FULL_CONE, Nat::ADDRESS_RESTRICTED, Nat::PORT_RESTRICTED] {
            let scenario = Scenario::behind(Nat { hairpin, ..nat });
            let other = scenario.network.bind(scenario.realm, "10.0.0.3:51821".parse().unwrap());
            let [one, two] = [&scenario.host, &other]
                .map(|host| exchange(&scenario.network, host, &scenario.remotes[0]).unwrap());
            scenario.host.send(two, b"first");
            scenario.network.pass(Duration::ZERO);
            let first = other.receive();
            let open = nat.filtering == Dependence::EndpointIndependent;
            assert_eq!(first.is_some(), hairpin && open, "{nat:?}");
            if let Some(first) = first {
                assert_eq!(first.from, one);
            }
            assert_eq!(reaches(&scenario.network, &other, one, &scenario.host), hairpin, "{nat:?}");
            assert_eq!(reaches(&scenario.network, &scenario.host, two, &other), hairpin, "{nat:?}");
        }
    }
}

#[test]
fn inner_addresses_work_behind_one_box() {
    let scenario = Scenario::behind(Nat::UDP_BLOCKED);
    let other = scenario.network.bind(scenario.realm, "10.0.0.3:51820".parse().unwrap());
    assert!(reaches(&scenario.network, &scenario.host, other.address, &other));
}

/// RFC 4787 REQ-6: outgoing traffic refreshes, and incoming traffic may.
#[test]
fn mapping_lives_as_long_as_it_is_refreshed() {
    let twenty = Duration::from_secs(20);
    for refreshed_from_outside in [false, true] {
        let timeouts = Timeouts { refreshed_from_outside, ..Timeouts::outbound(twenty) };
        let scenario = Scenario::behind(Nat { timeouts, ..Nat::PORT_RESTRICTED });
        let mapped = scenario.mapped(0);
        for _ in 0..10 {
            scenario.network.pass(Duration::from_secs(19));
            assert_eq!(scenario.mapped(0), mapped);
        }
        scenario.network.pass(Duration::from_secs(12));
        assert!(scenario.admits(0, mapped), "it is still open");
        scenario.network.pass(Duration::from_secs(12));
        assert_eq!(scenario.admits(0, mapped), refreshed_from_outside);
    }
}

#[test]
fn unrefreshed_mapping_expires_and_frees_its_port() {
    let timeouts = Timeouts::outbound(Duration::from_secs(20));
    let scenario = Scenario::behind(Nat { timeouts, ..Nat::SYMMETRIC });
    let mapped = scenario.mapped(0);
    scenario.network.pass(Duration::from_secs(21));
    assert!(!scenario.admits(0, mapped));
    assert_ne!(scenario.mapped(0), mapped, "the next is another");

    let scenario = Scenario::behind(Nat { timeouts, ..Nat::FULL_CONE });
    let mapped = scenario.mapped(0);
    scenario.network.pass(Duration::from_secs(21));
    let other = scenario.network.bind(scenario.realm, "10.0.0.3:51820".parse().unwrap());
    assert_eq!(exchange(&scenario.network, &other, &scenario.remotes[0]), Some(mapped));
}

/// As in conntrack: 30 s before a reply, 120 s for flows longer than two seconds.
#[test]
fn replied_stream_lives_longer_than_an_unreplied_flow() {
    let after = |silence, rounds| {
        let scenario = Scenario::behind(Nat::PORT_RESTRICTED);
        converse(&scenario.network, &scenario.host, &scenario.remotes[0], rounds);
        let mapped = SocketAddr::new(outer(1), INNER.port());
        scenario.network.pass(Duration::from_secs(silence));
        scenario.admits(0, mapped)
    };
    assert!(after(29, 0) && !after(31, 0), "a question");
    assert!(after(29, 1) && !after(31, 1), "an answer");
    assert!(after(119, 2) && !after(121, 2), "a stream");
}

/// An unsolicited probe creates an entry, so that the next mapping of the host gets another port.
/// The entry expires as usual.
#[test]
fn unsolicited_probe_changes_the_port_without_an_input_drop() {
    for (nat, moves) in [(Nat::PORT_RESTRICTED, false), (Nat::NO_INPUT_DROP, true)] {
        let scenario = Scenario::behind(nat);
        let mapped = scenario.mapped(0);
        assert!(!scenario.admits(3, mapped));
        assert_eq!(scenario.mapped(3) != mapped, moves, "{nat:?}");
        assert_eq!(scenario.admits(3, mapped), !moves, "it goes to the box itself");
        assert_eq!(scenario.mapped(1), mapped, "others see what they saw");
        scenario.network.pass(Duration::from_secs(200));
        assert_eq!(scenario.mapped(3), mapped);
    }
}

#[test]
fn ttl_limits_boxes_and_routers() {
    for (routers, boxes) in [(0, 1), (1, 1), (8, 1), (8, 2), (3, 3)] {
        let network = Network::new(1, Link::CLEAN);
        network.set_routers(routers);
        let realm = nested(&network, &vec![Nat::PORT_RESTRICTED; boxes.into()], outer(1));
        let host = network.bind(realm, INNER);
        let [remote, ..] = remotes(&network);
        for ttl in 1..=20 {
            host.send_with_ttl(remote.address, b"out", ttl);
            network.pass(Duration::from_secs(1));
            let out = remote.receive();
            assert_eq!(out.is_some(), ttl > routers + boxes, "{ttl} over {routers} and {boxes}");
            let Some(out) = out else { continue };
            assert_eq!(out.ttl, ttl - routers - boxes);
            remote.send_with_ttl(out.from, b"back", ttl - 1);
            network.pass(Duration::from_secs(1));
            assert_eq!(host.receive().is_some(), ttl - 1 > routers + boxes);
        }
    }
}

#[test]
fn strictest_box_on_the_path_filters() {
    for (outermost, inner, admitted) in [
        (Nat::FULL_CONE, Nat::FULL_CONE, [true, true, true, true]),
        (Nat::FULL_CONE, Nat::ADDRESS_RESTRICTED, [true, true, false, false]),
        (Nat::SYMMETRIC, Nat::FULL_CONE, [true, false, false, false]),
    ] {
        let network = Network::new(1, Link::CLEAN);
        let realm = nested(&network, &[outermost, inner], outer(1));
        let host = network.bind(realm, INNER);
        let remotes = remotes(&network);
        let mapped = exchange(&network, &host, &remotes[0]).unwrap();
        assert_eq!(mapped.ip(), outer(1), "only the outermost is seen");
        let got = [0, 1, 2, 3].map(|remote| reaches(&network, &remotes[remote], mapped, &host));
        assert_eq!(got, admitted, "{outermost:?} before {inner:?}");
    }
}

#[test]
fn box_maps_each_family_to_its_own_address() {
    let network = Network::new(1, Link::CLEAN);
    let six = "2001:db8::1".parse().unwrap();
    let realm = network.add_nat(Realm::INTERNET, Nat::PORT_RESTRICTED, &[outer(1), six]);
    let host = network.bind(realm, "[fd00::2]:51820".parse().unwrap());
    let remote = network.bind(Realm::INTERNET, "[2001:db8::9]:3478".parse().unwrap());
    assert_eq!(exchange(&network, &host, &remote), Some(SocketAddr::new(six, 51820)));
    assert!(reaches(&network, &remote, SocketAddr::new(six, 51820), &host));
    let four = Scenario::behind(Nat::PORT_RESTRICTED);
    let host = four.network.bind(four.realm, host.address);
    let remote = four.network.bind(Realm::INTERNET, remote.address);
    assert_eq!(exchange(&four.network, &host, &remote), None, "it has no such address");
    assert_eq!(four.mapped(0).ip(), outer(1));
}
