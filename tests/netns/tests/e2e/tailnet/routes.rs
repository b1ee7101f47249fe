//! Networks behind a node, and exit nodes.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc;

use netns::{
    Family, Host, Lan, Member, MemberKind, Tailnet, Uplink, eventually, forward, in_background,
    ping,
};

use MemberKind::{Linerate, Tailscaled};

use crate::tailnet::PATIENCE;

const NETWORK: &str = Lan::NETWORK;
const ROUTER: &str = Lan::ROUTER;
const BEHIND: &str = Lan::HOST;
const WORLD: &str = Lan::WORLD;
const PORT: u16 = 7100;

struct World {
    client: Member,
    router: Member,
    behind: Host,
    tailnet: Tailnet,
}

/// A router with routes, and a client that accepts them.
fn world(kinds: [MemberKind; 2], offers: &str, approved: &str, accepts: &str) -> Option<World> {
    let tailnet = Tailnet::start()?;
    let [client_kind, router_kind] = kinds;
    let host = tailnet.host("router", Uplink::Switch);
    let behind = Lan::behind(&host);
    if router_kind == Tailscaled {
        forward(&host);
    }
    let router = Member::join(&tailnet, host, router_kind, offers);
    let id = router.status()["Self"]["ID"].as_str().expect("it has a number").to_owned();
    tailnet.coordinator.command(&format!("nodes approve-routes -i {id} -r {approved}"));
    let host = tailnet.host("client", Uplink::Switch);
    let client = Member::join(&tailnet, host, client_kind, accepts);
    client.wait_until_direct(&router);
    Some(World { client, router, behind, tailnet })
}

impl World {
    fn reaches(&self, target: &str) {
        eventually(&format!("the client reaches {target}"), PATIENCE, || {
            ping(&self.client.host, format!("-c 1 -W 1 {target}")).is_complete()
        });
    }

    /// The client's source address at a host behind the router.
    fn seen_as(&self, target: &str) -> String {
        let listener =
            self.behind.inside(|| TcpListener::bind(("0.0.0.0", PORT)).expect("the port is free"));
        let (report, seen) = mpsc::channel();
        in_background("seen", move || {
            let (mut stream, from): (_, SocketAddr) = listener.accept().expect("it listens");
            let _ = stream.read(&mut [0; 1]);
            let _ = report.send(from.ip().to_string());
        });
        let spoken = format!("exec 3<>/dev/tcp/{target}/{PORT} && echo x >&3");
        self.client.host.run(format!("timeout 10 bash -c '{spoken}'"));
        seen.recv_timeout(PATIENCE).expect("the connection was made")
    }
}

fn subnet_routes(kinds: [MemberKind; 2]) {
    for (flag, is_masked) in [("", true), ("--snat-subnet-routes=false", false)] {
        let offers = format!("--advertise-routes={NETWORK} {flag}");
        let Some(world) = world(kinds, &offers, NETWORK, "--accept-routes") else { return };
        world.reaches(BEHIND);
        let source = if is_masked { ROUTER } else { world.client.addresses.of(Family::V4) };
        assert_eq!(world.seen_as(BEHIND), source, "{kinds:?} {flag}");
        assert!(!ping(&world.client.host, format!("-c 1 -W 1 {WORLD}")).is_complete());
    }
}

fn exit_node(kinds: [MemberKind; 2]) {
    let approved = "0.0.0.0/0,::/0";
    let Some(world) = world(kinds, "--advertise-exit-node", approved, "") else { return };
    assert!(!ping(&world.client.host, format!("-c 1 -W 1 {WORLD}")).is_complete());
    let set = |exit: &str| {
        let arguments = match kinds[0] {
            Linerate => format!("set {} --exit-node={exit}", Member::INTERFACE),
            Tailscaled => format!("set --exit-node={exit}"),
        };
        let done = world.client.attempt(&arguments);
        assert!(done.ok, "{done:?}");
    };
    set(world.router.addresses.of(Family::V4));
    world.reaches(WORLD);
    assert_eq!(world.seen_as(WORLD), ROUTER, "{kinds:?}");
    // The coordinator and peers remain reachable without the exit node.
    world.client.reaches(&world.router, Family::V6);
    assert_eq!(world.client.status()["BackendState"], "Running");
    set("");
    eventually("the world is gone again", PATIENCE, || {
        !ping(&world.client.host, format!("-c 1 -W 1 {WORLD}")).is_complete()
    });
    drop(world.tailnet);
}

#[test]
fn networks_behind_linerate_are_reached_by_linerate() {
    subnet_routes([Linerate, Linerate]);
}

#[test]
fn networks_behind_linerate_are_reached_by_tailscaled() {
    subnet_routes([Tailscaled, Linerate]);
}

#[test]
fn networks_behind_tailscaled_are_reached_by_linerate() {
    subnet_routes([Linerate, Tailscaled]);
}

#[test]
fn linerate_is_an_exit_node_for_linerate() {
    exit_node([Linerate, Linerate]);
}

#[test]
fn linerate_is_an_exit_node_for_tailscaled() {
    exit_node([Tailscaled, Linerate]);
}

#[test]
fn tailscaled_is_an_exit_node_for_linerate() {
    exit_node([Linerate, Tailscaled]);
}
