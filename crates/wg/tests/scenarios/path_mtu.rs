//! The path MTU search between two hosts on a link that drops long datagrams.

use std::{cell::Cell, net::SocketAddr, rc::Rc, time::Duration};

use wg::{DropReason, PathLimit, config::PeerChange, message::DATA_OVERHEAD};

use super::support::{A, B, What, World};

const MTU: u16 = 1420;
const SECOND: Duration = Duration::from_secs(1);

/// Sets a link that drops plaintexts longer than the returned limit.
fn narrow(world: &mut World, plaintext: usize) -> Rc<Cell<usize>> {
    let carries = Rc::new(Cell::new(plaintext));
    let gate = carries.clone();
    world.gate(move |sent| sent.bytes.len() <= gate.get() + DATA_OVERHEAD);
    carries
}

fn probing(hosts: &[usize], carries: usize) -> (World, Rc<Cell<usize>>) {
    let mut world = World::pair(1);
    for host in hosts {
        world.act(*host, |host, now| host.control.probe_paths(Some(MTU), now.time));
    }
    let carries = narrow(&mut world, carries);
    for (from, to) in [(A, B), (B, A)] {
        world.send_padded(from, to, MTU.into());
        world.run(5 * SECOND);
    }
    (world, carries)
}

fn limit(world: &World, of: usize, to: usize) -> Option<PathLimit> {
    let address = super::support::inner(to).into();
    world.hosts[of].device.route(address).expect("a peer").path_limit()
}

fn path_mtu(world: &World, of: usize, to: usize) -> Option<u16> {
    world.hosts[of].state(&world.key(to)).path_mtu
}

/// Sends long packets for a time.
fn send_long(world: &mut World, duration: Duration) {
    const INTERVAL: Duration = Duration::from_millis(10);
    let end = world.elapsed() + duration;
    while world.elapsed() < end {
        world.send_padded(A, B, MTU.into());
        world.run(INTERVAL);
    }
}

#[test]
fn both_hosts_find_the_mtu_of_a_narrow_link_and_stop_probing() {
    let (mut world, _) = probing(&[A, B], 1340);
    for (of, to) in [(A, B), (B, A)] {
        assert_eq!(limit(&world, of, to), Some(PathLimit { bytes: 1340, settled: true }));
        assert_eq!(path_mtu(&world, of, to), Some(1340));
    }
    assert_eq!(world.hosts[B].dropped(DropReason::InInvalid), 0);
    let sent = world.wire.len();
    world.run(100 * SECOND);
    let keepalives =
        [A, B].map(|host| world.sent(host, What::Keepalive).len()).iter().sum::<usize>();
    assert!(world.wire.len() - sent <= keepalives, "no more probes");
}

#[test]
fn link_with_the_full_mtu_is_not_limited() {
    let (world, _) = probing(&[A, B], MTU.into());
    assert_eq!(limit(&world, A, B), None);
    assert_eq!((path_mtu(&world, A, B), path_mtu(&world, B, A)), (Some(MTU), Some(MTU)));
}

#[test]
fn host_without_a_search_answers_probes() {
    let (world, _) = probing(&[A], 1340);
    assert_eq!((path_mtu(&world, A, B), path_mtu(&world, B, A)), (Some(1340), None));
    assert_eq!(limit(&world, B, A), None);
}

#[test]
fn without_a_search_no_probe_is_sent() {
    let (world, _) = probing(&[], 1340);
    assert_eq!([A, B].map(|host| world.sent(host, What::Data).len()), [1, 1]);
    assert_eq!(path_mtu(&world, A, B), None);
}

#[test]
fn session_with_short_data_sends_no_probe() {
    let mut world = World::pair(1);
    for host in [A, B] {
        world.act(host, |host, now| host.control.probe_paths(Some(MTU), now.time));
    }
    for (from, to) in [(A, B), (B, A)] {
        world.send(from, to);
        world.run(SECOND);
    }
    assert_eq!([A, B].map(|host| world.sent(host, What::Data).len()), [1, 1]);
}

#[test]
fn narrowed_link_is_noticed_within_a_second() {
    let (mut world, carries) = probing(&[A, B], MTU.into());
    send_long(&mut world, 2 * SECOND);
    carries.set(1240);
    send_long(&mut world, SECOND);
    let noticed = limit(&world, A, B).expect("it was noticed");
    assert!(noticed.bytes <= 1240, "{noticed:?}");
    send_long(&mut world, 3 * SECOND);
    let found = limit(&world, A, B).unwrap();
    assert!(found.settled && (1225..=1240).contains(&found.bytes), "{found:?}");
}

#[test]
fn long_data_is_probed_at_an_interval_and_short_data_never() {
    let (mut world, _) = probing(&[A, B], MTU.into());
    let probes = |world: &World| {
        let long = usize::from(MTU) + DATA_OVERHEAD;
        world.sent(A, What::Data).iter().filter(|sent| sent.bytes.len() == long).count()
    };
    let before = probes(&world);
    for _ in 0..100 {
        world.send(A, B);
        world.run(SECOND / 100);
    }
    assert_eq!(probes(&world), before);
    for _ in 0..1_000 {
        world.send_padded(A, B, 1000);
        world.run(SECOND / 100);
    }
    let probed = probes(&world) - before;
    assert!((25..=34).contains(&probed), "{probed} in ten seconds");
}

#[test]
fn moved_peer_is_searched_again() {
    let (mut world, carries) = probing(&[A, B], 1340);
    carries.set(MTU.into());
    let new: SocketAddr = ([198, 51, 100, 7], 4).into();
    world.hosts[B].address = new;
    let endpoint = Some(new);
    let change = PeerChange { endpoint, ..PeerChange::new(world.key(B)) };
    world.change_peer(A, change);
    send_long(&mut world, 2 * SECOND);
    assert_eq!((limit(&world, A, B), path_mtu(&world, A, B)), (None, Some(MTU)));
}

#[test]
fn interface_down_or_disabled_search_clears_the_limit() {
    let (mut world, _) = probing(&[A, B], 1340);
    world.act(B, |host, now| host.control.probe_paths(None, now.time));
    assert_eq!((limit(&world, B, A), path_mtu(&world, B, A)), (None, None));
    world.act(A, |host, _| host.control.down());
    assert_eq!((limit(&world, A, B), path_mtu(&world, A, B)), (None, None));
    world.act(A, |host, _| host.control.up());
    send_long(&mut world, 10 * SECOND);
    assert_eq!(path_mtu(&world, A, B), Some(1340), "found again");
}

#[test]
fn larger_interface_mtu_extends_the_search() {
    let (mut world, carries) = probing(&[A, B], MTU.into());
    carries.set(8_000);
    world.act(A, |host, now| host.control.probe_paths(Some(8_920), now.time));
    send_long(&mut world, 5 * SECOND);
    let found = path_mtu(&world, A, B).expect("it was found");
    assert!((7_984..=8_000).contains(&found), "{found}");
}
