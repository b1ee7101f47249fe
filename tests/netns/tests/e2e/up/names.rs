//! Endpoints by name, which are resolved at the start and again when the peer does not answer.

use std::time::Duration;

use netns::{INTERFACE, Status, address, conf, eventually, serve_names};

use crate::up::{World, world};

/// A name is resolved again after at most 10 seconds without an answer of the peer, and every half
/// minute after that.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name server outside of the tunnel, reached by the default route.
const SERVER: &str = "192.0.2.53";

/// A world in which the left host has that name server.
fn with_server() -> World {
    let mut world = world();
    address(&world.right.host, "lo", &format!("{SERVER}/32"));
    world.left.run("ip route add default via 10.1.0.2");
    world.left.write("resolv.conf", &format!("nameserver {SERVER}\n"));
    world.before = crate::up::state(&world.left);
    world
}

fn set_name(world: &World, at: &str) {
    world.right.host.attempt("pkill -x dnsmasq");
    eventually("the previous server ended", PATIENCE, || !world.right.host.listens(53));
    serve_names(&world.right.host, &[SERVER], &format!("--host-record=vpn.example,{at}"));
}

fn endpoint(world: &World) -> String {
    Status::of(&world.left, INTERFACE).peer(&world.right.key.public).endpoint.clone()
}

fn file(world: &World, lines: &str, allowed_ips: &str) -> String {
    let peer = format!(
        "Endpoint = vpn.example:51820\nAllowedIPs = {allowed_ips}\nPersistentKeepalive = 5"
    );
    conf(&world.left, &world.key, &world.right.key, lines, &peer)
}

/// Queries only work outside of the tunnel: the tunnel has the default route and the name servers,
/// and its endpoint is wrong.
#[test]
fn a_name_is_resolved_outside_of_a_tunnel_with_all_routes_and_servers() {
    let world = with_server();
    set_name(&world, "10.1.0.9");
    let file = file(&world, "DNS = 10.9.0.2", "0.0.0.0/0");
    world.up(&file);
    assert_eq!(endpoint(&world), "10.1.0.9:51820");
    set_name(&world, "10.1.0.2");
    eventually("the new address is used", PATIENCE, || endpoint(&world) == "10.1.0.2:51820");
    world.reaches(&["10.9.0.2"]);
    assert!(world.linerate("down", &file).ok);
    assert!(!world.left.attempt("pgrep -x linerate-resolv").ok, "the resolver remains");
}

#[test]
fn a_name_is_not_resolved_again_if_disabled_or_overridden_by_hand() {
    let world = with_server();
    set_name(&world, "10.1.0.9");
    let resolver = || world.left.attempt("pgrep -x linerate-resolv").ok;
    let off = file(&world, "ReresolveEndpoints = off", "10.9.0.0/24");
    world.up(&off);
    assert!(!resolver());
    world.down(&off);

    let on = file(&world, "", "10.9.0.0/24");
    world.up(&on);
    assert!(resolver());
    set_name(&world, "10.1.0.2");
    let peer = &world.right.key.public;
    world.left.run(format!("wg set {INTERFACE} peer {peer} endpoint 10.1.0.8:51820"));
    std::thread::sleep(Duration::from_secs(16));
    assert_eq!(endpoint(&world), "10.1.0.8:51820");
    // The file has the name again.
    let outcome = world.linerate("reload", &on);
    assert!(outcome.ok, "{}", outcome.stderr);
    assert_eq!(endpoint(&world), "10.1.0.2:51820");
    world.reaches(&["10.9.0.2"]);
    world.down(&on);
}
