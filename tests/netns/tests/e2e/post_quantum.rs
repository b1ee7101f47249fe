//! Post-quantum secrets: traffic on the cable before two peers have agreed on one, and peers without
//! support.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24               . . . . tunnel . . . .    wg0  10.9.0.2/24
//!   eth0 10.1.0.1/24               -------- cable --------   eth0 10.1.0.2/24
//! ```

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use netns::{
    Addresses, Capture, Host, INTERFACE, Implementation, Introduction, Key, Message, PORT, Pair,
    Pinging, ShowOutput, Side, eventually, ping,
};

const SOON: Duration = Duration::from_secs(15);

/// The first byte of messages (paper 5.4).
const RESPONSE: u8 = 2;
const DATA: u8 = 4;

/// Lengths of transport data without user data: keepalives; probes, answers and other messages of
/// an exchange without a body; the parts of a key and a ciphertext.
const OURS: [usize; 5] = [32, 48, 336, 432, 448];

/// Pings with another length on the cable.
const PING: &str = "-s 300";
const PING_SENT: usize = 368;

/// A host with `linerate up`.
struct Up {
    host: Host,
    key: Key,
    number: u8,
}

impl Up {
    /// Without UDP GSO on the cable, so that a capture contains single datagrams.
    fn new(host: Host, number: u8) -> Self {
        host.run("ethtool -K eth0 tx-udp-segmentation off");
        Self { host, key: Key::generate(), number }
    }

    /// Brings it up, with a peer and the tested line of its file.
    fn start(&self, peer: &str, line: &str) {
        let other = 3 - self.number;
        let text = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {PORT}\nAddress = 10.9.0.{}/24\n{line}\n\
             [Peer]\nPublicKey = {peer}\nAllowedIPs = 10.9.0.{other}/32\n\
             Endpoint = 10.1.0.{other}:{PORT}\n",
            self.key.private, self.number,
        );
        let path = self.host.write_secret("wg0.conf", &text);
        let program = Implementation::Linerate.path();
        self.host.run(format!("{} up {path} </dev/null >/run/rig/log 2>&1", program.display()));
    }

    fn shown(&self) -> ShowOutput {
        ShowOutput::of(&self.host, INTERFACE)
    }

    fn dropped(&self, reason: &str) -> u64 {
        self.shown().drops.get(reason).copied().unwrap_or(0)
    }

    fn agreed_with(&self, peer: &str) -> bool {
        self.shown().post_quantum.contains(peer)
    }
}

fn hosts() -> [Up; 2] {
    let (left, right) = Pair::hosts(1500);
    [Up::new(left, 1), Up::new(right, 2)]
}

fn lengths<'a>(messages: impl IntoIterator<Item = &'a Message>) -> BTreeSet<usize> {
    let data = messages.into_iter().filter(|message| message.kind == DATA);
    data.map(|message| message.payload.len()).collect()
}

#[test]
fn if_both_require_it_no_user_data_is_sent_before_the_secret() {
    let [left, right] = hosts();
    let capture = Capture::start(&left.host, "eth0");
    left.start(&right.key.public, "PostQuantum = require");
    right.start(&left.key.public, "PostQuantum = require");
    for (host, to) in [(&left.host, "10.9.0.2"), (&right.host, "10.9.0.1")] {
        eventually("pings pass", SOON, || {
            ping(host, format!("-c 1 -W 1 {PING} {to}")).is_complete()
        });
    }
    assert!(left.agreed_with(&right.key.public) && right.agreed_with(&left.key.public));

    let messages = Message::all(&capture.finish(), PORT);
    let first = messages.iter().position(|message| message.payload.len() == PING_SENT);
    let (before, after) = messages.split_at(first.expect("pings were sent"));
    assert!(lengths(before).is_subset(&OURS.into()), "{:?}", lengths(before));
    assert!(lengths(before).is_superset(&[336, 432, 448].into()), "the exchange came before");
    let responses = before.iter().filter(|message| message.kind == RESPONSE).count();
    assert!(responses >= 2, "one handshake without the secret, one with it");
    assert!(after.iter().any(|message| message.payload.len() == PING_SENT));
}

#[test]
fn if_it_is_required_user_data_is_not_sent_to_a_peer_without_support() {
    if Implementation::WireguardGo.is_skipped() {
        return;
    }
    let [left, right] = hosts();
    let outer = Addresses::new(1, 2);
    let go = Side::start(right.host.clone(), Implementation::WireguardGo, 2, outer);
    go.host.run(format!(
        "wg set {INTERFACE} peer {} allowed-ips 10.9.0.1/32 endpoint 10.1.0.1:{PORT}",
        left.key.public
    ));
    let capture = Capture::start(&left.host, "eth0");
    left.start(&go.key.public, "PostQuantum = require");
    let there = ping(&left.host, format!("-c 40 -i 0.2 -W 0.5 {PING} 10.9.0.2"));
    assert_eq!(there.received, 0, "{}", there.text);
    assert!(left.dropped("out not post quantum") > 0);
    let back = ping(&go.host, format!("-c 5 -i 0.2 -W 0.5 {PING} 10.9.0.1"));
    assert_eq!(back.received, 0, "{}", back.text);
    assert!(left.dropped("in not post quantum") >= 5);

    let messages = Message::all(&capture.finish(), PORT);
    assert!(messages.iter().any(|message| message.kind == RESPONSE), "there was a session");
    let sent = messages.iter().filter(|message| message.direction == netns::Direction::Out);
    assert_eq!(
        lengths(sent).difference(&[32, 48].into()).count(),
        0,
        "messages of the exchange, by length"
    );
}

#[test]
fn two_linerates_agree_without_loss_and_again_after_a_restart() {
    let [left, right] = hosts();
    left.start(&right.key.public, "");
    right.start(&left.key.public, "");
    let pinging = Pinging::start(&left.host, "ping", "-i 0.05 10.9.0.2");
    let both = || left.agreed_with(&right.key.public) && right.agreed_with(&left.key.public);
    eventually("both agree", SOON, both);
    pinging.wait_for_replies(20, SOON);
    let carried = pinging.finish();
    assert!(carried.is_complete(), "{}", carried.text);

    let program = Implementation::Linerate.path();
    right.host.run(format!("{} down {INTERFACE}", program.display()));
    right.start(&left.key.public, "");
    assert!(!right.agreed_with(&left.key.public));
    eventually("packets of the restarted side arrive", Duration::from_secs(3), || {
        ping(&right.host, "-c 1 -W 0.5 10.9.0.1").is_complete()
    });
    eventually("both agree again", SOON, both);
}

#[test]
fn peers_without_support_are_unaffected() {
    for other in [Implementation::WireguardGo, Implementation::Boringtun, Implementation::Gotatun] {
        if other.is_skipped() {
            continue;
        }
        let pair = Pair::start(Implementation::Linerate, other);
        pair.introduce(Introduction::default());
        pair.left.reaches(&pair.right, netns::Family::V4, SOON);
        let pinging = Pinging::start(&pair.left.host, "ping", "-i 0.05 10.9.0.2");
        thread::sleep(Duration::from_secs(5));
        let carried = pinging.finish();
        assert!(carried.is_complete(), "{other}: {}", carried.text);
        assert!(ShowOutput::of(&pair.left.host, INTERFACE).post_quantum.is_empty(), "{other}");
    }
}
