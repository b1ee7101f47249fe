//! Devices that others met trouble with. None of it was seen with linerate, so that these are
//! notes: where a rate is a fraction of what it should be, they say where to look first.

use crate::{Facts, Finding, Fix, Interface, Severity};

/// What was met, and on which of this host's interfaces it might be.
struct Known {
    places: fn(&Facts) -> Vec<&str>,
    what: &'static str,
    why: &'static str,
    cost: &'static str,
    fix: &'static str,
}

const KNOWN: [Known; 3] = [
    Known {
        places: |facts| {
            let is_6_17 = facts.kernel.version[..2] == [6, 17];
            outer(facts, |interface| {
                is_6_17 && interface.driver == "virtio_net" && interface.has("tx-udp-segmentation")
            })
        },
        what: "a virtio_net guest of Linux 6.17 hands its host datagrams that are not cut up yet",
        why: "one such guest had runs of segments of equal length corrupted as Linux 7.0 to 7.1.4 \
              does it, maybe by the host's kernel",
        cost: "2 in place of 400 Mbit/s there, unproven elsewhere (tailscale/tailscale#21335)",
        fix: "where a peer gets a fraction: linerate set IFACE offload udp-gso off",
    },
    Known {
        places: |facts| outer(facts, |interface| interface.driver == "bnxt_en"),
        what: "a Broadcom NetXtreme-E sends a tunnel's datagrams",
        why: "the firmware of BCM57412 and BCM57414 was met to reset itself when runs of segments \
              ended in one of a single byte, which linerate does not add; short last segments of \
              other lengths were not told of",
        cost: "the host was without network (tailscale/tailscale#20994, #20806)",
        fix: "where the kernel's log has `Fatal firmware reset event`: linerate set IFACE offload \
               udp-gso off",
    },
    Known {
        places: |facts| {
            let is_unifi = facts.kernel.release.contains("-ui-");
            if is_unifi && facts.sysctls.forwards() { vec!["host"] } else { Vec::new() }
        },
        what: "this is the kernel of a UniFi gateway, and it forwards",
        why: "of one (UCG Max) the ports of the bridge corrupt or lose TCP that comes coalesced \
              from a TUN, where they cut it up themselves",
        cost: "downloads by a fraction of the rate (SierraSoftworks/tailscale-unifi#205)",
        fix: "where that is so: linerate set IFACE offload tun-tcp-gro off, or ethtool -K br0 tso \
               off",
    },
];

/// Devices that others met trouble with.
pub(crate) fn known(facts: &Facts) -> Vec<Finding> {
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
        (known.places)(facts).into_iter().map(finding).collect::<Vec<_>>()
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

    /// What is told of a host with this kernel, and this driver of its only interface.
    fn told(release: &str, driver: &str, change: impl Fn(&mut Facts)) -> Vec<(String, String)> {
        let mut facts = Facts { kernel: Kernel::parse(release), ..healthy() };
        facts.interfaces[0].driver = driver.into();
        change(&mut facts);
        let found = known(&facts).into_iter();
        found
            .map(|finding| {
                assert_eq!(finding.severity, Severity::Note);
                (finding.on, finding.cost.to_owned())
            })
            .collect()
    }

    #[test]
    fn a_guest_of_6_17_is_noted_where_its_device_cuts_up_datagrams() {
        let found = told("6.17.0-41-generic", "virtio_net", |_| {});
        assert!(found.len() == 1 && found[0].0 == "eth0" && found[0].1.contains("#21335"));
        for (release, driver) in
            [("6.16.9", "virtio_net"), ("6.18.0", "virtio_net"), ("6.17.0", "veth")]
        {
            assert!(told(release, driver, |_| {}).is_empty(), "{release} {driver}");
        }
        let off = |facts: &mut Facts| {
            facts.interfaces[0].features.remove("tx-udp-segmentation");
        };
        assert!(told("6.17.0", "virtio_net", off).is_empty());
    }

    #[test]
    fn a_netxtreme_is_noted_where_a_tunnel_goes_out_by_it() {
        let found = told("6.18.4", "bnxt_en", |_| {});
        assert!(found.len() == 1 && found[0].1.contains("#20994"), "{found:?}");
        assert!(told("6.18.4", "bnxt_en", |facts| facts.interfaces[0].outer = false).is_empty());
    }

    #[test]
    fn a_unifi_gateway_is_noted_where_it_forwards() {
        let forwards = |facts: &mut Facts| {
            facts.sysctls.0.insert("net/ipv4/ip_forward".into(), "1".into());
        };
        let found = told("5.4.213-ui-ipq5322", "", forwards);
        assert!(found.len() == 1 && found[0].0 == "host" && found[0].1.contains("unifi#205"));
        assert!(told("5.4.213-ui-ipq5322", "", |_| {}).is_empty());
        assert!(told("5.4.213", "", forwards).is_empty());
    }
}
