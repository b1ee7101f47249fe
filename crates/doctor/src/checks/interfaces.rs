//! Offloads of the interfaces that carry a tunnel's datagrams or forwarded packets.

use sys::ethtool::UDP_FORWARDING;

use crate::{Facts, Finding, Fix, Interface, Setting, Severity};

const GRO: &str = "rx-gro";
const LIST: &str = "rx-gro-list";
const UDP_SEGMENTS: &str = "tx-udp-segmentation";
const TCP_SEGMENTS: &str = "tx-tcp-segmentation";
/// One of these is on if an interface computes checksums.
const CHECKSUMS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];

/// Finds interfaces without generic receive offload, which `UDP_GRO` and coalesced forwarding need.
pub(crate) fn receive_offload(facts: &Facts) -> Vec<Finding> {
    let without = facts.interfaces.iter().filter(|interface| !interface.has(GRO));
    let finding = |interface: &Interface| {
        Finding {
        check: "gro",
        on: interface.name.clone(),
        severity: Severity::Slow,
        what: format!("{} does not coalesce received packets", interface.name),
        why: if interface.outer {
            "without generic receive offload each encrypted datagram passes through the kernel \
            separately, and UDP_GRO has no effect"
        } else {
            "without generic receive offload packets that are forwarded into the tunnel pass through \
            the kernel, the TUN and the encryption one by one"
        }
        .into(),
        cost: "5.4 instead of 7.3 Gbit/s of TCP in wireguard-go without UDP_GRO and UDP_SEGMENT \
        (Tailscale, 2023, c6i.8xlarge)",
        fix: switch(interface, &[(GRO, true)]),
    }
    };
    without.map(finding).collect()
}

/// Finds interfaces without transmit checksums. The kernel refuses `UDP_SEGMENT` on them.
pub(crate) fn checksum(facts: &Facts) -> Vec<Finding> {
    let lacks = |interface: &&Interface| {
        interface.outer && !CHECKSUMS.iter().any(|name| interface.has(name))
    };
    let finding = |interface: &Interface| {
        let known = CHECKSUMS.iter().filter(|name| {
            interface.features.get(**name).is_some_and(|feature| feature.changeable)
        });
        let known: Vec<_> = known.map(|name| (*name, true)).collect();
        Finding {
            check: "checksum",
            on: interface.name.clone(),
            severity: Severity::Slow,
            what: format!("{} does not compute checksums of sent packets", interface.name),
            why:
                "the kernel refuses UDP_SEGMENT with EIO on such an interface, and datagrams are sent \
                  one by one"
                    .into(),
            cost: "5.4 instead of 7.3 Gbit/s as for GRO; the refusal: tailscale/tailscale#7791",
            fix: match known.is_empty() {
                true => fixed_feature(interface, CHECKSUMS[0]),
                false => switch(interface, &known),
            },
        }
    };
    facts.interfaces.iter().filter(lacks).map(finding).collect()
}

/// Finds interfaces of a forwarding host that do not coalesce forwarded UDP.
pub(crate) fn udp_forwarding(facts: &Facts) -> Vec<Finding> {
    let lacks = |interface: &&Interface| {
        interface.forwards && (!interface.has(UDP_FORWARDING) || interface.has(LIST))
    };
    let finding = |interface: &Interface| {
        let mut wanted = Vec::new();
        if interface.has(LIST) {
            wanted.push((LIST, false));
        }
        if !interface.has(UDP_FORWARDING) {
            wanted.push((UDP_FORWARDING, true));
        }
        let newer = if facts.kernel.is_from(6, 2) {
            ""
        } else {
            "; the TUN of this kernel accepts no UDP super-packets (Linux 6.2), so the setting helps \
            only in part"
        };
        Finding {
            check: "udp-forwarding",
            on: interface.name.clone(),
            severity: Severity::Slow,
            what: format!("{} does not coalesce UDP packets that are forwarded", interface.name),
            why: format!(
                "forwarded QUIC enters the tunnel datagram by datagram unless {UDP_FORWARDING} is \
                on and {LIST} is off on the interface where it arrives{newer}"
            ),
            cost: "QUIC through a TUN: 2.9 Gbit/s datagram by datagram, 12.5 coalesced \
                   (WireGuard/wireguard-go#97, i5-12400, no encryption); the setting: \
                   hassio-addons/app-tailscale#351, tailscale.com/kb/1320",
            fix: switch(interface, &wanted),
        }
    };
    facts.interfaces.iter().filter(lacks).map(finding).collect()
}

/// Finds interfaces that can segment super-packets but do not. The kernel segments for them,
/// regardless of `tx-generic-segmentation` (observed on Linux 6.18; `validate_xmit_skb` in
/// net/core/dev.c): that feature concerns TCP of sockets, not of tunnels. An interface without the
/// feature is not reported.
pub(crate) fn segmentation(facts: &Facts) -> Vec<Finding> {
    let off = |interface: &Interface, name: &str| {
        interface.features.get(name).is_some_and(|feature| feature.is_switched_off())
    };
    let of_interface = |interface: &Interface| {
        let finding = |feature: &str, what: &str| {
            Finding {
            check: "segmentation",
            on: interface.name.clone(),
            severity: Severity::Note,
            what: format!("{} could segment {what}, but {feature} is off", interface.name),
            why:
                "the kernel then segments on the processor; some administrators disable the feature \
                because an interface segments incorrectly"
                    .into(),
            cost: "not measured here",
            fix: Fix::Manual(format!(
                "unless the interface is known to segment incorrectly: ethtool -K {} {feature} on",
                interface.name
            )),
        }
        };
        let outer = interface.outer && off(interface, UDP_SEGMENTS);
        let forwards = interface.forwards && off(interface, TCP_SEGMENTS);
        let outer = outer.then(|| finding(UDP_SEGMENTS, "a tunnel's datagrams"));
        let forwards = forwards.then(|| finding(TCP_SEGMENTS, "forwarded TCP"));
        outer.into_iter().chain(forwards)
    };
    facts.interfaces.iter().flat_map(of_interface).collect()
}

