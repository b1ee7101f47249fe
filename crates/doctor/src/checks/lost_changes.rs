//! Changes by `linerate up` that another program has undone since.

use crate::{Facts, Finding, Fix, LostChange, Setting, Severity, Tunnel, checks::forwarding};

/// Finds rules, filters, name servers and settings that lost their effect.
pub(crate) fn undone(facts: &Facts) -> Vec<Finding> {
    facts.tunnels.iter().flat_map(of_tunnel).collect()
}

fn of_tunnel(tunnel: &Tunnel) -> Vec<Finding> {
    let finding = |what, why: &str, cost, fix| Finding {
        check: "undone",
        on: tunnel.name.clone(),
        severity: Severity::Broken,
        what,
        why: why.into(),
        cost,
        fix,
    };
    let restart = || {
        let name = &tunnel.name;
        Fix::Manual(format!(
            "find the program that does that, and restart the interface: linerate down {name} and \
            linerate up {name}, or systemctl restart linerate@{name}"
        ))
    };
    let mut findings = Vec::new();
    let rules: Vec<&str> = tunnel.lost.iter().filter_map(rule).collect();
    if !rules.is_empty() {
        findings.push(finding(
            format!("policy rules that `up` added were deleted: {}", rules.join(", ")),
            "systemd-networkd deletes rules of other programs, unless networkd.conf has \
            ManageForeignRoutingPolicyRules=no; the daemon restores rules, but only four times \
            in 5 seconds",
            "packets for the tunnel may be sent unencrypted outside it (ip-rule(8))",
            restart(),
        ));
    }
    for lost in &tunnel.lost {
        match lost {
            LostChange::Rule(_) => {}
            LostChange::Table(table) => findings.push(finding(
                format!("the nftables table inet {table}, or rules in it, were deleted"),
                "a program that loads a ruleset flushes all tables first: Debian's \
                /etc/nftables.conf begins with `flush ruleset`",
                "peers can reach networks that OfferRoutes excludes, Masquerade and ClampMss have no \
                effect, and neighbours can reach the addresses of a full tunnel (CVE-2019-14899)",
                restart(),
            )),
            LostChange::ResolvConf => findings.push(finding(
                "/etc/resolv.conf no longer has the name servers of the configuration".into(),
                "another program replaced the file, such as a DHCP client or NetworkManager",
                "DNS queries do not use the tunnel",
                restart(),
            )),
            // `forwarding::offered` reports it.
            LostChange::Setting { key, .. } if forwarding::is_reported(tunnel, key) => {}
            // networkd and other services process router advertisements themselves and disable it.
            LostChange::Setting { key, ours, current } if key.ends_with("/accept_ra") => {
                findings.push(Finding {
                    severity: Severity::Note,
                    ..finding(
                        format!("{key} is {current}, but `up` set it to {ours}"),
                        "a service that processes router advertisements itself disables it in the \
                        kernel",
                        "without such a service, the default route from a router advertisement expires",
                        Fix::Manual(format!("without such a service: sysctl -w {key}={ours}")),
                    )
                });
            }
            LostChange::Setting { key, ours, current } => findings.push(finding(
                format!("{key} is {current}, but `up` set it to {ours}"),
                "a file in sysctl.d or another service has changed it since",
                "forwarding does not work",
                Fix::Change(vec![Setting::sysctl(key.as_str(), ours)]),
            )),
        }
    }
    findings
}

fn rule(lost: &LostChange) -> Option<&str> {
    match lost {
        LostChange::Rule(rule) => Some(rule),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    fn with(lost: Vec<LostChange>) -> Facts {
        let mut facts = healthy();
        facts.tunnels[0].lost = lost;
        facts
    }

    fn setting(key: &str) -> LostChange {
        LostChange::Setting { key: key.into(), ours: "1".into(), current: "0".into() }
    }

    #[test]
    fn each_lost_change_has_a_finding_and_all_rules_share_one() {
        assert!(undone(&with(vec![])).is_empty());
        let rules = ["32764 of IPv4", "32765 of IPv6"].map(|rule| LostChange::Rule(rule.into()));
        let [first, second] = rules;
        let table = LostChange::Table("linerate-wg0".into());
        let found = undone(&with(vec![first, table, LostChange::ResolvConf, second]));
        let whats: Vec<_> = found.iter().map(|finding| finding.what.as_str()).collect();
        assert_eq!(whats.len(), 3, "{whats:?}");
        assert!(whats[0].contains("32764 of IPv4, 32765 of IPv6"), "{whats:?}");
        assert!(whats[1].contains("inet linerate-wg0") && whats[2].contains("resolv.conf"));
        for finding in found {
            assert_eq!(finding.severity, Severity::Broken);
            let Fix::Manual(fix) = finding.fix else { panic!() };
            assert!(fix.contains("linerate up wg0"), "{fix}");
        }
    }

    #[test]
    fn lost_setting_has_a_fix_and_lost_forwarding_is_reported_once() {
        let (ipv4, ipv6) = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding");
        let mut facts = with(vec![setting(ipv4), setting(ipv6)]);
        let fixes = |facts: &Facts| -> Vec<Fix> {
            undone(facts).into_iter().map(|finding| finding.fix).collect()
        };
        let change = |key| Fix::Change(vec![Setting::sysctl(key, 1)]);
        assert_eq!(fixes(&facts), [change(ipv4), change(ipv6)]);
        facts.tunnels[0].offers = vec!["10.0.0.0/8".parse().unwrap()];
        assert_eq!(fixes(&facts), [change(ipv6)]);

        let found = undone(&with(vec![setting("net/ipv6/conf/eth0/accept_ra")]));
        assert_eq!(found[0].severity, Severity::Note);
        assert!(matches!(found[0].fix, Fix::Manual(_)), "networkd would change it again");
    }
}
