//! Pairs of boxes that simple hole punching traverses, as measured in a lab of nftables NATs with
//! real kernels. Both hosts have the same private address and port.
//!
//! ```text
//!   first                                        relay              second
//!   both query an observer for their mapped addresses
//!   primes, and notifies the second              ------------->     primes
//!   pings a little later                                            pings a little later
//! ```
//!
//! A host that is pinged replies to the source of the ping, and pings it as well.

use std::{net::SocketAddr, time::Duration};

use sim::{Link, Nat, Network, Realm, Socket};

use crate::support::{INNER, exchange, nested, outer};

const MS: Duration = Duration::from_millis(1);
const INTERVAL: Duration = Duration::from_millis(200);

/// The datagram passes the host's own boxes, but reaches no box of the other host.
const PRIMING: u8 = 4;

/// A host and its candidates.
struct End {
    socket: Socket,
    /// The possible addresses of the other host.
    candidates: Vec<SocketAddr>,
    next_ping: Duration,
    /// Whether one of its pings was answered.
    direct: bool,
}

impl End {
    fn behind(network: &Network, realm: Realm) -> Self {
        let socket = network.bind(realm, INNER);
        Self { socket, candidates: Vec::new(), next_ping: Duration::MAX, direct: false }
    }

    /// Adds a candidate. With priming, the first ping follows after a pause.
    fn add_candidate(&mut self, now: Duration, candidate: SocketAddr, ttl: Option<u8>) {
        self.candidates.push(candidate);
        self.next_ping = now;
        if let Some(ttl) = ttl {
            self.socket.send_with_ttl(candidate, b"prime", ttl);
            self.next_ping = now + INTERVAL / 2;
        }
    }

    fn step(&mut self, now: Duration) {
        while let Some(datagram) = self.socket.receive() {
            match datagram.bytes.as_slice() {
                b"ping" => {
                    self.socket.send(datagram.from, b"pong");
                    if !self.candidates.contains(&datagram.from) {
                        self.candidates.push(datagram.from);
                    }
                }
                b"pong" => self.direct = true,
                other => panic!("{other:?} is meant for no host"),
            }
        }
        if self.next_ping <= now {
            self.candidates.iter().for_each(|to| self.socket.send(*to, b"ping"));
            self.next_ping = now + INTERVAL;
        }
    }
}

/// Two hosts behind boxes. The first one starts.
struct Meeting {
    network: Network,
    ends: [End; 2],
    /// The delay of the relay: longer than that of the direct path.
    relay: Duration,
    prime: Option<u8>,
}

impl Meeting {
    fn new(seed: u64, pair: [&[Nat]; 2], prime: Option<u8>) -> Self {
        let delay = MS * (1 + seed as u32 * 7);
        let link = Link { delay, jitter: delay / 2, ..Link::CLEAN };
        let network = Network::new(seed, link);
        let ends = [(pair[0], outer(1)), (pair[1], outer(2))]
            .map(|(boxes, address)| End::behind(&network, nested(&network, boxes, address)));
        Self { network, ends, relay: delay * 2 + 3 * MS, prime }
    }

    /// The time until the pings of both are answered, if they are.
    fn run(&mut self) -> Option<Duration> {
        let observer = "198.51.100.1:3478".parse().unwrap();
        let observer = self.network.bind(Realm::INTERNET, observer);
        let link = self.network.link();
        self.network.set_link(Link::CLEAN);
        let mapped =
            [0, 1].map(|end: usize| exchange(&self.network, &self.ends[end].socket, &observer));
        self.network.set_link(link);
        let [Some(first), Some(second)] = mapped else { return None };
        let began = self.network.now();
        self.ends[0].add_candidate(began, second, self.prime);
        let mut is_informed = false;
        while self.network.now() < began + Duration::from_secs(5) {
            let now = self.network.now();
            if !is_informed && now >= began + self.relay {
                self.ends[1].add_candidate(now, first, self.prime);
                is_informed = true;
            }
            self.ends.iter_mut().for_each(|end| end.step(now));
            if self.ends.iter().all(|end| end.direct) {
                return Some(now - began);
            }
            self.network.pass(MS);
        }
        None
    }
}

/// Asserts that a pair becomes direct, or not, with any seed and either host first.
#[track_caller]
fn assert_pair(pair: [&[Nat]; 2], prime: Option<u8>, direct: bool) {
    for seed in 0..8 {
        for pair in [pair, [pair[1], pair[0]]] {
            let took = Meeting::new(seed, pair, prime).run();
            assert_eq!(took.is_some(), direct, "{took:?}, seed {seed}, {prime:?}: {pair:?}");
        }
    }
}

