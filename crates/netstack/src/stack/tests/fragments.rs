//! Packets that exceed the MTU, in both directions.

use std::net::Ipv6Addr;

use packet::checksum;

use super::*;

const US_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1));
const THEM_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
const FAMILIES: [(IpAddr, IpAddr); 2] = [(US, THEM), (US_V6, THEM_V6)];

fn both() -> State {
    State::new(Config { addresses: vec![US, US_V6], ..config(16 << 20) })
}

/// Delivers a packet or a fragment to the stack.
fn deliver(state: &mut State, bytes: &[u8], now: Time) {
    let header = IpHeader::parse(bytes).unwrap();
    match Packet::whole(bytes, &header) {
        Ok(packet) => state.handle(&packet, now),
        Err(_) => state.handle_fragment(bytes, &header, now),
    }
}

/// Splits the data after an IP header into fragments for an MTU of 1420 bytes.
fn cut(addresses: (IpAddr, IpAddr), protocol: u8, id: u32, data: &[u8]) -> Vec<Vec<u8>> {
    let room = ip::fragment_data_len(addresses.1, 1420);
    let part = |(number, part): (usize, &[u8])| {
        let start = number * room;
        let position = (start, part.len(), start + part.len() == data.len());
        let mut bytes = vec![0; 1500];
        let header = ip::write_fragment_header(&mut bytes, addresses, (protocol, id), position);
        bytes.truncate(header);
        [bytes, part.to_vec()].concat()
    };
    data.chunks(room).enumerate().map(part).collect()
}

