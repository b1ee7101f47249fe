//! TCP throughput between two members through the relay of linerate-server and through that of
//! headscale, which is derper's code, in turns, with the processor time of relay and members:
//!
//! ```text
//! make build server
//! tests/netns/run cargo run -p linerate-netns --example derp_throughput -- [ROUNDS] [SECONDS]
//! ```
//!
//! For a sending tailscaled, it also prints the drops in the queue before its relay, which no relay can
//! avoid. All programs share the machine, so processor time of the relay reduces the throughput.

#![forbid(unsafe_code)]

use netns::{
    CoordinatorKind, Family, Host, Iperf, Member, MemberKind, Nat, Tailnet, Uplink, median,
};

const RELAYS: [CoordinatorKind; 2] = [CoordinatorKind::Linerate, CoordinatorKind::Headscale];
const PAIRS: [MemberKind; 2] = [MemberKind::Tailscaled, MemberKind::Linerate];

/// Two members connected through a relay.
struct Connection {
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
            RELAYS.map(|relay| connect(relay, kind)).into_iter().collect::<Option<Vec<_>>>()
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

/// Starts two members behind boxes that drop UDP.
fn connect(relay: CoordinatorKind, kind: MemberKind) -> Option<Connection> {
    let tailnet = Tailnet::start_with(relay)?;
    let pair = ["left", "right"].map(|name| {
        let host = tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
        Member::join(&tailnet, host, kind, "")
    });
    pair[0].reaches(&pair[1], Family::V4);
    Some(Connection { relay, kind, pair, tailnet })
}

/// Gbit/s.
fn carry(connection: &Connection, seconds: u32) -> f64 {
    let [left, right] = &connection.pair;
    let hosts = [&connection.tailnet.coordinator.host, &left.host, &right.host];
    let before = hosts.map(used);
    let (client, server) = (&left.host, &right.host);
    let address = right.addresses.of(Family::V4);
    let carried = Iperf { client, server, address, seconds, options: "" }.run().gbps();
    let after = hosts.map(used);
    let [relay, sender, receiver] =
        [0, 1, 2].map(|host| (after[host] - before[host]) / f64::from(seconds) / 1e9);
    println!(
        "{:?} by {:?}: {carried:.3} Gbit/s; cores of the relay {relay:.2}, of the nodes {sender:.2} \
         and {receiver:.2}, without iperf3",
        connection.kind, connection.relay
    );
    if connection.kind == MemberKind::Tailscaled {
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

/// Time of all threads of a host's processes on a core, in nanoseconds.
fn used(host: &Host) -> f64 {
    let all = host.attempt("cat /proc/[0-9]*/task/*/schedstat").stdout;
    all.lines().filter_map(|line| line.split(' ').next()?.parse::<f64>().ok()).sum()
}
