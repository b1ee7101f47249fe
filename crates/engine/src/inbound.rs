//! Processes packets from the network to the IP side.
//!
//! ```text
//!   recv batch (socket, relays) -> type -> find session -> (under contention: each peer's share)
//!     -> open batch in place -> replay filter
//!     -> record receipt -> inner header, source -> filter
//!     -> (if the socket's queue stands: signal congestion) -> send batch
//!          |-> handshake messages to the slow path
//!          `-> datagrams of control protocols to the control channel
//! ```

mod delivery;
mod fair_share;
mod flood;

use std::{io, mem, sync::Arc, time::Duration};

use arrayvec::ArrayVec;
use crypto::aead;
use delivery::{Delivery, InboundBatch, Job};
use fair_share::{Contention, cost, share};
use flood::FloodShedder;
use packet::{IpSend, Span, UdpRecv};
use wg::{
    Device, DropReason, KeyUser, Session, Time,
    message::{DATA_HEADER_LEN, DataHeader, Kind},
};

use crate::{
    AEAD_BATCH, Clock, ControlSender, Inbox, Load, PREFIX_LEN, RelayQueues, Shared,
    batch_limit::vector, codel::Codel, prefix_table::Origins, stage::Stage,
};

/// Slots of a batch: as many as one `recvmmsg` fills.
const SLOTS: usize = 64;

/// Acceptable wait in the socket's queue. All flows share that queue, so a single packet waits
/// behind the window of a bulk transfer. With CUBIC and Linux's usual 4 MB that is 3 to 5 ms at our
/// rates, which the usual target of 5 ms would not detect.
const TARGET: Duration = Duration::from_micros(1500);

/// The most peer relays from which all datagrams are received during a flood.
const MAX_PEER_RELAYS: usize = 32;

/// With this number of messages in a batch, more are probably waiting: a super-packet has as many.
const BUSY: usize = 45;

/// The inbound half, with its batches.
pub struct Inbound<U, I> {
    device: Arc<Device>,
    clock: Clock,
    inbox: Arc<Inbox>,
    control: Option<ControlSender>,
    udp: U,
    relay: Option<RelayQueues>,
    origins: Origins,
    shedder: FloodShedder,
    /// Whether the next batch is only for datagrams from relays.
    relay_next: bool,
    received: InboundBatch,
    contention: Contention,
    codel: Codel,
    load: Arc<Load>,
    delivery: Stage<Delivery<I>>,
}

impl<U: UdpRecv, I: IpSend> Inbound<U, I> {
    /// Creates an inbound half from `udp` to `ip`. `ip` also gets the ICMP errors of the outbound
    /// half, and handshake messages go to `inbox`.
    pub fn new(shared: &Shared, udp: U, ip: I, inbox: Arc<Inbox>) -> Self {
        let slots = vector(SLOTS);
        Self {
            device: shared.device.clone(),
            clock: shared.clock.clone(),
            inbox,
            control: shared.attached.control_datagrams.clone(),
            udp,
            relay: shared.attached.relay.clone(),
            origins: Origins::new(&shared.attached.prefixes),
            shedder: FloodShedder::default(),
            relay_next: false,
            received: InboundBatch::new(slots),
            contention: Contention::default(),
            codel: Codel::new(TARGET),
            load: shared.load.clone(),
            delivery: Stage::new(Delivery::new(shared, ip, slots)),
        }
    }

