//! A long mixed load, while a peer roams, keys change and offloads are switched.
//!
//! ```text
//!   left: its address, port and keys change                  right
//!   wg0  10.9.0.1/24  fd09::1/64   . . . . tunnel . . . .    wg0  10.9.0.2/24  fd09::2/64
//!   eth0 10.1.0.N/24  fd01::N/64  -------- cable --------    eth0 10.1.0.2/24  fd01::2/64
//!
//!   tcp v4  ------------>     udp v4 ------------>     ping ------------>
//!   tcp v6  <------------     udp v6 <------------ (UDP_SEGMENT)
//! ```
//!
//! Left removes right as a peer and adds it again with a new preshared key, so that the next packet
//! starts a handshake. In the middle of a long run this pauses, so that sessions reach their maximum
//! age and are renewed by age. `SOAK_SECONDS` is the duration; `make soak` sets ten minutes.

mod disturb;
mod load;
mod verdict;

use std::env;
use std::thread;
use std::time::Duration;

use netns::{Family, INTERFACE, Implementation, Introduction, Pair, Stopwatch};

use self::disturb::Disturber;
use self::load::Load;
use self::verdict::{Health, Verdict};

const PATIENCE: Duration = Duration::from_secs(15);

/// Default duration.
const SHORT: Duration = Duration::from_secs(25);

/// Interval of checks for due events.
const TICK: Duration = Duration::from_millis(50);

#[test]
fn a_mixed_load_with_a_roaming_peer_ends_with_explained_drops_and_flat_memory() {
    let seconds = env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let length = seconds.map_or(SHORT, Duration::from_secs);
    let mut pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
    pair.introduce(Introduction { left_only: true, ..Introduction::default() });
    for inner in Family::ALL {
        pair.left.reaches(&pair.right, inner, PATIENCE);
    }

    let load = Load::start(&pair);
    let watch = Stopwatch::start();
    let mut disturber = Disturber::new(&pair, length);
    let mut health = Health::default();
    while watch.elapsed() < length {
        disturber.disturb(watch.elapsed());
        health.look(&pair, watch.elapsed());
        thread::sleep(TICK);
    }
    let events = disturber.finish();
    let carried = load.finish();
    for side in [&mut pair.left, &mut pair.right] {
        assert!(side.daemon.is_running(), "the daemon on {} ended", side.host.name());
        side.host.run(format!("wg show {INTERFACE}"));
    }
    pair.left.reaches(&pair.right, Family::V4, PATIENCE);
    Verdict::new(&pair, length, events, carried, health).announce_and_assert();
}
