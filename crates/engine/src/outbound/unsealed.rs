//! Datagrams at their final place: header, segment, padding, and room for the tag.
//! They have their counters, and wait to be sealed and sent.

use std::{ops::Range, sync::Arc};

use packet::{Ecn, Segments, SendBatch};
use wg::{
    Device, DropReason, ExchangeMessage, Peer, Probe, Reservation, ReserveError, StagedPackets,
    Time,
    constants::PADDING,
    message::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader},
};

/// A packet on its way to a peer, and the segments it falls into.
#[derive(Clone, Copy)]
pub(super) struct Item<'a> {
    pub segments: Segments<'a>,
    /// The first segment that goes.
    pub first: usize,
    pub ecn: Ecn,
}

impl<'a> Item<'a> {
    pub fn plain(packet: &'a [u8], ecn: Ecn) -> Self {
        Self { segments: Segments::whole(packet), first: 0, ecn }
    }

    pub fn stage(&self, device: &Device, staged: &mut StagedPackets, peer: &Arc<Peer>) {
        for index in self.indices() {
            let mut packet = vec![0; self.segments.segment_len(index)];
            self.segments.write(index, &mut packet);
            let dropped = staged.push(peer, &packet);
            device.drops.count(DropReason::OutStagedFull, dropped);
        }
    }

    pub fn indices(&self) -> Range<usize> {
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
    /// What is no data, each a datagram of its own.
    pub in_band: Vec<InBandDatagram>,
}

/// A question or an answer about a peer's path, or a message by which a secret is agreed on.
pub(super) struct InBandDatagram {
    pub peer: Arc<Peer>,
    pub reservation: Reservation,
    /// Which question or answer it is.
    pub probe: Option<Probe>,
    pub datagram: Vec<u8>,
}

impl InBandDatagram {
    /// One with its header and room for a plaintext and the tag; `None` without a session.
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

/// Datagrams to one peer with counters in a row.
pub(super) struct Run {
    pub peer: Arc<Peer>,
    pub reservation: Reservation,
    /// Where its lengths stand among all.
    pub lens: Range<usize>,
    /// The longest of them.
    pub longest: usize,
}

impl Unsealed {
    /// Writes a run to `peer`, padded up to `mtu`. Returns false where there is no
    /// session; the packets are still the caller's then.
    pub fn push(
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

    /// Writes a keepalive, where there is a session.
    pub fn push_keepalive(&mut self, device: &Device, peer: &Arc<Peer>, now: Time) {
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

    /// Writes a question or an answer; not padded, for its length is what is asked about.
    /// Without a session there is nothing to ask.
    pub fn push_probe(&mut self, device: &Device, peer: &Arc<Peer>, probe: Probe, now: Time) {
        let Some(mut datagram_in_band) =
            InBandDatagram::new(device, peer, probe.plaintext_len(), now)
        else {
            return;
        };
        probe.write(datagram_in_band.plaintext());
        self.in_band.push(InBandDatagram { probe: Some(probe), ..datagram_in_band });
    }

    /// Writes a message by which a secret is agreed on.
    pub fn push_exchange(
        &mut self,
        device: &Device,
        peer: &Arc<Peer>,
        message: &ExchangeMessage,
        now: Time,
    ) {
        let Some(mut datagram_in_band) =
            InBandDatagram::new(device, peer, message.plaintext_len(), now)
        else {
            return;
        };
        message.write(datagram_in_band.plaintext());
        self.in_band.push(datagram_in_band);
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

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.out.clear();
        self.runs.clear();
        self.lens.clear();
        self.in_band.clear();
    }
}

/// The length of a packet with its padding: a multiple of 16, but not above the
/// MTU (kernel `calculate_skb_padding`).
fn padded(len: usize, mtu: usize) -> usize {
    let full = len.next_multiple_of(PADDING);
    if len <= mtu { full.min(mtu) } else { full }
}

#[cfg(test)]
mod tests {
    use super::padded;

    #[test]
    fn padding_goes_to_a_multiple_of_16_and_stops_at_the_mtu() {
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
