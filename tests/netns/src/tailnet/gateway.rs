//! Services of boxes for hosts behind them: NAT64 with DNS64 names, and a proxy.

use std::env;
use std::time::Duration;

use super::nat::Nat;
use crate::host::Host;
use crate::names::serve_names;
use crate::service::Service;
use crate::wait::eventually;

/// Address of the proxy.
pub(super) const PROXY_VARIABLE: &str = "HTTPS_PROXY=http://192.168.0.1:3128";

/// It only connects to the HTTPS port, as most proxies do.
const TINYPROXY: &str = "Port 3128\nListen 192.168.0.1\nTimeout 600\nConnectPort 443\n";

/// RFC 6052 section 3.1 bars private addresses from the well-known prefix, and tayga drops them. So
/// this network has its own prefix.
const PREFIX: &str = "2001:db8:64::";

/// Each host inside gets an address of the pool, which the box then masquerades.
const POOL: &str = "192.168.200.0/24";

/// Names by which a host discovers the prefix (RFC 7050 section 2.2).
const WELL_KNOWN: [&str; 2] = ["c000:aa", "c000:ab"];

/// Time in which tayga creates its interface.
const PATIENCE: Duration = Duration::from_secs(15);

/// The program that a box needs.
pub(super) fn program(nat: Nat) -> Option<&'static str> {
    match nat {
        Nat::Nat64 => Some("tayga"),
        Nat::OnlyProxy => Some("tinyproxy"),
        _ => None,
    }
}

/// Whether a program is not installed, which is announced.
pub(super) fn is_missing(program: &'static str) -> bool {
    // Includes root's PATH.
    let path = env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_there = env::split_paths(&path).any(|folder| folder.join(program).exists());
    if !is_there {
        skips::skip(program);
    }
    !is_there
}

/// Starts the box's services for a host behind it; `inside` is its IPv6 address there.
///
/// # Panics
/// If they do not start.
pub(super) fn serve(nat: Nat, router: &Host, inside: &str, host: &Host) -> Option<Service> {
    match nat {
        Nat::Nat64 => {
            let translator = translate(router);
            let records =
                WELL_KNOWN.map(|end| format!("--host-record=ipv4only.arpa,{PREFIX}{end}"));
            serve_names(router, &[inside], &records.join(" "));
            host.run(format!("echo nameserver {inside} >/etc/resolv.conf"));
            Some(translator)
        }
        Nat::OnlyProxy => {
            let config = router.write("tinyproxy.conf", TINYPROXY);
            let words = ["tinyproxy", "-d", "-c", &config];
            let is_there = || router.listens(3128);
            Some(Service::start(router, "tinyproxy", words).wait_until(is_there))
        }
        _ => None,
    }
}

fn translate(router: &Host) -> Service {
    router.run("mkdir /run/rig/tayga");
    let config = router.write(
        "tayga.conf",
        &format!(
            "tun-device nat64\nipv4-addr 192.168.200.1\nprefix {PREFIX}/96\n\
             dynamic-pool {POOL}\ndata-dir /run/rig/tayga\n"
        ),
    );
    let words = ["tayga", "--nodetach", "--config", &config];
    let service = Service::start(router, "tayga", words).wait_until(|| router.has_device("nat64"));
    // It opens the interface before it reads from it.
    eventually("tayga's interface is up", PATIENCE, || router.attempt("ip link set nat64 up").ok);
    router.run(format!("ip route add {PREFIX}/96 dev nat64 && ip route add {POOL} dev nat64"));
    service
}
