//! A network behind two routers uses the one that answers.

use std::time::Duration;

use netns::{
    Host, Lan, Member, MemberKind, Stopwatch, Tailnet, Uplink, address, announce, cable,
    eventually, forward, ping,
};
use serde_json::{Value, json};

use super::policy::set;
use super::{PATIENCE, join, start};

/// The network, and one of its hosts.
pub(super) const NETWORK: &str = Lan::NETWORK;
pub(super) const BEHIND: &str = Lan::HOST;

/// Drops all packets on the uplink.
const CUT: &str = "
table inet cut {
  chain in { type filter hook input priority filter; iifname eth0 drop; }
  chain out { type filter hook output priority filter; oifname eth0 drop; }
}
";

/// Time until a network has moved from a hanging router: two probes, each with two seconds for the
/// answer, three seconds after the last ones; plus a margin for clients on a busy machine.
const SOON: Duration = Duration::from_secs(15);

/// A host on the switch with its own link to the network.
pub(super) fn router(tailnet: &Tailnet, behind: &Host, number: usize, kind: MemberKind) -> Member {
    let host = tailnet.host(["first", "second"][number], Uplink::Switch);
    let device = ["eth0", "eth1"][number];
    cable(&host, "lan", behind, device, 1500);
    address(&host, "lan", &format!("10.77.{number}.1/30"));
    address(behind, device, &format!("10.77.{number}.2/30"));
    host.run(format!("ip route add {NETWORK} via 10.77.{number}.2"));
    forward(&host);
    Member::join(tailnet, host, kind, &format!("--advertise-routes={NETWORK}"))
}

/// The current routers of the network.
pub(super) fn primary(tailnet: &Tailnet) -> Vec<Value> {
    let nodes = tailnet.coordinator.nodes();
    let has_it = |node: &&Value| node["primary_routes"] == json!([NETWORK]);
    nodes.iter().filter(has_it).map(|node| node["given_name"].clone()).collect()
}

#[test]
fn a_network_leaves_a_hanging_or_cut_off_router_within_seconds() {
    let Some(tailnet) = start() else { return };
    set(&tailnet, &json!({ "autoApprovers": { "routes": { NETWORK: ["rig@"] } } }));
    let behind = Host::new("behind");
    address(&behind, "lo", &format!("{BEHIND}/32"));
    let first = router(&tailnet, &behind, 0, MemberKind::Tailscaled);
    let second = router(&tailnet, &behind, 1, MemberKind::Linerate);
    let client = join(&tailnet, "client", MemberKind::Tailscaled, "--accept-routes");
    let is_reached = || ping(&client.host, format!("-c 1 -W 1 {BEHIND}")).is_complete();
    eventually("the network is reached", PATIENCE, is_reached);
    assert_eq!(primary(&tailnet), ["first"]);

    first.signal("STOP");
    let watch = Stopwatch::start();
    assert!(!is_reached(), "it still uses the hanging router");
    eventually("the network is reached by the other", SOON, is_reached);
    announce(&format!("a network moved in {:.1} s", watch.elapsed().as_secs_f64()));
    assert_eq!(primary(&tailnet), ["second"]);

    first.signal("CONT");
    eventually("the first answers again", PATIENCE, || {
        tailnet.coordinator.log().contains("answers again")
    });
    // Longer than another round of probes.
    let pings = ping(&client.host, format!("-c 40 -i 0.2 -W 1 {BEHIND}"));
    assert!(pings.is_complete(), "{}", pings.text);
    assert_eq!(primary(&tailnet), ["second"]);

    // Its connections are cut without an error.
    let rules = second.host.write("cut", CUT);
    second.host.run(format!("nft -f {rules}"));
    let watch = Stopwatch::start();
    assert!(!is_reached(), "it still uses the router that is cut off");
    eventually("the network is reached by the first again", SOON, is_reached);
    announce(&format!("a network moved in {:.1} s", watch.elapsed().as_secs_f64()));
    assert_eq!(primary(&tailnet), ["first"]);
}
