//! Devices with faults that users of other programs reported. None was observed with linerate, so
//! the
//! findings are notes: they name a likely cause if the rate is far too low.

use crate::{Facts, Finding, Fix, Interface, Severity};

/// A reported fault, and the interfaces of this host that it may affect.
struct Known {
    affected: fn(&Facts) -> Vec<&str>,
    what: &'static str,
    why: &'static str,
    cost: &'static str,
    fix: &'static str,
}

const KNOWN: [Known; 3] = [
    Known {
        affected: |facts| {
            let is_6_17 = facts.kernel.version[..2] == [6, 17];
            outer(facts, |interface| {
                is_6_17 && interface.driver == "virtio_net" && interface.has("tx-udp-segmentation")
            })
        },
        what: "a virtio_net guest with Linux 6.17 passes unsegmented datagrams to its host",
        why: "in one such guest, runs of segments of equal length were corrupted as by Linux 7.0 to \
        7.1.4, possibly by the host's kernel",
        cost: "2 instead of 400 Mbit/s there, not confirmed elsewhere (tailscale/tailscale#21335)",
        fix: "if the rate to a peer is far too low: linerate set IFACE offload udp-gso off",
    },
    Known {
        affected: |facts| outer(facts, |interface| interface.driver == "bnxt_en"),
        what: "a Broadcom NetXtreme-E sends a tunnel's datagrams",
        why: "the firmware of BCM57412 and BCM57414 was reported to reset itself after runs of segments \
        whose last one had a single byte, which linerate does not send; there are no reports \
        about short last segments of other lengths",
        cost: "the host lost its network (tailscale/tailscale#20994, #20806)",
        fix: "if the kernel's log has `Fatal firmware reset event`: linerate set IFACE offload \
               udp-gso off",
    },
    Known {
        affected: |facts| {
            let is_unifi = facts.kernel.release.contains("-ui-");
            if is_unifi && facts.sysctls.forwards() { vec!["host"] } else { Vec::new() }
        },
        what: "this is the kernel of a UniFi gateway, and it forwards",
        why: "on one model (UCG Max), bridge ports that segment TCP in hardware corrupt or lose \
        coalesced TCP from a TUN",
        cost: "downloads at a fraction of the rate (SierraSoftworks/tailscale-unifi#205)",
        fix: "if downloads are slow: linerate set IFACE offload tun-tcp-gro off, or ethtool -K br0 tso \
               off",
    },
];

/// Finds devices with reported faults.
pub(crate) fn reported_faults(facts: &Facts) -> Vec<Finding> {
    let of_known = |known: &Known| {
        let finding = |on: &str| Finding {
            check: "hardware",
            on: on.to_owned(),
            severity: Severity::Note,
            what: known.what.into(),
            why: known.why.into(),
            cost: known.cost,
            fix: Fix::Manual(format!("{} ({})", known.fix, known.cost)),
        };
        (known.affected)(facts).into_iter().map(finding).collect::<Vec<_>>()
    };
    KNOWN.iter().flat_map(of_known).collect()
}

fn outer(facts: &Facts, is_like: impl Fn(&Interface) -> bool) -> Vec<&str> {
    let interfaces =
        facts.interfaces.iter().filter(|interface| interface.outer && is_like(interface));
    interfaces.map(|interface| interface.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kernel, facts::healthy};

    /// The findings of a host with this kernel and a single interface with this driver.
    fn find(release: &str, driver: &str, change: impl Fn(&mut Facts)) -> Vec<(String, String)> {
        let mut facts = Facts { kernel: Kernel::parse(release), ..healthy() };
        facts.interfaces[0].driver = driver.into();
        change(&mut facts);
        let found = reported_faults(&facts).into_iter();
        found
            .map(|finding| {
                assert_eq!(finding.severity, Severity::Note);
                (finding.on, finding.cost.to_owned())
            })
            .collect()
    }

    #[test]
    fn guest_with_6_17_is_noted_if_its_device_segments_datagrams() {
        let found = find("6.17.0-41-generic", "virtio_net", |_| {});
        assert!(found.len() == 1 && found[0].0 == "eth0" && found[0].1.contains("#21335"));
        for (release, driver) in
            [("6.16.9", "virtio_net"), ("6.18.0", "virtio_net"), ("6.17.0", "veth")]
        {
            assert!(find(release, driver, |_| {}).is_empty(), "{release} {driver}");
        }
        let off = |facts: &mut Facts| {
            facts.interfaces[0].features.remove("tx-udp-segmentation");
        };
        assert!(find("6.17.0", "virtio_net", off).is_empty());
    }

    #[test]
    fn netxtreme_is_noted_if_it_carries_a_tunnel() {
        let found = find("6.18.4", "bnxt_en", |_| {});
        assert!(found.len() == 1 && found[0].1.contains("#20994"), "{found:?}");
        assert!(find("6.18.4", "bnxt_en", |facts| facts.interfaces[0].outer = false).is_empty());
    }

    #[test]
    fn unifi_gateway_is_noted_if_it_forwards() {
        let forwards = |facts: &mut Facts| {
            facts.sysctls.0.insert("net/ipv4/ip_forward".into(), "1".into());
        };
        let found = find("5.4.213-ui-ipq5322", "", forwards);
        assert!(found.len() == 1 && found[0].0 == "host" && found[0].1.contains("unifi#205"));
        assert!(find("5.4.213-ui-ipq5322", "", |_| {}).is_empty());
        assert!(find("5.4.213", "", forwards).is_empty());
    }
}