/// The fix that sets these features, if the interface allows that.
fn switch(interface: &Interface, wanted: &[(&str, bool)]) -> Fix {
    let fixed = wanted
        .iter()
        .find(|(name, _)| !interface.features.get(*name).is_some_and(|feature| feature.changeable));
    if let Some((name, _)) = fixed {
        return fixed_feature(interface, name);
    }
    let setting = |(name, on): &(&str, bool)| Setting::feature(&interface.name, name, *on);
    Fix::Change(wanted.iter().map(setting).collect())
}

fn fixed_feature(interface: &Interface, feature: &str) -> Fix {
    Fix::Manual(format!(
        "the driver or the kernel does not allow changes of {feature} on {}: use another interface or \
        a newer kernel",
        interface.name
    ))
}

#[cfg(test)]
mod tests {
    use sys::ethtool::Feature;

    use super::*;
    use crate::facts::healthy;

    fn with(change: impl Fn(&mut Interface)) -> Facts {
        let mut facts = healthy();
        facts.interfaces[0].forwards = true;
        change(&mut facts.interfaces[0]);
        facts
    }

    fn set(interface: &mut Interface, name: &str, active: bool, changeable: bool) {
        interface.features.insert(name.into(), Feature { active, changeable });
    }

    #[test]
    fn healthy_device_is_not_reported() {
        let facts = with(|_| {});
        for check in [receive_offload, checksum, udp_forwarding, segmentation] {
            assert!(check(&facts).is_empty());
        }
    }

    #[test]
    fn fix_enables_disabled_features() {
        let facts = with(|interface| set(interface, GRO, false, true));
        let on = Fix::Change(vec![Setting::feature("eth0", GRO, true)]);
        assert_eq!(receive_offload(&facts)[0].fix, on);
        let facts = with(|interface| set(interface, CHECKSUMS[0], false, true));
        let on = Fix::Change(vec![Setting::feature("eth0", CHECKSUMS[0], true)]);
        assert_eq!(checksum(&facts)[0].fix, on);
    }

    #[test]
    fn fix_for_udp_forwarding_sets_both_features() {
        let [list, forwarding] = [(LIST, false), (UDP_FORWARDING, true)]
            .map(|(name, on)| Setting::feature("eth0", name, on));
        for (has_list, has_forwarding, fix) in [
            (true, false, vec![list.clone(), forwarding.clone()]),
            (false, false, vec![forwarding]),
            (true, true, vec![list]),
        ] {
            let mut facts = with(|interface| {
                set(interface, LIST, has_list, true);
                set(interface, UDP_FORWARDING, has_forwarding, true);
            });
            assert_eq!(udp_forwarding(&facts)[0].fix, Fix::Change(fix));
            facts.interfaces[0].forwards = false;
            assert!(udp_forwarding(&facts).is_empty(), "nothing is forwarded");
        }
    }

    #[test]
    fn fixed_features_get_only_advice() {
        let facts = with(|interface| {
            set(interface, GRO, false, false);
            set(interface, CHECKSUMS[0], false, false);
            interface.features.remove(UDP_FORWARDING);
        });
        for check in [receive_offload, checksum, udp_forwarding] {
            assert!(matches!(check(&facts)[0].fix, Fix::Manual(_)));
        }
    }

    #[test]
    fn disabled_segmentation_is_noted_for_the_traffic_that_the_device_carries() {
        let features = |facts: &Facts| -> Vec<bool> {
            let found = segmentation(facts);
            assert!(found.iter().all(|finding| finding.severity == Severity::Note));
            let names = [UDP_SEGMENTS, TCP_SEGMENTS];
            names.map(|name| found.iter().any(|finding| finding.what.contains(name))).into()
        };
        let mut facts = with(|interface| {
            set(interface, UDP_SEGMENTS, false, true);
            set(interface, TCP_SEGMENTS, false, true);
        });
        assert_eq!(features(&facts), [true, true]);
        facts.interfaces[0].forwards = false;
        assert_eq!(features(&facts), [true, false]);
        (facts.interfaces[0].forwards, facts.interfaces[0].outer) = (true, false);
        assert_eq!(features(&facts), [false, true]);
        let facts = with(|interface| {
            set(interface, UDP_SEGMENTS, false, false);
            interface.features.remove(TCP_SEGMENTS);
        });
        assert_eq!(features(&facts), [false, false], "the device lacks it");
    }

    #[test]
    fn device_without_a_tunnel_does_not_need_checksums() {
        let facts = with(|interface| {
            set(interface, CHECKSUMS[0], false, true);
            interface.outer = false;
        });
        assert!(checksum(&facts).is_empty());
    }
}
