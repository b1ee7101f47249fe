//! Forwarding for the peers: what they may reach behind this host, under whose
//! address, in segments that fit, and whether the kernel forwards at all.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;
use ipnet::IpNet;
use serde_json::{Value, json};
use sys::{
    ethtool::{self, UDP_FORWARDING},
    netlink::Netlink,
};

use super::{
    nft::{Chain, Ruleset, compare, connection, is, is_not, meta},
    undo_log::{SettingsLock, UndoLog},
};
use config::conf::Router;

const CLAMP: Chain = Chain { name: "clamp", kind: "filter", hook: "forward", priority: -150 };
const FORWARD: Chain = Chain { name: "forward", kind: "filter", hook: "forward", priority: 0 };
const NAT: Chain = Chain { name: "nat", kind: "nat", hook: "postrouting", priority: 100 };

const IPV4_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";
const IPV6_FORWARD: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
const IPV6_DEVICES: &str = "/proc/sys/net/ipv6/conf";

pub fn add_rules(rules: &mut Ruleset, interface: &str, router: &Router) {
    if router.clamps() {
        rules.add_chain(CLAMP);
        for way in ["iif", "oif"] {
            rules.add_rule(CLAMP, &clamp(is(&meta(way), interface)));
        }
    }
    if router.offered.is_empty() {
        return;
    }
    // The interface keeps its index even if an attacker who controls the peer renames it.
    let leaves = [is(&meta("iif"), interface), is_not(&meta("oif"), interface)];
    let elsewhere: Vec<Value> =
        ["ipv4", "ipv6"].into_iter().filter_map(|f| outside(router, f)).collect();
    // If everything is offered, connections need not be told apart.
    if !elsewhere.is_empty() {
        rules.add_chain(FORWARD);
        let begun = compare("in", &connection("state"), json!(["established", "related"]));
        rules.add_rule(FORWARD, &[begun, json!({"accept": null})]);
    }
    for elsewhere in elsewhere {
        let refuse = json!({"reject": {"type": "icmpx", "expr": "admin-prohibited"}});
        let [from, to] = leaves.clone();
        rules.add_rule(FORWARD, &[from, to, elsewhere, json!({"counter": null}), refuse]);
    }
    if router.masquerade {
        let [from, to] = leaves;
        rules.add_chain(NAT);
        rules.add_rule(NAT, &[from, to, json!({"masquerade": null})]);
    }
}

/// What matches packets of a family to networks that are not offered; `None` if all are.
fn outside(router: &Router, family: &str) -> Option<Value> {
    let (protocol, is_ipv4) = if family == "ipv4" { ("ip", true) } else { ("ip6", false) };
    let offered = offered(router, is_ipv4);
    if offered.iter().any(|net| net.prefix_len() == 0) {
        return None;
    }
    if offered.is_empty() {
        return Some(is(&meta("nfproto"), family));
    }
    let destination = json!({"payload": {"protocol": protocol, "field": "daddr"}});
    let offered: Vec<Value> = offered.iter().map(prefix).collect();
    Some(is_not(&destination, json!({"set": offered})))
}

/// `rt mtu` is the lesser of both directions' MTU, less the headers; an MSS that is
/// smaller stays (net/netfilter/nft_rt.c, nft_exthdr.c).
fn clamp(way: Value) -> [Value; 3] {
    let flags = json!({"payload": {"protocol": "tcp", "field": "flags"}});
    let syn = is(&json!({"&": [flags, {"|": ["syn", "rst"]}]}), "syn");
    let mss = json!({"tcp option": {"name": "maxseg", "field": "size"}});
    [way, syn, json!({"mangle": {"key": mss, "value": {"rt": {"key": "mtu"}}}})]
}

/// The networks of one family. A set must not have one within another.
fn offered(router: &Router, ipv4: bool) -> Vec<IpNet> {
    let nets = router.offered.iter().filter(|net| net.addr().is_ipv4() == ipv4);
    IpNet::aggregate(&nets.copied().collect())
}

fn prefix(net: &IpNet) -> Value {
    json!({"prefix": {"addr": net.addr().to_string(), "len": net.prefix_len()}})
}

