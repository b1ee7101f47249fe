//! Every sub-command of the unmodified wg(8), wg-quick(8), and the socket itself.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```

use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netns::{
    Counter, Daemon, Family, Host, INTERFACE, Implementation, Key, PORT, Pair, Pinging, ShowOutput,
    Side, Status, Stopwatch, announce, base64, deadline, eventually, ping, preshared_key, wg_quick,
};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// Path of the daemon's socket for wg(8), inside a host. (/var/run is a link to /run.)
const SOCKET: &str = "/run/wireguard/wg0.sock";

fn met() -> Pair {
    let pair = Pair::linerate();
    pair.left.reaches(&pair.right, Family::V4, PATIENCE);
    pair
}

fn alone() -> (Host, Daemon) {
    let host = Host::new("alone");
    let daemon = Daemon::start(&host, Implementation::Linerate, INTERFACE);
    (host, daemon)
}

#[test]
fn every_form_of_wg_show_is_answered() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let peer = &right.key.public;
    let fwmark = format!("wg set wg0 fwmark 0x51 peer {peer} persistent-keepalive 25");
    left.host.run(fwmark);
    for form in ["wg", "wg show", "wg show all", "wg show wg0"] {
        let text = left.host.run(form);
        for line in ["interface: wg0", "latest handshake:", "transfer:", "fwmark: 0x51"] {
            assert!(text.contains(line), "{form}: no `{line}` in\n{text}");
        }
        assert!(text.contains(peer.as_str()), "{form}:\n{text}");
    }
    assert_eq!(left.host.run("wg show interfaces"), "wg0\n");
    let fields = [
        ("public-key", left.key.public.clone()),
        ("private-key", left.key.private.clone()),
        ("listen-port", "51820".to_owned()),
        ("fwmark", "0x51".to_owned()),
        ("peers", peer.clone()),
        ("preshared-keys", format!("{peer}\t(none)")),
        ("endpoints", format!("{peer}\t10.1.0.2:51820")),
        ("allowed-ips", format!("{peer}\t10.9.0.2/32 fd09::2/128")),
        ("latest-handshakes", format!("{peer}\t1")),
        ("transfer", format!("{peer}\t")),
        ("persistent-keepalive", format!("{peer}\t25")),
        ("dump", format!("{}\t{}\t51820\t0x51\n{peer}\t", left.key.private, left.key.public)),
    ];
    for (field, expected) in fields {
        let text = left.host.run(format!("wg show wg0 {field}"));
        assert!(text.starts_with(&expected), "{field}: `{text}` is not `{expected}`");
        let of_all = left.host.run(format!("wg show all {field}"));
        let prefixed: String = text.lines().map(|line| format!("wg0\t{line}\n")).collect();
        // Counters and times may change between the two.
        let same_lines = of_all.lines().count() == prefixed.lines().count();
        assert!(same_lines && of_all.starts_with("wg0\t"), "all {field}:\n{of_all}");
    }
}

#[test]
fn output_of_showconf_can_be_set_again() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let psk = left.host.write("psk", &preshared_key());
    let peer = &right.key.public;
    left.host.run(format!("wg set wg0 fwmark 7 peer {peer} preshared-key {psk}"));
    let text = left.host.run("wg showconf wg0");
    for key in ["ListenPort", "FwMark", "PrivateKey", "PublicKey", "PresharedKey", "AllowedIPs"] {
        assert!(text.contains(&format!("{key} = ")), "no {key} in\n{text}");
    }
    let path = left.host.write("again.conf", &text);
    left.host.run(format!("wg setconf wg0 {path}"));
    assert_eq!(left.host.run("wg showconf wg0"), text);
}

