//! Delivers the packets of an opened batch.

use std::{io, sync::Arc};

use packet::{
    Ecn, Endpoint, IpPacket, IpSend, RecvBatch, Span,
    filter::Verdict,
    ip::{mark_congestion, set_ecn},
    pcapng::Direction,
    wire::IpHeader,
};
use wg::{
    Device, DropReason, ExchangeMessage, PROBE_FIRST_BYTE, Peer, Probe, ReceivedMessages, Routes,
    Session, Time,
    message::{DATA_HEADER_LEN, DATA_OVERHEAD},
};

use crate::{
    IcmpErrors, Shared,
    filter::InboundFilter,
    messages::MessageSender,
    observer::{View, Watch},
    stage::Work,
};

/// A transport message of the batch.
pub(super) struct Job {
    /// Index of its session in the batch.
    pub session: usize,
    pub counter: u64,
    /// The whole datagram.
    pub span: Span,
    pub endpoint: Endpoint,
    pub ecn: Ecn,
    pub authentic: bool,
}

/// A batch with its transport messages and sessions.
pub(super) struct InboundBatch {
    pub batch: RecvBatch,
    pub sessions: Vec<(u32, Session)>,
    pub jobs: Vec<Job>,
}

impl InboundBatch {
    /// Creates a batch of `slots` slots.
    pub(super) fn new(slots: usize) -> Self {
        Self { batch: RecvBatch::new(slots), sessions: Vec::new(), jobs: Vec::new() }
    }
}

/// The delivery stage, with its present batch.
pub(super) struct Delivery<I> {
    device: Arc<Device>,
    ip: I,
    returned: Arc<IcmpErrors>,
    watch: Option<Watch>,
    filter: InboundFilter,
    messages: Option<MessageSender>,
    pub received: InboundBatch,
    /// Time at which the batch was received.
    pub now: Time,
    /// Whether to signal congestion, because the socket's queue is standing.
    pub congested: bool,
    packets: Vec<IpPacket>,
    /// Error if the IP side is gone.
    pub result: io::Result<()>,
}

impl<I: IpSend> Work for Delivery<I> {
    fn run(&mut self) {
        self.accept();
        self.note();
        self.unwrap_packets();
        self.filter();
        if self.congested {
            self.signal_congestion();
        }
        self.look().inspect(|view| self.show(view));
        self.result = self.ip.send(&self.received.batch, &self.packets).map(|refused| {
            self.device.drops.count(DropReason::InRefused, refused as u64);
        });
        if self.result.is_ok()
            && let Some((batch, packets)) = self.returned.take()
        {
            if let Some(view) = self.look() {
                let packets = packets.iter().map(|packet| batch.get(packet.span));
                view.show(Direction::Inbound, None, packets);
            }
            // Refused answers are not counted. The sender repeats its packet and gets another
            // answer.
            self.result = self.ip.send(&batch, &packets).map(drop);
        }
        // Session keys must not outlive their session while this half is idle.
        self.received.sessions.clear();
    }
}

impl<I: IpSend> Delivery<I> {
    /// Creates a stage that delivers to `ip`, for batches of `slots` slots.
    pub(super) fn new(shared: &Shared, ip: I, slots: usize) -> Self {
        Self {
            device: shared.device.clone(),
            ip,
            returned: shared.returned.clone(),
            watch: shared.watch(),
            filter: InboundFilter::new(shared.attached.filter.clone()),
            messages: shared.attached.messages.clone(),
            received: InboundBatch::new(slots),
            now: Time::from_nanos(0),
            congested: false,
            packets: Vec::new(),
            result: Ok(()),
        }
    }

    /// Drops messages that are forged, expired or replayed.
    fn accept(&mut self) {
        let (device, now) = (&self.device, self.now);
        let InboundBatch { sessions, jobs, .. } = &mut self.received;
        jobs.retain(|job| {
            let session = &sessions[job.session].1;
            let reason = if !job.authentic {
                DropReason::InForged
            } else if session.receivable(job.counter, now).is_err() {
                DropReason::InExpired
            } else if !session.keypair.recv.accept(job.counter) {
                DropReason::InReplayed
            } else {
                return true;
            };
            device.drops.count(reason, 1);
            false
        });
    }

    /// Records the receipt, once for each run with one session and endpoint.
    fn note(&self) {
        let same = |a: &Job, b: &Job| a.session == b.session && a.endpoint == b.endpoint;
        let InboundBatch { batch, sessions, jobs } = &self.received;
        for run in jobs.chunk_by(same) {
            let bytes = run.iter().map(|job| job.span.len).sum();
            let has_data = run.iter().any(|job| {
                job.span.len > DATA_OVERHEAD
                    && batch.get(job.span)[DATA_HEADER_LEN] != PROBE_FIRST_BYTE
            });
            let (_, session) = &sessions[run[0].session];
            let received = ReceivedMessages { bytes, has_data, endpoint: run[0].endpoint };
            self.device.handle_received(session, received, self.now);
        }
    }

