//! The three batches: packets from the IP side, datagrams to the UDP side and datagrams from it.
//! Each owns one buffer and a list of the ranges in use.

use std::time::Duration;

use crate::{
    Ecn, Endpoint, MAX_PACKET, Offload, Tos, VNET_HEADER_LEN,
    wire::{IpHeader, ParseError},
};

/// A range of a batch's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset of the first byte.
    pub start: usize,
    /// Length in bytes.
    pub len: usize,
}

/// An IP packet in a batch's buffer, with its parsed headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    /// Position of the packet, without trailing bytes.
    pub span: Span,
    pub header: IpHeader,
}

impl IpPacket {
    /// Reads the packet at the beginning of `span` of `buf`.
    ///
    /// # Errors
    /// The bytes are not an IP packet.
    pub fn read(buf: &[u8], span: Span) -> Result<Self, ParseError> {
        let header = IpHeader::parse(&buf[span.range()])?;
        Ok(Self { span: Span { len: header.total_len, ..span }, header })
    }
}

impl Span {
    fn range(self) -> std::ops::Range<usize> {
        self.start..self.start + self.len
    }
}

/// Packets read from the IP side, stored one after another. Each may be a super-packet.
#[derive(Debug)]
pub struct Batch {
    buf: Box<[u8]>,
    used: usize,
    max_packets: usize,
    packets: Vec<(Span, Offload)>,
}

impl Batch {
    /// The space that one read needs: a virtio-net header and the longest packet.
    pub const ROOM: usize = VNET_HEADER_LEN + MAX_PACKET;

    /// Creates a batch of at most `max_packets` packets in `bytes` of buffer. An empty batch always
    /// has space for one read.
    pub fn new(max_packets: usize, bytes: usize) -> Self {
        Self {
            buf: vec![0; bytes.max(Self::ROOM)].into_boxed_slice(),
            used: 0,
            max_packets,
            packets: Vec::with_capacity(max_packets),
        }
    }

    /// Removes all packets.
    pub fn clear(&mut self) {
        self.used = 0;
        self.packets.clear();
    }

    /// Space for the next packet, at least [`Batch::ROOM`] bytes. `None` if the batch is full.
    /// [`Batch::commit`] sets the number of bytes in use.
    pub fn spare(&mut self) -> Option<&mut [u8]> {
        if self.is_full() { None } else { Some(&mut self.buf[self.used..]) }
    }

    /// Appends a packet: `len` bytes of the spare space after the first `skip` bytes. `offload` is
    /// the work left to do on it.
    pub fn commit(&mut self, skip: usize, len: usize, offload: Offload) {
        self.packets.push((Span { start: self.used + skip, len }, offload));
        self.used += skip + len;
        assert!(self.used <= self.buf.len(), "more was committed than there was room");
    }

    /// The packets, in order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Offload)> {
        self.packets.iter().map(|(span, offload)| (&self.buf[span.range()], *offload))
    }

    /// The packet at `index`, in order of arrival.
    pub fn get(&self, index: usize) -> (&[u8], Offload) {
        let (span, offload) = self.packets[index];
        (&self.buf[span.range()], offload)
    }

    /// The packet at `index`, mutable.
    pub fn get_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.buf[self.packets[index].0.range()]
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether no further packet can be read.
    pub fn is_full(&self) -> bool {
        self.packets.len() >= self.max_packets || self.buf.len() - self.used < Self::ROOM
    }
}

/// A run of datagrams to one endpoint, with one TOS byte. All have the same length, except that the
/// last may be shorter. One `UDP_SEGMENT` send carries one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The datagrams, back to back in the batch's buffer.
    pub span: Span,
    /// Length of each datagram except the last, in bytes.
    pub segment: usize,
    /// Destination and source.
    pub endpoint: Endpoint,
    /// The TOS byte or traffic class of the outer header.
    pub tos: Tos,
}

impl Transmit {
    /// Number of datagrams.
    pub fn datagrams(&self) -> usize {
        self.span.len.div_ceil(self.segment)
    }
}

