//! A flood of datagrams that are not WireGuard's.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netns::{Flood, Member, MemberKind, Tailnet, Uplink, eventually};

use super::changes::PATIENCE;

/// Datagrams of a burst; a pause of five milliseconds follows.
const BURST: usize = 125;
/// Fewer a second than a flood, and more than a path search.
const FEW: usize = 5;

#[test]
fn a_path_is_found_during_a_flood_that_the_kernel_mostly_drops() {
    let Some(tailnet) = Tailnet::start() else { return };
    let join = |name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    };
    let [one, other] = ["one", "other"].map(join);
    one.wait_until_direct(&other);
    let at: SocketAddr = other.wait_until_direct(&one).parse().expect("an address");
    let attacker = tailnet.host("attacker", Uplink::Switch);
    let flood = Flood::of_disco(&attacker, at, BURST);
    let dropped = || one.host.dropped_by_socket(at.port()).unwrap_or(0);
    eventually("the kernel drops most datagrams", PATIENCE, || dropped() > 1000);
    let third = join("third");
    one.wait_until_direct(&third);
    third.wait_until_direct(&one);
    one.wait_until_direct(&other);
    flood.finish();
    eventually("all datagrams are received again", PATIENCE, || {
        let before = dropped();
        let few = Flood::of_disco(&attacker, at, FEW);
        thread::sleep(Duration::from_millis(500));
        few.finish() > 300 && dropped() == before
    });
}
