use proptest::prelude::*;

use super::{mapping_messages::Response, *};

const PORT: u16 = 41641;
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
const PLACE: Target = Target {
    gateway: Ipv4Addr::new(192, 168, 0, 1),
    own: Ipv4Addr::new(192, 168, 0, 2),
    port: PORT,
};
const ROUND_TRIP: Duration = Duration::from_millis(2);

/// A gateway, and the public port of its mapping.
struct Gateway {
    pcp: Speaks,
    nat_pmp: Speaks,
    address: Ipv4Addr,
    began: Duration,
    lifetime: u32,
    mapped: Option<u16>,
    heard: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Speaks {
    Yes,
    Refuses,
    No,
}

impl Gateway {
    fn new(pcp: Speaks, nat_pmp: Speaks) -> Self {
        let began = Duration::ZERO;
        Self { pcp, nat_pmp, address: OUTSIDE, began, lifetime: 7200, mapped: None, heard: 0 }
    }

    fn answer(&mut self, request: &[u8], now: Duration) -> Option<Response> {
        self.heard += 1;
        let epoch = (now - self.began).as_secs() as u32;
        let u16_at = |at: usize| u16::from_be_bytes([request[at], request[at + 1]]);
        let lifetime_at =
            |at: usize| u32::from_be_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let (is_pcp, operation) = (request[0] == 2, request[1]);
        match if is_pcp { self.pcp } else { self.nat_pmp } {
            Speaks::No if is_pcp && self.nat_pmp != Speaks::No => return Some(Response::NoPcp),
            Speaks::No => return None,
            Speaks::Refuses if is_pcp => {
                return Some(Response::PcpRefused { result: 2, lifetime: 1000 });
            }
            Speaks::Refuses => return Some(Response::PmpRefused { result: 2 }),
            Speaks::Yes => {}
        }
        Some(match (is_pcp, operation) {
            (true, 0) => Response::PcpAnnounce { epoch },
            (true, _) => {
                let mut nonce = Nonce([0; 12]);
                nonce.0.copy_from_slice(&request[24..36]);
                let (internal, external) = (u16_at(40), u16_at(42));
                let lifetime = self.map(external, lifetime_at(4));
                let address = self.address;
                Response::PcpMap { nonce, internal, external, address, lifetime, epoch }
            }
            (false, 0) => Response::PmpAddress { address: self.address, epoch },
            (false, _) => {
                let (internal, external) = (u16_at(4), u16_at(6));
                let lifetime = self.map(external, lifetime_at(8));
                Response::PmpMap { internal, external, lifetime, epoch }
            }
        })
    }

    fn map(&mut self, external: u16, asked: u32) -> u32 {
        self.mapped = Some(external).filter(|_| asked > 0);
        asked.min(self.lifetime)
    }

    fn restart(&mut self, now: Duration) {
        (self.began, self.mapped) = (now, None);
    }
}

/// A mapper with a gateway, up to a time.
struct Rig {
    mapper: Mapper,
    gateway: Gateway,
    now: Duration,
}

impl Rig {
    fn new(pcp: Speaks, nat_pmp: Speaks) -> Self {
        let mut mapper = Mapper::new(Nonce([9; 12]));
        let now = Duration::from_secs(100);
        mapper.start(PLACE, now);
        Self { mapper, gateway: Gateway::new(pcp, nat_pmp), now }
    }

    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.mapper.handle_timeout(self.now);
            while let Some(request) = self.mapper.poll_transmit() {
                if let Some(response) = self.gateway.answer(&request, self.now) {
                    self.mapper.handle_datagram(&response.to_bytes(), self.now + ROUND_TRIP);
                }
            }
            let next = self.mapper.poll_timeout().map(|at| at.max(self.now));
            match next.filter(|at| *at <= until) {
                Some(at) => self.now = at,
                None => break,
            }
        }
        self.now = until;
    }

    fn mapping(&self) -> Option<(Protocol, SocketAddrV4)> {
        self.mapper.state().mapping.map(|mapping| (mapping.protocol, mapping.external))
    }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const HERE: SocketAddrV4 = SocketAddrV4::new(OUTSIDE, PORT);