/// Reason for which a transmit was not sent as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The sticky source does not belong to this host any more. The datagrams *were* sent, from
    /// another source. The caller should clear the endpoint's `local`.
    StaleSource,
    /// No route, no such host, or refused by a firewall.
    Unreachable,
    /// Longer than the path allows.
    TooBig,
    /// The queues were full, also after a bounded number of retries.
    NoBuffer,
    /// The interface is down, so its socket is closed.
    NoSocket,
    /// The queue to the relays is full.
    RelayFull,
    /// Any other error, by its errno.
    Other(i32),
}

/// A transmit that was not sent as requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index into [`SendBatch::transmits`].
    pub transmit: usize,
    /// Number of its datagrams that are affected.
    pub datagrams: usize,
    pub error: SendError,
}

/// Datagrams for the UDP side.
#[derive(Debug, Default)]
pub struct SendBatch {
    /// Grows and never shrinks. Old bytes are overwritten, not cleared.
    buf: Vec<u8>,
    used: usize,
    transmits: Vec<Transmit>,
    /// Whether any run goes to a relay.
    relayed: bool,
    failures: Vec<Failure>,
}

impl SendBatch {
    /// Removes all datagrams and failures.
    pub fn clear(&mut self) {
        self.used = 0;
        self.transmits.clear();
        self.relayed = false;
        self.failures.clear();
    }

    /// Appends a datagram of `len` bytes and returns it for the caller to fill; it holds stale
    /// bytes. The datagram joins the last run if endpoint, TOS and length allow it.
    pub fn push(&mut self, len: usize, endpoint: Endpoint, tos: impl Into<Tos>) -> &mut [u8] {
        let tos = tos.into();
        let start = self.used;
        self.used += len;
        if self.used > self.buf.len() {
            self.grow(start);
        }
        match self.transmits.last_mut() {
            Some(run) if run.endpoint == endpoint && run.tos == tos && run.accepts(len) => {
                run.span.len += len;
            }
            _ => {
                self.relayed |= endpoint.remote.is_relayed();
                let span = Span { start, len };
                self.transmits.push(Transmit { span, segment: len, endpoint, tos });
            }
        }
        &mut self.buf[start..self.used]
    }

    /// Replaces the contents by these runs of received datagrams without a copy: the two batches
    /// exchange their buffers. `received` is empty afterwards.
    pub fn forward(&mut self, received: &mut RecvBatch, runs: &[Transmit]) {
        self.clear();
        let room = received.buf.len();
        if self.buf.len() != room {
            self.buf = vec![0; room];
        }
        let taken = std::mem::take(&mut received.buf).into_vec();
        received.buf = std::mem::replace(&mut self.buf, taken).into_boxed_slice();
        received.clear();
        self.used = room;
        self.transmits.extend_from_slice(runs);
        self.relayed = runs.iter().any(|run| run.endpoint.remote.is_relayed());
    }

    /// Grows the buffer to `self.used` bytes. The first `copied` bytes are copied.
    #[cold]
    fn grow(&mut self, copied: usize) {
        // Fresh zeroed memory is not backed by pages until it is written.
        let room = self.used.max(2 * self.buf.len());
        let mut grown = vec![0; room.next_multiple_of(MAX_PACKET + 1)];
        grown[..copied].copy_from_slice(&self.buf[..copied]);
        self.buf = grown;
    }

    /// All datagrams, back to back in the order of the calls to `push`.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[..self.used]
    }

    /// The runs, in order.
    pub fn transmits(&self) -> &[Transmit] {
        &self.transmits
    }

    /// Whether any run goes to a relay.
    pub fn has_relayed(&self) -> bool {
        self.relayed
    }

    /// `count` datagrams of a run, starting at datagram `first`, back to back.
    pub fn datagram_bytes(&self, transmit: &Transmit, first: usize, count: usize) -> &[u8] {
        let run = &self.buf[transmit.span.range()];
        let end = run.len().min((first + count) * transmit.segment);
        &run[first * transmit.segment..end]
    }

    /// The datagrams of a run.
    pub fn datagrams(&self, transmit: &Transmit) -> impl ExactSizeIterator<Item = &[u8]> {
        self.buf[transmit.span.range()].chunks(transmit.segment)
    }

    /// Records that a transmit was not sent as requested.
    pub fn fail(&mut self, failure: Failure) {
        self.failures.push(failure);
    }

    /// The failures of the last send.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    pub fn is_empty(&self) -> bool {
        self.transmits.is_empty()
    }
}

