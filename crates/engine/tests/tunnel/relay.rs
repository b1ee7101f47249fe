//! Peers behind a relay.

use std::{sync::Arc, time::Duration};

use engine::{Attachments, InjectError, RelayPeer, RelayQueues};
use packet::{Ecn, Endpoint, RelayId};
use sim::{Link, Network};
use wg::{DropReason, PublicKey};

use crate::support::{Host, make_peers, packet, run};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// A host with its queues to the relay.
fn host(network: &Network, number: u8) -> (Host, RelayQueues) {
    let relay = RelayQueues::new(Arc::new(|| {}));
    let attached = Attachments { relay: Some(relay.clone()), ..Attachments::default() };
    (Host::with(network, number, |net| net, attached), relay)
}

fn at(key: &PublicKey) -> RelayPeer {
    RelayPeer { region: 7, key: *key.as_bytes() }
}

/// Two hosts that are connected only through a relay, and the datagrams that it carried.
struct World {
    network: Network,
    a: Host,
    b: Host,
    at_a: RelayQueues,
    at_b: RelayQueues,
    carried: Vec<Vec<u8>>,
}

impl World {
    fn new() -> Self {
        let network = Network::new(1, Link::CLEAN);
        let ((a, at_a), (b, at_b)) = (host(&network, 1), host(&network, 2));
        make_peers(&a, &b);
        a.set_endpoint("10.0.0.2", at_a.endpoint(at(&b.key)).unwrap());
        b.set_endpoint("10.0.0.1", at_b.endpoint(at(&a.key)).unwrap());
        Self { network, a, b, at_a, at_b, carried: Vec::new() }
    }

    fn run(&mut self, duration: Duration) {
        let end = self.network.now() + duration;
        while self.network.now() < end {
            run(&self.network, &mut [&mut self.a, &mut self.b], MILLISECOND);
            for (from, key, to, to_key) in [
                (&self.at_a, &self.a.key, &self.at_b, &self.b.key),
                (&self.at_b, &self.b.key, &self.at_a, &self.a.key),
            ] {
                while let Some(run) = from.recv_timeout(Duration::ZERO) {
                    assert_eq!(run.to, at(to_key));
                    let datagrams = run.bytes.chunks(run.segment).map(<[u8]>::to_vec);
                    self.carried.extend(datagrams);
                    to.inject(&at(key), run.bytes, run.segment).unwrap();
                }
            }
        }
    }

    /// Sends `count` packets in each direction. Returns the numbers that arrived.
    fn talk(&mut self, count: u32) -> (usize, usize) {
        for number in 0..count {
            self.a.port.push(packet("10.0.0.1", "10.0.0.2", 0, number, 500));
            self.b.port.push(packet("fd00::2", "fd00::1", 0, number, 500));
        }
        self.run(SECOND);
        (self.a.port.take().len(), self.b.port.take().len())
    }

    fn endpoint_at_a(&self) -> Option<std::net::SocketAddr> {
        self.a.control.lock().unwrap().peers().next().unwrap().endpoint
    }
}

#[test]
fn a_relayed_peer_exchanges_data_until_it_is_direct() {
    let mut world = World::new();
    assert_eq!(world.talk(100), (100, 100));
    assert!(world.carried.len() >= 202);
    assert!(world.network.take_in_flight().is_empty());
    assert_eq!(world.endpoint_at_a(), None, "there is no address to show");
    assert!(world.a.control.lock().unwrap().peers().all(|peer| peer.last_handshake.is_some()));

    world.carried.clear();
    let address = world.b.address;
    world.a.set_endpoint("10.0.0.2", Endpoint::new(address));
    // The other host learns the endpoint from these datagrams.
    world.a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 500));
    run(&world.network, &mut [&mut world.a, &mut world.b], SECOND / 10);
    assert_eq!(world.b.port.take().len(), 1);
    assert_eq!(world.talk(100), (100, 100));
    assert_eq!(world.carried, Vec::<Vec<u8>>::new());
    assert_eq!(world.endpoint_at_a(), Some(address));
    assert_eq!((world.a.all_drops(), world.b.all_drops()), (vec![], vec![]));
}

#[test]
fn replayed_and_forged_datagrams_from_a_relay_are_dropped() {
    let mut world = World::new();
    world.talk(3);
    let data = world.carried.iter().rfind(|datagram| datagram[0] == 4 && datagram.len() > 500);
    let data = data.unwrap().clone();
    let [mut to_a, mut to_b] = [0, 0];
    for len in 0..20 {
        for (host, of) in [(&world.at_a, &world.b.key), (&world.at_b, &world.a.key)] {
            host.inject(&at(of), data[..len].to_vec(), len).unwrap();
        }
        to_a += 1;
        to_b += 1;
    }
    // The datagram belongs to a session of one host, so the other does not know it.
    let (at_a, at_b) = (&world.at_a, &world.at_b);
    at_a.inject(&at(&world.b.key), data.clone(), data.len()).unwrap();
    at_b.inject(&at(&world.a.key), data.clone(), data.len()).unwrap();
    world.run(SECOND);
    let drops = [&world.a, &world.b].map(Host::all_drops);
    let (replayed, unknown) = (DropReason::InReplayed, DropReason::InUnknownIndex);
    let one_each: Vec<_> = drops.iter().flatten().filter(|(_, count)| *count == 1).collect();
    assert!(one_each.contains(&&(replayed, 1)) && one_each.contains(&&(unknown, 1)), "{drops:?}");
    let malformed = [&world.a, &world.b].map(|host| host.drops(DropReason::InMalformed));
    assert_eq!(malformed, [to_a, to_b]);
}

