//! A file that is saved, and one that is read again while the interface is up.

use netns::{INTERFACE, Key, ShowOutput, Status};

use crate::quick::{INNER, PATIENCE, Quick};

#[test]
fn save_config_saves_settings_of_wg_at_run_time() {
    let quick = Quick::new();
    let file = quick.conf("SaveConfig = true\nMTU = 1380", "10.9.0.0/24, fd09::/64");
    quick.up(&file);
    let [stranger, preshared] = [Key::generate().public, netns::preshared_key()];
    let secret = quick.left.write("preshared.key", &preshared);
    quick.left.run(format!(
        "wg set {INTERFACE} listen-port 40404 fwmark 0x77 peer {stranger} preshared-key {secret} \
         endpoint [fd01::2]:9 allowed-ips 10.77.0.0/16 persistent-keepalive 20"
    ));
    let peers = |status: Status| {
        let peers = status.peers.into_iter().map(|peer| {
            let (ips, keepalive) = (peer.allowed_ips, peer.persistent_keepalive);
            [peer.public_key, peer.preshared_key, peer.endpoint, ips, keepalive]
        });
        let mut peers: Vec<_> = peers.collect();
        peers.sort();
        peers
    };
    let before = Status::of(&quick.left, INTERFACE);
    let (port, mark) = (before.listen_port, before.fwmark.clone());
    let before = peers(before);
    quick.down(&file);
    let saved = quick.left.read(&file);
    for line in ["ListenPort = 40404", "FwMark = 0x77", "SaveConfig = true", "MTU = 1380"] {
        assert!(saved.contains(line), "no {line} in\n{saved}");
    }
    quick.up(&file);
    let after = Status::of(&quick.left, INTERFACE);
    assert_eq!((after.listen_port, &after.fwmark), (port, &mark));
    assert_eq!(peers(after), before);
    quick.reaches(&INNER);
    quick.down(&file);
}

#[test]
fn syncconf_of_a_stripped_file_adds_a_peer_and_preserves_sessions() {
    let quick = Quick::new();
    let file = quick.conf("MTU = 1400", "10.9.0.0/24, fd09::/64");
    quick.up(&file);
    quick.reaches(&INNER);
    ShowOutput::wait_until_post_quantum(&quick.left, INTERFACE, &quick.right.key.public, PATIENCE);
    let session = quick.left.run(format!("wg show {INTERFACE} latest-handshakes"));
    let stranger = Key::generate().public;
    let text = quick.left.read(&file);
    quick.left.write(
        "wg0.conf",
        &format!("{text}[Peer]\nPublicKey = {stranger}\nAllowedIPs = 10.77.0.0/16\n"),
    );
    let reload = format!("wg syncconf {INTERFACE} <({} strip {file})", quick.program);
    quick.left.run(&reload);
    assert_eq!(Status::of(&quick.left, INTERFACE).peer(&stranger).allowed_ips, "10.77.0.0/16");
    quick.reaches(&INNER);
    quick.left.write("wg0.conf", &text);
    quick.left.run(&reload);
    assert_eq!(quick.left.run(format!("wg show {INTERFACE} latest-handshakes")), session);
    quick.reaches(&INNER);
    quick.down(&file);
}
