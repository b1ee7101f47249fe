//! Writes datagrams at their final position: header, segment, padding and space for the tag. Their
//! counters are reserved. The sealer encrypts them in place.

use std::{ops::Range, sync::Arc};

use packet::{Ecn, Segments, SendBatch};
use wg::{
    Device, DropReason, ExchangeMessage, Peer, Probe, Reservation, ReserveError, StagedPackets,
    Time,
    constants::PADDING,
    message::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader},
};

/// A packet to a peer, divided into segments.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub segments: Segments<'a>,
    /// Index of the first segment to send.
    pub first: usize,
    pub ecn: Ecn,
}

impl<'a> Item<'a> {
    pub(super) fn plain(packet: &'a [u8], ecn: Ecn) -> Self {
        Self { segments: Segments::whole(packet), first: 0, ecn }
    }

    pub(super) fn stage(&self, device: &Device, staged: &mut StagedPackets, peer: &Arc<Peer>) {
        for index in self.indices() {
            let mut packet = vec![0; self.segments.segment_len(index)];
            self.segments.write(index, &mut packet);
            let dropped = staged.push(peer, &packet);
            device.drops.count(DropReason::OutStagedFull, dropped);
        }
    }

    pub(super) fn indices(&self) -> Range<usize> {
        self.first..self.segments.count()
    }
}

/// The datagrams of a round.
#[derive(Default)]
pub(super) struct Unsealed {
    pub out: SendBatch,
    pub runs: Vec<Run>,
    /// The length of each datagram in `out`.
    pub lens: Vec<usize>,
    /// Messages between linerates, each in a separate datagram.
    pub in_band: Vec<InBandDatagram>,
}

/// A probe of the path MTU, or a message of a key exchange.
pub(super) struct InBandDatagram {
    pub peer: Arc<Peer>,
    pub reservation: Reservation,
    /// The probe; `None` for a key exchange.
    pub probe: Option<Probe>,
    pub datagram: Vec<u8>,
}

impl InBandDatagram {
    /// Creates a datagram with a header and space for `len` bytes and the tag. Returns `None`
    /// without a session.
    fn new(device: &Device, peer: &Arc<Peer>, len: usize, now: Time) -> Option<Self> {
        let reservation = device.reserve_probe(peer, now)?;
        let mut datagram = vec![0; len + DATA_OVERHEAD];
        let (receiver, counter) = (reservation.keypair.send.remote_index, reservation.counter);
        datagram[..DATA_HEADER_LEN].copy_from_slice(&DataHeader { receiver, counter }.encode());
        Some(Self { peer: peer.clone(), reservation, probe: None, datagram })
    }

    fn plaintext(&mut self) -> &mut [u8] {
        let end = self.datagram.len() - (DATA_OVERHEAD - DATA_HEADER_LEN);
        &mut self.datagram[DATA_HEADER_LEN..end]
    }
}

/// Datagrams to one peer with consecutive counters.
pub(super) struct Run {
    pub peer: Arc<Peer>,
    pub reservation: Reservation,
    /// Positions of its lengths in [`Unsealed::lens`].
    pub lens: Range<usize>,
    /// The longest of its lengths.
    pub longest: usize,
}