#[test]
fn without_a_relay_or_out_of_its_table_a_relayed_peer_is_unreachable() {
    let network = Network::new(1, Link::CLEAN);
    let (mut a, mut b) = (Host::new(&network, 1, |net| net), host(&network, 2).0);
    make_peers(&a, &b);
    a.set_endpoint("10.0.0.2", Endpoint::relayed(RelayId::new(0)));
    b.set_endpoint("10.0.0.1", Endpoint::relayed(RelayId::new(0)));
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 500));
    b.port.push(packet("10.0.0.2", "10.0.0.1", 0, 0, 500));
    run(&network, &mut [&mut a, &mut b], SECOND);
    for host in [&a, &b] {
        assert_eq!(host.all_drops(), [(DropReason::OutUnreachable, 1)], "its initiation");
    }
}

#[test]
fn full_relay_queues_drop_and_count_in_both_directions() {
    let mut world = World::new();
    assert_eq!(world.talk(1), (1, 1));
    // The queue to the relay is not read.
    for number in 0..2000 {
        world.a.port.push(packet("10.0.0.1", "10.0.0.2", 0, number, 1000));
    }
    run(&world.network, &mut [&mut world.a], SECOND / 10);
    let lost = world.a.drops(DropReason::OutRelayFull);
    assert!((950..1050).contains(&lost), "{lost}");
    let mut datagrams = Vec::new();
    while let Some(run) = world.at_a.recv_timeout(Duration::ZERO) {
        datagrams.extend(run.bytes.chunks(run.segment).map(<[u8]>::to_vec));
    }
    assert_eq!(datagrams.len() as u64, 2000 - lost);
    // The queue from the relay is not read, either.
    let from = at(&world.a.key);
    let mut refused = 0;
    for datagram in datagrams.iter().chain(&datagrams) {
        let taken = world.at_b.inject(&from, datagram.clone(), datagram.len());
        refused += u64::from(taken == Err(InjectError::Full));
    }
    assert!(refused > datagrams.len() as u64);
    world.run(SECOND);
    assert_eq!(world.b.drops(DropReason::InRelayFull), refused);
    let arrived = world.b.port.take().len() as u64;
    assert_eq!(arrived, 2 * datagrams.len() as u64 - refused);
    assert_eq!(world.b.drops(DropReason::InReplayed), 0);
    assert_eq!(world.talk(1), (1, 1), "all is well again");
}

#[test]
fn a_socket_that_fills_every_batch_does_not_starve_the_relay() {
    let mut world = World::new();
    assert_eq!(world.talk(1), (1, 1));
    let from = ([192, 0, 2, 99], 9).into();
    for number in 0..20 {
        world.a.port.push(packet("10.0.0.1", "10.0.0.2", 0, number, 500));
        for _ in 0..1000 {
            world.network.inject(from, world.b.address, Ecn::NotEct, b"junk");
        }
        world.run(3 * MILLISECOND);
    }
    // Much more junk arrived than was processed.
    assert!(world.b.drops(DropReason::InMalformed) < 10_000);
    assert_eq!(world.b.port.take().len(), 20);
}

#[test]
fn direct_and_relayed_peers_of_one_batch_get_their_packets() {
    let network = Network::new(1, Link::CLEAN);
    let ((mut hub, at_hub), mut direct) = (host(&network, 1), Host::new(&network, 2, |net| net));
    let (mut relayed, at_relayed) = host(&network, 3);
    for (number, other) in [(2, &direct), (3, &relayed)] {
        hub.introduce(other.identity(), &format!("10.0.0.{number}/32"));
        other.introduce(hub.identity(), "10.0.0.1/32");
    }
    hub.set_endpoint("10.0.0.3", at_hub.endpoint(at(&relayed.key)).unwrap());
    at_relayed.endpoint(at(&hub.key)).unwrap();
    hub.start_seconds();
    for round in 0..50 {
        for number in 0..20 {
            let to = format!("10.0.0.{}", 2 + number % 2);
            hub.port.push(packet("10.0.0.1", &to, 0, 20 * round + number, 100));
        }
        run(&network, &mut [&mut hub, &mut direct, &mut relayed], 5 * MILLISECOND);
        for (from, key, to) in
            [(&at_hub, hub.key, &at_relayed), (&at_relayed, relayed.key, &at_hub)]
        {
            while let Some(run) = from.recv_timeout(Duration::ZERO) {
                for datagram in run.bytes.chunks(run.segment) {
                    to.inject(&at(&key), datagram.to_vec(), datagram.len()).unwrap();
                }
            }
        }
    }
    run(&network, &mut [&mut hub, &mut direct, &mut relayed], SECOND);
    for (parity, host) in [(0, &direct), (1, &relayed)] {
        let numbers: Vec<u32> = host
            .port
            .take()
            .iter()
            .map(|packet| u32::from_be_bytes(packet[20..24].try_into().unwrap()))
            .collect();
        let all: Vec<u32> = (0..1000).filter(|number| number % 2 == parity).collect();
        assert_eq!(numbers, all, "in order");
    }
    assert_eq!(hub.all_drops(), []);
}

#[test]
fn a_relay_carries_packets_of_any_length() {
    let mut world = World::new();
    world.network.set_link(Link { longest: 1300, ..Link::CLEAN });
    for host in [&world.a, &world.b] {
        host.probe_paths(&world.network, 9000);
    }
    for _ in 0..20 {
        world.a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 8000));
        world.run(SECOND);
    }
    assert_eq!(world.b.port.take().len(), 20);
    assert_eq!(world.a.path_mtu(), Some(9000));
}
