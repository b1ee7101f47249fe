//! Forwarding, and causes for which the kernel drops forwarded packets.

use crate::{DroppingChain, Facts, Finding, Fix, Setting, Severity, Tunnel};

const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";
const CONNTRACK_COUNT: &str = "net/netfilter/nf_conntrack_count";
/// The families, each with the setting that enables its forwarding.
const FORWARD: [(&str, &str); 2] =
    [("IPv4", "net/ipv4/ip_forward"), ("IPv6", "net/ipv6/conf/all/forwarding")];
const MARK: &str = "net/ipv4/conf/all/src_valid_mark";

/// Finds strict reverse-path filters that ignore marks. Datagrams of a tunnel with a mark leave by
/// another route than the filter finds, so the filter drops the peers' answers.
pub(crate) fn reverse_path(facts: &Facts) -> Vec<Finding> {
    let sysctl = |key: String| facts.sysctls.number(&key).unwrap_or(0);
    let strict = |interface: &str| {
        // The kernel uses the larger of the two (ip-sysctl.rst).
        let own = sysctl(format!("net/ipv4/conf/{interface}/rp_filter"));
        own.max(sysctl("net/ipv4/conf/all/rp_filter".into())) == 1
            && sysctl(format!("net/ipv4/conf/{interface}/src_valid_mark")) == 0
    };
    let marked = facts.tunnels.iter().filter(|tunnel| tunnel.fwmark != 0);
    if facts.sysctls.is_on(MARK) || marked.count() == 0 {
        return Vec::new();
    }
    let interfaces =
        facts.interfaces.iter().filter(|interface| interface.outer && strict(&interface.name));
    let finding = |interface: &crate::Interface| {
        Finding {
        check: "reverse-path",
        on: interface.name.clone(),
        severity: Severity::Broken,
        what: format!(
            "{} has a strict reverse-path filter that ignores marks",
            interface.name
        ),
        why: "all traffic is routed into the tunnel except for marked datagrams; the filter looks up \
        the route back without the mark, finds the tunnel, and drops the answers of peers"
            .into(),
        cost: "no handshake completes (kernel Documentation/networking/ip-sysctl.rst, rp_filter \
               and src_valid_mark; wg-quick(8) sets the latter)",
        fix: Fix::Change(vec![Setting::sysctl(MARK, 1)]),
    }
    };
    interfaces.map(finding).collect()
}

/// Finds a host that forwards, but not on all interfaces or only one family.
pub(crate) fn half_forwarding(facts: &Facts) -> Vec<Finding> {
    let on = FORWARD.map(|(_, key)| facts.sysctls.is_on(key));
    let mut findings = Vec::new();
    let names = facts.interfaces.iter().map(|interface| interface.name.as_str());
    let names: Vec<&str> = names.chain(facts.tunnels.iter().map(|t| t.name.as_str())).collect();
    // IPv6 is forwarded if the setting for all interfaces is on (ip-sysctl.rst).
    for name in names.iter().filter(|_| on[0]) {
        let key = format!("net/ipv4/conf/{name}/forwarding");
        if facts.sysctls.number(&key) == Some(0) {
            findings.push(Finding {
                check: "forwarding",
                on: (*name).to_owned(),
                severity: Severity::Broken,
                what: format!("the host forwards IPv4, but not packets that arrive on {name}"),
                why: "the setting of this interface is off".into(),
                cost: "the kernel drops such packets (kernel Documentation/networking/ip-sysctl.rst, \
                       forwarding)",
                fix: Fix::Change(vec![Setting::sysctl(key, 1)]),
            });
        }
    }
    let missing = usize::from(on[0]);
    // If networks of the family are offered to peers, `offered` reports it.
    if on[0] != on[1] && !facts.tunnels.iter().any(|tunnel| offers(tunnel, missing == 0)) {
        let missing = FORWARD[missing].0;
        findings.push(Finding {
            check: "forwarding-family",
            on: "host".into(),
            severity: Severity::Note,
            what: format!("the host forwards one family, but not {missing}"),
            why: "this may be intended; a router for both families needs both settings".into(),
            cost: "none if this is intended",
            fix: Fix::None,
        });
    }
    findings
}

fn offers(tunnel: &Tunnel, ipv4: bool) -> bool {
    tunnel.offers.iter().any(|net| net.addr().is_ipv4() == ipv4)
}

/// Whether [`offered`] reports this setting if it is off.
pub(super) fn is_reported(tunnel: &Tunnel, switch: &str) -> bool {
    FORWARD.iter().any(|(family, key)| *key == switch && offers(tunnel, *family == "IPv4"))
}

