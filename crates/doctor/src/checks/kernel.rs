//! Known faults and missing features of the kernel.

use crate::{Facts, Finding, Fix, Kernel, Severity};

/// The first and the last version that corrupts runs of datagrams of equal length.
const BAD_SEGMENTS: ([u32; 3], [u32; 3]) = ([7, 0, 0], [7, 1, 4]);

/// Finds kernels with known faults.
pub(crate) fn faults(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Kernel { release, version } = &facts.kernel;
    if (BAD_SEGMENTS.0..=BAD_SEGMENTS.1).contains(version) {
        findings.push(Finding {
            check: "kernel-segments",
            on: "kernel".into(),
            severity: Severity::Broken,
            what: format!("this is Linux {release}"),
            why: "Linux 7.0 to 7.1.4 corrupts runs of segments of equal length, as UDP_SEGMENT \
                  sends them"
                .into(),
            cost: "lost datagrams, and a low rate of the tunnel (tailscale/tailscale#19777)",
            fix: Fix::Manual(
                "linerate set IFACE offload udp-gso off, until the kernel is newer".into(),
            ),
        });
    }
    let virtio = facts
        .interfaces
        .iter()
        .filter(|interface| interface.outer && interface.driver == "virtio_net");
    let to_v6 = facts.tunnels.iter().flat_map(|tunnel| &tunnel.peers);
    let to_v6 = to_v6.filter(|peer| peer.endpoint.is_some_and(|endpoint| endpoint.is_ipv6()));
    if to_v6.count() > 0 && !facts.kernel.is_from(6, 2) {
        findings.extend(virtio.map(|interface| {
            Finding {
            check: "kernel-virtio-v6",
            on: interface.name.clone(),
            severity: Severity::Slow,
            what: format!("virtio_net on Linux {release}, with a peer over IPv6"),
            why: "before Linux 6.2, virtio_net refuses UDP_SEGMENT over IPv6 with EINVAL, and datagrams \
            are sent one by one"
                .into(),
            cost: "5.4 instead of 7.3 Gbit/s in wireguard-go without UDP_SEGMENT and UDP_GRO \
            (Tailscale, 2023, c6i.8xlarge); the refusal: quinn-rs/quinn#1637",
            fix: Fix::Manual("use Linux 6.2 or newer".into()),
        }
        }));
    }
    findings
}

/// An offload: the first kernel that has it, and its effect.
struct Known {
    name: &'static str,
    since: &'static str,
    why: &'static str,
    cost: &'static str,
}

const TUN_TCP: &str = "2.4 instead of 5.4 Gbit/s of TCP in wireguard-go (Tailscale, 2022, \
c6i.8xlarge)";
const TUN_UDP: &str = "2.9 instead of 12.5 Gbit/s of QUIC through a TUN, without encryption \
(WireGuard/wireguard-go#97, i5-12400)";
const UDP: &str = "5.4 instead of 7.3 Gbit/s of TCP in wireguard-go (Tailscale, 2023, c6i.8xlarge)";

const KNOWN: [Known; 6] = [
    Known {
        name: "tun-tso",
        since: "2.6.27",
        why: "each system call reads only one TCP packet for the tunnel",
        cost: TUN_TCP,
    },
    Known {
        name: "tun-uso",
        since: "6.2",
        why: "each system call reads only one packet of QUIC or other UDP for the tunnel",
        cost: TUN_UDP,
    },
    Known {
        name: "tun-tcp-gro",
        since: "2.6.27",
        why: "each system call writes only one TCP packet from the tunnel; some 6.6 kernels refuse \
        super-packets that others accept (tailscale/tailscale#13041)",
        cost: TUN_TCP,
    },
    Known {
        name: "tun-udp-gro",
        since: "6.2",
        why: "each system call writes only one packet of QUIC or other UDP from the tunnel",
        cost: TUN_UDP,
    },
    Known {
        name: "udp-gso",
        since: "4.18",
        why: "encrypted datagrams are sent one by one",
        cost: UDP,
    },
    Known {
        name: "udp-gro",
        since: "5.0",
        why: "encrypted datagrams are received one by one",
        cost: UDP,
    },
];

/// Finds offloads that the kernel refused when they were probed.
pub(crate) fn refused_offloads(facts: &Facts) -> Vec<Finding> {
    let refused = facts.offloads.iter().filter_map(|(name, result)| {
        let known = KNOWN.iter().find(|known| known.name == *name)?;
        let error = result.as_ref().err()?;
        Some(Finding {
            check: "offload",
            on: (*name).into(),
            severity: Severity::Slow,
            what: format!("Linux {} refused the offload {name}: {error}", facts.kernel.release),
            why: format!("without it, {}", known.why),
            cost: known.cost,
            fix: Fix::Manual(format!(
                "use Linux {} or newer, or allow the offload in the container's sandbox",
                known.since
            )),
        })
    });
    refused.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    #[test]
    fn only_kernels_that_corrupt_segments_are_found() {
        for (release, bad) in [
            ("6.19.9", false),
            ("7.0.0", true),
            ("7.0.12-arch1", true),
            ("7.1.4", true),
            ("7.1.5", false),
            ("7.2", false),
        ] {
            let facts = Facts { kernel: Kernel::parse(release), ..healthy() };
            assert_eq!(faults(&facts).len() == 1, bad, "{release}");
        }
    }

    #[test]
    fn old_virtio_net_is_found_only_with_a_peer_over_ipv6() {
        let mut facts = Facts { kernel: Kernel::parse("6.1.9"), ..healthy() };
        facts.interfaces[0].driver = "virtio_net".into();
        assert!(faults(&facts).is_empty());
        facts.tunnels[0].peers[0].endpoint = Some("[2001:db8::1]:1".parse().unwrap());
        assert_eq!(faults(&facts)[0].on, "eth0");
        facts.kernel = Kernel::parse("6.2");
        assert!(faults(&facts).is_empty());
    }

    #[test]
    fn each_refused_offload_is_found_with_its_first_kernel_version() {
        let mut facts = healthy();
        assert!(refused_offloads(&facts).is_empty());
        let names: Vec<_> = facts.offloads.iter().map(|(name, _)| *name).collect();
        for (index, name) in names.iter().enumerate() {
            facts.offloads[index].1 = Err("EINVAL".into());
            let found = refused_offloads(&facts);
            assert_eq!((found.len(), found[index].on.as_str()), (index + 1, *name));
        }
        let Fix::Manual(fix) = &refused_offloads(&facts)[1].fix else { panic!() };
        assert!(fix.contains("6.2"), "{fix}");
    }
}
