//! What TCP carries between two of a kind by the relay of linerate-server and by that of headscale,
//! which is derper's code, in turns, and what of the processors each took:
//!
//! ```text
//! make build server
//! tests/netns/run cargo run -p linerate-netns --example by_derp -- [ROUNDS] [SECONDS]
//! ```
//!
//! Of a tailscaled that sends, also how much it drops in the queue before its relay: what no relay can
//! carry. All share the machine: what a relay takes of its processors is what another can give back at most.

#![forbid(unsafe_code)]

use netns::{
    CoordinatorKind, Family, Host, Iperf, Member, MemberKind, Nat, Tailnet, Uplink, median,
};

const RELAYS: [CoordinatorKind; 2] = [CoordinatorKind::Linerate, CoordinatorKind::Headscale];
const PAIRS: [MemberKind; 2] = [MemberKind::Tailscaled, MemberKind::Linerate];

/// Two that speak by a relay.
struct Way {
    relay: CoordinatorKind,
    kind: MemberKind,
    pair: [Member; 2],
    tailnet: Tailnet,
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|one| one.parse::<u32>().expect("a number"));
    let mut next = |or| arguments.next().unwrap_or(or);
    let (rounds, seconds) = (next(5), next(5));
    for kind in PAIRS {
        let Some(ways) =
            RELAYS.map(|relay| way(relay, kind)).into_iter().collect::<Option<Vec<_>>>()
        else {
            return;
        };
        let mut rates = [const { Vec::new() }; RELAYS.len()];
        for round in 0..rounds as usize {
            for turn in 0..ways.len() {
                let which = (round + turn) % ways.len();
                rates[which].push(carry(&ways[which], seconds));
            }
        }
        let [ours, theirs] = rates.map(median);
        println!("median between two of {kind:?}: {ours:.3} and {theirs:.3}: {:.2}", ours / theirs);
    }
}

/// Two behind boxes that let no UDP through.
fn way(relay: CoordinatorKind, kind: MemberKind) -> Option<Way> {
    let tailnet = Tailnet::start_with(relay)?;
    let pair = ["left", "right"].map(|name| {
        let host = tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
        Member::join(&tailnet, host, kind, "")
    });
    pair[0].reaches(&pair[1], Family::V4);
    Some(Way { relay, kind, pair, tailnet })
}

/// Gbit/s.
fn carry(way: &Way, seconds: u32) -> f64 {
    let [left, right] = &way.pair;
    let hosts = [&way.tailnet.coordinator.host, &left.host, &right.host];
    let before = hosts.map(used);
    let (client, server) = (&left.host, &right.host);
    let address = right.addresses.of(Family::V4);
    let carried = Iperf { client, server, address, seconds, options: "" }.run().gbps();
    let after = hosts.map(used);
    let [relay, sender, receiver] =
        [0, 1, 2].map(|host| (after[host] - before[host]) / f64::from(seconds) / 1e9);
    println!(
        "{:?} by {:?}: {carried:.3} Gbit/s; cores of the relay {relay:.2}, of the nodes {sender:.2} \
         and {receiver:.2}, besides iperf3's",
        way.kind, way.relay
    );
    if way.kind == MemberKind::Tailscaled {
        let all = left.attempt("debug metrics").stdout;
        let counted = |name: &str| {
            all.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
        };
        let [dropped, queued] = ["dropped", "queued"]
            .map(|what| -> u64 { counted(&format!("magicsock_send_derp_{what} ")) });
        println!("  the sender dropped {dropped} of {queued} so far, before the relay");
    }
    carried
}

/// How long all threads of a host's processes were on a core, in nanoseconds.
fn used(host: &Host) -> f64 {
    let all = host.attempt("cat /proc/[0-9]*/task/*/schedstat").stdout;
    all.lines().filter_map(|line| line.split(' ').next()?.parse::<f64>().ok()).sum()
}