impl Transmit {
    /// Whether a datagram of `len` bytes may join: it is not longer than the first one, and the
    /// last one is not shorter.
    fn accepts(&self, len: usize) -> bool {
        len <= self.segment && self.span.len.is_multiple_of(self.segment)
    }
}

/// Description of one received buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// Bytes received.
    pub len: usize,
    /// Length of each datagram except the last, in bytes. Equals `len` for a single datagram.
    pub stride: usize,
    /// The sender, and the local address that the datagram was sent to.
    pub endpoint: Endpoint,
    /// The ECN bits of the outer header.
    pub ecn: Ecn,
}

/// Datagrams from the UDP side: slots of [`MAX_PACKET`] + 1 bytes. Each holds one datagram, or
/// several of equal length that the kernel coalesced.
#[derive(Debug)]
pub struct RecvBatch {
    buf: Box<[u8]>,
    metas: Vec<RecvMeta>,
    lost: u32,
    shed: u32,
    waited: Duration,
}

impl RecvBatch {
    /// Bytes of one slot.
    pub const SLOT: usize = MAX_PACKET + 1;

    /// Creates a batch of `slots` slots. Memory is used only where datagrams are written.
    pub fn new(slots: usize) -> Self {
        Self {
            buf: vec![0; slots * Self::SLOT].into_boxed_slice(),
            metas: Vec::with_capacity(slots),
            lost: 0,
            shed: 0,
            waited: Duration::ZERO,
        }
    }

    /// Removes all datagrams.
    pub fn clear(&mut self) {
        self.metas.clear();
        self.lost = 0;
        self.shed = 0;
        self.waited = Duration::ZERO;
    }