    /// Collects the inner packets that are valid.
    fn unwrap_packets(&mut self) {
        self.packets.clear();
        let routes = self.device.routes();
        let InboundBatch { batch, sessions, jobs } = &mut self.received;
        let all_carry = sessions.iter().all(|(_, session)| session.keypair.carries_data);
        for job in &*jobs {
            let inner =
                Span { start: job.span.start + DATA_HEADER_LEN, len: job.span.len - DATA_OVERHEAD };
            if inner.len == 0 {
                continue;
            }
            let Session { peer, keypair } = &sessions[job.session].1;
            let packet = batch.get_mut(inner);
            if packet[0] == PROBE_FIRST_BYTE
                && handle_in_band_message(&self.device, peer, packet, self.now)
            {
                continue;
            }
            if !all_carry && !keypair.carries_data {
                self.device.drops.count(DropReason::InNotPostQuantum, 1);
                continue;
            }
            match unwrap_packet(&routes, peer, packet, job.ecn) {
                Ok(header) => {
                    let span = Span { len: header.total_len, ..inner };
                    self.packets.push(IpPacket { span, header });
                }
                Err(reason) => self.device.drops.count(reason, 1),
            }
        }
    }

    /// Drops the packets that the filter refuses. Packets of open protocols go to their receiver,
    /// if set, instead of the IP side.
    fn filter(&mut self) {
        let Self { device, filter, messages, packets, received, .. } = self;
        if let Some(mut filter) = filter.look() {
            let before = packets.len();
            let batch = &received.batch;
            let mut forwarded = 0;
            packets.retain(|one| {
                let packet = batch.get(one.span);
                match (filter.verdict(&one.header, packet), &*messages) {
                    (Verdict::Accepted, _) | (Verdict::Open, None) => true,
                    (Verdict::Refused, _) => false,
                    (Verdict::Open, Some(messages)) => {
                        forwarded += 1;
                        messages.forward(packet, &device.drops);
                        false
                    }
                }
            });
            let dropped = before - packets.len() - forwarded;
            if dropped != 0 {
                device.drops.count(DropReason::InFiltered, dropped as u64);
            }
        }
    }

    /// Signals congestion to one sender, which should be a bulk transfer. It is recognized by two
    /// packets of one flow with the maximal length in this batch. Such flows fill the queue. Flows
    /// with occasional or short packets should not lose any.
    #[cold]
    fn signal_congestion(&mut self) {
        let batch = &mut self.received.batch;
        let longest = self.packets.iter().map(|packet| packet.span.len).max();
        let mut flows = Vec::new();
        let bulk = self.packets.iter().position(|packet| {
            if Some(packet.span.len) < longest {
                return false;
            }
            let flow = packet.header.flow_hash(batch.get(packet.span));
            let again = flows.contains(&flow);
            flows.push(flow);
            again
        });
        let Some(at) = bulk else { return };
        let IpPacket { span, header } = &mut self.packets[at];
        if !mark_congestion(header, batch.get_mut(*span)) {
            self.packets.remove(at);
            self.device.drops.count(DropReason::InCongestion, 1);
        }
    }

    fn look(&self) -> Option<View<'_>> {
        self.watch.as_ref().and_then(Watch::look)
    }

    /// Passes the delivered packets to the observer, each run of one peer together.
    #[cold]
    fn show(&self, view: &View<'_>) {
        let InboundBatch { batch, sessions, jobs } = &self.received;
        // Both are in the order of the batch, but some jobs did not yield a packet.
        let mut jobs = jobs.iter();
        let mut peer_of = |packet: &IpPacket| {
            let job = jobs.find(|job| job.span.start + DATA_HEADER_LEN == packet.span.start);
            job.map(|job| &sessions[job.session].1.peer)
        };
        let mut rest = &self.packets[..];
        let mut next = rest.first().and_then(&mut peer_of);
        while let Some(peer) = next {
            let mut end = 1;
            next = rest.get(end).and_then(&mut peer_of);
            while next.is_some_and(|other| Arc::ptr_eq(other, peer)) {
                end += 1;
                next = rest.get(end).and_then(&mut peer_of);
            }
            let (run, behind) = rest.split_at(end);
            let packets = run.iter().map(|packet| batch.get(packet.span));
            view.show(Direction::Inbound, Some(peer.public_key()), packets);
            rest = behind;
        }
    }
}

/// Handles a message from another linerate that is not an IP packet. Returns whether it was one.
#[cold]
fn handle_in_band_message(device: &Device, peer: &Arc<Peer>, packet: &[u8], now: Time) -> bool {
    if let Some(probe) = Probe::parse(packet) {
        device.handle_probe_received(peer, probe, now);
        return true;
    }
    let message = ExchangeMessage::parse(packet);
    let is_one = message.is_some();
    message.into_iter().for_each(|message| device.handle_exchange_message(peer, message));
    is_one
}

/// Checks an inner packet and copies the outer ECN mark to it. Returns its headers, with its length
/// without padding.
fn unwrap_packet(
    routes: &Routes<'_>,
    peer: &Arc<Peer>,
    packet: &mut [u8],
    outer: Ecn,
) -> Result<IpHeader, DropReason> {
    let mut header = IpHeader::parse(packet).map_err(|_| DropReason::InInvalid)?;
    let owner = routes.lookup(header.source(packet));
    if !owner.is_some_and(|owner| Arc::ptr_eq(owner, peer)) {
        return Err(DropReason::InSpoofed);
    }
    let ecn = header.ecn.decapsulate(outer).ok_or(DropReason::InCongestion)?;
    if ecn != header.ecn {
        set_ecn(packet, ecn);
        header.ecn = ecn;
    }
    Ok(header)
}
