//! Commands of a program that chooses the paths to peers.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use packet::{Endpoint, Local};
use wg::{AllowedIpMove, CommandError, config::PeerChange};

use crate::support::*;

fn elsewhere() -> SocketAddr {
    "203.0.113.9:4444".parse().unwrap()
}

fn handshake_now(world: &mut World, host: Id, peer: Id) -> Result<(), CommandError> {
    let key = world.key(peer);
    world.act(host, |host, now| host.control.handshake_now(&key, now))
}

#[test]
fn commanded_handshake_starts_at_once_and_the_old_session_works_meanwhile() {
    let mut world = World::connected(1);
    world.run(secs(1));
    let before = world.hosts[A].handshakes().0;
    handshake_now(&mut world, A, B).unwrap();
    assert_eq!(world.sent(A, What::Initiation).len(), 2, "at once");
    world.assert_flows(A, B);
    world.run(millis(100));
    assert_eq!(world.hosts[A].handshakes().0, before + 1);
    world.assert_flows(B, A);
}

/// The program found a path: waiting for the next retransmission would cost five seconds.
#[test]
fn commanded_handshake_does_not_wait_for_a_lost_initiation() {
    let mut world = World::pair(2);
    world.lose_next(What::Initiation);
    world.send(A, B);
    world.run(secs(1));
    handshake_now(&mut world, A, B).unwrap();
    world.run(millis(100));
    assert_eq!(world.received(B).len(), 1, "the staged packet was sent");
    world.run(secs(20));
    assert_eq!(world.sent(A, What::Initiation).len(), 2, "and nothing is retransmitted");
}

#[test]
fn repeated_commands_send_no_more_initiations_than_a_peer_accepts() {
    let mut world = World::pair(3);
    for _ in 0..1_000 {
        handshake_now(&mut world, A, B).unwrap();
        world.run(millis(1));
    }
    let sent = world.sent(A, What::Initiation).len();
    assert!((25..=50).contains(&sent), "{sent} in a second");
    world.run(secs(1));
    assert_eq!(world.hosts[B].dropped(wg::DropReason::HandshakeReplayed), 0);
    world.assert_flows(A, B);
}

#[test]
fn impossible_handshake_is_refused_with_a_reason() {
    let mut world = World::pair(4);
    let c = world.add_host();
    let change = world.peer_change(c);
    assert_eq!(handshake_now(&mut world, A, c), Err(CommandError::UnknownPeer(world.key(c))));
    world.change_peer(A, change);
    assert_eq!(handshake_now(&mut world, A, c), Err(CommandError::NoEndpoint));
    world.act(A, |host, _| host.control.down());
    assert_eq!(handshake_now(&mut world, A, B), Err(CommandError::Down));
    assert_eq!(world.wire.len(), 0);
}

#[test]
fn endpoint_set_under_traffic_changes_nothing_else() {
    let mut world = World::connected(5);
    world.assert_flows(B, A);
    let before = world.hosts[A].state(&world.key(B));
    world.hosts[B].address = elsewhere();
    let local = Some(Local { addr: [192, 0, 2, 1].into(), interface: 7 });
    let endpoint = Endpoint { local, ..Endpoint::new(elsewhere()) };
    let key = world.key(B);
    world.act(A, |host, _| host.control.set_endpoint(&key, endpoint)).unwrap();
    world.assert_flows(A, B);
    assert_eq!(world.hosts[A].last.as_ref().unwrap().endpoint, endpoint);
    let after = world.hosts[A].state(&key);
    assert_eq!(after.endpoint, Some(elsewhere()));
    assert_eq!(after.allowed_ips, before.allowed_ips);
    assert_eq!(after.last_handshake, before.last_handshake, "by the same session");

    let unknown = [9; 32].into();
    let refused = world.act(A, |host, _| host.control.set_endpoint(&unknown, endpoint));
    assert_eq!(refused, Err(CommandError::UnknownPeer(unknown)));
}

