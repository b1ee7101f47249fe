//! A name server: dnsmasq, which ends with its host.

use std::time::Duration;

use crate::host::Host;
use crate::wait::eventually;

/// Serves names on port 53 of these addresses of a host, by UDP and TCP. The names are options of
/// dnsmasq(8), such as `--host-record=web.example,10.9.0.2,fd09::2`; other names do not exist.
///
/// # Panics
/// If it does not listen: it is not installed (make deps), or an address is not the host's.
pub fn serve_names(host: &Host, addresses: &[&str], names: &str) {
    let log = "/run/rig/dnsmasq.log";
    // In the foreground it does not change user and group, which would need a second user.
    host.run(format!(
        "$(type -P dnsmasq) --no-daemon --conf-file=/dev/null --no-resolv --no-hosts --local=/#/ \
         --bind-interfaces --listen-address={} {names} </dev/null >{log} 2>&1 &",
        addresses.join(",")
    ));
    eventually("the name server listens", Duration::from_secs(15), || {
        assert!(!host.read(log).contains("failed"), "{}", host.read(log));
        host.listens(53)
    });
}
