//! A flood of what is not WireGuard's.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use netns::{Flood, Member, MemberKind, Tailnet, Uplink, eventually};

use super::changes::PATIENCE;

/// Datagrams of a burst, which are followed by five milliseconds of rest.
const BURST: usize = 125;
/// In a second many less than a flood, and more than pass one.
const FEW: usize = 5;

#[test]
fn a_path_is_found_while_a_flood_lasts_of_which_the_kernel_leaves_most_out() {
    let Some(tailnet) = Tailnet::start() else { return };
    let join = |name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    };
    let [one, other] = ["one", "other"].map(join);
    one.becomes_direct(&other);
    let at: SocketAddr = other.becomes_direct(&one).parse().expect("an address");
    let attacker = tailnet.host("attacker", Uplink::Switch);
    let flood = Flood::of_disco(&attacker, at, BURST);
    let dropped = || one.host.dropped_by_socket(at.port()).unwrap_or(0);
    eventually("the kernel leaves most out", PATIENCE, || dropped() > 1000);
    let third = join("third");
    one.becomes_direct(&third);
    third.becomes_direct(&one);
    one.becomes_direct(&other);
    flood.finish();
    eventually("all is received again", PATIENCE, || {
        let before = dropped();
        let few = Flood::of_disco(&attacker, at, FEW);
        thread::sleep(Duration::from_millis(500));
        few.finish() > 300 && dropped() == before
    });
}
