//! Boxes that map a port for who asks: two symmetric ones, between whose hosts nothing meets else.

use std::time::Duration;

use netns::{
    Family, Mapping, Member, MemberKind, Nat, Path, PortMapper, Stopwatch, Tailnet, Uplink,
    eventually, ping,
};
use serde_json::Value;

/// Within this a node that speaks to others has asked its box again.
const PATIENCE: Duration = Duration::from_secs(60);

/// A box that was started again is known by its epoch, which has to lie clearly behind what it would
/// be: by more than 2 s and a sixteenth of the time between two checks (RFC 6887, section 8.5).
const TELLING: Duration = Duration::from_secs(10);

/// Pings for which two try that cannot.
const LATER: &str = "-c 10";

/// A node behind a symmetric box, which maps ports if that is said.
fn node(tailnet: &Tailnet, name: &str, mapping: Option<Mapping>) -> (Member, Option<PortMapper>) {
    let host = tailnet.host(name, Uplink::Behind(Nat::Symmetric));
    let mapper = mapping.map(|mapping| tailnet.map_ports(&host, mapping));
    (Member::join(tailnet, host, MemberKind::Linerate, ""), mapper)
}

fn mapping_of(member: &Member) -> Value {
    member.status()["PortMapping"].clone()
}

/// Waits until a node's box maps its port, and returns where.
fn is_mapped(member: &Member, mapper: &PortMapper, protocol: &str) -> String {
    let what = format!("{} has a port by {protocol}", member.host.name());
    eventually(&what, PATIENCE, || mapping_of(member)["Protocol"] == protocol);
    assert_eq!(mapper.mapped().len(), 1, "{:?}", mapper.mapped());
    let told = mapping_of(member);
    let address = told["Address"].as_str().expect("it has an address").to_owned();
    assert!(address.starts_with(&format!("{}:", mapper.external)), "{told}");
    let lifetime = told["LifetimeSeconds"].as_u64().expect("it has a lifetime");
    assert!((3600..=7200).contains(&lifetime), "{told}");
    let report = member.attempt("netcheck").stdout;
    assert!(report.contains(&format!("{address} by {protocol}, for ")), "{report}");
    address
}

#[test]
fn without_a_mapped_port_symmetric_boxes_leave_the_relay() {
    let Some(tailnet) = Tailnet::start() else { return };
    let [(one, _), (other, _)] = ["one", "other"].map(|name| node(&tailnet, name, None));
    one.reaches(&other, Family::V4);
    ping(&one.host, format!("{LATER} {}", other.addresses.of(Family::V4)));
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert!(matches!(path, Path::Relay(_)), "{path:?}");
    }
    assert_eq!(mapping_of(&one), Value::Null);
    let known = "none: the router supports neither PCP, NAT-PMP nor UPnP";
    eventually("the router is known", PATIENCE, || one.attempt("netcheck").stdout.contains(known));
}

#[test]
fn a_port_that_is_mapped_by_pcp_makes_symmetric_boxes_direct() {
    goes_directly(Mapping::Pcp, "PCP");
}

#[test]
fn a_port_that_is_mapped_by_nat_pmp_makes_symmetric_boxes_direct() {
    goes_directly(Mapping::NatPmp, "NAT-PMP");
}

#[test]
fn a_port_that_is_mapped_by_upnp_makes_symmetric_boxes_direct() {
    goes_directly(Mapping::Upnp, "UPnP");
}

fn goes_directly(mapping: Mapping, protocol: &str) {
    if PortMapper::is_missing() {
        return;
    }
    let Some(tailnet) = Tailnet::start() else { return };
    let (one, mapper) = node(&tailnet, "one", Some(mapping));
    let (mut mapper, runs) = (mapper.expect("it was asked for"), Stopwatch::start());
    let (other, _) = node(&tailnet, "other", None);
    let address = is_mapped(&one, &mapper, protocol);
    one.becomes_direct(&other);
    assert_eq!(other.becomes_direct(&one), address);

    eventually("the box has run for a while", 2 * TELLING, || runs.elapsed() > TELLING);
    mapper.restart();
    assert_eq!(mapper.mapped().len(), 0);
    eventually("the box maps again", PATIENCE, || {
        ping(&one.host, format!("-c 1 -W 1 {}", other.addresses.of(Family::V4)));
        mapper.mapped().len() == 1
    });
    assert_eq!(is_mapped(&one, &mapper, protocol), address);
    // Whose flows the box has never seen.
    let (third, _) = node(&tailnet, "third", None);
    assert_eq!(third.becomes_direct(&one), address);

    let ended = netns::linerate(&one.host, &format!("down {}", Member::INTERFACE));
    assert!(ended.ok, "{ended:?}");
    assert_eq!(mapper.mapped().len(), 0, "the mapping is released");
}
