//! What the devices around a tunnel do for packets.

use sys::ethtool::UDP_FORWARDING;

use crate::{Device, Facts, Finding, Mend, Setting, Weight};

const GRO: &str = "rx-gro";
const LIST: &str = "rx-gro-list";
const UDP_SEGMENTS: &str = "tx-udp-segmentation";
const TCP_SEGMENTS: &str = "tx-tcp-segmentation";
/// One of these is on where a device fills checksums in.
const CHECKSUMS: [&str; 3] = ["tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6"];

/// Generic receive offload, which `UDP_GRO` and coalesced forwarding stand on.
pub(crate) fn receive_offload(facts: &Facts) -> Vec<Finding> {
    let without = facts.devices.iter().filter(|device| !device.has(GRO));
    let finding = |device: &Device| Finding {
        check: "gro",
        on: device.name.clone(),
        weight: Weight::Slow,
        what: format!("{} does not coalesce what it receives", device.name),
        why: if device.outer {
            "without generic receive offload each encrypted datagram goes up through the kernel by \
             itself, and UDP_GRO has nothing to hand over"
        } else {
            "without generic receive offload what is forwarded into the tunnel goes up through the \
             kernel, the TUN and the encryption's batches packet by packet"
        }
        .into(),
        cost: "5.4 against 7.3 Gbit/s of TCP in wireguard-go without and with UDP_GRO and \
               UDP_SEGMENT (Tailscale, 2023, c6i.8xlarge)",
        mend: switch(device, &[(GRO, true)]),
    };
    without.map(finding).collect()
}

/// Transmit checksums, without which `UDP_SEGMENT` is refused.
pub(crate) fn checksum(facts: &Facts) -> Vec<Finding> {
    let lacks = |device: &&Device| device.outer && !CHECKSUMS.iter().any(|name| device.has(name));
    let finding = |device: &Device| {
        let known = CHECKSUMS
            .iter()
            .filter(|name| device.features.get(**name).is_some_and(|feature| feature.changeable));
        let known: Vec<_> = known.map(|name| (*name, true)).collect();
        Finding {
            check: "checksum",
            on: device.name.clone(),
            weight: Weight::Slow,
            what: format!("{} does not fill in checksums of what it sends", device.name),
            why:
                "the kernel refuses UDP_SEGMENT with EIO on such a device, and datagrams are sent \
                  one by one"
                    .into(),
            cost: "5.4 against 7.3 Gbit/s as for GRO; the refusal: tailscale/tailscale#7791",
            mend: match known.is_empty() {
                true => cannot(device, CHECKSUMS[0]),
                false => switch(device, &known),
            },
        }
    };
    facts.devices.iter().filter(lacks).map(finding).collect()
}

/// Where this host forwards: whether UDP is coalesced that is not for the host itself.
pub(crate) fn udp_forwarding(facts: &Facts) -> Vec<Finding> {
    let lacks =
        |device: &&Device| device.forwards && (!device.has(UDP_FORWARDING) || device.has(LIST));
    let finding = |device: &Device| {
        let mut wanted = Vec::new();
        if device.has(LIST) {
            wanted.push((LIST, false));
        }
        if !device.has(UDP_FORWARDING) {
            wanted.push((UDP_FORWARDING, true));
        }
        let newer = if facts.kernel.is_from(6, 2) {
            ""
        } else {
            "; this kernel's TUN takes no UDP super-packets (Linux 6.2), so it will help in part"
        };
        Finding {
            check: "udp-forwarding",
            on: device.name.clone(),
            weight: Weight::Slow,
            what: format!(
                "UDP that {} receives is not coalesced when it is forwarded",
                device.name
            ),
            why: format!(
                "QUIC from behind this host enters the tunnel datagram by datagram, unless \
                 {UDP_FORWARDING} is on and {LIST} off on the device where it comes in{newer}"
            ),
            cost: "QUIC through a TUN: 2.9 Gbit/s datagram by datagram, 12.5 coalesced \
                   (WireGuard/wireguard-go#97, i5-12400, no encryption); the setting: \
                   hassio-addons/app-tailscale#351, tailscale.com/kb/1320",
            mend: switch(device, &wanted),
        }
    };
    facts.devices.iter().filter(lacks).map(finding).collect()
}

/// Whether a device cuts up what is handed to it whole. Where it does not, the kernel does
/// that in front of it, whatever `tx-generic-segmentation` is (seen on Linux 6.18, and
/// `validate_xmit_skb` of net/core/dev.c): that feature is for the TCP of sockets, and none of
/// a tunnel's. What a device cannot at all is not told.
pub(crate) fn segmentation(facts: &Facts) -> Vec<Finding> {
    let off = |device: &Device, name: &str| {
        device.features.get(name).is_some_and(|feature| feature.is_switched_off())
    };
    let of_device = |device: &Device| {
        let finding = |feature: &str, what: &str| Finding {
            check: "segmentation",
            on: device.name.clone(),
            weight: Weight::Note,
            what: format!("{} could cut up {what} itself, and {feature} is off", device.name),
            why: "the kernel then does it in front of the device, on the processor; some switch \
                  it off because a device does it wrongly"
                .into(),
            cost: "not measured here",
            mend: Mend::ByHand(format!(
                "where nothing is known against it: ethtool -K {} {feature} on",
                device.name
            )),
        };
        let outer = device.outer && off(device, UDP_SEGMENTS);
        let forwards = device.forwards && off(device, TCP_SEGMENTS);
        let outer = outer.then(|| finding(UDP_SEGMENTS, "a tunnel's datagrams"));
        let forwards = forwards.then(|| finding(TCP_SEGMENTS, "forwarded TCP"));
        outer.into_iter().chain(forwards)
    };
    facts.devices.iter().flat_map(of_device).collect()
}

