//! Output of linerate for other programs.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```

mod capture;

use std::{process::Stdio, time::Duration};

use netns::{
    Family, Host, INTERFACE, Implementation, Introduction, PORT, Pair, ShowOutput, configure,
    eventually, ping, preshared_key,
};
use serde_json::{Value, json};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

#[test]
fn show_as_json_agrees_with_wg_and_prints_no_secret() {
    let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
    let preshared = preshared_key();
    pair.introduce(Introduction { preshared_key: Some(&preshared), ..Introduction::default() });
    pair.left.reaches(&pair.right, Family::V4, PATIENCE);

    let (left, right) = (&pair.left, &pair.right);
    ShowOutput::wait_until_post_quantum(&left.host, INTERFACE, &right.key.public, PATIENCE);
    let program = Implementation::Linerate.path();
    let text = left.host.run(format!("{} show --json {INTERFACE}", program.display()));
    for secret in [&left.key.private, &preshared] {
        assert!(!text.contains(secret.as_str()), "{text}");
    }
    let report: Value = serde_json::from_str(&text).expect("it is JSON");
    let [interface] = &report["interfaces"].as_array().expect("a list")[..] else {
        panic!("one interface: {text}")
    };
    assert_eq!(interface["name"], json!(INTERFACE));
    assert_eq!(interface["public_key"], json!(left.key.public));
    assert_eq!(interface["listen_port"], json!(51820));
    let (peer, status) = (&interface["peers"][0], left.peer_status(right));
    assert_eq!(peer["public_key"], json!(right.key.public));
    assert_eq!(peer["has_preshared_key"], json!(true));
    assert_eq!(peer["endpoint"], json!("10.1.0.2:51820"));
    assert_eq!(peer["allowed_ips"], json!(["10.9.0.2/32", "fd09::2/128"]));
    let handshake = peer["last_handshake"].as_f64().expect("there was one");
    assert_eq!(handshake as u64, status.latest_handshake);
    for (name, count) in [("rx_bytes", status.received), ("tx_bytes", status.sent)] {
        let report = peer[name].as_u64().expect("a count");
        assert!((1..=count).contains(&report), "{name}: {report} of {count}");
    }
    let own = &interface["linerate"];
    assert!(own["aead"].is_string() && own["version"].is_string(), "{own}");
    assert_eq!(own["offloads"].as_object().map(|offloads| offloads.len()), Some(7));
    assert_eq!(own["drops"]["in_forged"], json!(0));
    let daemon = left.host.daemon_of(INTERFACE).expect("it runs");
    let status = left.host.read(&format!("/proc/{daemon}/status"));
    let state = if status.contains("\nSeccomp:\t2\n") { "wholly" } else { "not" };
    let parts = own["sandbox"]["parts"].as_array().expect("a list");
    assert_eq!(parts.len(), 2, "{parts:?}");
    assert_eq!(parts[1], json!({ "what": "system calls (seccomp)", "state": state }));
    assert_eq!(own["sandbox"]["off"], json!(null));
}

#[test]
fn top_prints_rates_and_batch_sizes() {
    let pair = Pair::linerate();
    let (left, right) = (&pair.left, &pair.right);
    left.reaches(right, Family::V4, PATIENCE);
    let program = Implementation::Linerate.path();
    let mut flood = left
        .host
        .command("ping")
        .args(["-q", "-i", "0.02", "-s", "1000", right.inner.of(Family::V4)])
        .stdout(Stdio::null())
        .spawn()
        .expect("ping is installed");
    let pictures = left.host.run(format!("{} top -i 0.5 -c 2 {INTERFACE}", program.display()));
    flood.kill().and_then(|()| flood.wait()).expect("it was started");
    assert!(!pictures.contains('\x1b'), "no terminal, no control sequences:\n{pictures}");
    let pictures: Vec<&str> = pictures.trim_end().split("\n\n").collect();
    assert_eq!(pictures.len(), 2);
    for word in ["wg0  ", "kbit/s", "packets/s", "a batch", "tun-tso on", &right.key.public] {
        assert!(pictures[1].contains(word), "no {word:?} in\n{}", pictures[1]);
    }
    // 50 a second in each direction, or fewer on a busy machine.
    let packets = pictures[1].lines().nth(1).and_then(|line| line.split_whitespace().nth(3));
    let packets: f64 = packets.expect("a rate").parse().expect("a number");
    assert!((2.0..=100.0).contains(&packets), "{packets} packets/s\n{}", pictures[1]);
}

