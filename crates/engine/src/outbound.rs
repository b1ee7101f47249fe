//! From the IP side to the network.
//!
//! ```text
//!   recv until empty -> queue -> a round of packets -> route -> runs to one peer
//!     -> reserve counters -> write header + packet at its final place
//!     -> seal batch -> send
//! ```
//!
//! Between two rounds the IP side is emptied again, so that what is urgent is
//! seen. A run that has no session yet is staged. What the control half posts (a
//! session came up, a keepalive is due) is worked on before the next round, so
//! that staged packets leave before newer ones.

use std::{
    collections::VecDeque,
    io,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use arrayvec::ArrayVec;
use packet::{
    Ecn, Endpoint, Failure, IpRecv, Segments, SendBatch, SendError, Transmit, UdpSend, ip::IpHeader,
};
use wg::{
    Device, DropReason, NotReady, OutboundNotice, Peer, Reservation, Routes, Staged, Time,
    constants::PADDING,
    message::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader},
};

use crate::{
    AEAD_BATCH, Clock,
    queue::{Place, Queue, ROUND_PACKETS, Round},
    take_turns,
};

/// The outbound half, with its queue.
pub struct Outbound<I, U> {
    device: Arc<Device>,
    clock: Clock,
    ip: I,
    sealer: Sealer<U>,
    staged: Staged,
    queue: Queue,
    round: Round,
}

impl<I: IpRecv, U: UdpSend> Outbound<I, U> {
    /// An outbound half from `ip` to `udp`. Packets are padded up to `mtu`, the
    /// IP side's.
    pub fn new(device: Arc<Device>, clock: Clock, (ip, udp): (I, U), mtu: Arc<AtomicU32>) -> Self {
        Self {
            sealer: Sealer::new(device.clone(), udp, mtu),
            device,
            clock,
            ip,
            staged: Staged::default(),
            queue: Queue::new(),
            round: Round::new(),
        }
    }

    /// Reads what there is, and works on one round of what waits. Where nothing
    /// does, it waits for a packet or a notice.
    ///
    /// # Errors
    /// The IP side is gone.
    pub fn step(&mut self) -> io::Result<()> {
        self.fill()?;
        let now = (self.clock)().time;
        self.handle_notices(now);
        self.queue.next_round(&mut self.round, now);
        self.handle_round(now);
        self.queue.release(&mut self.round);
        self.sealer.send(now);
        if !self.queue.is_empty() {
            take_turns();
        }
        Ok(())
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut wait = self.queue.is_empty();
        while let Some(batch) = self.queue.spare() {
            self.ip.recv(batch, wait)?;
            let full = self.queue.take_in((self.clock)().time);
            if !full {
                break;
            }
            wait = false;
        }
        Ok(())
    }

    fn handle_round(&mut self, now: Time) {
        let Self { device, sealer, staged, queue, round, .. } = self;
        let mut items: ArrayVec<Item<'_>, ROUND_PACKETS> = ArrayVec::new();
        let mut legs: ArrayVec<Leg, ROUND_PACKETS> = ArrayVec::new();
        let routes = device.routes();
        for place in &*round {
            let Some((peer, item)) = route(device, &routes, queue, *place) else { continue };
            items.push(item);
            match legs.last_mut() {
                Some(leg) if Arc::ptr_eq(&leg.peer, peer) => leg.end = items.len(),
                _ => legs.push(Leg { peer: peer.clone(), end: items.len() }),
            }
        }
        drop(routes);
        let mut first = 0;
        for Leg { peer, end } in &legs {
            let run = &items[first..*end];
            first = *end;
            // Behind staged packets, so as not to overtake them.
            let waits = staged.has(peer);
            if waits {
                device.staged(peer, now);
            }
            if waits || !sealer.seal(peer, run, now) {
                run.iter().for_each(|item| item.stage(device, staged, peer));
            }
        }
    }

