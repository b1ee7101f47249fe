//! The lines of one screen.

use std::cmp::Ordering;

use config::uapi::Stats;
use wg::config::PeerState;

use super::{
    Sample,
    rates::{Span, Traffic, batches, handshake_latency, queue_delay},
};
use crate::{
    interface::Interface,
    units::{bits, duration},
};

/// The previous state of a new interface.
const NEW: &Interface = &Interface {
    name: String::new(),
    public_key: None,
    listen_port: None,
    fwmark: None,
    peers: Vec::new(),
    own: None,
};

/// Renders at most `rows` lines: each interface with its busiest peers.
pub(super) fn render(before: &Sample, now: &Sample, rows: usize) -> Vec<String> {
    let span = Span::between(before.at, now.at);
    let heads: Vec<(&Interface, &Interface, Vec<String>)> = now
        .interfaces
        .iter()
        .map(|interface| {
            let same = before.interfaces.iter().find(|old| old.name == interface.name);
            let old = same.unwrap_or(NEW);
            (old, interface, head(span, old, interface))
        })
        .collect();
    // Each interface also needs a title for its peers, and an empty line before the next one.
    let taken: usize = heads.iter().map(|(.., head)| head.len() + 2).sum();
    let each = rows.saturating_sub(taken) / heads.len().max(1);
    let mut lines = Vec::new();
    for (old, interface, head) in heads {
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.extend(head);
        lines.extend(peers(span, &old.peers, &interface.peers, each.max(1)));
    }
    if lines.is_empty() {
        lines.push("no interface is running".into());
    }
    lines.truncate(rows);
    lines
}

fn head(span: Span, old: &Interface, interface: &Interface) -> Vec<String> {
    let own = interface.own.as_ref();
    let mut title = vec![interface.name.clone()];
    title.extend(own.and_then(|own| own.version.clone()));
    title.extend(own.and_then(|own| own.aead.clone()));
    title.extend(interface.listen_port.map(|port| format!("port {port}")));
    let traffic = interface.peers.iter().map(|peer| Traffic::of(span, &old.peers, peer));
    let sum = traffic.fold(Traffic::default(), |sum, one| Traffic {
        received: sum.received + one.received,
        sent: sum.sent + one.sent,
    });
    let mut lines = vec![title.join("  ")];
    match own {
        // Another implementation reports only what wg(8) shows.
        None => lines.push(format!("  in {}  out {}", bits(sum.received), bits(sum.sent))),
        Some(own) => lines.extend(head_of_own(span, old.own.as_ref(), own, sum)),
    }
    lines
}

fn head_of_own(span: Span, old: Option<&Stats>, own: &Stats, sum: Traffic) -> Vec<String> {
    let before = old.map(|old| old.load).unwrap_or_default();
    let direction = |name: &str, bits_a_second: f64, before, after| {
        let (packets, mean) = batches(span, before, after);
        let mean = mean.map_or("-".into(), |mean| format!("{mean:.1}"));
        format!(
            "  {name:<4}{:>13}  {packets:>9.0} packets/s  {mean:>6} a batch",
            bits(bits_a_second)
        )
    };
    let mut out = direction("out", sum.sent, before.outbound, own.load.outbound);
    if let Some(millis) = queue_delay(&before, &own.load) {
        out += &format!("  {millis:.2} ms in the queue");
    }
    let mut input = direction("in", sum.received, before.inbound, own.load.inbound);
    if let Some(millis) = handshake_latency(&own.load) {
        input += &format!("  handshakes answered after {millis:.2} ms");
    }
    let offloads = own.offloads.iter().map(|offload| {
        let state = if offload.wanted { "on" } else { "off" };
        match offload.demotions {
            0 => format!("{} {state}", offload.name),
            count => format!("{} {state} (refused {count} times)", offload.name),
        }
    });
    let mut lines =
        vec![input, out, format!("  offloads  {}", offloads.collect::<Vec<_>>().join("  "))];
    let before = old.map(Stats::losses).unwrap_or_default();
    let was = |reason: &str| {
        before.iter().find(|(name, _)| *name == reason).map_or(0, |(_, count)| *count)
    };
    let losses = own.losses().into_iter().filter(|(_, count)| *count != 0);
    let drops = losses.map(|(reason, count)| {
        let rate = span.rate(was(reason), count);
        format!("{} {count} (+{rate:.0}/s)", reason.replace('_', " "))
    });
    let drops: Vec<_> = drops.collect();
    if !drops.is_empty() {
        lines.push(format!("  drops     {}", drops.join("  ")));
    }
    lines
}