#[test]
fn first_endpoint_starts_persistent_keepalives() {
    let mut world = World::pair(6);
    let c = world.add_host();
    world.introduce(c, A);
    let change = PeerChange { persistent_keepalive: Some(25), ..world.peer_change(c) };
    world.change_peer(A, change);
    world.run(secs(30));
    assert_eq!(world.wire.len(), 0);
    let (key, endpoint) = (world.key(c), Endpoint::new(world.hosts[c].address));
    world.act(A, |host, _| host.control.set_endpoint(&key, endpoint)).unwrap();
    world.run(millis(100));
    assert_eq!(world.sent(A, What::Initiation).len(), 1);
}

fn nets() -> [ipnet::IpNet; 2] {
    ["10.7.0.0/16", "10.8.0.0/16"].map(|net| net.parse().unwrap())
}

/// A with the peers B and C. B owns both networks.
fn with_nets(seed: u64) -> World {
    let mut world = World::pair(seed);
    let c = world.add_host();
    world.introduce(A, c);
    world.introduce(c, A);
    let allowed_ips = ["10.7.0.0/16", "10.8.0.0/16"].map(allowed).to_vec();
    world.change_peer(A, PeerChange { allowed_ips, ..PeerChange::new(world.key(B)) });
    world
}

fn move_all(world: &mut World, to: Id) -> Result<(), CommandError> {
    let to = world.key(to);
    let moves = nets().map(|net| AllowedIpMove { net, to });
    world.act(A, |host, _| host.control.move_allowed_ips(&moves))
}

#[test]
fn moved_networks_belong_to_the_other_peer_in_the_state() {
    let mut world = with_nets(7);
    let own = |world: &World, peer| {
        let nets: Vec<String> = world.hosts[A]
            .state(&world.key(peer))
            .allowed_ips
            .iter()
            .map(ToString::to_string)
            .collect();
        nets
    };
    move_all(&mut world, C).unwrap();
    assert_eq!(own(&world, B), ["10.0.0.2/32"]);
    assert_eq!(own(&world, C), ["10.0.0.3/32", "10.7.0.0/16", "10.8.0.0/16"]);
    let route = world.hosts[A].device.route([10, 7, 1, 1].into()).unwrap();
    assert_eq!(*route.public_key(), world.key(C));
    move_all(&mut world, C).unwrap();
    assert_eq!(own(&world, C).len(), 3, "it has them already");

    let [first, second] = nets();
    let unknown = [9; 32].into();
    let moves = [
        AllowedIpMove { net: first, to: world.key(B) },
        AllowedIpMove { net: second, to: unknown },
    ];
    let refused = world.act(A, |host, _| host.control.move_allowed_ips(&moves));
    assert_eq!(refused, Err(CommandError::UnknownPeer(unknown)));
    assert_eq!(own(&world, B), ["10.0.0.2/32"], "a refused move changes nothing");
}

#[test]
fn concurrent_lookups_see_either_all_moves_or_none() {
    let mut world = with_nets(8);
    let device = world.hosts[A].device.clone();
    let addresses: [IpAddr; 2] = [[10, 7, 0, 1].into(), [10, 8, 0, 1].into()];
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let looks = std::thread::Builder::new().spawn(move || {
        let mut owners = std::collections::HashSet::new();
        while !ended.load(Ordering::Relaxed) {
            let routes = device.routes();
            let [first, second] = addresses.map(|address| {
                *routes.lookup(address).expect("the address always has an owner").public_key()
            });
            assert_eq!(first, second, "both moved, or none");
            owners.insert(first);
        }
        owners.len()
    });
    for _ in 0..20_000 {
        move_all(&mut world, C).unwrap();
        move_all(&mut world, B).unwrap();
    }
    over.store(true, Ordering::Relaxed);
    assert_eq!(looks.unwrap().join().unwrap(), 2, "it saw both owners");
}