/// Finds networks that are offered to peers although the kernel does not forward their family.
pub(crate) fn offered(facts: &Facts) -> Vec<Finding> {
    let of_tunnel = |tunnel: &Tunnel| {
        let dead = FORWARD
            .into_iter()
            .filter(|(family, key)| offers(tunnel, *family == "IPv4") && !facts.sysctls.is_on(key));
        let finding = |(family, key): (&str, &str)| Finding {
            check: "offer",
            on: tunnel.name.clone(),
            severity: Severity::Broken,
            what: format!(
                "{family} networks are offered to peers, but the kernel does not forward {family}"
            ),
            why: format!(
                "{key} is off; `linerate up` enables it if the file has IpForward = true, but a \
                file in sysctl.d or another service may disable it later"
            ),
            cost: "peers cannot reach networks behind this host (kernel \
                   Documentation/networking/ip-sysctl.rst, ip_forward and forwarding)",
            fix: match family {
                "IPv4" => Fix::Change(vec![Setting::sysctl(key, 1)]),
                // Enabling it directly would remove default routes from router advertisements.
                _ => Fix::Manual(format!(
                    "set IpForward = true in the file and run `linerate down` and `linerate up` \
                    for {}, which preserves routes from router advertisements; without such \
                    routes: sysctl -w {}=1",
                    tunnel.name,
                    key.replace('/', ".")
                )),
            },
        };
        dead.map(finding).collect::<Vec<_>>()
    };
    facts.tunnels.iter().flat_map(of_tunnel).collect()
}

/// Finds packet filters of other programs that drop forwarded packets by default.
pub(crate) fn filtered(facts: &Facts) -> Vec<Finding> {
    let named = |chain: &DroppingChain| match chain {
        DroppingChain::Nft(chain) => (
            format!("the nftables chain {chain}"),
            format!(
                "nft insert rule {chain} iifname IFACE accept, and the same with oifname, or the \
                corresponding settings of the program that owns the chain"
            ),
        ),
        DroppingChain::Legacy(program) => (
            format!("the chain FORWARD of {program}"),
            format!("{program} -I FORWARD -i IFACE -j ACCEPT, and the same with -o"),
        ),
    };
    let finding = |(chain, accept): (String, String)| Finding {
        check: "forward-filter",
        on: "host".into(),
        severity: Severity::Note,
        what: format!("{chain} drops forwarded packets unless one of its rules accepts them"),
        why: "a packet passes only if all tables accept it; linerate's table cannot accept it for \
        those of Docker, ufw or firewalld"
            .into(),
        cost: "none if that chain accepts the tunnel",
        fix: Fix::Manual(format!("if peers cannot reach networks behind this host: {accept}")),
    };
    facts.forward_drops.iter().map(named).map(finding).collect()
}