/// A UDP datagram with its checksum.
fn datagram(addresses: (IpAddr, IpAddr), payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    let mut bytes = [&[0, 9, 0, 53][..], &len.to_be_bytes(), &[0, 0], payload].concat();
    let sum = ip::pseudo_sum(addresses, ip::UDP, bytes.len());
    let sum = !checksum::add(sum, checksum::sum(&bytes));
    bytes[6..8].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn received(state: &mut State, at: SocketAddr) -> Option<Vec<u8>> {
    let mut to = vec![0; 70_000];
    let context = Context::from_waker(Waker::noop());
    match state.poll_recv_from(at, &mut to, &context) {
        Poll::Ready(received) => Some(to[..received.unwrap().0].to_vec()),
        Poll::Pending => None,
    }
}

fn speech(len: usize) -> Vec<u8> {
    (0..len as u32).map(|n| (n.wrapping_mul(0x9e37_79b1) >> 23) as u8).collect()
}

#[test]
fn a_fragmented_datagram_is_complete_and_has_a_correct_checksum() {
    for (us, them) in FAMILIES {
        let mut state = both();
        let at = state.bind((us, 53).into()).unwrap();
        let mut ids = Vec::new();
        for len in [1420, 3000, 65_507] {
            let bytes = speech(len);
            let context = Context::from_waker(Waker::noop());
            assert!(state.poll_send_to(at, (&bytes, (them, 9).into()), &context).is_ready());
            let packets = leaving(&mut state, now());
            assert!(
                packets.len() > len / 1420 && packets.iter().all(|packet| packet.len() <= 1420)
            );
            let header = IpHeader::parse(&packets[0]).unwrap();
            let first = ip::Fragment::parse(&packets[0], &header).unwrap();
            ids.push(first.id);
            // The other end reassembles them.
            let mut other = State::new(Config { addresses: vec![them], ..config(16 << 20) });
            let there = other.bind((them, 9).into()).unwrap();
            packets.iter().rev().for_each(|packet| deliver(&mut other, packet, now()));
            assert_eq!(received(&mut other, there).as_ref(), Some(&bytes), "{len} bytes");
            assert_eq!(other.counters(), Counters::default());
        }
        ids.dedup();
        assert_eq!(ids.len(), 3, "each packet has another identification");
        let context = Context::from_waker(Waker::noop());
        let too_long = vec![0; ip::max_payload_len(them) - 7];
        let sent = state.poll_send_to(at, (&too_long, (them, 9).into()), &context);
        let Poll::Ready(Err(error)) = sent else { panic!("{sent:?}") };
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert_eq!(state.budget.used(), 0);
    }
}

#[test]
fn a_socket_closed_between_two_fragments_frees_all_memory() {
    let mut state = both();
    let at = state.bind((US, 53).into()).unwrap();
    let context = Context::from_waker(Waker::noop());
    assert!(state.poll_send_to(at, (&[7; 9000], (THEM, 9).into()), &context).is_ready());
    assert!(state.poll_datagram(&mut vec![0; 65_535], now()).is_some());
    state.unbind(at);
    assert!(leaving(&mut state, now()).is_empty());
    assert_eq!(state.budget.used(), 0);
}

#[test]
fn a_fragmented_datagram_is_received_after_its_last_fragment() {
    for (us, them) in FAMILIES {
        let mut state = both();
        let at = state.bind((us, 53).into()).unwrap();
        for len in [2000, 4000, 65_507] {
            let payload = speech(len);
            let packets = cut((them, us), ip::UDP, len as u32, &datagram((them, us), &payload));
            for packet in &packets[1..] {
                deliver(&mut state, packet, now());
            }
            assert_eq!(received(&mut state, at), None);
            assert!(state.budget.used() > len - 1400);
            deliver(&mut state, &packets[0], now());
            assert_eq!(received(&mut state, at), Some(payload));
            assert_eq!(state.budget.used(), 0);
        }
        assert_eq!(state.counters(), Counters::default());
    }
}

/// RFC 4963.
#[test]
fn fragments_of_two_datagrams_with_equal_ids_fail_the_checksum() {
    for (us, them) in FAMILIES {
        let mut state = both();
        let at = state.bind((us, 53).into()).unwrap();
        let [one, two] =
            [1, 2].map(|fill| cut((them, us), ip::UDP, 7, &datagram((them, us), &[fill; 2000])));
        deliver(&mut state, &one[0], now());
        deliver(&mut state, &two[1], now());
        assert_eq!(received(&mut state, at), None);
        assert_eq!(state.counters(), Counters { fragments_checksum: 1, ..Counters::default() });
    }
}

#[test]
fn dropped_fragments_are_counted_by_reason() {
    for (us, them) in FAMILIES {
        let mut state = both();
        let parts = |id| cut((them, us), ip::UDP, id, &datagram((them, us), &speech(4000)));
        let overlap = parts(1);
        deliver(&mut state, &overlap[0], now());
        let mut other = overlap[0].clone();
        *other.last_mut().unwrap() ^= 1;
        deliver(&mut state, &other, now());
        deliver(&mut state, &overlap[1], now());
        assert_eq!(state.counters(), Counters { fragments_overlap: 1, ..Counters::default() });
        // A first fragment with only a part of its header, a fragment with a length that is not a
        // multiple of eight bytes, and one that exceeds the longest packet.
        let mut tiny = vec![0; 200];
        let position = (0, 8, false);
        let header = ip::write_fragment_header(&mut tiny, (them, us), (ip::TCP, 2), position);
        deliver(&mut state, &tiny[..header + 8], now());
        let header = ip::write_fragment_header(&mut tiny, (them, us), (ip::UDP, 3), (8, 9, false));
        deliver(&mut state, &tiny[..header + 9], now());
        let header =
            ip::write_fragment_header(&mut tiny, (them, us), (ip::UDP, 3), (65_528, 64, true));
        deliver(&mut state, &tiny[..header + 64], now());
        assert_eq!(state.counters().malformed, 3);
        // A fragment to another address.
        let elsewhere = if us.is_ipv4() { THEM } else { THEM_V6 };
        let stray = cut((them, elsewhere), ip::UDP, 4, &datagram((them, elsewhere), &[0; 2000]));
        deliver(&mut state, &stray[0], now());
        assert_eq!(state.counters().not_ours, 1);
        // Memory becomes short.
        let left = state.budget.left();
        state.budget.charge(left);
        for part in parts(5) {
            deliver(&mut state, &part, now());
        }
        state.budget.refund(left);
        assert_eq!(state.counters().fragments_full, 1, "one packet");
        // Packets are not counted twice.
        let counters = state.counters();
        state.expire_fragments(now() + Duration::from_secs(61));
        assert_eq!(state.counters(), counters);
        assert_eq!(state.budget.used(), 0);
    }
}

#[test]
fn an_incomplete_packet_is_reported_to_its_sender_after_a_minute() {
    for (us, them) in FAMILIES {
        let mut state = both();
        let packets = cut((them, us), ip::UDP, 7, &datagram((them, us), &speech(2000)));
        deliver(&mut state, &packets[0], now());
        let due = now() + Duration::from_secs(60);
        assert_eq!(state.due(), Some(due));
        state.handle_timeouts(due + Duration::from_millis(1));
        assert_eq!(state.counters(), Counters { fragments_late: 1, ..Counters::default() });
        assert_eq!((state.budget.used(), state.due()), (0, None));
        let (answer, _) = state.next_answer().unwrap();
        let start = ip::header_len(us);
        let kind = if us.is_ipv4() { 11 } else { 3 };
        assert_eq!(answer[start..start + 2], [kind, 1]);
        let quoted = &answer[start + 8 + start..];
        assert_eq!(quoted[..4], [0, 9, 0, 53], "the ports");
        // Without the first fragment the ports are unknown.
        deliver(&mut state, &packets[1], due);
        state.handle_timeouts(due + Duration::from_secs(61));
        assert!(state.next_answer().is_none());
    }
}

/// RFC 1122 section 3.2.2, RFC 4443 section 2.4 (e).
#[test]
fn reassembly_timeouts_of_errors_are_not_reported_but_those_of_echoes_are() {
    for (us, them) in FAMILIES {
        let (protocol, echo) = if us.is_ipv4() { (ip::ICMP, 8) } else { (ip::ICMPV6, 128) };
        let error = if us.is_ipv4() { 3 } else { 1 };
        for (protocol, kind, is_reported) in
            [(protocol, echo, true), (protocol, error, false), (132, 0, false)]
        {
            let mut state = both();
            let message = [&[kind][..], &[0; 2000]].concat();
            deliver(&mut state, &cut((them, us), protocol, 7, &message)[0], now());
            state.handle_timeouts(now() + Duration::from_secs(61));
            assert_eq!(state.counters().fragments_late, 1);
            assert_eq!(state.next_answer().is_some(), is_reported, "{protocol}, {kind}");
        }
    }
}

/// RFC 6946.
#[test]
fn an_atomic_fragment_is_a_whole_packet() {
    let mut state = both();
    let at = state.bind((US_V6, 53).into()).unwrap();
    let addresses = (THEM_V6, US_V6);
    let other = cut(addresses, ip::UDP, 7, &datagram(addresses, &speech(2000)));
    deliver(&mut state, &other[0], now());
    for packet in cut(addresses, ip::UDP, 7, &datagram(addresses, b"whole")) {
        deliver(&mut state, &packet, now());
    }
    assert_eq!(received(&mut state, at), Some(b"whole".to_vec()));
    deliver(&mut state, &other[1], now());
    assert_eq!(received(&mut state, at), Some(speech(2000)));
}

#[test]
fn a_fragmented_echo_is_answered_completely() {
    for (us, them) in FAMILIES {
        let (protocol, request, reply) =
            if us.is_ipv4() { (ip::ICMP, 8, 0) } else { (ip::ICMPV6, 128, 129) };
        for len in [1372, 3000, 65_000] {
            let mut state = both();
            let mut message = [&[request, 0, 0, 0, 0, 1, 0, 1][..], &speech(len)].concat();
            let sum =
                if us.is_ipv4() { 0 } else { ip::pseudo_sum((them, us), protocol, message.len()) };
            let sum = !checksum::add(sum, checksum::sum(&message));
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            for packet in cut((them, us), protocol, 7, &message) {
                deliver(&mut state, &packet, now());
            }
            let mut fragments = super::super::fragments::Fragments::default();
            let mut answer = Vec::new();
            while let Some((packet, _)) = state.next_answer() {
                assert!(packet.len() <= 1420);
                let header = IpHeader::parse(&packet).unwrap();
                match Packet::whole(&packet, &header) {
                    Ok(whole) => answer = whole.transport.to_vec(),
                    Err(_) => {
                        let part = ip::Fragment::parse(&packet, &header).unwrap();
                        let taken = fragments.take(&part, now()).0;
                        if let super::super::fragments::Outcome::Whole(_, whole) = taken {
                            answer = whole;
                        }
                    }
                }
            }
            assert_eq!(answer.len(), message.len(), "{len} bytes");
            assert_eq!((answer[0], &answer[4..]), (reply, &message[4..]));
        }
    }
}