/// Switches features, where the device lets them be.
fn switch(device: &Device, wanted: &[(&str, bool)]) -> Mend {
    let fixed = wanted
        .iter()
        .find(|(name, _)| !device.features.get(*name).is_some_and(|feature| feature.changeable));
    if let Some((name, _)) = fixed {
        return cannot(device, name);
    }
    let setting = |(name, on): &(&str, bool)| Setting::feature(&device.name, name, *on);
    Mend::Change(wanted.iter().map(setting).collect())
}

fn cannot(device: &Device, feature: &str) -> Mend {
    Mend::ByHand(format!(
        "the driver or the kernel does not let {feature} of {} be switched: another device, or a \
         newer kernel",
        device.name
    ))
}

#[cfg(test)]
mod tests {
    use sys::ethtool::Feature;

    use super::*;
    use crate::facts::healthy;

    fn with(change: impl Fn(&mut Device)) -> Facts {
        let mut facts = healthy();
        facts.devices[0].forwards = true;
        change(&mut facts.devices[0]);
        facts
    }

    fn set(device: &mut Device, name: &str, active: bool, changeable: bool) {
        device.features.insert(name.into(), Feature { active, changeable });
    }

    #[test]
    fn a_device_as_it_should_be_is_not_mentioned() {
        let facts = with(|_| {});
        for check in [receive_offload, checksum, udp_forwarding, segmentation] {
            assert!(check(&facts).is_empty());
        }
    }

    #[test]
    fn what_is_off_is_to_be_switched_on() {
        let facts = with(|device| set(device, GRO, false, true));
        let on = Mend::Change(vec![Setting::feature("eth0", GRO, true)]);
        assert_eq!(receive_offload(&facts)[0].mend, on);
        let facts = with(|device| set(device, CHECKSUMS[0], false, true));
        let on = Mend::Change(vec![Setting::feature("eth0", CHECKSUMS[0], true)]);
        assert_eq!(checksum(&facts)[0].mend, on);
    }

    #[test]
    fn udp_forwarding_takes_one_feature_on_and_the_other_off() {
        let [list, forwarding] = [(LIST, false), (UDP_FORWARDING, true)]
            .map(|(name, on)| Setting::feature("eth0", name, on));
        for (has_list, has_forwarding, mend) in [
            (true, false, vec![list.clone(), forwarding.clone()]),
            (false, false, vec![forwarding]),
            (true, true, vec![list]),
        ] {
            let mut facts = with(|device| {
                set(device, LIST, has_list, true);
                set(device, UDP_FORWARDING, has_forwarding, true);
            });
            assert_eq!(udp_forwarding(&facts)[0].mend, Mend::Change(mend));
            facts.devices[0].forwards = false;
            assert!(udp_forwarding(&facts).is_empty(), "nothing is forwarded");
        }
    }

    #[test]
    fn what_cannot_be_switched_is_not_offered() {
        let facts = with(|device| {
            set(device, GRO, false, false);
            set(device, CHECKSUMS[0], false, false);
            device.features.remove(UDP_FORWARDING);
        });
        for check in [receive_offload, checksum, udp_forwarding] {
            assert!(matches!(check(&facts)[0].mend, Mend::ByHand(_)));
        }
    }

    #[test]
    fn segmentation_that_a_device_could_do_is_noted_for_what_goes_by_it() {
        let features = |facts: &Facts| -> Vec<bool> {
            let found = segmentation(facts);
            assert!(found.iter().all(|finding| finding.weight == Weight::Note));
            let names = [UDP_SEGMENTS, TCP_SEGMENTS];
            names.map(|name| found.iter().any(|finding| finding.what.contains(name))).into()
        };
        let mut facts = with(|device| {
            set(device, UDP_SEGMENTS, false, true);
            set(device, TCP_SEGMENTS, false, true);
        });
        assert_eq!(features(&facts), [true, true]);
        facts.devices[0].forwards = false;
        assert_eq!(features(&facts), [true, false]);
        (facts.devices[0].forwards, facts.devices[0].outer) = (true, false);
        assert_eq!(features(&facts), [false, true]);
        let facts = with(|device| {
            set(device, UDP_SEGMENTS, false, false);
            device.features.remove(TCP_SEGMENTS);
        });
        assert_eq!(features(&facts), [false, false], "it cannot");
    }

    #[test]
    fn a_device_behind_the_tunnel_needs_no_checksums() {
        let facts = with(|device| {
            set(device, CHECKSUMS[0], false, true);
            device.outer = false;
        });
        assert!(checksum(&facts).is_empty());
    }
}
