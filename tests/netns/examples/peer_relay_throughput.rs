//! TCP throughput between two linerates behind boxes: direct, through a peer relay of linerate, and
//! through one of tailscaled, in turns:
//!
//! ```text
//! cargo build --release -p linerate-cli
//! LINERATE_BIN=target/release/linerate tests/netns/run \
//!   cargo run -p linerate-netns --example peer_relay_throughput -- [ROUNDS] [SECONDS]
//! ```
//!
//! All programs share the machine, so the direct figure is the limit of a relay without cost.

#![forbid(unsafe_code)]

use netns::{Family, Iperf, Member, MemberKind, Nat, Tailnet, Uplink, median};

const PORT: &str = "40000";
const RELAYS: [Option<MemberKind>; 3] =
    [None, Some(MemberKind::Linerate), Some(MemberKind::Tailscaled)];

/// Two connected members; the other fields keep their environment running.
struct Connection {
    pair: [Member; 2],
    _relay: Option<Member>,
    _tailnet: Tailnet,
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u32>().expect("a number"));
    let mut next = |or| arguments.next().unwrap_or(or);
    let (rounds, seconds) = (next(5) as usize, next(5));
    let Some(ways) = RELAYS.into_iter().map(connect).collect::<Option<Vec<Connection>>>() else {
        return;
    };
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..rounds {
        for turn in 0..ways.len() {
            let which = (round + turn) % ways.len();
            let [left, right] = &ways[which].pair;
            let address = right.addresses.of(Family::V4);
            let (client, server) = (&left.host, &right.host);
            let carried = Iperf { client, server, address, seconds, options: "" }.run().gbps();
            println!("{:?}: {carried:.3} Gbit/s by {:?}", RELAYS[which], left.path_to(right));
            rates[which].push(carried);
        }
    }
    let [direct, ours, theirs] = rates.map(median);
    println!("median: direct {direct:.3}, linerate {ours:.3}, tailscaled {theirs:.3} Gbit/s");
    println!("of tailscaled's: linerate {:.2}, direct {:.2}", ours / theirs, direct / theirs);
}

/// Starts two members that connect through such a relay, or directly without one.
fn connect(relay: Option<MemberKind>) -> Option<Connection> {
    let tailnet = Tailnet::start()?;
    let pair = ["left", "right"].map(|name| {
        let host = tailnet.host(name, Uplink::Behind(Nat::PortRestricted));
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    let relay = relay.map(|kind| {
        let relay = Member::join(&tailnet, tailnet.host("relay", Uplink::Switch), kind, "");
        relay.set_relay_port(PORT);
        tailnet.coordinator.allow_relay(relay.addresses.of(Family::V4));
        tailnet.block_between_boxes();
        relay
    });
    let [left, right] = &pair;
    for (one, other) in [(left, right), (right, left)] {
        match relay {
            Some(_) => one.wait_until_relayed(other, ""),
            None => drop(one.wait_until_direct(other)),
        }
    }
    Some(Connection { pair, _relay: relay, _tailnet: tailnet })
}
