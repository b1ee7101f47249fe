//! Cables between hosts, and addresses on their ends.

use std::process::Command;
use std::time::Duration;

use crate::host::Host;
use crate::wait::eventually;

/// Connects two hosts by a veth cable; both ends are up.
///
/// # Panics
/// If the kernel refuses, for example if a host already has a device of this name.
pub fn cable(a: &Host, a_device: &str, b: &Host, b_device: &str, mtu: u32) {
    let (a_pid, b_pid) = (a.pid().to_string(), b.pid().to_string());
    let mtu = mtu.to_string();
    let made = Command::new("ip")
        .args(["link", "add", "name", a_device, "mtu", &mtu, "netns", &a_pid, "type", "veth"])
        .args(["peer", "name", b_device, "mtu", &mtu, "netns", &b_pid])
        .status()
        .expect("ip is installed (make deps)");
    assert!(made.success(), "no cable from {} to {}", a.name(), b.name());
    a.run(format!("ip link set {a_device} up"));
    b.run(format!("ip link set {b_device} up"));
    settled(a, a_device);
    settled(b, b_device);
}

/// Waits until the link-local address of an end is no longer tentative. A browser aborts its
/// requests when an address is added, and a test may start it right after the cable.
fn settled(host: &Host, device: &str) {
    let what = format!("the link-local address of {device} on {} is settled", host.name());
    eventually(&what, Duration::from_secs(15), || {
        let shown = host.run(format!("ip -6 -o address show dev {device} scope link"));
        shown.contains("inet6 fe80:") && !shown.contains("tentative")
    });
}

/// Gives a device an address with prefix length, of either family. It is usable at once: IPv6
/// without duplicate address detection.
pub fn address(host: &Host, device: &str, address: &str) {
    let nodad = if address.contains(':') { "nodad" } else { "" };
    host.run(format!("ip address add {address} dev {device} {nodad}"));
    let (bare, _) = address.split_once('/').unwrap_or((address, ""));
    if bare.contains(':') && !host.run(format!("ip -o link show dev {device} up")).is_empty() {
        wait_until_local(host, bare);
    }
}

/// Waits until the route of a host's own IPv6 address exists. The kernel adds it from a work queue,
/// after the address is added and its device is up.
pub fn wait_until_local(host: &Host, address: &str) {
    let what = format!("{address} is local on {}", host.name());
    eventually(&what, Duration::from_secs(15), || {
        host.run(format!("ip -6 route show table local {address}")).contains("local ")
    });
}

/// Enables forwarding of both families.
pub fn forward(host: &Host) {
    host.run("echo 1 >/proc/sys/net/ipv4/ip_forward");
    host.run("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
}
