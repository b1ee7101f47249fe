//! Cables between hosts, and addresses on their ends.

use std::process::Command;
use std::time::Duration;

use crate::host::Host;
use crate::wait::eventually;

/// Plugs a veth cable between two hosts; both ends are up.
///
/// # Panics
/// When the kernel refuses, as for a device name that a host has already.
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

/// Waits until an end has its link-local address for good. A browser gives up what it fetches when
/// an address comes, and may start as soon as the cable is there.
fn settled(host: &Host, device: &str) {
    let what = format!("the link-local address of {device} on {} is settled", host.name());
    eventually(&what, Duration::from_secs(15), || {
        let shown = host.run(format!("ip -6 -o address show dev {device} scope link"));
        shown.contains("inet6 fe80:") && !shown.contains("tentative")
    });
}

/// Gives a device an address with prefix length, of either family, usable at once: IPv6 without
/// duplicate address detection.
pub fn address(host: &Host, device: &str, address: &str) {
    let nodad = if address.contains(':') { "nodad" } else { "" };
    host.run(format!("ip address add {address} dev {device} {nodad}"));
    let (bare, _) = address.split_once('/').unwrap_or((address, ""));
    if bare.contains(':') && !host.run(format!("ip -o link show dev {device} up")).is_empty() {
        is_local(host, bare);
    }
}

/// Waits until a host takes an IPv6 address for its own: the kernel adds the route to itself from a
/// work queue, once the address is there and its device is up.
pub fn is_local(host: &Host, address: &str) {
    let what = format!("{address} is local on {}", host.name());
    eventually(&what, Duration::from_secs(15), || {
        host.run(format!("ip -6 route show table local {address}")).contains("local ")
    });
}

/// Makes a host forward both families.
pub fn forward(host: &Host) {
    host.run("echo 1 >/proc/sys/net/ipv4/ip_forward");
    host.run("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding");
}
