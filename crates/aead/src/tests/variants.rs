//! Every variant that this machine can run, for whole batches, against the library.

use super::*;

/// A batch of packets in buffers of their own.
struct Batch {
    keys: Vec<Key>,
    counters: Vec<u64>,
    data: Vec<Vec<u8>>,
}

impl Batch {
    fn new(lens: impl IntoIterator<Item = usize>, keys: usize) -> Self {
        let data: Vec<Vec<u8>> = lens
            .into_iter()
            .enumerate()
            .map(|(index, len)| {
                let text = (0..len).map(|at| (at * 7 + index * 13 + (at >> 8)) as u8);
                text.chain([0; TAG_LEN]).collect()
            })
            .collect();
        let counters = (0..data.len() as u64).map(|index| index * 0x1_0000_0003).collect();
        Self {
            keys: (0..keys).map(|seed| Key::new(&[seed as u8 + 1; 32])).collect(),
            counters,
            data,
        }
    }

    fn seal(&mut self, variant: Variant) {
        let keys = self.keys.iter().cycle();
        let packets = self.data.iter_mut().zip(keys).zip(&self.counters);
        let mut batch: Vec<Seal<'_>> =
            packets.map(|((data, key), counter)| Seal { key, counter: *counter, data }).collect();
        variant.seal(&mut batch);
    }

    fn open(&mut self, variant: Variant) -> Vec<bool> {
        let keys = self.keys.iter().cycle();
        let packets = self.data.iter_mut().zip(keys).zip(&self.counters);
        let mut batch: Vec<Open<'_>> = packets
            .map(|((data, key), counter)| Open { key, counter: *counter, data, authentic: false })
            .collect();
        variant.open(&mut batch);
        batch.iter().map(|open| open.authentic).collect()
    }
}

fn own_variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.into_iter().filter(|v| *v != Variant::Library && v.is_available())
}

fn check(lens: &[usize], keys: usize) {
    let plain = Batch::new(lens.iter().copied(), keys);
    let mut expected = Batch::new(lens.iter().copied(), keys);
    expected.seal(Variant::Library);
    for variant in own_variants() {
        let mut batch = Batch::new(lens.iter().copied(), keys);
        batch.seal(variant);
        assert_eq!(batch.data, expected.data, "{variant} seals {lens:?}");
        assert!(batch.open(variant).iter().all(|authentic| *authentic), "{variant} opens {lens:?}");
        for (opened, plain) in batch.data.iter().zip(&plain.data) {
            assert_eq!(opened[..opened.len() - TAG_LEN], plain[..plain.len() - TAG_LEN]);
        }
    }
}

#[test]
fn every_length_in_a_batch_of_equals() {
    for len in (0..=600).chain(1400..=1500) {
        check(&[len; 3], 1);
        check(&[len; 16], 1);
    }
}

#[test]
fn every_batch_size() {
    for packets in 1..=64 {
        for len in [0, 64, 100, 1420] {
            check(&vec![len; packets], 1);
            check(&vec![len; packets], 3);
        }
        let mixed: Vec<usize> = (0..packets).map(|index| index * 97 % 1500).collect();
        check(&mixed, 1);
        check(&mixed, packets);
    }
}

#[test]
fn a_forged_packet_fails_alone_and_stays_as_it_was() {
    for variant in own_variants() {
        for packets in [1, 2, 13, 16, 20] {
            for forged in 0..packets {
                let mut batch = Batch::new((0..packets).map(|index| 40 * index), 2);
                let plain = Batch::new((0..packets).map(|index| 40 * index), 2);
                batch.seal(variant);
                let at = batch.data[forged].len() / 2;
                batch.data[forged][at] ^= 0x10;
                let before = batch.data[forged].clone();
                let authentic = batch.open(variant);
                for (index, authentic) in authentic.into_iter().enumerate() {
                    assert_eq!(authentic, index != forged, "{variant}, {forged} is forged");
                    let text = ..batch.data[index].len() - TAG_LEN;
                    if index != forged {
                        assert_eq!(batch.data[index][text], plain.data[index][text]);
                    }
                }
                assert_eq!(batch.data[forged], before, "{variant}: no plaintext");
            }
        }
    }
}
