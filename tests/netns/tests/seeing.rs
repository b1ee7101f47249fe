//! What linerate tells of itself to programs.
//!
//! ```text
//!   left                                                     right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.1/24  fd01::1/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//! ```

#![forbid(unsafe_code)]

use std::time::Duration;

use netns::{Family, INTERFACE, Implementation, Meeting, Pair, preshared_key};
use serde_json::{Value, json};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

#[test]
fn show_as_json_agrees_with_wg_and_tells_no_secret() {
    let pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
    let preshared = preshared_key();
    pair.introduce(Meeting { preshared_key: Some(&preshared), ..Meeting::default() });
    pair.left.reaches(&pair.right, Family::V4, PATIENCE);

    let (left, right) = (&pair.left, &pair.right);
    let program = Implementation::Linerate.path();
    let text = left.host.run(format!("{} show --json {INTERFACE}", program.display()));
    for secret in [&left.key.private, &preshared] {
        assert!(!text.contains(secret.as_str()), "{text}");
    }
    let told: Value = serde_json::from_str(&text).expect("it is JSON");
    let [interface] = &told["interfaces"].as_array().expect("a list")[..] else {
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
        let told = peer[name].as_u64().expect("a count");
        assert!((1..=count).contains(&told), "{name}: {told} of {count}");
    }
    let own = &interface["linerate"];
    assert!(own["aead"].is_string() && own["version"].is_string(), "{own}");
    assert_eq!(own["offloads"].as_object().map(|offloads| offloads.len()), Some(6));
    assert_eq!(own["drops"]["in_forged"], json!(0));
}