impl Unsealed {
    /// Writes a run to `peer`, padded up to `mtu`. Returns false without a session; the caller must
    /// stage the packets.
    pub(super) fn push(
        &mut self,
        device: &Device,
        peer: &Arc<Peer>,
        items: &[Item<'_>],
        mtu: usize,
        now: Time,
    ) -> bool {
        let count: usize = items.iter().map(|item| item.indices().len()).sum();
        if count == 0 {
            return true;
        }
        match device.reserve(peer, count as u64, now) {
            Ok(reservation) => self.push_run(peer, reservation, items, mtu),
            Err(ReserveError::NoSession) => return false,
            Err(ReserveError::NoEndpoint) => {
                device.drops.count(DropReason::OutNoEndpoint, count as u64);
            }
        }
        true
    }

    /// Writes a keepalive, if there is a session.
    pub(super) fn push_keepalive(&mut self, device: &Device, peer: &Arc<Peer>, now: Time) {
        match device.reserve_keepalive(peer, now) {
            Ok(reservation) => {
                self.push_run(peer, reservation, &[Item::plain(&[], Ecn::NotEct)], 0);
            }
            Err(ReserveError::NoSession) => {}
            Err(ReserveError::NoEndpoint) => device.drops.count(DropReason::OutNoEndpoint, 1),
        }
    }

    fn push_run(
        &mut self,
        peer: &Arc<Peer>,
        reservation: Reservation,
        items: &[Item<'_>],
        mtu: usize,
    ) {
        let first = self.lens.len();
        let mut counters = reservation.counter..;
        for item in items {
            for (index, counter) in item.indices().zip(&mut counters) {
                self.write(&reservation, item, index, counter, mtu);
            }
        }
        let lens = first..self.lens.len();
        let longest = self.lens[lens.clone()].iter().copied().max().unwrap_or(0);
        self.runs.push(Run { peer: peer.clone(), reservation, lens, longest });
    }

    /// Writes a probe or its answer, without padding, because the length is what it tests. Does
    /// nothing without a session.
    pub(super) fn push_probe(
        &mut self,
        device: &Device,
        peer: &Arc<Peer>,
        probe: Probe,
        now: Time,
    ) {
        let Some(mut datagram) = InBandDatagram::new(device, peer, probe.plaintext_len(), now)
        else {
            return;
        };
        probe.write(datagram.plaintext());
        self.in_band.push(InBandDatagram { probe: Some(probe), ..datagram });
    }

    /// Writes a message of a key exchange. Does nothing without a session.
    pub(super) fn push_exchange(
        &mut self,
        device: &Device,
        peer: &Arc<Peer>,
        message: &ExchangeMessage,
        now: Time,
    ) {
        let Some(mut datagram) = InBandDatagram::new(device, peer, message.plaintext_len(), now)
        else {
            return;
        };
        message.write(datagram.plaintext());
        self.in_band.push(datagram);
    }

    /// Writes one datagram.
    fn write(
        &mut self,
        reservation: &Reservation,
        item: &Item<'_>,
        index: usize,
        counter: u64,
        mtu: usize,
    ) {
        let segment_len = item.segments.segment_len(index);
        let len = padded(segment_len, mtu) + DATA_OVERHEAD;
        let receiver = reservation.keypair.send.remote_index;
        let datagram = self.out.push(len, reservation.endpoint, item.ecn.encapsulate());
        let (header, rest) = datagram.split_at_mut(DATA_HEADER_LEN);
        let (segment, behind) = rest.split_at_mut(segment_len);
        header.copy_from_slice(&DataHeader { receiver, counter }.encode());
        item.segments.write(index, segment);
        behind.fill(0);
        self.lens.push(len);
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.out.clear();
        self.runs.clear();
        self.lens.clear();
        self.in_band.clear();
    }
}

/// The length of a packet with padding: a multiple of 16, but not more than the MTU (kernel
/// `calculate_skb_padding`).
fn padded(len: usize, mtu: usize) -> usize {
    let full = len.next_multiple_of(PADDING);
    if len <= mtu { full.min(mtu) } else { full }
}

#[cfg(test)]
mod tests {
    use super::padded;

    #[test]
    fn padding_is_to_a_multiple_of_16_up_to_the_mtu() {
        for (len, mtu, expected) in [
            (0, 1420, 0),
            (1, 1420, 16),
            (16, 1420, 16),
            (1409, 1420, 1420),
            (1420, 1420, 1420),
            (1421, 1420, 1424),
        ] {
            assert_eq!(padded(len, mtu), expected, "{len} bytes at an MTU of {mtu}");
        }
    }
}
