//! What TCP carries between two linerates behind boxes: directly, by a peer relay of linerate's, and by
//! one of tailscaled's, in turns:
//!
//! ```text
//! cargo build --release -p linerate-cli
//! LINERATE_BIN=target/release/linerate tests/netns/run \
//!   cargo run -p linerate-netns --example relayed -- [ROUNDS] [SECONDS]
//! ```
//!
//! All share the machine, so that the first is more than any relay can have: one that cost nothing.

#![forbid(unsafe_code)]

use netns::{Family, Iperf, Member, MemberKind, Nat, Tailnet, Uplink, median};

const PORT: &str = "40000";
const RELAYS: [Option<MemberKind>; 3] =
    [None, Some(MemberKind::Linerate), Some(MemberKind::Tailscaled)];

/// Two that speak by one way; the rest has to stay.
struct Way {
    pair: [Member; 2],
    _relay: Option<Member>,
    _tailnet: Tailnet,
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u32>().expect("a number"));
    let mut next = |or| arguments.next().unwrap_or(or);
    let (rounds, seconds) = (next(5) as usize, next(5));
    let Some(ways) = RELAYS.into_iter().map(way).collect::<Option<Vec<Way>>>() else { return };
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

/// Two that meet by such a relay; directly without one.
fn way(relay: Option<MemberKind>) -> Option<Way> {
    let tailnet = Tailnet::start()?;
    let pair = ["left", "right"].map(|name| {
        let host = tailnet.host(name, Uplink::Behind(Nat::PortRestricted));
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    let relay = relay.map(|kind| {
        let relay = Member::join(&tailnet, tailnet.host("relay", Uplink::Switch), kind, "");
        relay.relays_at(PORT);
        tailnet.coordinator.allow_relay(relay.addresses.of(Family::V4));
        tailnet.part_boxes();
        relay
    });
    let [left, right] = &pair;
    for (one, other) in [(left, right), (right, left)] {
        match relay {
            Some(_) => one.becomes_relayed(other, ""),
            None => drop(one.becomes_direct(other)),
        }
    }
    Some(Way { pair, _relay: relay, _tailnet: tailnet })
}
