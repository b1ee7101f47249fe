//! Forwarding for the peers: what they may reach behind this host, under whose
//! address, in segments that fit, and whether the kernel forwards at all.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
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
    settings::{UnwrittenList, UnwrittenSetting},
    undo_log::{Setting, SettingsLock, UndoLog},
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
///
/// # Errors
/// The undo log cannot be written.
pub fn forward(interface: &str, router: &Router, log: &mut UndoLog) -> anyhow::Result<()> {
    let lock = router.ip_forward.then(|| log.lock_settings()).transpose()?;
    for (is_ipv4, path) in [(true, IPV4_FORWARD), (false, IPV6_FORWARD)] {
        let is_offered = router.offered.iter().any(|net| net.addr().is_ipv4() == is_ipv4);
        let lock = lock.as_ref().filter(|_| is_offered || router.offered.is_empty());
        let current = match fs::read_to_string(path) {
            Ok(current) => current,
            Err(error) => {
                if is_offered {
                    tracing::warn!("OfferRoutes: {}", unread(is_ipv4, path, &error));
                }
                continue;
            }
        };
        let forwards = current.trim() == "1";
        if let Some(lock) = lock {
            let kept = if is_ipv4 {
                Ok(Vec::new())
            } else {
                advertised_routes(interface, &log.settings_of_others(lock), forwards)
            };
            let kept = kept.context("IpForward")?;
            let unwritten =
                enable_forwarding(Path::new(path), &kept, (log, lock)).context("IpForward")?;
            if !unwritten.is_empty() {
                tracing::warn!("IpForward: nothing is forwarded: {}", UnwrittenList(&unwritten));
            }
        } else if is_offered && !forwards {
            tracing::warn!(
                "OfferRoutes: the kernel forwards nothing: {path} is {}; IpForward = true sets it",
                current.trim()
            );
        }
    }
    Ok(())
}

/// Why it is unknown whether the kernel forwards a family.
fn unread(is_ipv4: bool, path: &str, error: &io::Error) -> String {
    if !is_ipv4 && error.kind() == io::ErrorKind::NotFound {
        return format!("this kernel has no IPv6: {path} does not exist");
    }
    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
    format!("cannot read whether the kernel forwards {family}: {path}: {error}")
}

/// Switches on forwarding by the setting at `path`, after the settings that keep advertised routes.
/// If one of those cannot be written, forwarding stays off. Returns all that were not written.
fn enable_forwarding(
    path: &Path,
    kept: &[(PathBuf, &'static str)],
    (log, lock): (&mut UndoLog, &SettingsLock),
) -> anyhow::Result<Vec<UnwrittenSetting>> {
    let mut unwritten = log.change_settings(lock, kept)?;
    match unwritten.first().map(|first| io::Error::from(first.error.kind())) {
        None => log.change_settings(lock, &[(path.to_owned(), "1")]),
        // Without the advertised routes the host would lose IPv6.
        Some(error) => {
            unwritten.push(UnwrittenSetting { path: path.to_owned(), value: "1", error });
            Ok(unwritten)
        }
    }
}

/// Logs the devices whose UDP for the peers arrives datagram by datagram: by default the kernel
/// coalesces only TCP that it forwards.
pub fn log_uncoalesced(router: &Router, netlink: &Netlink) -> anyhow::Result<()> {
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

/// The settings that keep default routes from router advertisements. A kernel that forwards IPv6
/// ignores these and drops the routes, except on devices where `accept_ra` is 2
/// (Documentation/networking/ip-sysctl.rst; `rt6_purge_dflt_routers`). If it forwards already, only
/// what another interface of ours has set is kept so.
fn advertised_routes(
    interface: &str,
    others: &HashMap<PathBuf, Setting>,
    forwards: bool,
) -> anyhow::Result<Vec<(PathBuf, &'static str)>> {
    let devices = fs::read_dir(IPV6_DEVICES).context(IPV6_DEVICES)?.flatten();
    let others_than = ["all", "default", "lo", interface];
    let is_device = |name: &OsString| !others_than.iter().any(|other| name == other);
    let devices = devices.map(|device| device.file_name()).filter(is_device);
    let paths = devices.map(|name| Path::new(IPV6_DEVICES).join(name).join("accept_ra"));
    let hears = |path: &Path| fs::read_to_string(path).is_ok_and(|value| value.trim() == "1");
    let mut kept: Vec<(PathBuf, &'static str)> = paths
        .filter(|path| others.contains_key(path) || !forwards && hears(path))
        .map(|path| (path, "2"))
        .collect();
    kept.sort();
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_cannot_be_read_is_reported_with_its_family_and_the_error() {
        let error = |kind: io::ErrorKind| io::Error::from(kind);
        let missing = error(io::ErrorKind::NotFound);
        let said = [unread(true, "/p", &missing), unread(false, "/p", &missing)];
        assert!(said[0].contains("IPv4: /p: ") && !said[0].contains("IPv6"), "{said:?}");
        assert!(said[1].contains("no IPv6"), "{said:?}");
        let said = unread(false, "/p", &error(io::ErrorKind::PermissionDenied));
        assert_eq!(said, "cannot read whether the kernel forwards IPv6: /p: permission denied");
    }

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