    /// The slots. They are filled from the first one, and each is followed by a call of
    /// [`RecvBatch::commit`].
    pub fn slots_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        self.buf.chunks_exact_mut(Self::SLOT)
    }

    /// Adds the next slot to the batch.
    pub fn commit(&mut self, meta: RecvMeta) {
        assert!(meta.len <= Self::SLOT, "a slot holds at most SLOT bytes");
        self.metas.push(meta);
    }

    /// Adds to the number of datagrams that the socket's full buffer lost.
    pub fn note_lost(&mut self, datagrams: u32) {
        self.lost = self.lost.saturating_add(datagrams);
    }

    /// Number of datagrams lost before these, as far as is known.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Adds to the number of datagrams that were shed in a flood.
    pub fn note_shed(&mut self, datagrams: u32) {
        self.shed = self.shed.saturating_add(datagrams);
    }

    /// Number of datagrams shed before these, as far as is known.
    pub fn shed(&self) -> u32 {
        self.shed
    }

    /// Records how long the last datagram waited in the socket. More datagrams may wait after it.
    pub fn note_waited(&mut self, waited: Duration) {
        self.waited = waited;
    }

    /// Time that the last datagram waited in the socket, a lower bound for all of them. Zero if it
    /// is unknown or if no more datagrams wait.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Number of filled slots.
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// Number of slots.
    pub fn capacity(&self) -> usize {
        self.buf.len() / Self::SLOT
    }

    /// Position of each slot's contents with its description, in order of arrival.
    pub fn filled(&self) -> impl Iterator<Item = (Span, &RecvMeta)> {
        let position = |(slot, meta): (usize, _)| (slot * Self::SLOT, meta);
        let all = self.metas.iter().enumerate().map(position);
        all.map(|(start, meta): (usize, &RecvMeta)| (Span { start, len: meta.len }, meta))
    }

    /// Position of each datagram with the description of its slot, in order of arrival. An empty
    /// datagram has length 0.
    pub fn datagrams(&self) -> impl Iterator<Item = (Span, &RecvMeta)> {
        self.metas.iter().enumerate().flat_map(|(slot, meta)| {
            let base = slot * Self::SLOT;
            let stride = meta.stride.max(1);
            (0..meta.len.max(1))
                .step_by(stride)
                .map(move |at| (Span { start: base + at, len: stride.min(meta.len - at) }, meta))
        })
    }

    /// The bytes of a span.
    pub fn get(&self, span: Span) -> &[u8] {
        &self.buf[span.range()]
    }

    /// The whole buffer.
    pub fn bytes(&self) -> &[u8] {
        &self.buf
    }

    /// The whole buffer. The spans of datagrams are in ascending order.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }

    /// The bytes of a span, mutable.
    pub fn get_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.buf[span.range()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(port: u16) -> Endpoint {
        Endpoint::new(([192, 0, 2, 1], port).into())
    }

    #[test]
    fn a_run_ends_if_the_length_grows_or_endpoint_or_tos_changes() {
        let mut batch = SendBatch::default();
        for (len, port, ecn) in [
            (100, 1, Ecn::NotEct),
            (100, 1, Ecn::NotEct),
            (60, 1, Ecn::NotEct),
            (60, 1, Ecn::NotEct),
            (61, 1, Ecn::NotEct),
            (61, 2, Ecn::NotEct),
            (61, 2, Ecn::Ce),
        ] {
            batch.push(len, endpoint(port), ecn);
        }
        let runs: Vec<_> = batch.transmits().iter().map(|t| (t.span.len, t.datagrams())).collect();
        assert_eq!(runs, [(260, 3), (60, 1), (61, 1), (61, 1), (61, 1)]);
        let first: Vec<_> = batch.datagrams(&batch.transmits()[0]).map(<[u8]>::len).collect();
        assert_eq!(first, [100, 100, 60]);
    }

    #[test]
    fn forwarded_datagrams_are_unchanged_and_the_buffers_can_be_reused() {
        let (mut received, mut sent) = (RecvBatch::new(2), SendBatch::default());
        for round in 1..=3 {
            let meta = RecvMeta { len: 250, stride: 100, endpoint: endpoint(1), ecn: Ecn::Ect0 };
            for number in 0..2 {
                let slot = received.slots_mut().nth(number).expect("there are two");
                slot[..250].fill(round * 10 + number as u8);
                received.commit(meta);
            }
            let (tos, to) = (Ecn::Ect0.into(), endpoint(2));
            let runs = [(RecvBatch::SLOT, 250), (100, 150)].map(|(start, len)| Transmit {
                span: Span { start, len },
                segment: 100,
                endpoint: to,
                tos,
            });
            sent.forward(&mut received, &runs);
            let lens = |run: &Transmit| sent.datagrams(run).map(<[u8]>::len).collect::<Vec<_>>();
            let all: Vec<_> = sent.transmits().iter().map(lens).collect();
            assert_eq!(all, [vec![100, 100, 50], vec![100, 50]]);
            let first = |run: &Transmit| sent.datagram_bytes(run, 0, 1)[0];
            let all: Vec<_> = sent.transmits().iter().map(first).collect();
            assert_eq!(all, [round * 10 + 1, round * 10]);
            assert_eq!((received.len(), received.capacity()), (0, 2));
        }
    }

    #[test]
    fn a_coalesced_slot_is_split_and_an_empty_datagram_is_returned() {
        let mut batch = RecvBatch::new(3);
        let meta = |len, stride| RecvMeta { len, stride, endpoint: endpoint(1), ecn: Ecn::Ect0 };
        batch.commit(meta(250, 100));
        batch.commit(meta(0, 0));
        batch.commit(meta(7, 7));
        let spans: Vec<_> = batch.datagrams().map(|(s, _)| (s.start, s.len)).collect();
        let slot = RecvBatch::SLOT;
        assert_eq!(spans, [(0, 100), (100, 100), (200, 50), (slot, 0), (2 * slot, 7)]);
    }

    #[test]
    fn a_batch_is_full_if_the_largest_packet_does_not_fit() {
        let mut batch = Batch::new(8, 2 * Batch::ROOM);
        batch.spare().unwrap()[..5].copy_from_slice(b"--one");
        batch.commit(2, 3, Offload::None);
        assert!(batch.spare().is_some());
        batch.commit(0, Batch::ROOM - 4, Offload::None);
        assert!(batch.is_full() && batch.spare().is_none());
        assert_eq!((batch.get(0).0, batch.get(1).0.len()), (&b"one"[..], Batch::ROOM - 4));
        batch.clear();
        assert!(batch.spare().is_some() && batch.is_empty());
    }
}
