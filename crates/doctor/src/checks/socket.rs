//! The daemons' UDP sockets.

use sys::BufferSizes;

use crate::{Facts, Finding, Fix, Setting, Severity, Tunnel};

/// One direction's buffer.
struct Side {
    check: &'static str,
    /// The limit where `CAP_NET_ADMIN` is missing.
    limit: &'static str,
    /// What a daemon that runs has.
    of_daemon: fn(&Tunnel) -> Option<u64>,
    /// What a socket made for the purpose has.
    of_ours: fn(&BufferSizes) -> usize,
    why: &'static str,
    cost: &'static str,
}

const RECEIVE: Side = Side {
    check: "receive-buffer",
    limit: "net/core/rmem_max",
    of_daemon: |tunnel| tunnel.receive_buffer,
    of_ours: |buffers| buffers.receive,
    why: "what comes while a batch is decrypted has to wait somewhere; without CAP_NET_ADMIN \
          net.core.rmem_max is the limit",
    cost: "with 512 KiB in place of 4 MiB QUIC lost 20 % and small UDP 30 % (measured for \
           linerate on two cores: crates/sys/src/udp/socket.rs)",
};

const SEND: Side = Side {
    check: "send-buffer",
    limit: "net/core/wmem_max",
    of_daemon: |tunnel| tunnel.send_buffer,
    of_ours: |buffers| buffers.send,
    why: "a batch that does not fit goes in several calls, with a wait between them; without \
          CAP_NET_ADMIN net.core.wmem_max is the limit",
    cost: "nothing is lost; system calls and waits, which were not measured",
};

/// Whether the kernel granted the receive buffer that was asked for: to the daemons that
/// run, else to a socket made for the purpose.
pub(crate) fn receive_buffer(facts: &Facts) -> Vec<Finding> {
    small(facts, &RECEIVE)
}

/// The same of the send buffer.
pub(crate) fn send_buffer(facts: &Facts) -> Vec<Finding> {
    small(facts, &SEND)
}

fn small(facts: &Facts, side: &Side) -> Vec<Finding> {
    let Some(buffers) = facts.buffers else { return Vec::new() };
    let wanted = buffers.wanted as u64;
    let mut granted: Vec<(&str, u64)> = facts
        .tunnels
        .iter()
        .filter_map(|tunnel| Some((tunnel.name.as_str(), (side.of_daemon)(tunnel)?)))
        .collect();
    if granted.is_empty() {
        granted.push(("host", (side.of_ours)(&buffers) as u64));
    }
    let small = granted.into_iter().filter(|(_, granted)| *granted < wanted);
    let finding = |(on, granted): (&str, u64)| Finding {
        check: side.check,
        on: on.to_owned(),
        severity: Severity::Slow,
        what: format!(
            "the {} of the UDP socket has {granted} bytes of the {wanted} asked for",
            side.check.replace('-', " ")
        ),
        why: side.why.into(),
        cost: side.cost,
        fix: match facts.sysctls.number(side.limit) {
            Some(limit) if limit < wanted => Fix::Change(vec![Setting::sysctl(side.limit, wanted)]),
            _ => {
                Fix::Manual("set the interface down and up, so that the socket is made anew".into())
            }
        },
    };
    small.map(finding).collect()
}

/// Datagrams that found the buffer full.
pub(crate) fn overflow(facts: &Facts) -> Vec<Finding> {
    let over = facts.tunnels.iter().filter(|tunnel| tunnel.overflow > 0);
    let finding = |tunnel: &Tunnel| Finding {
        check: "overflow",
        on: tunnel.name.clone(),
        severity: Severity::Note,
        what: format!("{} datagrams found the receive buffer full", tunnel.overflow),
        why: "more came than the processor decrypts; TCP adapts to that, and a few are of no \
              account"
            .into(),
        cost: "each is a packet lost (SO_RXQ_OVFL, counted by the daemon since its start)",
        fix: Fix::None,
    };
    over.map(finding).collect()
}

/// Offloads that the kernel refused to a running daemon.
pub(crate) fn demotions(facts: &Facts) -> Vec<Finding> {
    let each = facts
        .tunnels
        .iter()
        .flat_map(|tunnel| tunnel.demotions.iter().map(move |(name, count)| (tunnel, name, count)));
    let finding = |(tunnel, name, count): (&Tunnel, &String, &u64)| {
        Finding {
        check: "demotion",
        on: tunnel.name.clone(),
        severity: Severity::Note,
        what: format!("the kernel refused {name} {count} times to the daemon"),
        why: "linerate then works without it for 1 second to 1 minute; an interface without checksum \
              offload, an IPsec policy or a short path MTU does that"
            .into(),
        cost: "nothing is lost; while it is off, what its absence costs (see the check offload)",
        fix: Fix::None,
    }
    };
    each.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    type Check = fn(&Facts) -> Vec<Finding>;

    #[test]
    fn a_small_buffer_is_told_with_the_limit_that_keeps_it_small() {
        for (check, side) in [(receive_buffer as Check, &RECEIVE), (send_buffer, &SEND)] {
            let mut facts = healthy();
            assert!(check(&facts).is_empty());
            let tunnel = &mut facts.tunnels[0];
            match side.check {
                "receive-buffer" => tunnel.receive_buffer = Some(212_992),
                _ => tunnel.send_buffer = Some(212_992),
            }
            facts.sysctls.0.insert(side.limit.into(), "212992".into());
            let found = check(&facts);
            assert_eq!((found[0].check, found[0].on.as_str()), (side.check, "wg0"));
            assert_eq!(found[0].fix, Fix::Change(vec![Setting::sysctl(side.limit, 4 << 20)]));
            facts.sysctls.0.insert(side.limit.into(), "4194304".into());
            assert!(matches!(check(&facts)[0].fix, Fix::Manual(_)), "the limit is no more");
        }
    }

    #[test]
    fn without_a_daemon_a_socket_of_our_own_stands_for_it() {
        let mut facts = healthy();
        facts.tunnels.clear();
        assert!(receive_buffer(&facts).is_empty() && send_buffer(&facts).is_empty());
        facts.buffers.as_mut().unwrap().receive = 1;
        assert_eq!((receive_buffer(&facts)[0].on.as_str(), send_buffer(&facts).len()), ("host", 0));
        facts.buffers.as_mut().unwrap().send = 1;
        assert_eq!(send_buffer(&facts)[0].on, "host");
    }

    #[test]
    fn what_a_daemon_counted_is_noted() {
        let mut facts = healthy();
        assert!(overflow(&facts).is_empty() && demotions(&facts).is_empty());
        facts.tunnels[0].overflow = 7;
        facts.tunnels[0].demotions = vec![("udp-gso".into(), 2)];
        for found in [overflow(&facts), demotions(&facts)] {
            assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
        }
    }
}
