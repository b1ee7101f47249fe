use std::time::Duration;

use proptest::prelude::*;

use super::*;

/// An IPv4 packet of `len` bytes from `port`, with `number` in its payload.
fn packet(port: u16, number: u32, len: usize, tos: u8) -> Vec<u8> {
    let mut packet = vec![0x45, tos, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    packet[2..4].copy_from_slice(&(len.max(32) as u16).to_be_bytes());
    packet.extend(port.to_be_bytes());
    packet.extend([0, 53, 0, 0, 0, 0]);
    packet.extend(number.to_be_bytes());
    packet.resize(len.max(32), 0);
    packet
}

fn port_and_number(packet: &[u8]) -> (u16, u32) {
    let number = packet[28..32].try_into().unwrap();
    (u16::from_be_bytes([packet[20], packet[21]]), u32::from_be_bytes(number))
}

fn millis(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

/// Queues as many packets as fit. Returns their number.
fn fill(queue: &mut Queue, packets: &[Vec<u8>], now: Time) -> usize {
    let mut taken = 0;
    while let Some(batch) = queue.spare() {
        while let (Some(spare), Some(packet)) = (batch.spare(), packets.get(taken)) {
            spare[..packet.len()].copy_from_slice(packet);
            batch.commit(0, packet.len(), Offload::None);
            taken += 1;
        }
        if !queue.enqueue_new(now) {
            break;
        }
    }
    taken
}

/// Takes one round: its packets, and whether the first segment of each is dropped.
fn take(queue: &mut Queue, now: Time) -> Vec<(Vec<u8>, bool)> {
    let mut round = Round::new();
    queue.next_round(&mut round, now);
    let packets =
        round.iter().map(|packet| (queue.packet(*packet).0.to_vec(), packet.drops_first)).collect();
    queue.release(&mut round);
    packets
}

#[test]
fn a_sparse_flow_precedes_an_earlier_bulk_transfer() {
    let mut queue = Queue::new();
    let bulk: Vec<_> = (0..10).map(|n| packet(1, n, 60_000, 0)).collect();
    assert_eq!(fill(&mut queue, &bulk, millis(1)), 10);
    assert_eq!(take(&mut queue, millis(1)).len(), 5, "a round is about 256 KiB");
    fill(&mut queue, &[packet(2, 0, 84, 0)], millis(2));
    let round = take(&mut queue, millis(2));
    assert_eq!(port_and_number(&round[0].0), (2, 0));
    assert_eq!(port_and_number(&round[1].0), (1, 5));
}

#[test]
fn bulk_flows_take_turns_by_bytes() {
    let mut queue = Queue::new();
    let whole: Vec<_> = (0..8).map(|n| packet(1, n, 56_000, 0)).collect();
    let small: Vec<_> = (0..320).map(|n| packet(2, n, 1_400, 0)).collect();
    fill(&mut queue, &whole, millis(1));
    fill(&mut queue, &small, millis(1));
    let mut bytes = [0, 0];
    for _ in 0..2 {
        for (packet, _) in take(&mut queue, millis(1)) {
            bytes[usize::from(port_and_number(&packet).0) - 1] += packet.len();
        }
    }
    let ratio = bytes[0] as f64 / bytes[1] as f64;
    assert!((0.6..1.7).contains(&ratio), "{bytes:?}");
}

#[test]
fn memory_is_bounded_and_reused() {
    let mut queue = Queue::new();
    let packets: Vec<_> = (0..100).map(|n| packet(n as u16 % 7, n, 65_000, 0)).collect();
    assert_eq!(fill(&mut queue, &packets, millis(1)), 2 * BATCHES);
    assert!(queue.spare().is_none());
    let mut taken = 0;
    while !queue.is_empty() {
        taken += take(&mut queue, millis(1)).len();
    }
    assert_eq!(taken, 2 * BATCHES);
    assert_eq!(fill(&mut queue, &packets, millis(2)), 2 * BATCHES);
}

#[test]
fn only_a_standing_queue_is_signalled_with_a_mark_if_it_supports_ecn() {
    for (tos, dropped) in [(0, true), (2, false)] {
        let mut queue = Queue::new();
        let mut signals = Vec::new();
        let mut number = 0;
        // A round every four milliseconds: a slow machine.
        for ms in (1..150).map(|n| millis(4 * n)) {
            let more: Vec<_> = (0..10).map(|n| packet(1, number + n, 60_000, tos)).collect();
            number += fill(&mut queue, &more, ms) as u32;
            fill(&mut queue, &[packet(2, 0, 84, tos)], ms);
            for (packet, dropped) in take(&mut queue, ms) {
                let marked = packet[1] == 3;
                assert!(!(marked && dropped));
                if marked || dropped {
                    signals.push((port_and_number(&packet).0, dropped));
                }
            }
        }
        assert!((2..20).contains(&signals.len()), "{signals:?}");
        assert!(signals.iter().all(|it| *it == (1, dropped)), "{signals:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_packet_is_taken_once_and_flows_stay_in_order(
        packets in proptest::collection::vec((0u16..12, 32usize..40_000), 1..600),
        reads in proptest::collection::vec(1usize..200, 1..50),
    ) {
        let mut queue = Queue::new();
        let packets: Vec<_> = (0..)
            .zip(&packets)
            .map(|(number, (port, len))| {
                // Mostly small packets, as in real traffic.
                let len = if number % 4 == 0 { *len } else { *len / 100 };
                packet(*port, number, len, 0)
            })
            .collect();
        let (mut read, mut taken, mut step) = (0, Vec::new(), 0u64);
        while read < packets.len() || !queue.is_empty() {
            let want = reads[step as usize % reads.len()];
            let to = packets.len().min(read + want);
            read += fill(&mut queue, &packets[read..to], millis(1 + step / 100));
            taken.extend(take(&mut queue, millis(1 + step / 100)));
            step += 1;
        }
        prop_assert_eq!(taken.len(), packets.len());
        let mut last = [None; 12];
        for (packet, dropped) in taken {
            let (port, number) = port_and_number(&packet);
            prop_assert!(!dropped && last[usize::from(port)] < Some(number));
            prop_assert_eq!(&packet, &packets[number as usize]);
            last[usize::from(port)] = Some(number);
        }
    }
}

#[test]
fn an_old_flow_is_not_starved_by_new_ones() {
    let mut queue = Queue::new();
    let bulk: Vec<_> = (0..8).map(|n| packet(1, n, 60_000, 0)).collect();
    fill(&mut queue, &bulk, millis(1));
    let mut bulk_sent = 0;
    for round in 0..12u16 {
        // New flows of one packet each must not starve the old flow.
        let sparse: Vec<_> = (0..20).map(|n| packet(100 + round * 20 + n, 0, 1_400, 0)).collect();
        fill(&mut queue, &sparse, millis(1) + Duration::from_micros(round.into()));
        let round = take(&mut queue, millis(2));
        bulk_sent += round.iter().filter(|(packet, _)| packet.len() == 60_000).count();
    }
    assert_eq!(bulk_sent, 8);
}

#[test]
fn the_oldest_batch_is_reported_until_its_last_packet_leaves() {
    let mut queue = Queue::new();
    let mut round = Round::new();
    assert_eq!(queue.oldest(), None);
    let large: Vec<_> = (0..8).map(|number| packet(1, number, 60_000, 0)).collect();
    assert_eq!(fill(&mut queue, &large, millis(7)), 8);
    fill(&mut queue, &[packet(2, 0, 100, 0)], millis(9));
    assert_eq!(queue.oldest(), Some(millis(7)));
    let mut rounds = 0;
    while queue.oldest() == Some(millis(7)) {
        queue.next_round(&mut round, millis(20));
        queue.release(&mut round);
        rounds += 1;
    }
    assert!(rounds > 1, "one round took all packets");
    while !queue.is_empty() {
        queue.next_round(&mut round, millis(20));
        queue.release(&mut round);
    }
    assert_eq!(queue.oldest(), None);
}
