//! A running interface applies the changes of its file.

use netns::{INTERFACE, Key, Pinging, ShowOutput, Status};

use crate::up::{PATIENCE, World, state, world};

fn status(world: &World) -> Status {
    Status::of(&world.left, INTERFACE)
}

fn reload(world: &World, file: &str, text: &str) {
    world.left.write("wg0.conf", text);
    let outcome = world.linerate("reload", file);
    assert!(outcome.ok, "reload failed: {}", outcome.stderr);
}

#[test]
fn a_reload_changes_peers_and_keys_without_affecting_other_peers() {
    let world = world();
    let file = world.conf("", "0.0.0.0/0, ::/0");
    world.up(&file);
    world.reaches(&["10.9.0.2"]);
    let (text, up, mark) = (world.left.read(&file), state(&world.left), status(&world).fwmark);
    let handshake = || status(&world).peer(&world.right.key.public).latest_handshake;
    ShowOutput::wait_until_post_quantum(&world.left, INTERFACE, &world.right.key.public, PATIENCE);
    let met = handshake();
    let pings = Pinging::start(&world.left, "reload", "-i 0.02 10.9.0.2");
    pings.wait_for_replies(5, PATIENCE);

    let other = Key::generate().public;
    let more = format!("[Peer]\nPublicKey = {other}\nAllowedIPs = 10.9.7.0/24\n");
    reload(&world, &file, &format!("{text}PersistentKeepalive = 25\n{more}"));
    let now = status(&world);
    assert_eq!(now.peer(&other).allowed_ips, "10.9.7.0/24");
    assert_eq!(now.peer(&world.right.key.public).persistent_keepalive, "25");
    pings.wait_for_replies(5, PATIENCE);
    reload(&world, &file, &text);
    assert_eq!(status(&world).peers.len(), 1);
    assert_eq!(status(&world).peer(&world.right.key.public).persistent_keepalive, "off");
    pings.wait_for_replies(5, PATIENCE);

    let faulty = format!("{text}{more}Colour = red\n");
    world.left.write("wg0.conf", &faulty);
    let outcome = world.linerate("reload", &file);
    assert!(!outcome.ok && outcome.stderr.contains("Colour"), "{}", outcome.stderr);
    assert_eq!(status(&world).peers.len(), 1);

    let pings = pings.finish();
    assert!(pings.sent - pings.received <= 1, "{}", pings.text);
    assert_eq!(handshake(), met, "a session was dropped");
    assert_eq!(status(&world).fwmark, mark, "rules and routes go by it");
    assert_eq!(state(&world.left), up);

    let key = Key::generate();
    world.right.host.run(format!(
        "wg set wg0 peer {} remove peer {} allowed-ips 10.9.0.1/32",
        world.key.public, key.public
    ));
    reload(&world, &file, &text.replace(&world.key.private, &key.private));
    world.reaches(&["10.9.0.2"]);
    world.down(&file);
    assert!(!world.linerate("reload", &file).ok, "no process serves it");
}