#[test]
fn best_supported_protocol_is_used() {
    use Speaks::{No, Refuses, Yes};
    for (pcp, nat_pmp, expected) in [
        (Yes, Yes, Some(Protocol::Pcp)),
        (Yes, No, Some(Protocol::Pcp)),
        (Yes, Refuses, Some(Protocol::Pcp)),
        (No, Yes, Some(Protocol::NatPmp)),
        (Refuses, Yes, Some(Protocol::NatPmp)),
        (Refuses, Refuses, None),
        (No, No, None),
    ] {
        let mut rig = Rig::new(pcp, nat_pmp);
        rig.run(seconds(10));
        assert_eq!(rig.mapping(), expected.map(|protocol| (protocol, HERE)));
        let known = rig.mapper.state();
        assert_eq!(known.pcp, Some(pcp != No));
        if expected != Some(Protocol::Pcp) {
            assert_eq!(known.nat_pmp, Some(nat_pmp != No));
        }
    }
}

#[test]
fn port_is_mapped_within_one_round_trip() {
    let mut rig = Rig::new(Speaks::Yes, Speaks::Yes);
    rig.run(ROUND_TRIP);
    assert_eq!(rig.mapping(), Some((Protocol::Pcp, HERE)));
    let mapping = rig.mapper.state().mapping.unwrap();
    assert_eq!(mapping.expires, seconds(100) + ROUND_TRIP + seconds(7200));
}

#[test]
fn nat_pmp_starts_soon_if_pcp_does_not_answer() {
    let mut mapper = Mapper::new(Nonce([9; 12]));
    let mut gateway = Gateway::new(Speaks::No, Speaks::Yes);
    mapper.start(PLACE, Duration::ZERO);
    for ms in [0, 250] {
        let now = Duration::from_millis(ms);
        mapper.handle_timeout(now);
        while let Some(request) = mapper.poll_transmit() {
            if request[0] == 0 {
                let response = gateway.answer(&request, now).unwrap();
                assert!(mapper.handle_datagram(&response.to_bytes(), now));
            }
        }
    }
    assert_eq!(mapper.state().mapping.unwrap().protocol, Protocol::NatPmp);
    assert_eq!(mapper.state().pcp, Some(false));
}

#[test]
fn mapping_is_renewed_at_half_its_lifetime_with_the_same_port() {
    for speaks in [[Speaks::Yes, Speaks::No], [Speaks::No, Speaks::Yes]] {
        let mut rig = Rig::new(speaks[0], speaks[1]);
        rig.run(seconds(1));
        let (before, heard) = (rig.mapping(), rig.gateway.heard);
        assert!(before.is_some());
        rig.run(seconds(3590));
        assert_eq!(rig.gateway.heard, heard);
        rig.run(seconds(20));
        assert!(rig.gateway.heard > heard);
        rig.run(seconds(7 * 24 * 60 * 60));
        assert_eq!(rig.mapping(), before);
        assert!(rig.gateway.heard < 400, "{}", rig.gateway.heard);
    }
}

#[test]
fn restarted_gateway_gets_a_new_request() {
    let other = Ipv4Addr::new(203, 0, 113, 7);
    for speaks in [[Speaks::Yes, Speaks::No], [Speaks::No, Speaks::Yes]] {
        for address in [OUTSIDE, other] {
            let mut rig = Rig::new(speaks[0], speaks[1]);
            rig.run(seconds(60));
            rig.mapper.check(rig.now);
            rig.run(seconds(20));
            rig.gateway.restart(rig.now);
            rig.gateway.address = address;
            rig.run(seconds(5));
            assert_eq!(rig.gateway.mapped, None, "nobody looked");
            rig.mapper.check(rig.now);
            rig.run(seconds(1));
            assert_eq!(rig.gateway.mapped, Some(PORT));
            assert_eq!(rig.mapping().map(|(_, at)| at), Some(SocketAddrV4::new(address, PORT)));
        }
    }
}

#[test]
fn frequent_checks_send_few_datagrams() {
    let mut rig = Rig::new(Speaks::Yes, Speaks::Yes);
    rig.run(seconds(1));
    let heard = rig.gateway.heard;
    for _ in 0..150 {
        rig.mapper.check(rig.now);
        rig.run(seconds(1));
    }
    assert_eq!(rig.gateway.heard - heard, 10 - 1);
}