#[test]
fn addconf_and_syncconf_leave_the_traffic_of_other_peers_alone() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let (peer, other) = (&right.key.public, Key::generate().public);
    ShowOutput::wait_until_post_quantum(&left.host, INTERFACE, peer, PATIENCE);
    let handshake = left.peer_status(right).latest_handshake;
    let pings = Pinging::start(&left.host, "conf", "-i 0.05 10.9.0.2");
    pings.wait_for_replies(5, PATIENCE);

    let more = format!("[Peer]\nPublicKey = {other}\nAllowedIPs = 10.9.7.0/24\n");
    let path = left.host.write("more.conf", &more);
    left.host.run(format!("wg addconf wg0 {path}"));
    assert_eq!(left.status().peers.len(), 2);
    pings.wait_for_replies(5, PATIENCE);

    let whole = left.host.run("wg showconf wg0").replace("10.9.7.0/24", "10.9.8.0/24");
    let path = left.host.write("whole.conf", &whole);
    left.host.run(format!("wg syncconf wg0 {path}"));
    assert_eq!(left.status().peer(&other).allowed_ips, "10.9.8.0/24");
    pings.wait_for_replies(5, PATIENCE);

    let (head, _) = whole.split_once("[Peer]").expect("showconf lists peers");
    let endpoint = "Endpoint = 10.1.0.2:51820\nAllowedIPs = 10.9.0.2/32, fd09::2/128";
    let only = format!("{head}[Peer]\nPublicKey = {peer}\n{endpoint}\n");
    let path = left.host.write("only.conf", &only);
    left.host.run(format!("wg syncconf wg0 {path}"));
    assert_eq!(left.status().peers.len(), 1);
    pings.wait_for_replies(5, PATIENCE);

    let pings = pings.finish();
    assert!(pings.sent - pings.received <= 1, "{}", pings.text);
    assert_eq!(left.peer_status(right).latest_handshake, handshake, "a session was dropped");
}

#[test]
fn setconf_replaces_everything_and_traffic_resumes() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let stranger = Key::generate().public;
    left.host.run(format!("wg set wg0 fwmark 9 peer {stranger} allowed-ips 10.9.5.0/24"));
    let conf = format!(
        "[Interface]\nPrivateKey = {}\nListenPort = 51820\n[Peer]\nPublicKey = {}\n\
         Endpoint = 10.1.0.2:51820\nAllowedIPs = 10.9.0.2/32\n",
        left.key.private, right.key.public
    );
    let path = left.host.write("set.conf", &conf);
    left.host.run(format!("wg setconf wg0 {path}"));
    let status = left.status();
    assert_eq!((status.peers.len(), status.fwmark.as_str()), (1, "off"));
    assert_eq!(status.peers[0].allowed_ips, "10.9.0.2/32");
    left.reaches(right, Family::V4, PATIENCE);
}

#[test]
fn settings_change_at_run_time_without_interrupting_traffic() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let peer = &right.key.public;
    let marked = format!("udp dport {PORT} meta mark 0x51");
    let marked = Counter::start(&left.host, "marked", "output", &marked);
    netns::address(&right.host, "eth0", "10.1.0.9/24");
    let pings = Pinging::start(&left.host, "settings", "-i 0.05 10.9.0.2");
    pings.wait_for_replies(5, PATIENCE);
    for (change, column, value) in [
        (format!("peer {peer} persistent-keepalive 1"), 7, "1"),
        (format!("peer {peer} persistent-keepalive off"), 7, "off"),
        (format!("peer {peer} allowed-ips 10.9.0.2/32,10.9.4.0/24"), 3, "10.9.0.2/32,10.9.4.0/24"),
        (format!("peer {peer} endpoint 10.1.0.9:51820"), 2, ""),
        (format!("peer {peer} endpoint 10.1.0.2:51820"), 2, ""),
        ("fwmark 0x51".to_owned(), 0, ""),
    ] {
        left.host.run(format!("wg set wg0 {change}"));
        let dump = left.host.run("wg show wg0 dump");
        let columns: Vec<&str> = dump.lines().nth(1).unwrap_or_default().split('\t').collect();
        assert!(value.is_empty() || columns[column] == value, "{change}:\n{dump}");
        pings.wait_for_replies(5, PATIENCE);
    }
    assert!(marked.packets() >= 5, "{} packets had the mark", marked.packets());
    left.host.run("wg set wg0 fwmark off");
    pings.wait_for_replies(2, PATIENCE);
    let unmarked_from = marked.packets();
    pings.wait_for_replies(5, PATIENCE);
    assert_eq!(marked.packets(), unmarked_from, "the mark outlived `fwmark off`");

    left.host.run("wg set wg0 listen-port 40404");
    pings.wait_for_replies(5, PATIENCE);
    assert_eq!(left.status().listen_port, 40404);
    assert_eq!(right.peer_status(left).endpoint, "10.1.0.1:40404");
    left.host.run("wg set wg0 listen-port 0");
    pings.wait_for_replies(5, PATIENCE);
    assert!(![0, 40404].contains(&left.status().listen_port));

    let pings = pings.finish();
    assert!(pings.sent - pings.received <= 6, "{}", pings.text);
}