/// The value of a sample, by the start of its line after the interface's label.
fn sample(text: &str, name: &str, labels: &str) -> f64 {
    let start = format!("linerate_{name}{{interface=\"{INTERFACE}\"{labels}}} ");
    let value = text.lines().find_map(|line| line.strip_prefix(start.as_str()));
    value.unwrap_or_else(|| panic!("no {start} in\n{text}")).parse().expect("a number")
}

fn count(text: &str, start: &str) -> usize {
    text.lines().filter(|line| line.starts_with(start)).count()
}

#[test]
fn metrics_are_served_on_loopback_and_on_a_unix_socket() {
    let (left, right) = Pair::hosts(1500);
    let program = Implementation::Linerate.path();
    let start = |host: &Host, at: &str| {
        host.attempt(format!("{} --metrics {at} {INTERFACE}", program.display()))
    };
    for elsewhere in ["0.0.0.0:9586", "10.1.0.1:9586", "unix:relative"] {
        assert!(!start(&left, elsewhere).ok, "{elsewhere} is refused");
    }
    let socket = "/run/rig/metrics.sock";
    for (host, at) in [(&left, "127.0.0.1:9586"), (&right, &format!("unix:{socket}"))] {
        let started = start(host, at);
        assert!(started.ok, "{at}: {}", started.stderr);
    }
    let [(left_key, left_inner), (right_key, right_inner)] =
        [(&left, 1), (&right, 2)].map(|(host, number)| configure(host, number));
    for (host, key, inner, outer) in [
        (&left, &right_key, &right_inner, "10.1.0.2"),
        (&right, &left_key, &left_inner, "10.1.0.1"),
    ] {
        let (peer, ips) = (&key.public, inner.allowed_ips());
        let words = format!("allowed-ips {ips} endpoint {outer}:{PORT}");
        host.run(format!("wg set {INTERFACE} peer {peer} {words}"));
    }
    let mut answered = 0;
    eventually("the tunnel has carried six pings", PATIENCE, || {
        let target = right_inner.of(Family::V4);
        answered += u32::from(ping(&left, format!("-c 1 -W 0.5 {target}")).is_complete());
        answered == 6
    });

    let by_tcp = left.run("curl -sS --fail http://127.0.0.1:9586/metrics");
    let by_unix = format!("curl -sS --fail --unix-socket {socket} http://localhost/metrics");
    for (text, peer) in [(&by_tcp, &right_key), (&right.run(by_unix), &left_key)] {
        assert_eq!(sample(text, "drops_total", ",reason=\"in_forged\""), 0.0);
        assert!(count(text, "linerate_drops_total{") >= 30, "every reason:\n{text}");
        assert_eq!(count(text, "linerate_offload_demotions_total{"), 7);
        let peer = format!(",public_key=\"{}\"", peer.public);
        assert!(sample(text, "peer_receive_bytes_total", &peer) > 500.0);
        for histogram in ["outbound_batch_packets", "inbound_batch_packets", "queue_seconds"] {
            let batches = sample(text, &format!("{histogram}_count"), "");
            assert!(batches >= 6.0, "{histogram}: {batches}");
            let all = sample(text, &format!("{histogram}_bucket"), ",le=\"+Inf\"");
            assert_eq!(all, batches, "{histogram}");
        }
        assert!(sample(text, "outbound_batch_packets_sum", "") >= 6.0);
    }
    assert!(!left.attempt("curl -sS --fail http://127.0.0.1:9586/").ok);
    assert!(
        !left.attempt("curl -sS -m 5 -H 'Host: a.example' --fail http://127.0.0.1:9586/metrics").ok
    );
    assert!(!right.attempt("curl -sS -m 1 http://10.1.0.1:9586/metrics").ok);
    assert_eq!(right.run(format!("stat -c %a {socket}")).trim(), "600");
    right.run(format!("{} down {INTERFACE}", program.display()));
    assert!(!right.has(socket), "the socket is removed with the daemon");
}