#[test]
fn pauses_after_silence_and_refusals_grow() {
    for speaks in [Speaks::No, Speaks::Refuses] {
        let mut rig = Rig::new(speaks, speaks);
        rig.run(seconds(10));
        let first = rig.gateway.heard;
        assert!((2..=8).contains(&first), "{first}");
        rig.run(seconds(100));
        assert_eq!(rig.gateway.heard, first);
        rig.run(seconds(24 * 60 * 60));
        // Finally every 32 minutes.
        assert!((20..400).contains(&rig.gateway.heard), "{}", rig.gateway.heard);
        (rig.gateway.pcp, rig.gateway.nat_pmp) = (Speaks::Yes, Speaks::Yes);
        rig.run(seconds(32 * 60));
        assert_eq!(rig.mapping(), Some((Protocol::Pcp, HERE)));
    }
}

#[test]
fn mapping_of_a_silent_gateway_stays_until_it_expires() {
    let mut rig = Rig::new(Speaks::Yes, Speaks::Yes);
    rig.run(seconds(1));
    (rig.gateway.pcp, rig.gateway.nat_pmp) = (Speaks::No, Speaks::No);
    rig.run(seconds(7198));
    assert!(rig.mapping().is_some());
    let heard = rig.gateway.heard;
    rig.run(seconds(2));
    assert_eq!(rig.mapping(), None);
    assert!(heard < 200, "{heard}");
    rig.run(seconds(10));
    assert_eq!(rig.mapper.state().pcp, Some(false));
}

#[test]
fn unanswered_check_does_not_delay_the_renewal() {
    let mut rig = Rig::new(Speaks::Yes, Speaks::Yes);
    rig.run(seconds(3599));
    rig.gateway.pcp = Speaks::No;
    rig.gateway.nat_pmp = Speaks::No;
    rig.mapper.check(rig.now);
    let until = rig.now + seconds(4);
    while rig.now < until {
        rig.mapper.handle_timeout(rig.now);
        while rig.mapper.poll_transmit().is_some() {}
        let next = rig.mapper.poll_timeout().expect("it is never done");
        assert!(next > rig.now, "what was due is done");
        rig.now = next;
    }
    rig.gateway.pcp = Speaks::Yes;
    rig.run(seconds(1));
    let left = rig.mapper.state().mapping.unwrap().expires - rig.now;
    assert!(left > seconds(7190), "{left:?}");
}

#[test]
fn other_protocol_is_tried_after_a_refused_renewal() {
    let mut rig = Rig::new(Speaks::Yes, Speaks::Yes);
    rig.run(seconds(1));
    rig.gateway.pcp = Speaks::Refuses;
    rig.run(seconds(3700));
    assert_eq!(rig.mapping(), Some((Protocol::NatPmp, HERE)));
    rig.gateway.nat_pmp = Speaks::Refuses;
    rig.run(seconds(3700));
    assert_eq!(rig.mapping(), None);
}

#[test]
fn stop_deletes_the_mapping() {
    for speaks in [[Speaks::Yes, Speaks::No], [Speaks::No, Speaks::Yes]] {
        let mut rig = Rig::new(speaks[0], speaks[1]);
        rig.run(seconds(1));
        assert_eq!(rig.gateway.mapped, Some(PORT));
        rig.mapper.stop();
        assert_eq!(rig.mapping(), None);
        rig.run(seconds(10));
        assert_eq!(rig.gateway.mapped, None);
        assert_eq!(rig.mapper.poll_timeout(), None);
    }
}