#[test]
fn persistent_keepalive_sends_without_any_traffic() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let peer = &right.key.public;
    left.host.run(format!("wg set wg0 peer {peer} persistent-keepalive 1"));
    let before = right.peer_status(left).received;
    eventually("two keepalives of 32 bytes arrive", PATIENCE, || {
        right.peer_status(left).received >= before + 64
    });
}

#[test]
fn allowed_ips_set_for_another_peer_move_there() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let other = Key::generate().public;
    left.host.run(format!("wg set wg0 peer {other} allowed-ips 10.9.0.2/32"));
    let status = left.status();
    assert_eq!(status.peer(&other).allowed_ips, "10.9.0.2/32");
    assert_eq!(status.peer(&right.key.public).allowed_ips, "fd09::2/128");
    assert_eq!(ping(&left.host, "-c 2 -i 0.1 -W 0.5 10.9.0.2").received, 0);
    assert_eq!(ping(&right.host, "-c 2 -i 0.1 -W 0.5 10.9.0.1").received, 0, "a spoofed source");
    left.reaches(right, Family::V6, PATIENCE);
}

#[test]
fn a_removed_peer_is_cut_off_and_may_be_added_again() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    left.host.run(format!("wg set wg0 peer {} remove", right.key.public));
    assert!(left.status().peers.is_empty());
    assert_eq!(ping(&right.host, "-c 2 -i 0.1 -W 0.5 10.9.0.1").received, 0);
    left.add_peer(right, "endpoint 10.1.0.2:51820");
    left.reaches(right, Family::V4, PATIENCE);
    right.reaches(left, Family::V4, PATIENCE);
}

#[test]
fn a_new_private_key_takes_over_after_a_new_handshake() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let new = Key::generate();
    let path = left.host.write("new.key", &new.private);
    left.host.run(format!("wg set wg0 private-key {path}"));
    assert_eq!(left.status().public_key, new.public);
    assert_eq!(ping(&left.host, "-c 2 -i 0.1 -W 0.5 10.9.0.2").received, 0, "the old key serves");

    let old = &left.key.public;
    let ips = left.inner.allowed_ips();
    right.host.run(format!("wg set wg0 peer {old} remove peer {} allowed-ips {ips}", new.public));
    left.reaches(right, Family::V4, PATIENCE);
    right.reaches(left, Family::V4, PATIENCE);
    assert!(Status::of(&right.host, INTERFACE).peer(&new.public).latest_handshake > 0);
}

#[test]
fn a_new_preshared_key_applies_from_the_next_handshake_on_either_end() {
    let pair = met();
    for (live, fresh) in [(&pair.left, &pair.right), (&pair.right, &pair.left)] {
        let key = preshared_key();
        let set_live = format!(
            "wg set wg0 peer {} preshared-key {}",
            fresh.key.public,
            live.host.write("psk", &key)
        );
        live.host.run(set_live);
        // The fresh end forgets the session and must perform a handshake.
        let forget = |psk: &str| {
            let live_key = &live.key.public;
            fresh.host.run(format!("wg set wg0 peer {live_key} remove"));
            let path = fresh.host.write("psk", psk);
            let endpoint = live.outer.endpoint(Family::V4, PORT);
            fresh.add_peer(live, &format!("endpoint {endpoint} preshared-key {path}"));
        };
        forget(&preshared_key());
        let wrong = ping(&fresh.host, format!("-c 3 -i 0.2 -W 0.5 {}", live.inner.of(Family::V4)));
        assert_eq!(wrong.received, 0, "a wrong preshared key served");
        forget(&key);
        fresh.reaches(live, Family::V4, PATIENCE);
        live.reaches(fresh, Family::V4, PATIENCE);
        assert_eq!(fresh.peer_status(live).preshared_key, key);
    }
}

