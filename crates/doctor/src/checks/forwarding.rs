//! Forwarding, and what the kernel drops on the way.

use crate::{DroppingChain, Facts, Finding, Fix, Setting, Severity, Tunnel};

const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";
const CONNTRACK_COUNT: &str = "net/netfilter/nf_conntrack_count";
/// Each family, and the switch by which a host forwards it.
const FORWARD: [(&str, &str); 2] =
    [("IPv4", "net/ipv4/ip_forward"), ("IPv6", "net/ipv6/conf/all/forwarding")];
const MARK: &str = "net/ipv4/conf/all/src_valid_mark";

/// A tunnel with a mark has another way to its peers than the routing table's first: a
/// strict reverse-path filter that does not know the mark drops what they answer.
pub(crate) fn reverse_path(facts: &Facts) -> Vec<Finding> {
    let sysctl = |key: String| facts.sysctls.number(&key).unwrap_or(0);
    let strict = |interface: &str| {
        // The larger of both counts (ip-sysctl.rst).
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
    let finding = |interface: &crate::Interface| Finding {
        check: "reverse-path",
        on: interface.name.clone(),
        severity: Severity::Broken,
        what: format!(
            "{} filters strictly by reverse path, and marks do not count",
            interface.name
        ),
        why: "datagrams of a tunnel that everything is routed into leave by a mark; the filter \
              looks for the way back without it, finds the tunnel, and drops what peers answer"
            .into(),
        cost: "no handshake completes (kernel Documentation/networking/ip-sysctl.rst, rp_filter \
               and src_valid_mark; wg-quick(8) sets the latter)",
        fix: Fix::Change(vec![Setting::sysctl(MARK, 1)]),
    };
    interfaces.map(finding).collect()
}

/// A host that forwards, but not by each of its interfaces, or of one family alone.
pub(crate) fn half_forwarding(facts: &Facts) -> Vec<Finding> {
    let on = FORWARD.map(|(_, key)| facts.sysctls.is_on(key));
    let mut findings = Vec::new();
    let names = facts.interfaces.iter().map(|interface| interface.name.as_str());
    let names: Vec<&str> = names.chain(facts.tunnels.iter().map(|t| t.name.as_str())).collect();
    // IPv6 forwards by the switch of all interfaces alone (ip-sysctl.rst).
    for name in names.iter().filter(|_| on[0]) {
        let key = format!("net/ipv4/conf/{name}/forwarding");
        if facts.sysctls.number(&key) == Some(0) {
            findings.push(Finding {
                check: "forwarding",
                on: (*name).to_owned(),
                severity: Severity::Broken,
                what: format!("the host forwards IPv4, but not what comes in by {name}"),
                why: "the interface's own switch is off".into(),
                cost: "such packets are dropped (kernel Documentation/networking/ip-sysctl.rst, \
                       forwarding)",
                fix: Fix::Change(vec![Setting::sysctl(key, 1)]),
            });
        }
    }
    let missing = usize::from(on[0]);
    // Where it is offered to peers, that it is missing is no question.
    if on[0] != on[1] && !facts.tunnels.iter().any(|tunnel| offers(tunnel, missing == 0)) {
        let missing = FORWARD[missing].0;
        findings.push(Finding {
            check: "forwarding-family",
            on: "host".into(),
            severity: Severity::Note,
            what: format!("the host forwards, but no {missing}"),
            why: "that may be meant so; a router for both families needs both switches".into(),
            cost: "none where it is meant so",
            fix: Fix::None,
        });
    }
    findings
}

fn offers(tunnel: &Tunnel, ipv4: bool) -> bool {
    tunnel.offers.iter().any(|net| net.addr().is_ipv4() == ipv4)
}

/// Whether [`offered`] tells where this switch is off.
pub(super) fn is_reported(tunnel: &Tunnel, switch: &str) -> bool {
    FORWARD.iter().any(|(family, key)| *key == switch && offers(tunnel, *family == "IPv4"))
}

/// Networks that are offered to peers, of a family that the kernel does not forward.
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
                "networks of {family} are offered to peers, and the kernel forwards none"
            ),
            why: format!(
                "{key} is off; with IpForward = true `linerate up` sets it, and whatever sets it \
                 back later (a file of sysctl.d, another service) wins"
            ),
            cost: "peers reach nothing behind this host (kernel \
                   Documentation/networking/ip-sysctl.rst, ip_forward and forwarding)",
            fix: match family {
                "IPv4" => Fix::Change(vec![Setting::sysctl(key, 1)]),
                // The default route of an advertisement would be forgotten.
                _ => Fix::Manual(format!(
                    "set {} down and up, with IpForward = true in its file, which keeps the \
                     routes that came by router advertisement; without such routes: sysctl -w \
                     {}=1",
                    tunnel.name,
                    key.replace('/', ".")
                )),
            },
        };
        dead.map(finding).collect::<Vec<_>>()
    };
    facts.tunnels.iter().flat_map(of_tunnel).collect()
}