const CONE: Nat = Nat::FULL_CONE;
const ADDRESS: Nat = Nat::ADDRESS_RESTRICTED;
const PORT: Nat = Nat::PORT_RESTRICTED;
const SYMMETRIC: Nat = Nat::SYMMETRIC;
const NO_DROP: Nat = Nat::NO_INPUT_DROP;
const BLOCKED: Nat = Nat::UDP_BLOCKED;

#[test]
fn pairs_that_are_direct_in_the_lab_are_direct() {
    for pair in [[PORT, PORT], [ADDRESS, SYMMETRIC], [CONE, SYMMETRIC], [CONE, PORT]] {
        for prime in [None, Some(PRIMING)] {
            assert_pair([&[pair[0]], &[pair[1]]], prime, true);
        }
    }
}

#[test]
fn pairs_that_are_relayed_in_the_lab_are_relayed() {
    let mut pairs = vec![[PORT, SYMMETRIC], [SYMMETRIC, SYMMETRIC], [NO_DROP, SYMMETRIC]];
    pairs.extend([CONE, ADDRESS, PORT, SYMMETRIC, NO_DROP].map(|other| [BLOCKED, other]));
    for pair in pairs {
        for prime in [None, Some(PRIMING)] {
            assert_pair([&[pair[0]], &[pair[1]]], prime, false);
        }
    }
}

#[test]
fn two_boxes_without_input_drop_need_priming() {
    assert_pair([&[NO_DROP], &[NO_DROP]], None, false);
    assert_pair([&[NO_DROP], &[NO_DROP]], Some(PRIMING), true);
}

/// A priming datagram that reaches the other box acts as an unsolicited probe. One that expires in
/// the host's own box opens nothing.
#[test]
fn priming_needs_a_ttl_within_the_right_range() {
    let direct = |routers, ttl| {
        let mut meeting = Meeting::new(3, [&[NO_DROP], &[NO_DROP]], Some(ttl));
        meeting.network.set_routers(routers);
        meeting.run().is_some()
    };
    for routers in 1..8 {
        let right = 2..=routers + 1;
        for ttl in 1..12 {
            assert_eq!(direct(routers, ttl), right.contains(&ttl), "{ttl} over {routers}");
        }
    }
}

/// Otherwise the other probe arrives before this host has opened a pinhole.
#[test]
fn one_box_without_input_drop_is_traversed_if_its_host_starts() {
    for seed in 0..8 {
        for (prime, second) in [(None, false), (Some(PRIMING), true)] {
            let direct = |pair: [Nat; 2]| {
                Meeting::new(seed, [&[pair[0]], &[pair[1]]], prime).run().is_some()
            };
            assert!(direct([NO_DROP, PORT]), "seed {seed}");
            assert_eq!(direct([PORT, NO_DROP]), second, "seed {seed}");
        }
    }
}

#[test]
fn strictest_boxes_decide_for_a_pair_behind_two_boxes_each() {
    for prime in [None, Some(PRIMING)] {
        assert_pair([&[PORT, PORT], &[PORT, PORT]], prime, true);
        assert_pair([&[PORT, CONE], &[ADDRESS, SYMMETRIC]], prime, false);
        assert_pair([&[CONE, SYMMETRIC], &[PORT]], prime, false);
        assert_pair([&[CONE, ADDRESS], &[CONE, SYMMETRIC]], prime, true);
    }
    assert_pair([&[NO_DROP, PORT], &[NO_DROP, PORT]], None, false);
    assert_pair([&[NO_DROP, NO_DROP], &[NO_DROP, NO_DROP]], Some(PRIMING), true);
}

/// As with carrier-grade NAT: both mapped addresses belong to one box.
#[test]
fn two_homes_behind_one_box_are_direct_only_with_hairpinning() {
    for hairpin in [true, false] {
        let network = Network::new(1, Link::CLEAN);
        let provider = Nat { hairpin, ..PORT };
        let provider = network.add_nat(Realm::INTERNET, provider, &[outer(1)]);
        let ends = ["100.64.0.2", "100.64.0.3"].map(|home| {
            let realm = network.add_nat(provider, PORT, &[home.parse().unwrap()]);
            End::behind(&network, realm)
        });
        let mut meeting = Meeting { network, ends, relay: 3 * MS, prime: None };
        assert_eq!(meeting.run().is_some(), hairpin);
    }
}
