//! The UDP sockets of the daemons.

use sys::BufferSizes;

use crate::{Facts, Finding, Fix, Setting, Severity, Tunnel};

/// One direction's buffer.
struct Side {
    check: &'static str,
    /// The limit without `CAP_NET_ADMIN`.
    limit: &'static str,
    /// The size that a running daemon has.
    of_daemon: fn(&Tunnel) -> Option<u64>,
    /// The size that a test socket has.
    of_test_socket: fn(&BufferSizes) -> usize,
    why: &'static str,
    cost: &'static str,
}

const RECEIVE: Side = Side {
    check: "receive-buffer",
    limit: "net/core/rmem_max",
    of_daemon: |tunnel| tunnel.receive_buffer,
    of_test_socket: |buffers| buffers.receive,
    why: "datagrams that arrive while a batch is decrypted wait in the buffer; without \
    CAP_NET_ADMIN, net.core.rmem_max limits it",
    cost: "with 512 KiB instead of 4 MiB, QUIC lost 20 % and small UDP 30 % (measured for \
    linerate on two cores: crates/sys/src/udp/socket.rs)",
};

const SEND: Side = Side {
    check: "send-buffer",
    limit: "net/core/wmem_max",
    of_daemon: |tunnel| tunnel.send_buffer,
    of_test_socket: |buffers| buffers.send,
    why: "a batch that does not fit is sent by several calls, with a wait between them; without \
    CAP_NET_ADMIN, net.core.wmem_max limits the buffer",
    cost: "no loss; additional system calls and waits (not measured)",
};

/// Finds receive buffers that are smaller than requested: those of running daemons, or, without a
/// daemon, that of a test socket.
pub(crate) fn receive_buffer(facts: &Facts) -> Vec<Finding> {
    small(facts, &RECEIVE)
}

/// Finds send buffers that are smaller than requested, in the same way.
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
        granted.push(("host", (side.of_test_socket)(&buffers) as u64));
    }
    let small = granted.into_iter().filter(|(_, granted)| *granted < wanted);
    let finding = |(on, granted): (&str, u64)| Finding {
        check: side.check,
        on: on.to_owned(),
        severity: Severity::Slow,
        what: format!(
            "the {} of the UDP socket has {granted} of {wanted} requested bytes",
            side.check.replace('-', " ")
        ),
        why: side.why.into(),
        cost: side.cost,
        fix: match facts.sysctls.number(side.limit) {
            Some(limit) if limit < wanted => Fix::Change(vec![Setting::sysctl(side.limit, wanted)]),
            _ => Fix::Manual("set the interface down and up, which opens a new socket".into()),
        },
    };
    small.map(finding).collect()
}

/// Finds daemons that lost datagrams because the receive buffer was full.
pub(crate) fn overflow(facts: &Facts) -> Vec<Finding> {
    let over = facts.tunnels.iter().filter(|tunnel| tunnel.overflow > 0);
    let finding = |tunnel: &Tunnel| {
        Finding {
        check: "overflow",
        on: tunnel.name.clone(),
        severity: Severity::Note,
        what: format!("{} datagrams were dropped because the receive buffer was full", tunnel.overflow),
        why: "datagrams arrived faster than the processor decrypts them; TCP adapts to that, and a few \
        lost datagrams do no harm"
            .into(),
        cost: "each is a lost packet (SO_RXQ_OVFL, counted by the daemon since its start)",
        fix: Fix::None,
    }
    };
    over.map(finding).collect()
}

/// Finds offloads that the kernel refused to running daemons.
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
        what: format!("the kernel refused the offload {name} {count} times"),
        why: "linerate then works without it for 1 second to 1 minute; possible causes are an interface \
        without checksum offload, an IPsec policy or a small path MTU"
            .into(),
        cost: "no loss; a lower rate while it is off (see the check `offload`)",
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
    fn small_buffer_is_found_with_the_limit_that_caused_it() {
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
            assert!(matches!(check(&facts)[0].fix, Fix::Manual(_)), "the limit is not the cause");
        }
    }

    #[test]
    fn without_a_daemon_the_test_socket_is_checked() {
        let mut facts = healthy();
        facts.tunnels.clear();
        assert!(receive_buffer(&facts).is_empty() && send_buffer(&facts).is_empty());
        facts.buffers.as_mut().unwrap().receive = 1;
        assert_eq!((receive_buffer(&facts)[0].on.as_str(), send_buffer(&facts).len()), ("host", 0));
        facts.buffers.as_mut().unwrap().send = 1;
        assert_eq!(send_buffer(&facts)[0].on, "host");
    }

    #[test]
    fn overflow_and_demotions_of_a_daemon_are_noted() {
        let mut facts = healthy();
        assert!(overflow(&facts).is_empty() && demotions(&facts).is_empty());
        facts.tunnels[0].overflow = 7;
        facts.tunnels[0].demotions = vec![("udp-gso".into(), 2)];
        for found in [overflow(&facts), demotions(&facts)] {
            assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
        }
    }
}