#[test]
fn only_the_owner_may_use_the_socket() {
    let (host, _daemon) = alone();
    for (path, expected) in [("/run/wireguard", 0o700), (SOCKET, 0o600)] {
        let metadata = fs::metadata(host.outside(path)).expect("the daemon made it");
        let mode = metadata.permissions().mode() & 0o777;
        assert_eq!(mode, expected, "{path} is {mode:o}");
    }
}

#[test]
fn keys_are_generated_without_proc() {
    let (host, linerate) = (Host::new("alone"), Implementation::Linerate.path());
    let line = format!("mount -t tmpfs none /proc && {} genkey", linerate.display());
    let key = host.run(format!("unshare --mount sh -c '{line}'"));
    assert_eq!(key.trim().len(), 44, "{key}");
}

#[test]
fn genkey_genpsk_and_pubkey_agree_with_wg() {
    let host = Host::new("alone");
    let program = Implementation::Linerate.path();
    let linerate = program.display();
    let key = host.run(format!("{linerate} genkey"));
    assert_eq!(host.run(format!("{linerate} genpsk")).len(), 45);
    assert_ne!(host.run(format!("{linerate} genkey")), key);
    let path = host.write("key", &key);
    let theirs = host.run(format!("wg pubkey <{path}"));
    assert_eq!(host.run(format!("{linerate} pubkey <{path}")), theirs);
    let nonsense = host.attempt(format!("echo nonsense | {linerate} pubkey"));
    assert!(!nonsense.ok && !nonsense.stderr.is_empty());
}

#[test]
fn linerate_show_prints_the_fields_of_wg_show() {
    let pair = met();
    let program = Implementation::Linerate.path();
    for arguments in ["show", "show wg0"] {
        let text = pair.left.host.run(format!("{} {arguments}", program.display()));
        for word in ["wg0", &pair.right.key.public, "10.1.0.2:51820", "10.9.0.2/32"] {
            assert!(text.contains(word), "`{arguments}` has no {word}:\n{text}");
        }
    }
}

#[test]
fn a_command_ends_silently_if_its_reader_closes_the_pipe() {
    let pair = met();
    let linerate = Implementation::Linerate.path();
    for arguments in ["show", "show --json", "genkey"] {
        let line = format!("(sleep 0.2; exec {} {arguments}) | true", linerate.display());
        let outcome = pair.left.host.attempt(format!("set -o pipefail; {line}; echo $?"));
        // 128 and SIGPIPE.
        assert_eq!((outcome.stdout.trim(), outcome.stderr.trim()), ("141", ""), "{arguments}");
    }
}

/// Sends bytes to the socket, closes the sending half, and returns the answer.
fn request(host: &Host, words: &[u8]) -> String {
    let mut socket = UnixStream::connect(host.outside(SOCKET)).expect("the daemon listens");
    let limit = Some(Duration::from_secs(10));
    socket.set_read_timeout(limit).expect("a time is given");
    // The daemon may close the connection after invalid input; its answer counts.
    let _ = socket.write_all(words).and_then(|()| socket.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("no end of the answer to {:?}", String::from_utf8_lossy(words))
        }
        _ => String::from_utf8_lossy(&answer).into_owned(),
    }
}

