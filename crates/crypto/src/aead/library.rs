//! Packets one at a time, by ring.

use crate::aead::{Open, Seal};

pub(in crate::aead) fn seal(batch: &mut [Seal<'_>]) {
    for packet in batch {
        packet.key.seal(packet.counter, packet.data);
    }
}

pub(in crate::aead) fn open(batch: &mut [Open<'_>]) {
    for packet in batch {
        packet.authentic = packet.key.open(packet.counter, packet.data);
    }
}
