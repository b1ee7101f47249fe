//! The three batches: packets from the IP side, datagrams to and from the UDP
//! side. Each owns one buffer and a list of what stands where in it.

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

/// An IP packet in a batch's buffer, and what was read of its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpPacket {
    /// Where it stands, without what is behind its end.
    pub span: Span,
    /// Its IP headers.
    pub header: IpHeader,
}

impl IpPacket {
    /// Reads the packet at the beginning of `span` of `buf`.
    ///
    /// # Errors
    /// There is none.
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

/// Packets read from the IP side, one behind another, each maybe a super-packet.
#[derive(Debug)]
pub struct Batch {
    buf: Box<[u8]>,
    used: usize,
    max_packets: usize,
    packets: Vec<(Span, Offload)>,
}

impl Batch {
    /// The room that a read asks for: a virtio-net header and the longest packet.
    pub const ROOM: usize = VNET_HEADER_LEN + MAX_PACKET;

    /// A batch of at most `max_packets` packets in `bytes` of buffer. Room for
    /// one read is always there in an empty batch.
    pub fn new(max_packets: usize, bytes: usize) -> Self {
        Self {
            buf: vec![0; bytes.max(Self::ROOM)].into_boxed_slice(),
            used: 0,
            max_packets,
            packets: Vec::with_capacity(max_packets),
        }
    }

    /// Forgets all packets.
    pub fn clear(&mut self) {
        self.used = 0;
        self.packets.clear();
    }

    /// The room for the next packet, at least [`Batch::ROOM`] long; `None` when
    /// the batch is full. [`Batch::commit`] says how much of it was filled.
    pub fn spare(&mut self) -> Option<&mut [u8]> {
        if self.is_full() { None } else { Some(&mut self.buf[self.used..]) }
    }

    /// Makes `len` bytes of the spare room, behind its first `skip`, a packet, to
    /// which `offload` is left to be done.
    pub fn commit(&mut self, skip: usize, len: usize, offload: Offload) {
        self.packets.push((Span { start: self.used + skip, len }, offload));
        self.used += skip + len;
        assert!(self.used <= self.buf.len(), "more was committed than there was room");
    }

    /// The packets, in the order in which they came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Offload)> {
        self.packets.iter().map(|(span, offload)| (&self.buf[span.range()], *offload))
    }

    /// The packet that came as number `index`.
    pub fn get(&self, index: usize) -> (&[u8], Offload) {
        let (span, offload) = self.packets[index];
        (&self.buf[span.range()], offload)
    }

    /// The same, to change in place.
    pub fn get_mut(&mut self, index: usize) -> &mut [u8] {
        &mut self.buf[self.packets[index].0.range()]
    }

    /// How many packets there are.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there is no packet.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether nothing more can be read into it.
    pub fn is_full(&self) -> bool {
        self.packets.len() >= self.max_packets || self.buf.len() - self.used < Self::ROOM
    }
}

/// A run of datagrams to one endpoint, with one TOS byte: equal lengths, but
/// that the last may be shorter. It is what one `UDP_SEGMENT` send carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The datagrams, one behind another in the batch's buffer.
    pub span: Span,
    /// Length of each datagram but the last, in bytes.
    pub segment: usize,
    /// Where to, and from where.
    pub endpoint: Endpoint,
    /// The TOS byte or traffic class of the outer header.
    pub tos: Tos,
}

impl Transmit {
    /// The number of datagrams.
    pub fn datagrams(&self) -> usize {
        self.span.len.div_ceil(self.segment)
    }
}

/// Why a transmit was not sent as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The sticky source is no longer ours. It *was* sent, from another source:
    /// forget the endpoint's `local`.
    StaleSource,
    /// No route, no such host, or the firewall refused.
    Unreachable,
    /// Longer than the path allows.
    TooBig,
    /// The queues are full, and were still after a bounded number of tries.
    NoBuffer,
    /// There is no socket: the interface is down.
    NoSocket,
    /// More waits for relays than may.
    RelayFull,
    /// Any other answer, by its errno.
    Other(i32),
}

/// A transmit that was not sent as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Index into [`SendBatch::transmits`].
    pub transmit: usize,
    /// How many of its datagrams it concerns.
    pub datagrams: usize,
    /// What happened.
    pub error: SendError,
}

/// Datagrams for the UDP side.
#[derive(Debug, Default)]
pub struct SendBatch {
    /// As long as was ever needed: old bytes are written over, not cleared.
    buf: Vec<u8>,
    used: usize,
    transmits: Vec<Transmit>,
    /// Whether one of them goes to a relay.
    relayed: bool,
    failures: Vec<Failure>,
}

impl SendBatch {
    /// Forgets all datagrams and failures.
    pub fn clear(&mut self) {
        self.used = 0;
        self.transmits.clear();
        self.relayed = false;
        self.failures.clear();
    }

    /// Appends a datagram of `len` bytes for the caller to fill: what stands in
    /// it is old. It joins the last run where endpoint, TOS and length allow.
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

    /// Becomes these runs of received datagrams, which are not copied: the batches exchange their
    /// buffers. What was received is empty then.
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