/// Packet filters of others that let nothing through but what they know.
pub(crate) fn filtered(facts: &Facts) -> Vec<Finding> {
    let named = |chain: &DroppingChain| match chain {
        DroppingChain::Nft(chain) => (
            format!("the nftables chain {chain}"),
            format!(
                "nft insert rule {chain} iifname IFACE accept, and the same with oifname, or the \
                 words of the program whose chain it is"
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
        what: format!("{chain} drops what is forwarded, but for what it accepts"),
        why: "a packet passes where every table lets it; linerate's accepts nothing on behalf of \
              others, as those of Docker, ufw and firewalld do not for it"
            .into(),
        cost: "none where the tunnel is accepted there",
        fix: Fix::Manual(format!("where peers get no further than this host: {accept}")),
    };
    facts.forward_drops.iter().map(named).map(finding).collect()
}

/// A table of connections that is nearly full.
pub(crate) fn conntrack(facts: &Facts) -> Vec<Finding> {
    let numbers = [CONNTRACK_COUNT, CONNTRACK_MAX].map(|key| facts.sysctls.number(key));
    let [Some(count), Some(max)] = numbers else { return Vec::new() };
    // A tenth is left: enough of a warning, and no false one from a busy minute.
    if max == 0 || count < max / 10 * 9 {
        return Vec::new();
    }
    vec![Finding {
        check: "conntrack",
        on: "host".into(),
        severity: Severity::Broken,
        what: format!("{count} of {max} entries of the connection table are taken"),
        why: "packets of new connections are dropped while it is full, those of the tunnel, too"
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
    fn a_strict_filter_is_found_only_where_marks_are_used_and_do_not_count() {
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
    fn a_device_that_does_not_forward_on_a_host_that_does_is_found() {
        let eth0 = "net/ipv4/conf/eth0/forwarding";
        let both = [("net/ipv4/ip_forward", "1"), ("net/ipv6/conf/all/forwarding", "1")];
        assert!(half_forwarding(&with(&both)).is_empty());
        let found = half_forwarding(&with(&[both[0], both[1], (eth0, "0")]));
        assert_eq!(found[0].fix, Fix::Change(vec![Setting::sysctl(eth0, 1)]));
        assert!(half_forwarding(&with(&[(eth0, "0")])).is_empty(), "the host does not forward");
    }

    #[test]
    fn one_family_alone_is_noted() {
        for (key, missing) in
            [("net/ipv4/ip_forward", "IPv6"), ("net/ipv6/conf/all/forwarding", "IPv4")]
        {
            let found = half_forwarding(&with(&[(key, "1")]));
            assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
            assert!(found[0].what.contains(missing), "{}", found[0].what);
        }
    }

    #[test]
    fn what_is_offered_and_not_forwarded_is_found_by_family() {
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
            assert_eq!(noted, usize::from(one_alone), "it is told once: {nets:?} {on:?}");
        }
    }

    #[test]
    fn a_filter_of_others_that_drops_is_noted() {
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
    fn a_table_that_is_nine_tenths_full_is_to_be_doubled() {
        for (count, found) in [("89", false), ("90", true), ("100", true)] {
            let facts = with(&[(CONNTRACK_COUNT, count), (CONNTRACK_MAX, "100")]);
            assert_eq!(conntrack(&facts).len(), usize::from(found), "{count}");
            if found {
                let doubled = Setting::sysctl(CONNTRACK_MAX, 200);
                assert_eq!(conntrack(&facts)[0].fix, Fix::Change(vec![doubled]));
            }
        }
        assert!(conntrack(&healthy()).is_empty(), "there is no table");
    }
}
