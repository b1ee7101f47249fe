//! A batch of packets, each in its own buffer.

use super::*;

/// One packet: its key and counter, and its data between guard bytes that must not change.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Packet {
    /// Index of its key in the batch.
    pub(super) key: usize,
    pub(super) counter: u64,
    /// Offset of the data from an aligned address.
    pub(super) offset: usize,
    pub(super) buffer: Vec<u8>,
}

/// Number of guard bytes before the offset and after the data.
const GUARD: usize = 64;

impl Packet {
    pub(super) fn new(key: usize, counter: u64, offset: usize, text: &[u8]) -> Self {
        let mut buffer = vec![0xa5; GUARD + offset];
        buffer.extend(text);
        buffer.extend([0xa5; TAG_LEN + GUARD]);
        Self { key, counter, offset, buffer }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[GUARD + self.offset..self.buffer.len() - GUARD]
    }

    pub(super) fn data_mut(&mut self) -> &mut [u8] {
        let end = self.buffer.len() - GUARD;
        &mut self.buffer[GUARD + self.offset..end]
    }

    pub(super) fn text(&self) -> &[u8] {
        &self.data()[..self.data().len() - TAG_LEN]
    }
}

/// Returns the key with this number.
pub(super) fn key(number: usize) -> [u8; 32] {
    std::array::from_fn(|at| (at * 37 + number * 101 + 7) as u8)
}

/// An implementation under test.
pub(super) trait Aead {
    fn seal(&self, batch: &mut [Seal<'_>]);
    fn open(&self, batch: &mut [Open<'_>]);
}

impl Aead for Variant {
    fn seal(&self, batch: &mut [Seal<'_>]) {
        Self::seal(*self, batch);
    }

    fn open(&self, batch: &mut [Open<'_>]) {
        Self::open(*self, batch);
    }
}

/// `aead::seal` and `aead::open`, which choose the implementation.
pub(super) struct Chosen;

impl Aead for Chosen {
    fn seal(&self, batch: &mut [Seal<'_>]) {
        crate::aead::seal(batch);
    }

    fn open(&self, batch: &mut [Open<'_>]) {
        crate::aead::open(batch);
    }
}

pub(super) fn seal_all(aead: &impl Aead, packets: &mut [Packet]) {
    seal_with(aead, &keys(packets), packets);
}

/// Seals the packets as one batch, with the keys that they refer to.
pub(super) fn seal_with(aead: &impl Aead, keys: &[Key], packets: &mut [Packet]) {
    let mut batch: Vec<Seal<'_>> = packets
        .iter_mut()
        .map(|packet| {
            let (key, counter) = (&keys[packet.key], packet.counter);
            Seal { key, counter, data: packet.data_mut() }
        })
        .collect();
    aead.seal(&mut batch);
}

pub(super) fn open_all(aead: &impl Aead, packets: &mut [Packet]) -> Vec<bool> {
    open_with(aead, &keys(packets), packets)
}

/// Opens the packets as one batch, with the keys that they refer to.
pub(super) fn open_with(aead: &impl Aead, keys: &[Key], packets: &mut [Packet]) -> Vec<bool> {
    let mut batch: Vec<Open<'_>> = packets
        .iter_mut()
        .enumerate()
        .map(|(index, packet)| {
            let (key, counter) = (&keys[packet.key], packet.counter);
            // The previous value must not matter.
            Open { key, counter, data: packet.data_mut(), authentic: index % 2 == 0 }
        })
        .collect();
    aead.open(&mut batch);
    batch.iter().map(|open| open.authentic).collect()
}

fn keys(packets: &[Packet]) -> Vec<Key> {
    let most = packets.iter().map(|packet| packet.key).max().unwrap_or(0);
    (0..=most).map(|number| Key::new(&key(number))).collect()
}

/// Seals with the library. The variants are compared with it if the specification would take too
/// long.
pub(super) fn by_the_library(plain: &[Packet]) -> Vec<Packet> {
    let mut packets = plain.to_vec();
    seal_all(&Variant::Library, &mut packets);
    packets
}

/// Seals and opens the batch with every variant and with the chosen one.
pub(super) fn check(plain: &[Packet], sealed: &[Packet]) {
    for variant in variants().filter(|variant| *variant != Variant::Library) {
        check_one(&variant, &variant.to_string(), plain, sealed);
    }
    check_one(&Chosen, "chosen", plain, sealed);
}

fn check_one(aead: &impl Aead, name: &str, plain: &[Packet], sealed: &[Packet]) {
    let lens = || plain.iter().map(|packet| packet.text().len()).collect::<Vec<_>>();
    let mut packets = plain.to_vec();
    seal_all(aead, &mut packets);
    assert!(packets == sealed, "{name} seals lengths {:?}", lens());
    let authentic = open_all(aead, &mut packets);
    assert!(authentic.iter().all(|authentic| *authentic), "{name} opens lengths {:?}", lens());
    for (opened, plain) in packets.iter().zip(plain) {
        assert!(opened.text() == plain.text(), "{name} opens lengths {:?}", lens());
        let text = GUARD + plain.offset..GUARD + plain.offset + plain.data().len();
        assert_eq!(opened.buffer[..text.start], plain.buffer[..text.start], "{name}: before it");
        assert_eq!(opened.buffer[text.end..], plain.buffer[text.end..], "{name}: behind it");
    }
}

/// Returns text by number, without a pattern that a variant's steps could share.
pub(super) fn text(number: usize, len: usize) -> Vec<u8> {
    let mut state = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = Vec::with_capacity(len + 8);
    while text.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.extend(state.to_le_bytes());
    }
    text.truncate(len);
    text
}

/// Makes a batch of these lengths with `keys` keys, counters far apart and addresses of all
/// alignments.
pub(super) fn batch(lens: impl IntoIterator<Item = usize>, keys: usize) -> Vec<Packet> {
    let packet = |(index, len): (usize, usize)| {
        let counter = index as u64 * 0x1_0000_0001 + (u64::from(u32::MAX) - 3);
        Packet::new(index % keys, counter, index * 7 % 64, &text(index, len))
    };
    lens.into_iter().enumerate().map(packet).collect()
}
