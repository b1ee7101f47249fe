//! The addresses that a coordinator, its relay map, a name server or a peer may name: none on this
//! machine or on its links.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::{desired_host_checks, dialing::ControlUrl};

/// The reason why an address is refused, and the remedy.
pub const NOT_ADMITTED: &str = "an address of this machine, of a link or of a group of hosts. A coordinator \
                                may name addresses of this machine if the host of its URL is localhost, \
                                such an address, or a name with such an address in /etc/hosts";

/// The addresses that others may name. [`Scope::default`] allows routable addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    loopback: bool,
    link_local: bool,
}

impl Scope {
    /// Returns the scope of a coordinator. It includes loopback or link-local addresses only if the
    /// host of the URL is such an address, `localhost`, or a name with such an address in `hosts`,
    /// the text of hosts(5). DNS answers for the host do not count.
    pub fn of_control(url: &ControlUrl, hosts: &str) -> Self {
        let host = &*url.host;
        let mut scope = Self::default();
        match host.parse() {
            Ok(address) => scope.admit(address),
            Err(_) => addresses_in(hosts, host).for_each(|address| scope.admit(address)),
        }
        scope.loopback |= host == "localhost" || host.ends_with(".localhost");
        scope
    }

    fn admit(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        self.loopback |= address.is_loopback();
        self.link_local |= is_link_local(address);
    }

    /// Returns whether an address may be used.
    pub fn admits(self, address: IpAddr) -> bool {
        match address.to_canonical() {
            address if address.is_loopback() => self.loopback,
            address if is_link_local(address) => self.link_local,
            // These include unspecified, multicast and broadcast addresses.
            address => !desired_host_checks::is_reserved(&IpNet::from(address)),
        }
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Returns the addresses of a name in the text of hosts(5).
pub fn addresses_in<'a>(hosts: &'a str, name: &'a str) -> impl Iterator<Item = IpAddr> + 'a {
    hosts.lines().filter_map(move |line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        // The part after `%` is the interface of a link-local address.
        let address = words.next()?.split('%').next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: &str = "127.0.0.1 localhost\n127.0.1.1 desk.example desk # this machine\n\
                         fe80::1%eth0 gateway\n192.0.2.7 far # 127.0.0.1 far\n";

    fn scope(url: &str) -> Scope {
        Scope::of_control(&url.parse().unwrap(), HOSTS)
    }

    fn admits(scope: Scope, address: &str) -> bool {
        scope.admits(address.parse().unwrap())
    }

    #[test]
    fn routable_addresses_are_admitted_for_every_coordinator() {
        for address in
            ["192.0.2.1", "10.0.0.1", "100.64.0.1", "2001:db8::1", "fd00::1", "64:ff9b::1"]
        {
            assert!(admits(scope("https://control.example"), address), "{address}");
            assert!(admits(scope("http://127.0.0.1:8080"), address), "{address}");
        }
    }

    #[test]
    fn local_and_group_addresses_are_refused_for_a_remote_coordinator() {
        for url in
            ["https://control.example", "http://192.168.1.1", "https://far", "https://[fd00::1]"]
        {
            for address in [
                "127.0.0.1",
                "127.255.0.9",
                "::1",
                "::ffff:127.0.0.1",
                "::127.0.0.1",
                "::ffff:0:127.0.0.1",
                "169.254.169.254",
                "::ffff:169.254.169.254",
                "fe80::1",
                "0.0.0.0",
                "0.0.0.9",
                "::",
                "::ffff:0.0.0.0",
                "224.0.0.251",
                "::ffff:224.0.0.1",
                "ff02::1",
                "255.255.255.255",
            ] {
                assert!(!admits(scope(url), address), "{url}: {address}");
            }
        }
    }

    #[test]
    fn local_coordinator_may_name_only_loopback_addresses_in_addition() {
        for url in [
            "http://127.0.0.1:8080",
            "https://[::1]",
            "http://[::ffff:127.0.0.1]",
            "http://localhost:8080",
            "http://net.localhost",
            "https://DESK",
            "https://desk.example",
        ] {
            assert!(admits(scope(url), "127.0.0.1") && admits(scope(url), "::1"), "{url}");
            assert!(admits(scope(url), "::ffff:127.0.0.1"), "{url}");
            for address in ["169.254.1.1", "fe80::1", "0.0.0.0", "::", "224.0.0.1"] {
                assert!(!admits(scope(url), address), "{url}: {address}");
            }
        }
    }

    #[test]
    fn name_that_only_resembles_localhost_is_remote() {
        for url in ["https://notlocalhost", "https://localhost.example"] {
            assert!(!admits(scope(url), "127.0.0.1"), "{url}");
        }
    }

    #[test]
    fn link_local_coordinator_may_name_link_local_addresses() {
        for url in ["http://169.254.1.1", "https://[fe80::1]", "http://gateway"] {
            assert!(admits(scope(url), "169.254.1.2") && admits(scope(url), "fe80::2"), "{url}");
            assert!(!admits(scope(url), "127.0.0.1"), "{url}");
        }
    }

    #[test]
    fn addresses_of_a_name_are_read_from_the_hosts_file() {
        let hosts = "127.0.0.1 localhost\n# 192.0.2.9 vpn.example\n192.0.2.1\tvpn.example home # 192.0.2.2 x\n\
                     2001:db8::1 VPN.example\nvpn.example 192.0.2.3\n";
        let all = |name| addresses_in(hosts, name).map(|ip| ip.to_string()).collect::<Vec<_>>();
        assert_eq!(all("vpn.example"), ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(all("Home"), ["192.0.2.1"]);
        assert_eq!(all("x"), [""; 0]);
    }
}