/// Finds a connection table that is nearly full.
pub(crate) fn conntrack(facts: &Facts) -> Vec<Finding> {
    let numbers = [CONNTRACK_COUNT, CONNTRACK_MAX].map(|key| facts.sysctls.number(key));
    let [Some(count), Some(max)] = numbers else { return Vec::new() };
    // 90 % is early enough for a warning, and a short burst does not reach it.
    if max == 0 || count < max / 10 * 9 {
        return Vec::new();
    }
    vec![Finding {
        check: "conntrack",
        on: "host".into(),
        severity: Severity::Broken,
        what: format!("{count} of {max} entries of the connection table are in use"),
        why:
            "while it is full, the kernel drops packets of new connections, including the tunnel's"
                .into(),
        cost: "new connections fail (kernel Documentation/networking/nf_conntrack-sysctl.rst)",
        fix: Fix::Change(vec![Setting::sysctl(CONNTRACK_MAX, max * 2)]),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    fn with(sysctls: &[(&str, &str)]) -> Facts {
        let mut facts = healthy();
        let pairs = sysctls.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        facts.sysctls.0.extend(pairs);
        facts
    }

    #[test]
    fn strict_filter_is_found_only_if_marks_are_used_and_ignored() {
        for (all, own, mark, fwmark, found) in [
            ("0", "1", "0", 7, true),
            ("1", "0", "0", 7, true),
            ("2", "1", "0", 7, false),
            ("1", "2", "0", 7, false),
            ("0", "1", "1", 7, false),
            ("0", "1", "0", 0, false),
            ("0", "0", "0", 7, false),
        ] {
            let mut facts = with(&[
                ("net/ipv4/conf/all/rp_filter", all),
                ("net/ipv4/conf/eth0/rp_filter", own),
                (MARK, mark),
            ]);
            facts.tunnels[0].fwmark = fwmark;
            let case = (all, own, mark, fwmark);
            assert_eq!(reverse_path(&facts).len(), usize::from(found), "{case:?}");
        }
    }

    #[test]
    fn non_forwarding_device_on_a_forwarding_host_is_found() {
        let eth0 = "net/ipv4/conf/eth0/forwarding";
        let both = [("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")];
        assert!(half_forwarding(&with(&both)).is_empty());
        let found = half_forwarding(&with(&[both[0], both[1], (eth0, "0")]));
        assert_eq!(found[0].fix, Fix::Change(vec![Setting::sysctl(eth0, 1)]));
        assert!(half_forwarding(&with(&[(eth0, "0")])).is_empty(), "the host does not forward");
    }

    #[test]
    fn forwarding_of_one_family_only_is_noted() {
        for (key, missing) in
            [("net/ipv4/ip_forward", "IPv6"), ("net/ipv6/conf/all/forwarding", "IPv4")]
        {
            let found = half_forwarding(&with(&[(key, "1")]));
            assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
            assert!(found[0].what.contains(missing), "{}", found[0].what);
        }
    }

    #[test]
    fn offered_networks_without_forwarding_are_found_by_family() {
        for (nets, on, found) in [
            (&["0.0.0.0/0", "::/0"][..], &[][..], &["IPv4", "IPv6"][..]),
            (&["0.0.0.0/0", "::/0"], &[FORWARD[0].1], &["IPv6"]),
            (&["0.0.0.0/0", "::/0"], &[FORWARD[1].1], &["IPv4"]),
            (&["0.0.0.0/0", "::/0"], &[FORWARD[0].1, FORWARD[1].1], &[]),
            (&["10.0.0.0/8", "10.0.0.0/9"], &[], &["IPv4"]),
            (&["fd00::/8"], &[FORWARD[1].1], &[]),
            (&[], &[], &[]),
        ] {
            let sysctls: Vec<_> = on.iter().map(|key| (*key, "1")).collect();
            let mut facts = with(&sysctls);
            facts.tunnels[0].offers = nets.iter().map(|net| net.parse().unwrap()).collect();
            let findings = offered(&facts);
            assert_eq!(findings.len(), found.len(), "{nets:?} {on:?}: {findings:#?}");
            for (finding, family) in findings.iter().zip(found) {
                assert_eq!(finding.severity, Severity::Broken);
                assert!(finding.what.contains(family), "{}", finding.what);
                match *family {
                    "IPv4" => {
                        let on = Fix::Change(vec![Setting::sysctl(FORWARD[0].1, 1)]);
                        assert_eq!(finding.fix, on);
                    }
                    _ => assert!(matches!(finding.fix, Fix::Manual(_))),
                }
            }
            let noted = half_forwarding(&facts).len();
            let one_alone = on.len() == 1 && nets.len() == 1;
            assert_eq!(noted, usize::from(one_alone), "it is reported once: {nets:?} {on:?}");
        }
    }

    #[test]
    fn dropping_filter_of_another_program_is_noted() {
        let mut facts = healthy();
        assert!(filtered(&facts).is_empty());
        facts.forward_drops = vec![
            DroppingChain::Nft("ip filter FORWARD".into()),
            DroppingChain::Legacy("ip6tables-legacy"),
        ];
        let found = filtered(&facts);
        assert_eq!(found.len(), 2);
        for (finding, chain) in found.iter().zip(["ip filter FORWARD", "ip6tables-legacy"]) {
            assert_eq!(finding.severity, Severity::Note);
            assert!(finding.what.contains(chain), "{}", finding.what);
            let Fix::Manual(fix) = &finding.fix else { panic!("{:?}", finding.fix) };
            assert!(fix.contains(&format!("{chain} ")), "{fix}");
        }
    }

    #[test]
    fn doubling_is_suggested_for_a_table_that_is_90_percent_full() {
        for (count, found) in [("89", false), ("90", true), ("100", true)] {
            let facts = with(&[(CONNTRACK_COUNT, count), (CONNTRACK_MAX, "100")]);
            assert_eq!(conntrack(&facts).len(), usize::from(found), "{count}");
            if found {
                let doubled = Setting::sysctl(CONNTRACK_MAX, 200);
                assert_eq!(conntrack(&facts)[0].fix, Fix::Change(vec![doubled]));
            }
        }
        assert!(conntrack(&healthy()).is_empty(), "the host has no table");
    }
}
