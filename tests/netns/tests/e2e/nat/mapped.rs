//! Boxes that map ports on request: symmetric ones, between which no other direct path exists.

use std::time::Duration;

use netns::{
    Family, Mapping, Member, MemberKind, Nat, Path, PortMapper, Stopwatch, Tailnet, Uplink,
    eventually, ping,
};
use serde_json::Value;

/// Time in which an active node asks its box again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A restart of a box is detected by its epoch, which must differ clearly from the expected one: by
/// more than 2 s and a sixteenth of the time between two checks (RFC 6887, section 8.5).
const EPOCH_MARGIN: Duration = Duration::from_secs(10);

/// Pings during which a pair that cannot connect keeps trying.
const LATER: &str = "-c 10";

/// A node behind a symmetric box, with port mapping if given.
fn node(tailnet: &Tailnet, name: &str, mapping: Option<Mapping>) -> (Member, Option<PortMapper>) {
    let host = tailnet.host(name, Uplink::Behind(Nat::Symmetric));
    let mapper = mapping.map(|mapping| tailnet.map_ports(&host, mapping));
    (Member::join(tailnet, host, MemberKind::Linerate, ""), mapper)
}

fn mapping_of(member: &Member) -> Value {
    member.status()["PortMapping"].clone()
}

/// Waits until a node's box maps its port, and returns the external address.
fn wait_for_mapping(member: &Member, mapper: &PortMapper, protocol: &str) -> String {
    let what = format!("{} has a port by {protocol}", member.host.name());
    eventually(&what, PATIENCE, || mapping_of(member)["Protocol"] == protocol);
    assert_eq!(mapper.mapped().len(), 1, "{:?}", mapper.mapped());
    let reported = mapping_of(member);
    let address = reported["Address"].as_str().expect("it has an address").to_owned();
    assert!(address.starts_with(&format!("{}:", mapper.external)), "{reported}");
    let lifetime = reported["LifetimeSeconds"].as_u64().expect("it has a lifetime");
    assert!((3600..=7200).contains(&lifetime), "{reported}");
    let report = member.attempt("netcheck").stdout;
    assert!(report.contains(&format!("{address} by {protocol}, for ")), "{report}");
    address
}

#[test]
fn nodes_behind_symmetric_boxes_without_mapping_stay_relayed() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [(one, _), (other, _)] = ["one", "other"].map(|name| node(&tailnet, name, None));
    one.reaches(&other, Family::V4);
    ping(&one.host, format!("{LATER} {}", other.addresses.of(Family::V4)));
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert!(matches!(path, Path::Relay(_)), "{path:?}");
    }
    assert_eq!(mapping_of(&one), Value::Null);
    let expected = "none: the router supports neither PCP, NAT-PMP nor UPnP";
    eventually("the router is known", PATIENCE, || {
        one.attempt("netcheck").stdout.contains(expected)
    });
}

#[test]
fn a_port_mapped_by_pcp_makes_symmetric_boxes_direct() {
    becomes_direct_by(Mapping::Pcp, "PCP");
}

#[test]
fn a_port_mapped_by_nat_pmp_makes_symmetric_boxes_direct() {
    becomes_direct_by(Mapping::NatPmp, "NAT-PMP");
}

#[test]
fn a_port_mapped_by_upnp_makes_symmetric_boxes_direct() {
    becomes_direct_by(Mapping::Upnp, "UPnP");
}

fn becomes_direct_by(mapping: Mapping, protocol: &str) {
    if PortMapper::is_missing() {
        return;
    }
    let Some(tailnet) = Tailnet::start() else { return };
    let (one, mapper) = node(&tailnet, "one", Some(mapping));
    let (mut mapper, runs) = (mapper.expect("it was requested"), Stopwatch::start());
    let (other, _) = node(&tailnet, "other", None);
    let address = wait_for_mapping(&one, &mapper, protocol);
    one.wait_until_direct(&other);
    assert_eq!(other.wait_until_direct(&one), address);

    eventually("the box has run for a while", 2 * EPOCH_MARGIN, || runs.elapsed() > EPOCH_MARGIN);
    mapper.restart();
    assert_eq!(mapper.mapped().len(), 0);
    eventually("the box maps again", PATIENCE, || {
        ping(&one.host, format!("-c 1 -W 1 {}", other.addresses.of(Family::V4)));
        mapper.mapped().len() == 1
    });
    assert_eq!(wait_for_mapping(&one, &mapper, protocol), address);
    // The box has not seen flows of this node.
    let (third, _) = node(&tailnet, "third", None);
    assert_eq!(third.wait_until_direct(&one), address);

    let ended = netns::linerate(&one.host, &format!("down {}", Member::INTERFACE));
    assert!(ended.ok, "{ended:?}");
    assert_eq!(mapper.mapped().len(), 0, "the mapping is released");
}
