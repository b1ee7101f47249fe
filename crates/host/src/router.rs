//! Forwarding for peers: the networks that they may reach behind this host, masquerading, MSS
//! clamping, and the kernel's forwarding settings.

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
    // The index stays the same even if an attacker in control of the peer renames the interface.
    let leaves = [is(&meta("iif"), interface), is_not(&meta("oif"), interface)];
    let elsewhere: Vec<Value> =
        ["ipv4", "ipv6"].into_iter().filter_map(|f| outside(router, f)).collect();
    // If all networks are offered, the state of connections does not matter.
    if !elsewhere.is_empty() {
        rules.add_chain(FORWARD);
        let established = compare("in", &connection("state"), json!(["established", "related"]));
        rules.add_rule(FORWARD, &[established, json!({"accept": null})]);
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

/// A statement that matches packets of a family to networks that are not offered; `None` if all
/// are offered.
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

/// Statements that clamp the MSS. `rt mtu` is the smaller MTU of both directions minus the
/// headers; a smaller MSS is not changed (net/netfilter/nft_rt.c, nft_exthdr.c).
fn clamp(way: Value) -> [Value; 3] {
    let flags = json!({"payload": {"protocol": "tcp", "field": "flags"}});
    let syn = is(&json!({"&": [flags, {"|": ["syn", "rst"]}]}), "syn");
    let mss = json!({"tcp option": {"name": "maxseg", "field": "size"}});
    [way, syn, json!({"mangle": {"key": mss, "value": {"rt": {"key": "mtu"}}}})]
}

/// The offered networks of one family, aggregated: a set must not contain overlapping networks.
fn offered(router: &Router, ipv4: bool) -> Vec<IpNet> {
    let nets = router.offered.iter().filter(|net| net.addr().is_ipv4() == ipv4);
    IpNet::aggregate(&nets.copied().collect())
}

fn prefix(net: &IpNet) -> Value {
    json!({"prefix": {"addr": net.addr().to_string(), "len": net.prefix_len()}})
}

/// Enables the kernel's forwarding if the configuration requests it, and warns if it is off.
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
            let accept_ra = if is_ipv4 {
                Ok(Vec::new())
            } else {
                advertised_routes(interface, &log.settings_of_others(lock), forwards)
            };
            let accept_ra = accept_ra.context("IpForward")?;
            let unwritten =
                enable_forwarding(Path::new(path), &accept_ra, (log, lock)).context("IpForward")?;
            if !unwritten.is_empty() {
                tracing::warn!(
                    "IpForward: the kernel does not forward: {}",
                    UnwrittenList(&unwritten)
                );
            }
        } else if is_offered && !forwards {
            tracing::warn!(
                "OfferRoutes: the kernel does not forward: {path} is {}; IpForward = true sets it",
                current.trim()
            );
        }
    }
    Ok(())
}

/// The message if a forwarding setting cannot be read.
fn unread(is_ipv4: bool, path: &str, error: &io::Error) -> String {
    if !is_ipv4 && error.kind() == io::ErrorKind::NotFound {
        return format!("this kernel lacks IPv6: {path} does not exist");
    }
    let family = if is_ipv4 { "IPv4" } else { "IPv6" };
    format!("cannot read whether the kernel forwards {family}: {path}: {error}")
}

/// Enables forwarding by the setting at `path`, after the settings that preserve advertised
/// routes. If one of those cannot be written, forwarding stays off. Returns the settings that were
/// not written.
fn enable_forwarding(
    path: &Path,
    accept_ra: &[(PathBuf, &'static str)],
    (log, lock): (&mut UndoLog, &SettingsLock),
) -> anyhow::Result<Vec<UnwrittenSetting>> {
    let mut unwritten = log.change_settings(lock, accept_ra)?;
    match unwritten.first().map(|first| io::Error::from(first.error.kind())) {
        None => log.change_settings(lock, &[(path.to_owned(), "1")]),
        // Without its advertised routes the host would lose IPv6 connectivity.
        Some(error) => {
            unwritten.push(UnwrittenSetting { path: path.to_owned(), value: "1", error });
            Ok(unwritten)
        }
    }
}

/// Logs the devices that do not coalesce forwarded UDP. By default the kernel coalesces only
/// forwarded TCP.
pub fn log_uncoalesced(router: &Router, netlink: &Netlink) -> anyhow::Result<()> {
    // The check takes a system call for each device. It is skipped if the log level hides the
    // result.
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
            "OfferRoutes: QUIC and other UDP from {} is forwarded datagram by datagram, because \
            {UDP_FORWARDING} is off there; linerate doctor shows how to enable it",
            names.join(", ")
        );
    }
    Ok(())
}

/// The settings that preserve default routes from router advertisements. A kernel that forwards
/// IPv6 ignores advertisements and deletes their routes, except on devices with `accept_ra` = 2
/// (Documentation/networking/ip-sysctl.rst; `rt6_purge_dflt_routers`). If the kernel forwards
/// already, only settings by another interface of linerate are included.
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
    let accepts = |path: &Path| fs::read_to_string(path).is_ok_and(|value| value.trim() == "1");
    let mut accept_ra: Vec<(PathBuf, &'static str)> = paths
        .filter(|path| others.contains_key(path) || !forwards && accepts(path))
        .map(|path| (path, "2"))
        .collect();
    accept_ra.sort();
    Ok(accept_ra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreadable_setting_is_reported_with_its_family_and_the_error() {
        let error = |kind: io::ErrorKind| io::Error::from(kind);
        let missing = error(io::ErrorKind::NotFound);
        let text = [unread(true, "/p", &missing), unread(false, "/p", &missing)];
        assert!(text[0].contains("IPv4: /p: ") && !text[0].contains("IPv6"), "{text:?}");
        assert!(text[1].contains("lacks IPv6"), "{text:?}");
        let text = unread(false, "/p", &error(io::ErrorKind::PermissionDenied));
        assert_eq!(text, "cannot read whether the kernel forwards IPv6: /p: permission denied");
    }

    #[test]
    fn overlapping_networks_are_merged_by_family() {
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