    fn handle_notices(&mut self, now: Time) {
        let device = self.device.clone();
        for (peer, notices) in device.for_outbound.take() {
            let mut staged = self.staged.take(&peer);
            if notices.has(OutboundNotice::Purge) {
                device.drops.count(DropReason::OutHandshakeFailed, staged.len() as u64);
                staged.clear();
            }
            if staged.is_empty() && notices.has(OutboundNotice::Keepalive) {
                // Without a session it asks for one, and need not be staged: the
                // side that begins a session sends a keepalive anyway.
                self.sealer.seal(&peer, &[Item::plain(&[], Ecn::NotEct)], now);
            }
            self.flush(&peer, staged, now);
        }
    }

    fn flush(&mut self, peer: &Arc<Peer>, staged: VecDeque<Box<[u8]>>, now: Time) {
        if staged.is_empty() {
            return;
        }
        let ecn = |packet: &[u8]| IpHeader::parse(packet).map_or(Ecn::NotEct, |header| header.ecn);
        let run: Vec<_> = staged.iter().map(|packet| Item::plain(packet, ecn(packet))).collect();
        if !self.sealer.seal(peer, &run, now) {
            for packet in &staged {
                self.staged.push(peer, packet);
            }
        }
    }
}

/// Packets in a row to one peer.
struct Leg {
    peer: Arc<Peer>,
    /// Where the next leg begins.
    end: usize,
}

/// A packet on its way to a peer, and the segments it falls into.
#[derive(Clone, Copy)]
struct Item<'a> {
    segments: Segments<'a>,
    /// The first segment that goes.
    first: usize,
    ecn: Ecn,
}

impl<'a> Item<'a> {
    fn plain(packet: &'a [u8], ecn: Ecn) -> Self {
        Self { segments: Segments::whole(packet), first: 0, ecn }
    }

    fn indices(&self) -> Range<usize> {
        self.first..self.segments.count()
    }

    fn stage(&self, device: &Device, staged: &mut Staged, peer: &Arc<Peer>) {
        for index in self.indices() {
            let mut packet = vec![0; self.segments.segment_len(index)];
            self.segments.write(index, &mut packet);
            let dropped = staged.push(peer, &packet);
            device.drops.count(DropReason::OutStagedFull, dropped);
        }
    }
}

/// The peer that a packet goes to, and what of it goes.
fn route<'a, 'r>(
    device: &Device,
    routes: &'r Routes<'_>,
    queue: &'a Queue,
    place: Place,
) -> Option<(&'r Arc<Peer>, Item<'a>)> {
    let (packet, offload) = queue.packet(place);
    let (Ok(header), Ok(segments)) = (IpHeader::parse(packet), Segments::new(packet, offload))
    else {
        device.drops.count(DropReason::OutInvalid, 1);
        return None;
    };
    let Some(peer) = routes.lookup(header.destination) else {
        device.drops.count(DropReason::OutNoPeer, 1);
        return None;
    };
    if place.shed {
        device.drops.count(DropReason::OutCongestion, 1);
    }
    Some((peer, Item { segments, first: place.shed.into(), ecn: header.ecn }))
}

/// Builds datagrams at their final place, seals them and sends them.
struct Sealer<U> {
    device: Arc<Device>,
    udp: U,
    mtu: Arc<AtomicU32>,
    out: SendBatch,
    runs: Vec<Run>,
    /// The length of each datagram in `out`.
    lens: Vec<usize>,
}

/// Datagrams to one peer with counters in a row.
struct Run {
    peer: Arc<Peer>,
    reservation: Reservation,
    /// Where its lengths stand among all.
    lens: Range<usize>,
    /// Whether one is no keepalive.
    data: bool,
}

impl<U: UdpSend> Sealer<U> {
    fn new(device: Arc<Device>, udp: U, mtu: Arc<AtomicU32>) -> Self {
        Self { device, udp, mtu, out: SendBatch::default(), runs: Vec::new(), lens: Vec::new() }
    }