    /// Starts a second thread that delivers while this one receives and opens the next batch.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_second_thread(&mut self, begin: fn()) -> io::Result<()> {
        self.delivery.start_second_thread("inbound delivery", begin)
    }

    /// Processes a batch. If `wait` is set, it waits for the first datagram. Returns whether more
    /// probably waits.
    ///
    /// # Errors
    /// One of the sides is gone.
    pub fn step(&mut self, wait: bool) -> io::Result<bool> {
        let contended = self.contention.is_contended((self.clock)().time);
        self.receive(contended, wait)?;
        self.device.stack_wipes.wipe_if_requested(KeyUser::Inbound);
        let now = (self.clock)().time;
        let handshakes = self.sort(now);
        self.update_shedding(now);
        let several = self.has_several_peers();
        self.contention.note(self.received.batch.lost() > 0, several || handshakes, now);
        // The contention may have ended during the wait.
        if contended && several && self.contention.is_contended(now) {
            self.drop_excess();
        }
        self.open();
        if !self.received.jobs.is_empty() {
            self.load.inbound.count(self.received.jobs.len() as u64);
        }
        let more = self.received.jobs.len() >= BUSY;
        let congested = self.codel.signals(self.received.batch.waited(), true, now);
        let delivery = self.delivery.get()?;
        mem::replace(&mut delivery.result, Ok(()))?;
        mem::swap(&mut delivery.received, &mut self.received);
        delivery.now = now;
        delivery.congested = congested;
        self.delivery.run(more);
        if let Some(delivery) = self.delivery.on_this_thread() {
            // The batch was delivered by this thread, so its buffer is free again and in the cache.
            mem::swap(&mut delivery.received, &mut self.received);
            mem::replace(&mut delivery.result, Ok(()))?;
        }
        Ok(more || self.relay_next)
    }

    /// The longest wait for both sides.
    pub fn max_wait(&self) -> Option<Duration> {
        self.udp.max_wait()
    }

    fn receive(&mut self, drain: bool, wait: bool) -> io::Result<()> {
        let Self { udp, relay, relay_next, received: InboundBatch { batch, .. }, .. } = self;
        let Some(relay) = relay else { return udp.recv(batch, drain, wait) };
        // A socket that fills every batch would leave no slot for relays.
        let relay_alone = mem::take(relay_next);
        if relay_alone {
            batch.clear();
        } else {
            udp.recv(batch, drain, wait)?;
        }
        let dropped = relay.fill(batch);
        if dropped > 0 {
            self.device.drops.count(DropReason::InRelayFull, dropped);
        }
        *relay_next = relay.waits() && !relay_alone;
        Ok(())
    }

    /// Finds the session of each transport message, and passes on all others. Returns whether
    /// handshake messages were among them.
    fn sort(&mut self, now: Time) -> bool {
        let mut handshakes = false;
        let InboundBatch { batch, sessions, jobs } = &mut self.received;
        jobs.clear();
        self.origins.clear_cached();
        for (mut span, meta) in batch.datagrams() {
            let (mut datagram, mut endpoint) = (batch.get(span), meta.endpoint);
            let mut kind = Kind::of(datagram);
            if kind.is_none()
                && let Some(origin) = self.origins.find(datagram, &endpoint)
            {
                endpoint = origin;
                span = Span { start: span.start + PREFIX_LEN, len: span.len - PREFIX_LEN };
                datagram = batch.get(span);
                kind = Kind::of(datagram);
            }
            let header = match (kind, DataHeader::parse(datagram)) {
                (Some(Kind::Data), Some(header)) => header,
                (Some(Kind::Data), None) | (None, _) => {
                    let forwarded = match &self.control {
                        Some(control) => control.forward(datagram, endpoint, now),
                        None => Err(DropReason::InMalformed),
                    };
                    if let Err(reason) = forwarded {
                        self.device.drops.count(reason, 1);
                    }
                    continue;
                }
                (Some(_), _) => {
                    handshakes = true;
                    if !self.inbox.push(datagram, endpoint) {
                        self.device.drops.count(DropReason::HandshakeQueueFull, 1);
                    }
                    continue;
                }
            };
            match find(sessions, &self.device, header, now) {
                Ok(session) => jobs.push(Job {
                    session,
                    counter: header.counter,
                    span,
                    endpoint,
                    ecn: meta.ecn,
                    authentic: false,
                }),
                Err(reason) => self.device.drops.count(reason, 1),
            }
        }
        // One wakeup for all is cheaper than one for each.
        if handshakes {
            self.inbox.pushed();
        }
        handshakes
    }

    /// Makes the socket shed a flood, and stops it after the flood.
    fn update_shedding(&mut self, now: Time) {
        let Self { control: Some(control), shedder, udp, received, device, origins, .. } = self
        else {
            return;
        };
        let left_out = u64::from(received.batch.shed());
        if left_out > 0 {
            device.drops.count(DropReason::InControlFull, left_out);
        }
        let expected = control.expected();
        let senders = || {
            let nodes = origins.addresses().into_iter().take(MAX_PEER_RELAYS);
            nodes.chain(expected.latest_first()).collect()
        };
        let unexpected = (control.unexpected(), left_out);
        shedder.handle(unexpected, expected.changes(), now, senders, |flood| udp.shed(flood));
    }

    fn has_several_peers(&self) -> bool {
        let mut peers = self.received.sessions.iter().map(|(_, session)| &session.peer);
        let first = peers.next();
        first.is_some_and(|first| peers.any(|other| !Arc::ptr_eq(other, first)))
    }

    /// Limits each peer to its share, but at least one datagram. The earliest datagrams stay, so
    /// that each flow has at most one gap.
    fn drop_excess(&mut self) {
        let InboundBatch { sessions, jobs, .. } = &mut self.received;
        // Peers are identified by their first session.
        let peer = |session: usize| {
            let of_peer =
                |(_, other): &(u32, Session)| Arc::ptr_eq(&other.peer, &sessions[session].1.peer);
            sessions.iter().position(of_peer).unwrap_or(session)
        };
        let peers: Vec<usize> = (0..sessions.len()).map(peer).collect();
        let mut wants = vec![0; sessions.len()];
        for job in &*jobs {
            wants[peers[job.session]] += cost(job.span.len);
        }
        let share = share(&mut wants.clone());
        wants.fill(0);
        let before = jobs.len();
        jobs.retain(|job| {
            let served = &mut wants[peers[job.session]];
            let fits = *served < share;
            *served += cost(job.span.len);
            fits
        });
        self.device.drops.count(DropReason::InCrowded, (before - jobs.len()) as u64);
    }

    fn open(&mut self) {
        let InboundBatch { batch, sessions, jobs } = &mut self.received;
        let mut rest = batch.bytes_mut();
        let mut at = 0;
        for jobs in jobs.chunks_mut(AEAD_BATCH) {
            let mut opens: ArrayVec<aead::Open<'_>, AEAD_BATCH> = ArrayVec::new();
            for job in &*jobs {
                let (_, from_here) = rest.split_at_mut(job.span.start - at);
                let (datagram, behind) = from_here.split_at_mut(job.span.len);
                rest = behind;
                at = job.span.start + job.span.len;
                opens.push(aead::Open {
                    key: &sessions[job.session].1.keypair.recv.key,
                    counter: job.counter,
                    data: &mut datagram[DATA_HEADER_LEN..],
                    authentic: false,
                });
            }
            aead::open(&mut opens);
            for (job, open) in jobs.iter_mut().zip(&opens) {
                job.authentic = open.authentic;
            }
        }
    }
}

/// Returns the index of a message's session. Each session is looked up once a batch.
fn find(
    sessions: &mut Vec<(u32, Session)>,
    device: &Device,
    header: DataHeader,
    now: Time,
) -> Result<usize, DropReason> {
    // The last session is nearly always the right one.
    if let Some(at) = sessions.iter().rposition(|(index, _)| *index == header.receiver) {
        return Ok(at);
    }
    let session = device.session(header, now)?;
    sessions.push((header.receiver, session));
    Ok(sessions.len() - 1)
}
