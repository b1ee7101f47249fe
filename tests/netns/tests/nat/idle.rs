//! What two nodes say that have nothing to say.

use std::thread;
use std::time::Duration;

use netns::{Host, Member, MemberKind, Tailnet, Uplink};

/// Behind this nothing keeps a path alive any more that nobody uses: 45 s after the last datagram.
const SETTLED: Duration = Duration::from_secs(50);

/// What is looked at.
const WINDOW: Duration = Duration::from_secs(60);

/// The most datagrams a second, of each node.
const PROMISE: f64 = 0.2;

const COUNT: &str = "
table inet idle {
  counter sent { }
  chain out {
    type filter hook output priority filter
    oifname eth0 meta l4proto udp counter name sent
  }
}
";

fn sent(host: &Host) -> u32 {
    let counter = host.run("nft list counter inet idle sent");
    let mut words = counter.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).and_then(|count| count.parse().ok()).expect("nft tells how many")
}

#[test]
fn an_idle_direct_peer_costs_a_datagram_in_five_seconds_at_most() {
    let Some(tailnet) = Tailnet::start() else { return };
    let nodes = ["one", "other"].map(|name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Linerate, "")
    });
    nodes[0].becomes_direct(&nodes[1]);
    nodes[1].becomes_direct(&nodes[0]);
    thread::sleep(SETTLED);
    for node in &nodes {
        let rules = node.host.write("count", COUNT);
        node.host.run(format!("nft -f {rules}"));
    }
    thread::sleep(WINDOW);
    for node in &nodes {
        let rate = f64::from(sent(&node.host)) / WINDOW.as_secs_f64();
        println!("{}: {rate} datagrams a second", node.host.name());
        assert!(rate <= PROMISE, "{rate} a second");
    }
}
