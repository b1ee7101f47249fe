//! The filter drops packets that it does not accept.

use std::{net::IpAddr, sync::Arc, time::Duration};

use engine::Filter;
use packet::filter::{AddressRange, Destination, Policy, Rule};
use sim::{Link, Network};
use wg::DropReason;

use crate::support::{Host, pair, run};

const SECOND: Duration = Duration::from_secs(1);
const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

/// A UDP packet over IPv4 with `number` as its payload.
fn udp(from: ([u8; 4], u16), to: ([u8; 4], u16), number: u32) -> Vec<u8> {
    let header = [0x45, 0, 0, 32, 0, 0, 0, 0, 64, 17, 0, 0];
    let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    let rest = [&[0, 12, 0, 0], &number.to_be_bytes()[..]].concat();
    [&header, &from.0[..], &to.0, &ports, &rest].concat()
}

/// Accepts UDP from the first host to one port of the second.
fn policy(port: u16) -> Policy {
    let local = AddressRange::from(IpAddr::from(B));
    Policy {
        local: vec![local],
        rules: vec![Rule {
            protocols: vec![17],
            sources: vec![IpAddr::from(A).into()],
            destinations: vec![Destination { addresses: local, ports: port..=port }],
        }],
        ..Policy::default()
    }
}

/// Two hosts. The second one's filter is off.
fn filtered(seed: u64) -> (Network, Host, Host, Arc<Filter>) {
    let (network, mut a, mut b) = pair(seed, Link::CLEAN);
    let filter = b.filter.clone();
    a.port.push(udp((A, 1), (B, 1), 0));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take().len(), 1, "there is a session, and no filter");
    (network, a, b, filter)
}

/// The packets that reach the second host.
fn carried(network: &Network, a: &mut Host, b: &mut Host, packets: &[Vec<u8>]) -> Vec<Vec<u8>> {
    packets.iter().for_each(|packet| a.port.push(packet.clone()));
    run(network, &mut [a, b], Duration::from_millis(20));
    b.port.take()
}

#[test]
fn a_denied_flow_is_dropped_and_counted_and_an_allowed_one_is_carried() {
    let (network, mut a, mut b, filter) = filtered(1);
    filter.set(&policy(80));
    let (good, bad) = (udp((A, 7), (B, 80), 1), udp((A, 7), (B, 81), 2));
    let sent = [good.clone(), bad.clone(), good.clone(), bad.clone(), bad];
    assert_eq!(carried(&network, &mut a, &mut b, &sent), [good.clone(), good]);
    assert_eq!(b.all_drops(), [(DropReason::InFiltered, 3)]);
    assert_eq!(a.all_drops(), []);
}

#[test]
fn a_new_policy_takes_effect_at_once_also_for_existing_flows() {
    let (network, mut a, mut b, filter) = filtered(2);
    let packets = [udp((A, 7), (B, 80), 1), udp((A, 7), (B, 81), 2)];
    for (port, expected) in [(80, &packets[..1]), (81, &packets[1..]), (80, &packets[..1])] {
        filter.set(&policy(port));
        for _ in 0..3 {
            assert_eq!(carried(&network, &mut a, &mut b, &packets), expected, "port {port}");
        }
    }
    filter.clear();
    assert_eq!(carried(&network, &mut a, &mut b, &packets), packets);
    assert_eq!(b.all_drops(), [(DropReason::InFiltered, 9)]);
}

#[test]
fn replies_to_opened_flows_are_accepted_until_shields_go_up() {
    let (network, mut a, mut b, filter) = filtered(3);
    filter.set(&policy(80));
    let (query, reply) = (udp((B, 5000), (A, 53), 1), udp((A, 53), (B, 5000), 2));
    let one = std::slice::from_ref(&reply);
    assert!(carried(&network, &mut a, &mut b, one).is_empty(), "the flow is not open");
    b.port.push(query.clone());
    run(&network, &mut [&mut a, &mut b], Duration::from_millis(20));
    assert_eq!(a.port.take(), std::slice::from_ref(&query));
    assert_eq!(carried(&network, &mut a, &mut b, one), one);
    filter.set(&policy(81));
    assert_eq!(carried(&network, &mut a, &mut b, one), one, "whatever the rules");

    let shields_up = Policy { shields_up: true, ..policy(5000) };
    filter.set(&shields_up);
    assert!(carried(&network, &mut a, &mut b, one).is_empty());
    b.port.push(query);
    run(&network, &mut [&mut a, &mut b], Duration::from_millis(20));
    assert_eq!(carried(&network, &mut a, &mut b, one), one);
    filter.set(&shields_up);
    assert_eq!(carried(&network, &mut a, &mut b, one), one, "they were up already");
}

#[test]
fn packets_of_one_flow_in_a_batch_are_judged_once() {
    let (network, mut a, mut b, filter) = filtered(4);
    filter.set(&policy(80));
    let flow = |port, numbers: std::ops::Range<u32>| {
        numbers.map(move |number| udp((A, 7), (B, port), number))
    };
    let sent: Vec<_> = flow(80, 0..20).chain(flow(81, 20..40)).collect();
    assert_eq!(carried(&network, &mut a, &mut b, &sent), sent[..20]);
    assert_eq!(filter.judged(), 2);
    assert_eq!(b.all_drops(), [(DropReason::InFiltered, 20)]);
}

#[test]
fn second_threads_use_the_filter() {
    let (network, mut a, mut b) = pair(5, Link::CLEAN);
    let filter = b.filter.clone();
    filter.set(&policy(80));
    a.start_seconds();
    b.start_seconds();
    let (good, bad) = (udp((A, 7), (B, 80), 1), udp((A, 7), (B, 81), 2));
    a.port.push(good.clone());
    a.port.push(bad);
    run(&network, &mut [&mut a, &mut b], 2 * SECOND);
    assert_eq!(b.port.take(), [good]);
    assert_eq!(b.drops(DropReason::InFiltered), 1);
}