/// Switches the kernel's forwarding on if the file asks for it, and warns if it is off.
pub fn forward(router: &Router, log: &mut UndoLog) -> anyhow::Result<()> {
    let lock = router.ip_forward.then(|| log.lock_settings()).transpose()?;
    for (ipv4, path) in [(true, IPV4_FORWARD), (false, IPV6_FORWARD)] {
        let wanted = router.offered.iter().any(|net| net.addr().is_ipv4() == ipv4);
        let asked = lock.as_ref().filter(|_| wanted || router.offered.is_empty());
        let path = Path::new(path);
        // A kernel may be without IPv6.
        let Ok(current) = fs::read_to_string(path) else {
            anyhow::ensure!(!wanted, "{}: the kernel has no such family", path.display());
            continue;
        };
        if let Some(lock) = asked {
            if !ipv4 {
                keep_advertised_routes(log, lock, current.trim() == "1")?;
            }
            log.change_setting(lock, path, "1").context("IpForward")?;
        } else if wanted && current.trim() != "1" {
            tracing::warn!(
                "OfferRoutes: the kernel forwards nothing: {} is {}; IpForward = true sets it",
                path.display(),
                current.trim()
            );
        }
    }
    Ok(())
}

/// Logs the devices whose UDP for the peers arrives datagram by datagram: by default the kernel
/// coalesces only TCP that it forwards.
pub fn tell_uncoalesced(router: &Router, netlink: &Netlink) -> anyhow::Result<()> {
    // It takes a system call for each device: not if the log level hides the result.
    if router.offered.is_empty() || !tracing::enabled!(tracing::Level::INFO) {
        return Ok(());
    }
    let devices = netlink.links()?.into_iter();
    let devices = devices.filter(|device| device.ethernet && device.up && !device.bridged);
    let lacks = |name: &String| {
        let features = ethtool::features(name).unwrap_or_default();
        features.get(UDP_FORWARDING).is_some_and(|feature| feature.is_switched_off())
    };
    let names: Vec<String> = devices.map(|device| device.name).filter(lacks).collect();
    if !names.is_empty() {
        tracing::info!(
            "OfferRoutes: QUIC and other UDP is forwarded datagram by datagram from {}, whose \
             {UDP_FORWARDING} is off; linerate doctor tells how to switch it on",
            names.join(", ")
        );
    }
    Ok(())
}

/// A kernel that forwards IPv6 ignores router advertisements and drops the default route that it
/// has from one, except on devices where `accept_ra` is 2 (Documentation/networking/ip-sysctl.rst;
/// `rt6_purge_dflt_routers`). If it forwards already, only what another interface of ours has set
/// is kept so.
fn keep_advertised_routes(
    log: &mut UndoLog,
    lock: &SettingsLock,
    forwards: bool,
) -> anyhow::Result<()> {
    let devices = fs::read_dir(IPV6_DEVICES).context(IPV6_DEVICES)?;
    let mut paths: Vec<PathBuf> =
        devices.flatten().map(|device| device.path().join("accept_ra")).collect();
    paths.sort();
    for path in paths {
        let is_device = !path.starts_with(format!("{IPV6_DEVICES}/all"))
            && !path.starts_with(format!("{IPV6_DEVICES}/default"))
            && !path.starts_with(format!("{IPV6_DEVICES}/lo"));
        let hears = || fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1");
        if is_device && (log.is_changed_by_another(&path) || !forwards && hears()) {
            log.change_setting(lock, &path, "2")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_within_others_are_merged_by_family() {
        let nets = ["10.0.0.0/8", "10.1.0.0/16", "fd00::/9", "fd80::/9", "192.168.7.0/24"];
        let router =
            Router { offered: nets.map(|net| net.parse().unwrap()).to_vec(), ..Router::default() };
        let text = |ipv4| -> Vec<String> {
            offered(&router, ipv4).iter().map(ToString::to_string).collect()
        };
        assert_eq!(text(true), ["10.0.0.0/8", "192.168.7.0/24"]);
        assert_eq!(text(false), ["fd00::/8"]);
    }
}