    /// Writes a run into the batch. Returns false where there is no session; the
    /// packets are still the caller's then.
    fn seal(&mut self, peer: &Arc<Peer>, items: &[Item<'_>], now: Time) -> bool {
        let count: usize = items.iter().map(|item| item.indices().len()).sum();
        if count == 0 {
            return true;
        }
        let reservation = match self.device.reserve(peer, count as u64, now) {
            Ok(reservation) => reservation,
            Err(NotReady::NoSession) => return false,
            Err(NotReady::NoEndpoint) => {
                self.device.drops.count(DropReason::OutNoEndpoint, count as u64);
                return true;
            }
        };
        let first = self.lens.len();
        let mut counters = reservation.counter..;
        for item in items {
            for (index, counter) in item.indices().zip(&mut counters) {
                self.write(&reservation, item, index, counter);
            }
        }
        let lens = first..self.lens.len();
        let data = self.lens[lens.clone()].iter().any(|len| *len > DATA_OVERHEAD);
        self.runs.push(Run { peer: peer.clone(), reservation, lens, data });
        true
    }

    /// Writes one datagram at its final place: header, segment, padding, and room
    /// for the tag.
    fn write(&mut self, reservation: &Reservation, item: &Item<'_>, index: usize, counter: u64) {
        let segment_len = item.segments.segment_len(index);
        let mtu = self.mtu.load(Ordering::Relaxed) as usize;
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

    /// Seals and sends what was written.
    fn send(&mut self, now: Time) {
        if self.out.is_empty() {
            return;
        }
        self.encrypt();
        self.udp.send(&mut self.out);
        for failure in self.out.failures() {
            self.handle_failure(failure);
        }
        for run in self.runs.drain(..) {
            let lens = &self.lens[run.lens];
            if went(&self.out, &run.reservation.endpoint) {
                let sent = (lens.len() as u64, lens.iter().sum(), run.data);
                self.device.sent(&run.peer, &run.reservation, sent, now);
            }
        }
        self.lens.clear();
        self.out.clear();
    }

    fn encrypt(&mut self) {
        let mut rest = self.out.bytes_mut();
        let mut seals: ArrayVec<aead::Seal<'_>, AEAD_BATCH> = ArrayVec::new();
        for run in &self.runs {
            for (len, counter) in self.lens[run.lens.clone()].iter().zip(run.reservation.counter..)
            {
                let (datagram, behind) = rest.split_at_mut(*len);
                rest = behind;
                if seals.is_full() {
                    aead::seal(&mut seals);
                    seals.clear();
                }
                let key = &run.reservation.keypair.send.key;
                seals.push(aead::Seal { key, counter, data: &mut datagram[DATA_HEADER_LEN..] });
            }
        }
        aead::seal(&mut seals);
    }

    fn handle_failure(&self, failure: &Failure) {
        if failure.error == SendError::StaleSource {
            let endpoint = self.out.transmits()[failure.transmit].endpoint;
            for run in self.runs.iter().filter(|run| run.reservation.endpoint == endpoint) {
                run.peer.forget_source();
            }
        }
        count_failure(&self.device, failure);
    }
}

/// Counts what a failed send lost.
pub(crate) fn count_failure(device: &Device, failure: &Failure) {
    let reason = match failure.error {
        // It went, from another source.
        SendError::StaleSource => return,
        SendError::Unreachable => DropReason::OutUnreachable,
        SendError::TooBig => DropReason::OutTooBig,
        SendError::NoBuffer => DropReason::OutNoBuffer,
        SendError::NoSocket => DropReason::OutNoSocket,
        SendError::Other(_) => DropReason::OutSendFailed,
    };
    device.drops.count(reason, failure.datagrams as u64);
}

/// Whether any datagram of the batch went to `endpoint`.
fn went(batch: &SendBatch, endpoint: &Endpoint) -> bool {
    let to_it = |transmit: &&Transmit| transmit.endpoint == *endpoint;
    let all: usize = batch.transmits().iter().filter(to_it).map(Transmit::datagrams).sum();
    let lost = batch.failures().iter().filter(|failure| {
        failure.error != SendError::StaleSource
            && batch.transmits()[failure.transmit].endpoint == *endpoint
    });
    lost.map(|failure| failure.datagrams).sum::<usize>() < all
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
