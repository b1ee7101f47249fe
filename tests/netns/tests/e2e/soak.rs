//! A long mixed load, while a peer roams, keys change and offloads come and go.
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
//! Left takes right away as a peer and adds it again, with a new preshared key: what is sent then
//! begins with a handshake. In the middle of a long run it leaves that be, so that sessions grow
//! as old as they get and are followed in order. `SOAK_SECONDS` is how long it runs; `make soak`
//! gives it ten minutes.

mod disturb;
mod load;
mod verdict;

use std::env;
use std::thread;
use std::time::Duration;

use netns::{Family, INTERFACE, Implementation, Meeting, Pair, Stopwatch};

use self::disturb::Disturber;
use self::load::Load;
use self::verdict::{Health, Verdict};

const PATIENCE: Duration = Duration::from_secs(15);

/// How long it runs where nobody says.
const SHORT: Duration = Duration::from_secs(25);

/// Between two looks at what is due.
const TICK: Duration = Duration::from_millis(50);

#[test]
fn a_mixed_load_with_a_roaming_peer_ends_with_explained_drops_and_flat_memory() {
    let seconds = env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let length = seconds.map_or(SHORT, Duration::from_secs);
    let mut pair = Pair::start(Implementation::Linerate, Implementation::Linerate);
    pair.introduce(Meeting { left_only: true, ..Meeting::default() });
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