    /// Makes room for what is used; the first `kept` bytes stay.
    #[cold]
    fn grow(&mut self, kept: usize) {
        // Fresh zeros come from the system untouched, and so take no memory yet.
        let room = self.used.max(2 * self.buf.len());
        let mut grown = vec![0; room.next_multiple_of(MAX_PACKET + 1)];
        grown[..kept].copy_from_slice(&self.buf[..kept]);
        self.buf = grown;
    }

    /// All datagrams, one behind the other in the order of their `push`.
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

    /// `count` datagrams of a run from `first` on, one behind the other.
    pub fn stretch(&self, transmit: &Transmit, first: usize, count: usize) -> &[u8] {
        let run = &self.buf[transmit.span.range()];
        let end = run.len().min((first + count) * transmit.segment);
        &run[first * transmit.segment..end]
    }

    /// The datagrams of a run.
    pub fn datagrams(&self, transmit: &Transmit) -> impl ExactSizeIterator<Item = &[u8]> {
        self.buf[transmit.span.range()].chunks(transmit.segment)
    }

    /// Notes that a transmit was not sent as asked.
    pub fn fail(&mut self, failure: Failure) {
        self.failures.push(failure);
    }

    /// What the last send noted.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.transmits.is_empty()
    }
}

impl Transmit {
    /// Whether a datagram of `len` may join: none longer than the first, and
    /// none at all behind a shorter one.
    fn accepts(&self, len: usize) -> bool {
        len <= self.segment && self.span.len.is_multiple_of(self.segment)
    }
}

/// What came with one received buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvMeta {
    /// Bytes received.
    pub len: usize,
    /// Length of each datagram but the last, in bytes; `len` where only one
    /// came.
    pub stride: usize,
    /// The sender, and our address it was sent to.
    pub endpoint: Endpoint,
    /// The ECN bits of the outer header.
    pub ecn: Ecn,
}

/// Datagrams from the UDP side: slots of [`MAX_PACKET`] + 1 bytes, each with
/// one datagram or with several of equal length that the kernel coalesced.
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

    /// A batch of `slots` slots. Memory is used only as far as datagrams fill
    /// it.
    pub fn new(slots: usize) -> Self {
        Self {
            buf: vec![0; slots * Self::SLOT].into_boxed_slice(),
            metas: Vec::with_capacity(slots),
            lost: 0,
            shed: 0,
            waited: Duration::ZERO,
        }
    }

    /// Forgets all datagrams.
    pub fn clear(&mut self) {
        self.metas.clear();
        self.lost = 0;
        self.shed = 0;
        self.waited = Duration::ZERO;
    }

    /// The slots, to be filled from the first on, each followed by its
    /// [`RecvBatch::commit`].
    pub fn slots_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8]> {
        self.buf.chunks_exact_mut(Self::SLOT)
    }

    /// Makes the next slot valid.
    pub fn commit(&mut self, meta: RecvMeta) {
        assert!(meta.len <= Self::SLOT, "a slot holds at most SLOT bytes");
        self.metas.push(meta);
    }

    /// Notes that so many datagrams were lost for want of room in the socket.
    pub fn note_lost(&mut self, datagrams: u32) {
        self.lost = self.lost.saturating_add(datagrams);
    }

    /// How many datagrams were lost before these, as far as is known.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Notes that so many datagrams were left out of a flood.
    pub fn note_shed(&mut self, datagrams: u32) {
        self.shed = self.shed.saturating_add(datagrams);
    }

    /// How many datagrams were left out before these, as far as is known.
    pub fn shed(&self) -> u32 {
        self.shed
    }

    /// Notes how long the last of these waited in the socket, behind which more may wait.
    pub fn note_waited(&mut self, waited: Duration) {
        self.waited = waited;
    }

    /// How long the last of these, and so each of them, waited in the socket at least; nothing
    /// where that is not known, or no more waits behind it.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// How many slots are filled.
    pub fn len(&self) -> usize {
        self.metas.len()
    }

    /// Whether no slot is filled.
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// How many slots there are.
    pub fn capacity(&self) -> usize {
        self.buf.len() / Self::SLOT
    }

    /// The place of each slot's contents, and its meta, in order of arrival.
    pub fn filled(&self) -> impl Iterator<Item = (Span, &RecvMeta)> {
        let place = |(slot, meta): (usize, _)| (slot * Self::SLOT, meta);
        let all = self.metas.iter().enumerate().map(place);
        all.map(|(start, meta): (usize, &RecvMeta)| (Span { start, len: meta.len }, meta))
    }

    /// Every datagram's place and the meta of the slot it came in, in order of
    /// arrival. An empty datagram is one of length 0.
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

    /// The whole buffer: spans of datagrams stand in it in ascending order.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }

    /// The bytes of a span, to change in place.
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
    fn runs_break_where_length_grows_or_endpoint_or_tos_changes() {
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
    fn what_is_forwarded_is_what_was_received_and_the_next_has_room_again() {
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
            let first = |run: &Transmit| sent.stretch(run, 0, 1)[0];
            let all: Vec<_> = sent.transmits().iter().map(first).collect();
            assert_eq!(all, [round * 10 + 1, round * 10]);
            assert_eq!((received.len(), received.capacity()), (0, 2));
        }
    }

    #[test]
    fn a_coalesced_slot_splits_into_its_datagrams_and_an_empty_one_stays() {
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
    fn a_batch_is_full_when_a_largest_packet_no_longer_fits() {
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