/// Renders a title and the busiest peers, at most `room`.
fn peers(span: Span, old: &[PeerState], peers: &[PeerState], room: usize) -> Vec<String> {
    let mut busy: Vec<(Traffic, &PeerState)> =
        peers.iter().map(|peer| (Traffic::of(span, old, peer), peer)).collect();
    // Idle peers are sorted by their last handshake.
    busy.sort_by(|(a, one), (b, other)| {
        let rates = b.both().partial_cmp(&a.both()).unwrap_or(Ordering::Equal);
        rates.then(other.last_handshake.cmp(&one.last_handshake))
    });
    let title = format!(
        "  {:<44}  {:>13}  {:>13}  {:>14}  {:>8}  endpoint",
        "peer", "in", "out", "handshake", "path mtu"
    );
    let mut lines = vec![title];
    let shown = if busy.len() > room { room.saturating_sub(1) } else { room };
    for (traffic, peer) in busy.iter().take(shown) {
        let ago = peer.last_handshake.map(|then| {
            let ago = sys::clock::wall().saturating_sub(then);
            // The two largest units are enough.
            let words = duration(ago);
            words.split(' ').take(4).collect::<Vec<_>>().join(" ") + " ago"
        });
        lines.push(format!(
            "  {:<44}  {:>13}  {:>13}  {:>14}  {:>8}  {}",
            peer.public_key.to_base64(),
            bits(traffic.received),
            bits(traffic.sent),
            ago.as_deref().unwrap_or("never"),
            peer.path_mtu.map_or("-".to_owned(), |mtu| mtu.to_string()),
            peer.endpoint.map_or("-".to_owned(), |endpoint| endpoint.to_string())
        ));
    }
    if busy.len() > shown {
        lines.push(format!("  and {} more", busy.len() - shown));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn state(peers: &[(u8, u64, u64)]) -> String {
        let peer = |(key, rx, tx): &(u8, u64, u64)| {
            let key = format!("{key:02x}").repeat(32);
            format!("public_key={key}\nendpoint=192.0.2.1:1\nrx_bytes={rx}\ntx_bytes={tx}\n")
        };
        "listen_port=7\n".to_owned() + &peers.iter().map(peer).collect::<String>()
    }

    fn sample(at: u64, peers: &[(u8, u64, u64)], own: Option<&str>) -> Sample {
        let mut interface = Interface::parse("wg0".into(), &state(peers));
        interface.own = own.map(Stats::parse);
        Sample { at, interfaces: vec![interface] }
    }

    #[test]
    fn rates_batches_drops_and_offloads_are_shown() {
        let before = sample(
            0,
            &[(1, 0, 1_000)],
            Some("version=1.2\naead=avx2\nin_forged=3\nin_replayed=0\n"),
        );
        let now = sample(
            2 * SECOND,
            &[(1, 1_000_000, 1_000)],
            Some(
                "version=1.2\naead=avx2\nin_forged=13\nin_replayed=0\nload_in_batches=10\n\
                 load_in_packets=400\nload_queue_rounds=2\nload_queue_micros=500\n\
                 load_handshakes=4\nload_handshake_micros=80000\n\
                 offload_udp-gso=on\ndemotions_udp-gso=2\n",
            ),
        );
        let lines = render(&before, &now, 50);
        assert_eq!(lines[0], "wg0  1.2  avx2  port 7");
        for (line, words) in [
            (1, vec!["in ", "4.00 Mbit/s", " 200 packets/s", "40.0 a batch", "after 20.00 ms"]),
            (2, vec!["out ", " 0 bit/s", " 0 packets/s", " - a batch", "0.25 ms in the queue"]),
            (3, vec!["udp-gso on (refused 2 times)"]),
            (4, vec!["in forged 13 (+5/s)"]),
            (6, vec!["AQEBAQ", "4.00 Mbit/s", "never", "192.0.2.1:1"]),
        ] {
            for word in words {
                assert!(lines[line].contains(word), "{word:?} in {:?}", lines[line]);
            }
        }
        assert!(!lines[4].contains("replayed"), "reasons with a count of zero are not shown");
    }

    #[test]
    fn busiest_peers_come_first_within_the_row_limit() {
        let many: Vec<_> = (0..40).map(|peer| (peer, 0, 0)).collect();
        let mut busy = many.clone();
        (busy[7].2, busy[9].1) = (500, 900);
        let (before, now) = (sample(0, &many, None), sample(SECOND, &busy, None));
        let lines = render(&before, &now, 10);
        assert_eq!(lines.len(), 9);
        assert!(lines[3].contains("CQkJ") && lines[4].contains("BwcH"), "{lines:#?}");
        assert_eq!(lines[8], "  and 35 more");
        assert_eq!(render(&before, &now, 3).len(), 3);
        let all = render(&before, &now, 100);
        assert!(all.len() == 43 && !all.iter().any(|line| line.contains("more")));
    }

    #[test]
    fn measured_path_mtu_is_shown() {
        let mut now = sample(SECOND, &[(1, 900, 0), (2, 0, 0)], Some(""));
        now.interfaces[0].peers[0].path_mtu = Some(1230);
        let lines = render(&sample(0, &[], Some("")), &now, 50);
        let peers: Vec<_> = lines.iter().filter(|line| line.contains("192.0.2.1")).collect();
        assert!(lines.iter().any(|line| line.ends_with("path mtu  endpoint")), "{lines:#?}");
        assert!(peers[0].ends_with("never      1230  192.0.2.1:1"), "{:?}", peers[0]);
        assert!(peers[1].ends_with("never         -  192.0.2.1:1"), "{:?}", peers[1]);
    }

    #[test]
    fn without_interfaces_there_is_a_message() {
        let nothing = Sample { at: 2, interfaces: vec![] };
        assert_eq!(render(&sample(1, &[], None), &nothing, 24), ["no interface is running"]);
    }
}