#[test]
fn requests_in_one_write_are_all_answered_and_those_with_crlf_are_refused_at_once() {
    let (host, _daemon) = alone();
    for (words, answers) in [
        ("get=1\n\nget=1\n\n", &["0", "0"][..]),
        ("set=1\nfwmark=7\n\nget=1\n\nlinerate-stats=1\n\n", &["0", "0", "0"]),
        ("get=1\r\n\r\n", &["-71"]),
        ("get=1\r\n\n", &["-71"]),
        ("set=1\r\nfwmark=7\r\n\r\nget=1\n\n", &["-71", "0"]),
        ("get=1\nget=1\n\nget=1\n\n", &["-71", "0"]),
    ] {
        let mut socket = UnixStream::connect(host.outside(SOCKET)).expect("the daemon listens");
        socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a time is given");
        // The connection stays open in both directions.
        socket.write_all(words.as_bytes()).expect("the daemon listens");
        let mut text = String::new();
        let numbers = |text: &str| -> Vec<String> {
            let lines = text.lines().filter_map(|line| line.strip_prefix("errno="));
            lines.map(str::to_owned).collect()
        };
        while text.matches("errno=").count() < answers.len() || !text.ends_with("\n\n") {
            let mut part = [0; 4096];
            let len = socket.read(&mut part).unwrap_or_else(|error| panic!("{words:?}: {error}"));
            assert!(len > 0, "{words:?}: {text:?}");
            text += str::from_utf8(&part[..len]).expect("it is a text");
        }
        assert_eq!(numbers(&text), answers, "{words:?}");
    }
}

#[test]
fn an_invalid_request_gets_an_errno_and_changes_nothing() {
    let pair = met();
    let (left, right) = (&pair.left, &pair.right);
    let before = left.host.run("wg showconf wg0");
    let zeros = "0".repeat(64);
    let known = hex(&right.key.public);
    for line in [
        "nonsense=1",
        "private_key=abc",
        &format!("private_key={}", "x".repeat(64)),
        "listen_port=70000",
        "listen_port=-1",
        "fwmark=nine",
        "replace_peers=maybe",
        "public_key=12",
        "endpoint=10.0.0.1:1",
        &format!("public_key={known}\nendpoint=nowhere"),
        &format!("public_key={known}\nallowed_ip=10.0.0.0/33"),
        &format!("public_key={known}\nallowed_ip=fd00::/129"),
        &format!("public_key={known}\npersistent_keepalive_interval=70000"),
        &format!("public_key={known}\npreshared_key={}", &zeros[1..]),
        &format!("public_key={known}\nprotocol_version=2"),
        "no equals sign",
    ] {
        let answer = request(&left.host, format!("set=1\n{line}\n\n").as_bytes());
        let errno = answer.trim().strip_prefix("errno=").and_then(|n| n.parse::<i32>().ok());
        assert!(errno.is_some_and(|n| n != 0), "`{line}` was answered {answer:?}");
    }
    assert_eq!(left.host.run("wg showconf wg0"), before);
    left.reaches(right, Family::V4, PATIENCE);
}

#[test]
fn garbage_on_the_socket_neither_blocks_nor_ends_the_daemon() {
    let (host, mut daemon) = alone();
    let long = [b"set=1\nprivate_key=".as_slice(), &vec![b'a'; 4 << 20]].concat();
    let binary: Vec<u8> = (0..=255).collect();
    let cases: [&[u8]; 9] = [
        b"",
        b"\n",
        b"\n\n\n",
        b"get=2\n\n",
        b"get=1",
        b"set=1\n",
        b"set=1\nlisten_port=1",
        &binary,
        &long,
    ];
    for case in cases {
        request(&host, case);
        assert!(daemon.is_running());
    }
    let answer = request(&host, b"get=1\n\n");
    assert!(answer.ends_with("errno=0\n\n"), "{answer:?}");
}

#[test]
fn a_silent_client_does_not_delay_others() {
    let (host, _daemon) = alone();
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut socket = UnixStream::connect(host.outside(SOCKET)).expect("the daemon listens");
        socket.write_all(b"set=1\n").expect("the daemon listens");
        silent.push(socket);
    }
    host.run("timeout 2 wg show wg0");
}

