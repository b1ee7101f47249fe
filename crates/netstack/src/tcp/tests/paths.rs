use std::time::Duration;

use super::world::{CLEAN, Link, MS, World};
use crate::tcp::CongestionControl::Cubic;

/// Runs for `duration`. Returns the megabits of payload per second from the first end to the other.
fn rate(world: &mut World, duration: Duration) -> f64 {
    let received = world.ends[1].received.len();
    world.run_for(duration);
    (world.ends[1].received.len() - received) as f64 * 8e-6 / duration.as_secs_f64()
}

const LONG: Link = Link {
    delay: Duration::from_millis(33),
    rate: Some(200_000_000 / 8),
    queue: Duration::from_millis(30),
    ..CLEAN
};

#[test]
fn a_long_path_is_filled_by_cubic() {
    let mut world = World::with(Cubic, 1, LONG);
    world.queue_data(0, 200_000_000);
    rate(&mut world, Duration::from_secs(3));
    let filled = rate(&mut world, Duration::from_secs(3));
    assert!(filled > 170.0, "{filled} of 200 Mbit/s");
}

/// With 0.1 % loss, Reno has 1.22 / sqrt(0.001) = 39 segments per round trip, which is 6.4 Mbit/s.
/// CUBIC is at least as fast (RFC 9438 section 5.1). The test checks that recovery does not cost
/// throughput.
#[test]
fn a_long_path_with_loss_and_reordering_carries_what_cubic_allows() {
    let link = Link { loss: 10, reordering: 50, late: 2 * MS, ..LONG };
    let mut world = World::with(Cubic, 3, link);
    world.queue_data(0, 200_000_000);
    let carried = rate(&mut world, Duration::from_secs(30));
    assert!(carried > 6.4, "{carried} Mbit/s");
    eprintln!("66 ms, 0.1 % loss: {carried:.1} Mbit/s");
}

/// Segments that are 2 ms late arrive after dozens of others.
#[test]
fn a_long_path_with_reordering_is_filled_by_cubic() {
    let link = Link { reordering: 50, late: 2 * MS, ..LONG };
    let mut world = World::with(Cubic, 3, link);
    world.queue_data(0, 300_000_000);
    rate(&mut world, Duration::from_secs(3));
    let carried = rate(&mut world, Duration::from_secs(6));
    assert!(carried > 160.0, "{carried} Mbit/s");
}

#[test]
fn nothing_is_retransmitted_on_a_path_without_loss() {
    let mut world = World::connected(1, Link { queue: Duration::MAX, ..LONG });
    world.queue_data(0, 20_000_000);
    world.run_until(World::all_received);
    assert_eq!(world.ends[0].sent_bytes, 20_000_000);
}

#[test]
fn a_smaller_path_mtu_in_mid_stream_is_adopted() {
    let mut world = World::connected(1, CLEAN);
    world.queue_data(0, 1_000_000);
    world.run_for(40 * MS);
    world.filter = Box::new(|from, _, bytes| from != 0 || bytes.len() <= 1020);
    world.run_for(20 * MS);
    world.tcp(0).lower_path(1000);
    let begin = world.now;
    world.run_until(World::all_received);
    assert!(world.now.since(begin) < 400 * MS, "{:?}", world.now.since(begin));
    assert_eq!(world.tcp(0).segment_limit(), 1000);
}

#[test]
fn super_packets_are_large_with_much_data() {
    let mut world = World::connected(1, Link { delay: Duration::from_micros(50), ..CLEAN });
    world.queue_data(0, 30_000_000);
    world.run_until(World::all_received);
    let mut room = vec![0; 65_535];
    world.queue_data(0, 1_000_000);
    world.tcp(0);
    let now = world.now;
    let tcp = world.tcp(0);
    tcp.write(&super::world::data(500_000)).unwrap();
    let outgoing = tcp.poll_transmit(now, &mut room, 65_515).unwrap();
    assert_eq!(outgoing.segment, 1368);
    assert_eq!(outgoing.payload, 47 * 1368);
}
