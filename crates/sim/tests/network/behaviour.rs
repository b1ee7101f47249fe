//! The boxes against the definitions of RFC 4787: of one host, seen from two addresses with two
//! ports each.

use std::{net::SocketAddr, time::Duration};

use sim::{Dependence, Link, Nat, Network, Ports, Realm, Socket, Timeouts};

use crate::support::{INNER, exchange, nested, outer, remotes, say, talk};

/// A host behind a box, and four remote endpoints.
struct Seen {
    network: Network,
    realm: Realm,
    host: Socket,
    remotes: [Socket; 4],
}

impl Seen {
    fn behind(nat: Nat) -> Self {
        let network = Network::new(1, Link::CLEAN);
        let realm = network.add_nat(Realm::INTERNET, nat, &[outer(1)]);
        let host = network.bind(realm, INNER);
        let remotes = remotes(&network);
        Self { network, realm, host, remotes }
    }

    /// The source of what the host sends there, as it is seen there.
    fn mapped(&self, remote: usize) -> SocketAddr {
        exchange(&self.network, &self.host, &self.remotes[remote]).expect("a way out")
    }

    /// Whether what is sent to `to` from there reaches the host.
    fn admits(&self, remote: usize, to: SocketAddr) -> bool {
        say(&self.network, &self.remotes[remote], to, &self.host)
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
fn a_mapping_is_used_again_for_the_same_remote_address_or_port_or_any() {
    for (nat, same) in MAPPINGS {
        let seen = Seen::behind(nat);
        let first = seen.mapped(0);
        assert_eq!(seen.mapped(0), first, "the same endpoint");
        let others = [1, 2, 3].map(|remote| seen.mapped(remote) == first);
        assert_eq!(others, same, "another port, another address, both: {nat:?}");
    }
}

/// RFC 4787 section 5.
#[test]
fn who_was_not_sent_to_is_let_in_as_the_filter_says() {
    for (nat, admitted) in [
        (Nat::FULL_CONE, [true, true, true, true]),
        (Nat::ADDRESS_RESTRICTED, [true, true, false, false]),
        (Nat::PORT_RESTRICTED, [true, false, false, false]),
        (Nat::NO_INPUT_DROP, [true, false, false, false]),
        (Nat::SYMMETRIC, [true, false, false, false]),
    ] {
        let seen = Seen::behind(nat);
        let mapped = seen.mapped(0);
        let got = [0, 1, 2, 3].map(|remote| seen.admits(remote, mapped));
        assert_eq!(got, admitted, "the same, another port, another address, both: {nat:?}");
        let beside = SocketAddr::new(mapped.ip(), mapped.port() ^ 1);
        assert!(!seen.admits(0, beside), "nothing is mapped there");
    }
}

#[test]
fn blocked_datagrams_pass_neither_way() {
    let seen = Seen::behind(Nat::UDP_BLOCKED);
    assert_eq!(exchange(&seen.network, &seen.host, &seen.remotes[0]), None);
    assert!(!seen.admits(0, SocketAddr::new(outer(1), INNER.port())));
}

/// RFC 4787 section 4.2.1.
#[test]
fn a_port_is_preserved_unless_another_host_has_it() {
    let seen = Seen::behind(Nat::PORT_RESTRICTED);
    assert_eq!(seen.mapped(0), SocketAddr::new(outer(1), INNER.port()));
    let other = seen.network.bind(seen.realm, "10.0.0.3:51820".parse().unwrap());
    let moved = exchange(&seen.network, &other, &seen.remotes[0]).unwrap();
    assert_eq!(moved.ip(), outer(1));
    assert_ne!(moved.port(), INNER.port());
    // As Linux has it: what another remote answers would not be taken for the first host's.
    let beside = exchange(&seen.network, &other, &seen.remotes[3]).unwrap();
    assert_eq!(beside, moved, "and yet its mapping stays one");
    assert!(!say(&seen.network, &seen.remotes[0], moved, &seen.host));
    assert!(say(&seen.network, &seen.remotes[0], moved, &other));

    let random = Seen::behind(Nat { ports: Ports::Random, ..Nat::PORT_RESTRICTED });
    assert_ne!(random.mapped(0).port(), INNER.port());
}

/// RFC 4787 section 6, and REQ-9: the source is the outer one.
#[test]
fn hosts_behind_one_box_reach_each_other_by_outer_addresses_where_it_hairpins() {
    for hairpin in [true, false] {
        for nat in [Nat::FULL_CONE, Nat::ADDRESS_RESTRICTED, Nat::PORT_RESTRICTED] {
            let seen = Seen::behind(Nat { hairpin, ..nat });
            let other = seen.network.bind(seen.realm, "10.0.0.3:51821".parse().unwrap());
            let [one, two] = [&seen.host, &other]
                .map(|host| exchange(&seen.network, host, &seen.remotes[0]).unwrap());
            seen.host.send(two, b"first");
            seen.network.pass(Duration::ZERO);
            let first = other.receive();
            let open = nat.filtering == Dependence::EndpointIndependent;
            assert_eq!(first.is_some(), hairpin && open, "{nat:?}");
            if let Some(first) = first {
                assert_eq!(first.from, one);
            }
            assert_eq!(say(&seen.network, &other, one, &seen.host), hairpin, "{nat:?}");
            assert_eq!(say(&seen.network, &seen.host, two, &other), hairpin, "{nat:?}");
        }
    }
}

#[test]
fn hosts_behind_one_box_reach_each_other_by_inner_addresses() {
    let seen = Seen::behind(Nat::UDP_BLOCKED);
    let other = seen.network.bind(seen.realm, "10.0.0.3:51820".parse().unwrap());
    assert!(say(&seen.network, &seen.host, other.address, &other));
}

/// RFC 4787 REQ-6: what goes out refreshes, what comes in may.
#[test]
fn a_mapping_lives_as_long_as_it_is_refreshed() {
    let twenty = Duration::from_secs(20);
    for refreshed_from_outside in [false, true] {
        let timeouts = Timeouts { refreshed_from_outside, ..Timeouts::outbound(twenty) };
        let seen = Seen::behind(Nat { timeouts, ..Nat::PORT_RESTRICTED });
        let mapped = seen.mapped(0);
        for _ in 0..10 {
            seen.network.pass(Duration::from_secs(19));
            assert_eq!(seen.mapped(0), mapped);
        }
        seen.network.pass(Duration::from_secs(12));
        assert!(seen.admits(0, mapped), "it is open still");
        seen.network.pass(Duration::from_secs(12));
        assert_eq!(seen.admits(0, mapped), refreshed_from_outside);
    }
}

#[test]
fn a_mapping_that_nobody_refreshes_ends_and_its_port_is_free() {
    let timeouts = Timeouts::outbound(Duration::from_secs(20));
    let seen = Seen::behind(Nat { timeouts, ..Nat::SYMMETRIC });
    let mapped = seen.mapped(0);
    seen.network.pass(Duration::from_secs(21));
    assert!(!seen.admits(0, mapped));
    assert_ne!(seen.mapped(0), mapped, "the next is another");

    let seen = Seen::behind(Nat { timeouts, ..Nat::FULL_CONE });
    let mapped = seen.mapped(0);
    seen.network.pass(Duration::from_secs(21));
    let other = seen.network.bind(seen.realm, "10.0.0.3:51820".parse().unwrap());
    assert_eq!(exchange(&seen.network, &other, &seen.remotes[0]), Some(mapped));
}

/// As conntrack has it: 30 s without an answer, 120 s for who talks for longer than two seconds.
#[test]
fn a_stream_lives_longer_than_a_question_without_an_answer() {
    let after = |silence, rounds| {
        let seen = Seen::behind(Nat::PORT_RESTRICTED);
        talk(&seen.network, &seen.host, &seen.remotes[0], rounds);
        let mapped = SocketAddr::new(outer(1), INNER.port());
        seen.network.pass(Duration::from_secs(silence));
        seen.admits(0, mapped)
    };
    assert!(after(29, 0) && !after(31, 0), "a question");
    assert!(after(29, 1) && !after(31, 1), "an answer");
    assert!(after(119, 2) && !after(121, 2), "a stream");
}

/// A probe that comes first leaves an entry, to which the port that the host would have got gives
/// way; it ends as others do.
#[test]
fn without_an_input_drop_a_probe_moves_the_port_of_who_answers_it() {
    for (nat, moves) in [(Nat::PORT_RESTRICTED, false), (Nat::NO_INPUT_DROP, true)] {
        let seen = Seen::behind(nat);
        let mapped = seen.mapped(0);
        assert!(!seen.admits(3, mapped));
        assert_eq!(seen.mapped(3) != mapped, moves, "{nat:?}");
        assert_eq!(seen.admits(3, mapped), !moves, "it goes to the box itself");
        assert_eq!(seen.mapped(1), mapped, "others see what they saw");
        seen.network.pass(Duration::from_secs(200));
        assert_eq!(seen.mapped(3), mapped);
    }
}

#[test]
fn a_datagram_passes_as_many_boxes_and_routers_as_its_ttl_says() {
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
fn the_strictest_box_on_the_way_filters() {
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
        let got = [0, 1, 2, 3].map(|remote| say(&network, &remotes[remote], mapped, &host));
        assert_eq!(got, admitted, "{outermost:?} before {inner:?}");
    }
}

#[test]
fn a_box_maps_each_family_to_its_own_address() {
    let network = Network::new(1, Link::CLEAN);
    let six = "2001:db8::1".parse().unwrap();
    let realm = network.add_nat(Realm::INTERNET, Nat::PORT_RESTRICTED, &[outer(1), six]);
    let host = network.bind(realm, "[fd00::2]:51820".parse().unwrap());
    let remote = network.bind(Realm::INTERNET, "[2001:db8::9]:3478".parse().unwrap());
    assert_eq!(exchange(&network, &host, &remote), Some(SocketAddr::new(six, 51820)));
    assert!(say(&network, &remote, SocketAddr::new(six, 51820), &host));
    let four = Seen::behind(Nat::PORT_RESTRICTED);
    let host = four.network.bind(four.realm, host.address);
    let remote = four.network.bind(Realm::INTERNET, remote.address);
    assert_eq!(exchange(&four.network, &host, &remote), None, "it has no such address");
    assert_eq!(four.mapped(0).ip(), outer(1));
}