#[test]
fn five_thousand_peers_are_set_and_shown_within_seconds() {
    const PEERS: u32 = 5000;
    let (host, daemon) = alone();
    let mut conf = format!("[Interface]\nPrivateKey = {}\n", Key::generate().private);
    for number in 0..PEERS {
        let mut key = [0x5a; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        let (high, low) = (number / 256, number % 256);
        conf += &format!(
            "[Peer]\nPublicKey = {}\nEndpoint = 10.1.0.2:{}\nPresharedKey = {}\n\
             AllowedIPs = 10.64.{high}.{low}/32, fd64::{number:x}/128\n",
            base64(&key),
            1024 + number,
            base64(&key),
        );
    }
    let path = host.write("big.conf", &conf);
    for (what, command) in [
        ("setconf", format!("wg setconf wg0 {path}")),
        ("show", "wg show wg0".to_owned()),
        ("show dump", "wg show wg0 dump".to_owned()),
        ("syncconf, unchanged", format!("wg syncconf wg0 {path}")),
        ("setconf again", format!("wg setconf wg0 {path}")),
    ] {
        let watch = Stopwatch::start();
        host.run(&command);
        let took = watch.elapsed();
        announce(&format!("{PEERS} peers, {what}: {took:.2?}"));
        assert!(took < deadline(Duration::from_secs(5)), "{what} took {took:?}");
    }
    let status = Status::of(&host, INTERFACE);
    assert_eq!(status.peers.len(), PEERS as usize);
    announce(&format!("{PEERS} peers: {} MB of memory", daemon.peak_memory() >> 20));
}

#[test]
fn wg_quick_brings_an_interface_up_and_down() {
    let (left, right) = Pair::hosts(1500);
    let right = Side::start(right, Implementation::Linerate, 2, netns::Addresses::new(1, 2));
    let key = Key::generate();
    right.host.run(format!("wg set wg0 peer {} allowed-ips 10.9.0.1/32,fd09::1/128", key.public));
    let conf = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.9.0.1/24, fd09::1/64\n\
         [Peer]\nPublicKey = {}\nEndpoint = 10.1.0.2:51820\nAllowedIPs = 10.9.0.0/24, fd09::/64\n",
        key.private, right.key.public
    );
    left.run("chmod 700 /run/rig");
    let path = left.write("wg0.conf", &conf);
    let quick = wg_quick(&left);
    let routes = "ip -4 route; ip -6 route; ip rule";
    let before = left.run(routes);
    // The daemon inherits stdout, so the output goes to a file and not to a pipe, which would wait
    // for the daemon's end.
    left.run(format!(
        "{quick} up {path} >/run/rig/quick.log 2>&1 || (cat /run/rig/quick.log; false)"
    ));
    let pings = ping(&left, "-c 3 -i 0.1 -W 5 10.9.0.2");
    assert!(pings.is_complete(), "{}", pings.text);
    assert!(ping(&left, "-c 3 -i 0.1 -W 5 fd09::2").is_complete());
    assert!(left.run("ip link show wg0").contains("mtu 1420"));
    left.run(format!("{quick} down {path}"));
    assert!(!left.has_device(INTERFACE));
    eventually("the socket is gone", PATIENCE, || !left.has(SOCKET));
    eventually("the daemon is gone", PATIENCE, || left.daemon_of(INTERFACE).is_none());
    assert_eq!(left.run(routes), before);
}

/// wg(8)'s base64 as the socket's hexadecimal.
fn hex(key: &str) -> String {
    let value = |letter: char| match letter {
        'A'..='Z' => letter as u32 - 'A' as u32,
        'a'..='z' => letter as u32 - 'a' as u32 + 26,
        '0'..='9' => letter as u32 - '0' as u32 + 52,
        '+' => 62,
        '/' => 63,
        _ => 0,
    };
    let letters: Vec<u32> = key.chars().map(value).collect();
    let groups =
        letters.chunks(4).map(|group| group.iter().fold(0, |bits, value| bits << 6 | value));
    let mut text: String = groups.map(|bits: u32| format!("{bits:06x}")).collect();
    text.truncate(64);
    text
}
