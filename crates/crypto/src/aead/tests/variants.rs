//! Batches through every variant.

use proptest::prelude::*;

use super::{batch::*, *};

#[test]
fn every_length_agrees_with_the_specification() {
    for len in 0..=4096 {
        let text = text(len, len);
        let expected = spec::seal(&key(len), &spec::nonce(len as u64), &[], &text);
        for variant in variants() {
            let data = sealed(variant, &key(len), len as u64, &text);
            assert!(data == expected, "{variant} seals {len} bytes");
            let opened = opened(variant, &key(len), len as u64, &data);
            assert!(opened.as_deref() == Some(&text[..]), "{variant} opens {len} bytes");
        }
    }
}

#[test]
fn every_length_in_groups_of_equal_length() {
    for len in 0..=4096 {
        // Fewer than eight, eight, and a full group, with and without a remainder.
        let packets = [3, 8, 13, 16, 18][len % 5];
        let plain = batch(vec![len; packets], 1);
        check(&plain, &by_the_library(&plain));
    }
    for len in (0..=260).chain(1400..=1500) {
        let plain = batch(vec![len; 16], 1);
        check(&plain, &by_the_library(&plain));
    }
}

#[test]
fn every_batch_size_with_equal_lengths() {
    for packets in 1..=64 {
        for len in [0, 1, 64, 100, 1420] {
            for keys in [1, 3] {
                let plain = batch(vec![len; packets], keys);
                check(&plain, &by_the_library(&plain));
            }
        }
    }
}

#[test]
fn every_batch_size_with_mixed_lengths() {
    for packets in 1..=64 {
        for (step, most) in [(97, 1500), (1, 65), (61, 260), (2311, 9000)] {
            let lens = (0..packets).map(|index| (index + packets) * step % most);
            for keys in [1, packets] {
                let plain = batch(lens.clone(), keys);
                check(&plain, &by_the_library(&plain));
            }
        }
    }
}

#[test]
fn one_long_packet_at_any_position_among_short_ones() {
    for len in [1420, 65_535] {
        for place in 0..16 {
            let mut lens = vec![0, 16, 64, 15, 1, 65, 63, 17, 0, 48, 32, 64, 128, 33, 2, 96];
            lens[place] = len;
            let plain = batch(lens, 2);
            check(&plain, &by_the_library(&plain));
        }
    }
}

#[test]
fn every_alignment() {
    for offset in 0..64 {
        for len in [63, 64, 65, 300] {
            let packet = |index| Packet::new(0, index as u64, offset, &text(index, len));
            let plain: Vec<Packet> = (0..16).map(packet).collect();
            check(&plain, &by_the_library(&plain));
            check(&plain[..5], &by_the_library(&plain[..5]));
        }
    }
}

#[test]
fn counters_of_all_sizes() {
    let counters: Vec<u64> = (0..64).flat_map(|bit| [1 << bit, u64::MAX << bit]).collect();
    let plain: Vec<Packet> =
        counters.iter().map(|counter| Packet::new(0, *counter, 0, &text(9, 130))).collect();
    let sealed: Vec<Packet> = by_the_library(&plain);
    for (packet, plain) in sealed.iter().zip(&plain) {
        let nonce = spec::nonce(packet.counter);
        assert_eq!(packet.data(), spec::seal(&key(0), &nonce, &[], plain.text()));
    }
    check(&plain, &sealed);
}

/// Forges each packet of batches of several shapes.
#[test]
fn forged_packet_fails_alone_and_reveals_no_plaintext() {
    let shapes: [fn(usize) -> usize; 3] = [|_| 200, |index| 40 * index, |index| index % 3 * 64];
    for aead in variants() {
        for (packets, shape) in [1, 2, 8, 13, 16, 20].into_iter().zip(shapes.iter().cycle()) {
            for forged in 0..packets {
                let plain = batch((0..packets).map(shape), 2);
                forge(&aead, &plain, &[forged]);
            }
        }
        let plain = batch(vec![100; 16], 1);
        forge(&aead, &plain, &[0, 7, 8, 15]);
        forge(&aead, &plain, &(0..16).collect::<Vec<_>>());
    }
}

fn forge(aead: &Variant, plain: &[Packet], forged: &[usize]) {
    let mut packets = by_the_library(plain);
    for index in forged {
        let data = packets[*index].data_mut();
        // A bit of the text, or of the tag if there is no text.
        data[(data.len() - TAG_LEN) / 2] ^= 0x10;
    }
    let before = packets.clone();
    let authentic = open_all(aead, &mut packets);
    for (index, packet) in packets.iter().enumerate() {
        let is_forged = forged.contains(&index);
        assert_eq!(authentic[index], !is_forged, "{aead}: {index} of {forged:?} forged");
        if !is_forged {
            assert_eq!(packet.text(), plain[index].text(), "{aead}: {index}, {forged:?} forged");
            continue;
        }
        // The text is the ciphertext or zeros, except bytes that equal the plaintext by chance.
        let seen = packet.text().iter().zip(before[index].text()).zip(plain[index].text());
        for ((now, ciphertext), plaintext) in seen {
            assert!(now == ciphertext || *now == 0 || now != plaintext, "{aead}: plaintext");
        }
        assert!(
            packet.text() == before[index].text() || packet.text().iter().all(|byte| *byte == 0),
            "{aead}: unexpected bytes in {index}, {forged:?} forged"
        );
    }
}

#[test]
fn packets_shorter_than_a_tag_fail_alone() {
    for variant in variants() {
        for short in 0..=3 {
            let mut packets = by_the_library(&batch([70, 100, 30, 5], 1));
            for packet in &mut packets[..short] {
                let begin = packet.buffer.len() - packet.data().len() - 64;
                packet.buffer.drain(begin + TAG_LEN - 1..begin + packet.data().len());
            }
            let authentic = open_all(&variant, &mut packets);
            let expected: Vec<bool> = (0..4).map(|index| index >= short).collect();
            assert_eq!(authentic, expected, "{variant}");
        }
    }
}

proptest! {
    #[test]
    fn random_batch_agrees_with_the_specification(
        packets in proptest::collection::vec(
            (0usize..4, any::<u64>(), 0usize..2000, 0usize..64, any::<bool>()),
            0..40,
        ),
    ) {
        let plain: Vec<Packet> = packets
            .iter()
            .enumerate()
            .map(|(index, (key, counter, len, offset, _))| {
                Packet::new(*key, *counter, *offset, &text(index, *len))
            })
            .collect();
        let sealed = by_the_library(&plain);
        for (plain, sealed) in plain.iter().zip(&sealed) {
            let expected =
                spec::seal(&key(plain.key), &spec::nonce(plain.counter), &[], plain.text());
            prop_assert_eq!(sealed.data(), expected);
        }
        check(&plain, &sealed);
        let forged: Vec<usize> =
            (0..packets.len()).filter(|index| packets[*index].4).collect();
        for variant in variants() {
            forge(&variant, &plain, &forged);
        }
    }
}
