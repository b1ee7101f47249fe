//! The daemons' UDP sockets.

use crate::doctor::{Facts, Finding, Mend, Setting, Weight};

const RMEM_MAX: &str = "net/core/rmem_max";
/// What a small buffer costs.
const SMALL: &str = "with 512 KiB in place of 4 MiB QUIC lost 20 % and small UDP 30 % (measured for \
                     linerate on two cores: crates/sys/src/udp/socket.rs)";

/// Whether the kernel granted the receive buffer that was asked for: to the daemons that
/// run, else to a socket made for the purpose.
pub(crate) fn receive_buffer(facts: &Facts) -> Vec<Finding> {
    let Some(buffers) = facts.buffers else { return Vec::new() };
    let wanted = buffers.wanted as u64;
    let mut granted: Vec<(&str, u64)> = facts
        .tunnels
        .iter()
        .filter_map(|tunnel| Some((tunnel.name.as_str(), tunnel.receive_buffer?)))
        .collect();
    if granted.is_empty() {
        granted.push(("host", buffers.receive as u64));
    }
    let small = granted.into_iter().filter(|(_, granted)| *granted < wanted);
    let finding = |(on, granted): (&str, u64)| Finding {
        check: "receive-buffer",
        on: on.to_owned(),
        weight: Weight::Slow,
        what: format!("the UDP socket was granted {granted} bytes of the {wanted} asked for"),
        why: "what comes while a batch is decrypted has to wait somewhere; without CAP_NET_ADMIN \
              net.core.rmem_max is the limit"
            .into(),
        cost: SMALL,
        mend: match facts.sysctls.number(RMEM_MAX) {
            Some(limit) if limit < wanted => Mend::Change(vec![Setting::sysctl(RMEM_MAX, wanted)]),
            _ => Mend::ByHand(
                "set the interface down and up, so that the socket is made anew".into(),
            ),
        },
    };
    small.map(finding).collect()
}

/// Datagrams that found the buffer full.
pub(crate) fn overflow(facts: &Facts) -> Vec<Finding> {
    let over = facts.tunnels.iter().filter(|tunnel| tunnel.overflow > 0);
    let finding = |tunnel: &crate::doctor::Tunnel| Finding {
        check: "overflow",
        on: tunnel.name.clone(),
        weight: Weight::Note,
        what: format!("{} datagrams found the receive buffer full", tunnel.overflow),
        why: "more came than the processor decrypts; TCP adapts to that, and a few are of no \
              account"
            .into(),
        cost: "each is a packet lost (SO_RXQ_OVFL, counted by the daemon since its start)",
        mend: Mend::Nothing,
    };
    over.map(finding).collect()
}

/// Offloads that the kernel refused to a running daemon.
pub(crate) fn demotions(facts: &Facts) -> Vec<Finding> {
    let each = facts
        .tunnels
        .iter()
        .flat_map(|tunnel| tunnel.demotions.iter().map(move |(name, count)| (tunnel, name, count)));
    let finding = |(tunnel, name, count): (&crate::doctor::Tunnel, &String, &u64)| Finding {
        check: "demotion",
        on: tunnel.name.clone(),
        weight: Weight::Note,
        what: format!("the kernel refused {name} {count} times to the daemon"),
        why: "linerate then works without it for 1 second to 1 minute; a device without checksum \
              offload, an IPsec policy or a short path MTU does that"
            .into(),
        cost: "nothing is lost; while it is off, what its absence costs (see the check offload)",
        mend: Mend::Nothing,
    };
    each.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::facts::healthy;

    #[test]
    fn a_small_buffer_is_told_with_the_limit_that_keeps_it_small() {
        let mut facts = healthy();
        assert!(receive_buffer(&facts).is_empty());
        facts.tunnels[0].receive_buffer = Some(212_992);
        facts.sysctls.0.insert(RMEM_MAX.into(), "212992".into());
        let found = receive_buffer(&facts);
        assert_eq!(found[0].on, "wg0");
        assert_eq!(found[0].mend, Mend::Change(vec![Setting::sysctl(RMEM_MAX, 4 << 20)]));
        facts.sysctls.0.insert(RMEM_MAX.into(), "4194304".into());
        assert!(matches!(receive_buffer(&facts)[0].mend, Mend::ByHand(_)), "the limit is no more");
    }

    #[test]
    fn without_a_daemon_a_socket_of_our_own_stands_for_it() {
        let mut facts = healthy();
        facts.tunnels.clear();
        assert!(receive_buffer(&facts).is_empty());
        facts.buffers.as_mut().unwrap().receive = 1;
        assert_eq!(receive_buffer(&facts)[0].on, "host");
    }

    #[test]
    fn what_a_daemon_counted_is_noted() {
        let mut facts = healthy();
        assert!(overflow(&facts).is_empty() && demotions(&facts).is_empty());
        facts.tunnels[0].overflow = 7;
        facts.tunnels[0].demotions = vec![("udp-gso".into(), 2)];
        for found in [overflow(&facts), demotions(&facts)] {
            assert_eq!((found.len(), found[0].weight), (1, Weight::Note));
        }
    }
}
