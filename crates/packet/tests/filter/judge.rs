//! Compares the judge, with its caches, with the oracle.

use std::{cell::RefCell, sync::Arc};

use packet::filter::{Flow, Judge, OpenedFlows, Policy, Reading, Rules};
use proptest::{collection::vec, prelude::*};

use crate::{
    any,
    bytes::{Packet, Transport},
    oracle,
};

/// A judge, and the flows that this host opened.
struct Host {
    judge: Judge,
    opened: RefCell<OpenedFlows>,
}

impl Host {
    fn new(policy: &Policy) -> Self {
        let judge = Judge::new(Arc::new(Rules::new(policy)), 1);
        Self { judge, opened: RefCell::new(OpenedFlows::new(2)) }
    }

    fn send(&self, packet: &Packet) {
        if let Some(flow) = OpenedFlows::read(&packet.bytes()) {
            self.opened.borrow_mut().note(flow);
        }
    }

    fn accepts(&mut self, packet: &[u8]) -> bool {
        let opened = &self.opened;
        self.judge.accepts(packet, |flow| opened.borrow_mut().has(flow))
    }
}

/// An event at a host.
#[derive(Clone, Debug)]
enum Step {
    Policy(Policy),
    Send(Packet),
    /// The index of a packet, and how often it arrives.
    Receive(prop::sample::Index, usize),
    Batch,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => any::policy().prop_map(Step::Policy),
        3 => any::packet().prop_map(Step::Send),
        20 => (any::<prop::sample::Index>(), 1usize..4).prop_map(|(at, times)| Step::Receive(at, times)),
        3 => Just(Step::Batch),
    ]
}

/// A packet with the same bytes that opens a flow: it must be whole or a first fragment.
fn begins(packet: &Packet) -> Option<Packet> {
    let has_flow = matches!(packet.transport, Transport::Udp { .. } | Transport::Sctp { .. });
    let first = packet.fragment.is_none_or(|fragment| fragment.offset == 0);
    (has_flow && first).then_some(Packet { fragment: None, ..*packet })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn compiled_rules_agree_with_a_walk_over_all_rules(
        policy in any::policy(),
        packets in vec(any::packet(), 100),
    ) {
        let mut host = Host::new(&policy);
        for packet in &packets {
            let expected = oracle::accepts(&policy, &[], packet);
            prop_assert_eq!(host.accepts(&packet.bytes()), expected, "{:?}", packet);
        }
    }

    #[test]
    fn cached_verdicts_end_with_their_policy_and_do_not_hide_opened_flows(
        first in any::policy(),
        packets in vec(any::packet(), 20),
        steps in vec(step(), 1..120),
    ) {
        let (mut host, mut policy) = (Host::new(&first), first);
        let mut opened = Vec::new();
        for step in steps {
            match step {
                Step::Policy(next) => {
                    host.judge.set_rules(Arc::new(Rules::new(&next)));
                    policy = next;
                }
                Step::Send(packet) => {
                    host.send(&packet);
                    opened.extend(begins(&packet).filter(|packet| {
                        // Flows to addresses that may not send are not recorded.
                        !matches!(Flow::read(&packet.bytes()), Reading::Refused)
                    }));
                    host.judge.begin();
                }
                Step::Receive(at, times) => {
                    let packet = at.get(&packets);
                    let expected = oracle::accepts(&policy, &opened, packet);
                    for _ in 0..times {
                        prop_assert_eq!(host.accepts(&packet.bytes()), expected, "{:?}", packet);
                    }
                }
                Step::Batch => host.judge.begin(),
            }
        }
    }

    #[test]
    fn malformed_packets_do_not_panic_and_truncated_ones_are_refused(
        packet in any::packet(),
        breaks in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = packet.bytes();
        let cut = cut.index(bytes.len());
        prop_assert_eq!(Flow::read(&bytes[..cut]), Reading::Refused);
        for (at, byte) in breaks {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        (0..bytes.len()).for_each(|len| { Flow::read(&bytes[..len]); });
    }

    #[test]
    fn any_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..100)) {
        Flow::read(&bytes);
    }

    #[test]
    fn a_packet_too_short_for_its_transport_header_is_refused(
        packet in any::packet(),
        missing in 1usize..=20,
    ) {
        let packet = Packet { fragment: None, ..packet };
        prop_assume!(missing <= packet.least());
        let mut bytes = packet.bytes();
        let header = bytes.len() - 12 - packet.least();
        let len = header + packet.least() - missing;
        bytes.truncate(len);
        match packet.to {
            std::net::IpAddr::V4(_) => bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes()),
            std::net::IpAddr::V6(_) => bytes[4..6].copy_from_slice(&((len - 40) as u16).to_be_bytes()),
        }
        prop_assert_eq!(Flow::read(&bytes), Reading::Refused);
    }
}
