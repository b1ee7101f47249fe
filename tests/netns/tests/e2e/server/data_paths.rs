//! A network leaves a router that answers the coordinator but forwards nothing, and stays at a
//! healthy one.

use std::time::Duration;

use netns::{
    Family, Host, Member, MemberKind, Stopwatch, Tailnet, address, announce, eventually, ping,
};
use serde_json::json;

use super::policy::set;
use super::routers::{BEHIND, NETWORK, primary, router};
use super::{PATIENCE, join, start};

/// The relay's port, which differs from the coordinator's so that either can be cut off alone.
const RELAY: &str = "listen = [\"[::]:8443\"]";

/// Drops all data on the uplink, direct or relayed.
const CUT: &str = "
table inet cut {
  chain in {
    type filter hook input priority filter;
    iifname eth0 meta l4proto udp drop
    iifname eth0 tcp sport 8443 drop
  }
  chain out {
    type filter hook output priority filter;
    oifname eth0 meta l4proto udp drop
    oifname eth0 tcp dport 8443 drop
  }
}
";

/// Time until a network has moved: a pause of three seconds, four for one node and four for two
/// others; plus a margin for clients on a busy machine.
const SOON: Duration = Duration::from_secs(25);

/// Two routers of a network, and two nodes.
struct World {
    tailnet: Tailnet,
    first: Member,
    second: Member,
    client: Member,
    other: Member,
    _behind: Host,
}

impl World {
    fn start(first: MemberKind, second: MemberKind) -> Option<Self> {
        let mut tailnet = start()?;
        let code = "region_code = \"rig\"";
        tailnet.coordinator.replace(code, &format!("{code}\n{RELAY}"));
        set(
            &tailnet,
            &json!({
                "acls": [{ "action": "accept", "src": ["*"], "dst": ["*:*"] }],
                "autoApprovers": { "routes": { NETWORK: ["rig@"] } },
            }),
        );
        let behind = Host::new("behind");
        address(&behind, "lo", &format!("{BEHIND}/32"));
        let first = router(&tailnet, &behind, 0, first);
        let second = router(&tailnet, &behind, 1, second);
        let client = join(&tailnet, "client", MemberKind::Tailscaled, "--accept-routes");
        let other = join(&tailnet, "other", MemberKind::Linerate, "");
        let world = Self { tailnet, first, second, client, other, _behind: behind };
        eventually("the network is reached", PATIENCE, || world.is_reached());
        assert_eq!(primary(&world.tailnet), ["first"]);
        Some(world)
    }

    fn is_reached(&self) -> bool {
        ping(&self.client.host, format!("-c 1 -W 1 {BEHIND}")).is_complete()
    }

    fn count_in_log(&self, what: &str) -> usize {
        self.tailnet.coordinator.log().matches(what).count()
    }

    /// Checks that nothing changes for `seconds` seconds.
    fn expect_no_change(&self, seconds: u32, whose: &str) {
        let lost = self.count_in_log("no data reaches");
        let pings = ping(&self.client.host, format!("-c {} -i 0.2 -W 1 {BEHIND}", seconds * 5));
        assert!(pings.is_complete(), "{}", pings.text);
        assert_eq!(
            (primary(&self.tailnet), self.count_in_log("no data reaches")),
            (vec![json!(whose)], lost)
        );
    }

    fn expect_move(&self, whose: &str) {
        let watch = Stopwatch::start();
        assert!(!self.is_reached(), "it still uses the router that forwards nothing");
        eventually(&format!("the network is reached by the {whose}"), SOON, || self.is_reached());
        announce(&format!("a network moved in {:.1} s", watch.elapsed().as_secs_f64()));
        assert_eq!(primary(&self.tailnet), [whose]);
        assert_eq!(self.count_in_log("does not answer"), 0, "they all answer the coordinator");
    }

    fn expect_recovery(&self, times: usize) {
        eventually("data reaches it again", PATIENCE, || {
            self.count_in_log("again") >= 2 * times
                && self.count_in_log("data reaches the router") >= times
        });
    }
}

#[test]
fn a_network_leaves_stock_routers_without_data_but_not_healthy_ones() {
    let Some(world) = World::start(MemberKind::Tailscaled, MemberKind::Tailscaled) else { return };
    world.expect_no_change(30, "first");
    let rules = world.first.host.write("cut", CUT);
    world.first.host.run(format!("nft -f {rules}"));
    world.expect_move("second");

    world.first.host.run("nft delete table inet cut");
    world.expect_recovery(1);
    world.expect_no_change(15, "second");

    let rules = world.second.host.write("cut", CUT);
    world.second.host.run(format!("nft -f {rules}"));
    world.expect_move("first");
}

#[test]
fn a_network_leaves_a_linerate_with_a_stopped_data_plane() {
    let Some(world) = World::start(MemberKind::Linerate, MemberKind::Linerate) else { return };
    world.expect_no_change(15, "first");
    let data_plane = world.first.pid();
    world.first.host.run(format!("kill -STOP {data_plane}"));
    world.expect_move("second");
    world.first.host.run(format!("kill -CONT {data_plane}"));
    world.expect_recovery(1);
    world.expect_no_change(15, "second");
    // It reaches no other node, and blames none.
    world.other.host.run(format!("kill -STOP {}", world.other.pid()));
    world.expect_no_change(20, "second");
}

#[test]
fn stock_nodes_and_linerate_ping_each_other_through_the_tunnel() {
    let Some(tailnet) = start() else { return };
    let [ours, more] = ["ours", "more"].map(|name| join(&tailnet, name, MemberKind::Linerate, ""));
    let theirs = join(&tailnet, "theirs", MemberKind::Tailscaled, "");
    for (from, to) in [(&theirs, &ours), (&ours, &theirs), (&ours, &more)] {
        for family in Family::ALL {
            let target = to.addresses.of(family);
            eventually(&format!("{} pings {target}", from.host.name()), PATIENCE, || {
                let output = from.attempt(&format!("ping --tsmp -c 1 {target}"));
                output.ok
                    && (output.stdout.contains("TSMP") || output.stdout.contains("the tunnel"))
            });
        }
    }
    // No host received a message of the protocol, which the kernel does not support.
    for member in [&ours, &more] {
        let count = "nstat -asz IpInUnknownProtos | awk '/^IpInUnknownProtos/ { print $2 }'";
        assert_eq!(member.host.run(count).trim(), "0");
    }
}
