//! Peers that have their own socket.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use engine::{Attachments, PeerSockets, RelayQueues};
use packet::{Ecn, Endpoint, RecvBatch, UdpRecv as _};
use sim::{Link, NetRecv, Network};

use crate::support::{Host, make_peers, packet, run};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A host with a socket for one peer. The peer has an ordinary socket.
struct World {
    network: Network,
    a: Host,
    b: Host,
    relay: RelayQueues,
    peer_sockets: PeerSockets,
    endpoint: Endpoint,
    own: SocketAddr,
    received: NetRecv,
    batch: RecvBatch,
}

impl World {
    fn new() -> Self {
        let network = Network::new(1, Link::CLEAN);
        let (relay, peer_sockets) = (RelayQueues::new(Arc::new(|| {})), PeerSockets::default());
        let attached = Attachments {
            relay: Some(relay.clone()),
            peer_sockets: peer_sockets.clone(),
            ..Attachments::default()
        };
        let a = Host::with(&network, 1, |net| net, attached);
        let b = Host::new(&network, 2, |net| net);
        make_peers(&a, &b);
        let own = SocketAddr::new(a.address.ip(), 60_000);
        let (received, sender) = network.socket(own);
        let endpoint = peer_sockets.add(b.address, Box::new(sender)).unwrap();
        a.set_endpoint("10.0.0.2", endpoint);
        let batch = RecvBatch::new(4);
        Self { network, a, b, relay, peer_sockets, endpoint, own, received, batch }
    }

    fn run(&mut self, duration: Duration) {
        let end = self.network.now() + duration;
        while self.network.now() < end {
            run(&self.network, &mut [&mut self.a, &mut self.b], MILLISECOND);
            self.received.recv(&mut self.batch, false, true).unwrap();
            self.relay.inject_batch(&self.endpoint, self.b.address, &self.batch);
        }
    }

    /// Sends packets in both directions. Returns those that arrived.
    fn talk(&mut self, tos: u8) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        for number in 0..100 {
            self.a.port.push(packet("10.0.0.1", "10.0.0.2", tos, number, 500));
            self.b.port.push(packet("fd00::2", "fd00::1", tos, number, 500));
        }
        self.run(SECOND);
        (self.a.port.take(), self.b.port.take())
    }

    fn seen_by_b(&self) -> Option<SocketAddr> {
        self.b.control.lock().unwrap().peers().next().unwrap().endpoint
    }
}

#[test]
fn handshake_and_data_use_only_the_peers_own_socket() {
    let mut world = World::new();
    let (at_a, at_b) = world.talk(0);
    assert_eq!((at_a.len(), at_b.len()), (100, 100));
    assert_eq!(world.seen_by_b(), Some(world.own));
    assert_eq!((world.a.all_drops(), world.b.all_drops()), (vec![], vec![]));

    // After its removal, data is sent by the data plane's socket.
    world.a.set_endpoint("10.0.0.2", Endpoint::new(world.b.address));
    world.peer_sockets.remove(&world.endpoint);
    let (at_a, at_b) = world.talk(0);
    assert_eq!((at_a.len(), at_b.len()), (100, 100));
    assert_eq!(world.seen_by_b(), Some(world.a.address));
}

#[test]
fn datagrams_from_other_addresses_to_a_peers_socket_are_ignored() {
    let mut world = World::new();
    world.talk(0);
    let before = world.a.all_drops();
    let stranger = world.network.bind(sim::Realm::INTERNET, "192.0.2.9:7".parse().unwrap());
    for kind in [1, 2, 4, 9] {
        stranger.send(world.own, &[&[kind, 0, 0, 0][..], &[7; 144]].concat());
    }
    world.run(SECOND / 10);
    assert_eq!(world.a.all_drops(), before);
}

#[test]
fn congestion_marks_at_a_peers_socket_reach_the_inner_packets() {
    let mut world = World::new();
    world.talk(0);
    world.network.set_link(Link { congested: true, ..Link::CLEAN });
    let (at_a, _) = world.talk(Ecn::Ect0 as u8);
    let marks = at_a.iter().filter(|packet| packet[1] >> 4 & 3 == Ecn::Ce as u8).count();
    assert_eq!(marks, 100);
}