#[test]
fn unexpected_response_changes_nothing() {
    let mut mapper = Mapper::new(Nonce([9; 12]));
    let now = Duration::from_secs(1);
    let map = |nonce, internal| Response::PcpMap {
        nonce: Nonce([nonce; 12]),
        internal,
        external: 1,
        address: OUTSIDE,
        lifetime: 7200,
        epoch: 5,
    };
    assert!(!mapper.handle_datagram(&map(9, PORT).to_bytes(), now));
    mapper.start(PLACE, now);
    assert!(!mapper.handle_datagram(&map(9, PORT).to_bytes(), now), "nothing was sent");
    mapper.handle_timeout(now);
    for bad in [map(8, PORT), map(9, PORT + 1), Response::PcpAnnounce { epoch: 1 }] {
        assert!(!mapper.handle_datagram(&bad.to_bytes(), now), "{bad:?}");
    }
    let early = Response::PmpMap { internal: PORT, external: 1, lifetime: 7200, epoch: 5 };
    assert!(!mapper.handle_datagram(&early.to_bytes(), now));
    assert_eq!(mapper.state(), GatewayState::default());
    assert!(mapper.handle_datagram(&map(9, PORT).to_bytes(), now));
    assert!(!mapper.handle_datagram(&map(9, PORT).to_bytes(), now), "it was answered");
}

#[test]
fn mapping_to_an_unusable_address_is_refused() {
    for address in [[0, 0, 0, 0], [127, 0, 0, 1], [169, 254, 1, 1], [224, 0, 0, 1], [255; 4]] {
        for speaks in [[Speaks::Yes, Speaks::No], [Speaks::No, Speaks::Yes]] {
            let mut rig = Rig::new(speaks[0], speaks[1]);
            rig.gateway.address = address.into();
            rig.run(seconds(10));
            assert_eq!(rig.mapping(), None, "{address:?}");
        }
    }
    let mut rig = Rig::new(Speaks::Yes, Speaks::Yes);
    rig.gateway.lifetime = 5;
    rig.run(seconds(10));
    assert_eq!(rig.mapping(), None, "renewed all the time");
}

#[test]
fn nonce_is_derived_from_the_key_and_hides_it() {
    let key = |byte| DiscoKey::new(Box::new(zeroize::Zeroizing::new([byte; 32])));
    assert!(Nonce::of(&key(1)) == Nonce::of(&key(1)));
    assert!(Nonce::of(&key(1)) != Nonce::of(&key(2)));
    assert_eq!(format!("{:?}", Nonce::of(&key(1))), "Nonce(..)");
}

fn answers() -> impl Strategy<Value = Response> {
    let epoch = 0u32..5000;
    let lifetime = prop_oneof![Just(0u32), Just(30), Just(7200), any::<u32>()];
    let address = prop_oneof![Just(OUTSIDE), any::<[u8; 4]>().prop_map(Ipv4Addr::from)];
    (epoch, lifetime, address, any::<u16>(), 0..7).prop_map(
        |(epoch, lifetime, address, external, which)| match which {
            0 => {
                let (nonce, internal) = (Nonce([9; 12]), PORT);
                Response::PcpMap { nonce, internal, external, address, lifetime, epoch }
            }
            1 => Response::PcpAnnounce { epoch },
            2 => Response::PcpRefused { result: 2, lifetime },
            3 => Response::PmpAddress { address, epoch },
            4 => Response::PmpMap { internal: PORT, external, lifetime, epoch },
            5 => Response::PmpRefused { result: 3 },
            _ => Response::NoPcp,
        },
    )
}

proptest! {
    #[test]
    fn requests_to_any_gateway_are_limited(
        answers in proptest::collection::vec(answers(), 1..40),
        checks: bool,
    ) {
        let mut mapper = Mapper::new(Nonce([9; 12]));
        let (mut now, hour) = (Duration::ZERO, seconds(3600));
        mapper.start(PLACE, now);
        let (mut sent, mut rounds) = (0, 0);
        let mut answers = answers.iter().cycle();
        while now < hour {
            mapper.handle_timeout(now);
            while mapper.poll_transmit().is_some() {
                sent += 1;
                for answer in answers.by_ref().take(2) {
                    mapper.handle_datagram(&answer.to_bytes(), now);
                }
            }
            if checks {
                mapper.check(now);
            }
            let next = mapper.poll_timeout().expect("it is never done");
            now = next.max(now);
            rounds += 1;
            prop_assert!(rounds < 20_000, "time stands still");
        }
        // A round has at most 8 datagrams. The shortest mapping of 30 s causes three rounds: its
        // renewal, its check, and a new attempt after a refusal.
        prop_assert!(sent < 3600 / 15 * 24, "{sent} in an hour");
    }
}
