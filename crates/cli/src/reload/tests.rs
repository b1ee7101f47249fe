use std::net::SocketAddr;

use config::conf::Conf;
use wg::PrivateKey;

use super::*;

const ADDRESS: &str = "192.0.2.1:1";

fn key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes(&[number; 32])
}

fn name(number: u8) -> PublicKey {
    key(number).public_key()
}

/// The changes that a file makes to a running interface.
fn lines(file: &str, running: &str) -> Vec<String> {
    let file = format!("[Interface]\nPrivateKey = {}\n{file}", *key(9).to_base64());
    let conf = Conf::parse("wg0.conf", &file).unwrap();
    let address: SocketAddr = ADDRESS.parse().unwrap();
    let wanted = conf.change(|_| Ok::<_, ()>(address)).unwrap();
    let running = format!("private_key={}\n{running}", *key(9).to_hex());
    let running = Interface::parse("wg0".into(), &running);
    let lines = write_change(&difference(wanted, &running));
    lines.lines().map(str::to_owned).collect()
}

fn file_peer(number: u8, lines: &str) -> String {
    format!("[Peer]\nPublicKey = {}\n{lines}\n", name(number).to_base64())
}

fn running_peer(number: u8, lines: &str) -> String {
    format!("public_key={}\n{lines}\n", name(number).to_hex())
}

fn change_lines(number: u8, lines: &[&str]) -> Vec<String> {
    let name = format!("public_key={}", name(number).to_hex());
    [name].into_iter().chain(lines.iter().map(|&line| line.to_owned())).collect()
}

#[test]
fn unchanged_file_changes_nothing() {
    let file = file_peer(
        1,
        "Endpoint = a.example:1\nAllowedIPs = 10.0.0.0/8, fd00::5/64\nPersistentKeepalive = 25",
    );
    let running = running_peer(
        1,
        "endpoint=192.0.2.1:1\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8\n\
         allowed_ip=fd00::/64",
    );
    let device = "ListenPort = 7\nFwMark = 8\n";
    let state = format!("listen_port=7\nfwmark=9\n{running}");
    assert_eq!(lines(&format!("{device}{file}"), &state), change_lines(1, &[]));
    // Otherwise the port would change with each reload.
    assert_eq!(lines(&file, &state), change_lines(1, &[]));
    assert_eq!(lines(&format!("ListenPort = 0\n{file}"), &state), change_lines(1, &[]));
}

#[test]
fn entries_missing_from_the_file_are_removed() {
    let psk = key(5);
    let running = running_peer(
        1,
        &format!(
            "preshared_key={}\npersistent_keepalive_interval=25\nallowed_ip=10.0.0.0/8",
            *psk.to_hex()
        ),
    );
    let none = format!("preshared_key={}", "0".repeat(64));
    let expected =
        change_lines(1, &[&none, "persistent_keepalive_interval=0", "allowed_ip=-10.0.0.0/8"]);
    assert_eq!(lines(&file_peer(1, ""), &running), expected);
    assert_eq!(lines("", &running), change_lines(1, &["remove=true"]));
}

#[test]
fn new_entries_are_added_without_replacing_others() {
    let psk = key(5);
    let file = file_peer(
        1,
        &format!(
            "PresharedKey = {}\nEndpoint = a.example:1\nAllowedIPs = 10.0.0.0/8, 10.1.0.0/16\n\
                  PersistentKeepalive = 5",
            *psk.to_base64()
        ),
    ) + &file_peer(2, "AllowedIPs = 10.2.0.0/16");
    let running = running_peer(1, "endpoint=192.0.2.9:1\nallowed_ip=10.0.0.0/8");
    let psk = format!("preshared_key={}", *psk.to_hex());
    let mut expected = change_lines(
        1,
        &[
            &psk,
            "endpoint=192.0.2.1:1",
            "persistent_keepalive_interval=5",
            "allowed_ip=10.1.0.0/16",
        ],
    );
    expected.extend(change_lines(2, &["allowed_ip=10.2.0.0/16"]));
    assert_eq!(lines(&file, &running), expected);
    let running = format!("listen_port=6\n{running}");
    assert_eq!(lines(&format!("ListenPort = 7\n{file}"), &running)[0], "listen_port=7");
}

/// The network is only added to the other peer, and never removed in between.
#[test]
fn network_moves_between_peers_without_a_removal() {
    let running = running_peer(1, "allowed_ip=10.0.0.0/8") + &running_peer(2, "");
    let moved = file_peer(1, "") + &file_peer(2, "AllowedIPs = 10.0.0.0/8");
    let expected = [change_lines(1, &[]), change_lines(2, &["allowed_ip=10.0.0.0/8"])].concat();
    assert_eq!(lines(&moved, &running), expected);
    // To a new peer, from a removed one.
    let moved = file_peer(3, "AllowedIPs = 10.0.0.0/8");
    let changed = lines(&moved, &running_peer(1, "allowed_ip=10.0.0.0/8"));
    let expected =
        [change_lines(3, &["allowed_ip=10.0.0.0/8"]), change_lines(1, &["remove=true"])].concat();
    assert_eq!(changed, expected);
    // A network of two peers belongs to the last one, as when the interface was created.
    let both = file_peer(1, "AllowedIPs = 10.0.0.0/8") + &file_peer(2, "AllowedIPs = 10.0.0.0/8");
    let running = running_peer(1, "") + &running_peer(2, "allowed_ip=10.0.0.0/8");
    assert_eq!(lines(&both, &running), [change_lines(1, &[]), change_lines(2, &[])].concat());
}

#[test]
fn only_a_different_private_key_is_set() {
    let wanted = |number| Change {
        device: wg::config::DeviceChange {
            private_key: number,
            replace_peers: true,
            peers: Vec::new(),
        },
        ..Change::default()
    };
    let running = Interface { public_key: Some(name(1)), ..Interface::default() };
    let left =
        |number: Option<u8>| difference(wanted(number.map(|n| Some(key(n)))), &running).device;
    assert_eq!(left(None).private_key, None);
    assert_eq!(left(Some(1)).private_key, None);
    assert_eq!(left(Some(2)).private_key, Some(Some(key(2))));
    assert!(!left(Some(1)).replace_peers);
}
