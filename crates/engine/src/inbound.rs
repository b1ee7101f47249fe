//! From the network to the IP side.
//!
//! ```text
//!   recv batch -> kind -> find session -> (in a crowd: each peer's share)
//!     -> open batch in place -> replay filter
//!     -> note what was received -> inner header, source -> send batch
//!          `-> handshake messages to the slow path
//! ```

mod share;

use std::{io, sync::Arc};

use arrayvec::ArrayVec;
use packet::{
    Ecn, Endpoint, IpSend, RecvBatch, Span, UdpRecv,
    ip::{IpHeader, set_ecn},
};
use share::{Crowd, cost, share};
use wg::{
    Device, DropReason, Peer, Routes, Session, Time,
    message::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader, Kind},
};

use crate::{AEAD_BATCH, Clock, Inbox, take_turns};

/// Slots a batch: what one `recvmmsg` takes.
const SLOTS: usize = 64;

/// Messages of a batch behind which there are probably more: a super-packet's.
const BUSY: usize = 45;

/// A transport message on its way through the batch.
struct Job {
    /// Index into the batch's sessions.
    session: usize,
    counter: u64,
    /// The whole datagram.
    span: Span,
    endpoint: Endpoint,
    ecn: Ecn,
    authentic: bool,
}

/// The inbound half, with its batches.
pub struct Inbound<U, I> {
    device: Arc<Device>,
    clock: Clock,
    inbox: Arc<Inbox>,
    udp: U,
    ip: I,
    batch: RecvBatch,
    sessions: Vec<(u32, Session)>,
    jobs: Vec<Job>,
    packets: Vec<Span>,
    crowd: Crowd,
}

impl<U: UdpRecv, I: IpSend> Inbound<U, I> {
    /// An inbound half from `udp` to `ip`; handshake messages go to `inbox`.
    pub fn new(device: Arc<Device>, clock: Clock, (udp, ip): (U, I), inbox: Arc<Inbox>) -> Self {
        Self {
            device,
            clock,
            inbox,
            udp,
            ip,
            batch: RecvBatch::new(SLOTS),
            sessions: Vec::new(),
            jobs: Vec::with_capacity(SLOTS),
            packets: Vec::with_capacity(SLOTS),
            crowd: Crowd::default(),
        }
    }

    /// Waits for a batch and works on it.
    ///
    /// # Errors
    /// One of the sides is gone.
    pub fn step(&mut self) -> io::Result<()> {
        let dense = self.crowd.is_dense((self.clock)().time);
        self.udp.recv(&mut self.batch, dense)?;
        let now = (self.clock)().time;
        self.sort(now);
        self.crowd.note(self.batch.lost() > 0, self.has_several_peers(), now);
        if dense {
            self.shed();
        }
        self.open();
        self.accept(now);
        self.note(now);
        self.unwrap_packets();
        let refused = self.ip.send(&self.batch, &self.packets)?;
        self.device.drops.count(DropReason::InRefused, refused as u64);
        // An idle half keeps no keys alive.
        self.sessions.clear();
        if self.jobs.len() >= BUSY {
            take_turns();
        }
        Ok(())
    }

    /// Finds the session of each transport message; hands on what is none.
    fn sort(&mut self, now: Time) {
        self.jobs.clear();
        for (span, meta) in self.batch.datagrams() {
            let datagram = self.batch.get(span);
            let kind = Kind::of(datagram);
            let header = match (kind, DataHeader::parse(datagram)) {
                (Some(Kind::Data), Some(header)) => header,
                (Some(Kind::Data), None) | (None, _) => {
                    self.device.drops.count(DropReason::InMalformed, 1);
                    continue;
                }
                (Some(_), _) => {
                    if !self.inbox.push(datagram, meta.endpoint) {
                        self.device.drops.count(DropReason::HandshakeQueueFull, 1);
                    }
                    continue;
                }
            };
            match find(&mut self.sessions, &self.device, header, now) {
                Ok(session) => self.jobs.push(Job {
                    session,
                    counter: header.counter,
                    span,
                    endpoint: meta.endpoint,
                    ecn: meta.ecn,
                    authentic: false,
                }),
                Err(reason) => self.device.drops.count(reason, 1),
            }
        }
    }

    fn has_several_peers(&self) -> bool {
        let mut peers = self.sessions.iter().map(|(_, session)| &session.peer);
        let first = peers.next();
        first.is_some_and(|first| peers.any(|other| !Arc::ptr_eq(other, first)))
    }

    /// Leaves each session its share. The first of what came stay, so that no flow
    /// has a gap longer than it must.
    fn shed(&mut self) {
        let mut wants = vec![0; self.sessions.len()];
        for job in &self.jobs {
            wants[job.session] += cost(job.span.len);
        }
        let share = share(&mut wants.clone());
        wants.fill(0);
        let before = self.jobs.len();
        self.jobs.retain(|job| {
            wants[job.session] += cost(job.span.len);
            wants[job.session] <= share
        });
        self.device.drops.count(DropReason::InCrowded, (before - self.jobs.len()) as u64);
    }

    fn open(&mut self) {
        let mut rest = self.batch.bytes_mut();
        let mut at = 0;
        for jobs in self.jobs.chunks_mut(AEAD_BATCH) {
            let mut opens: ArrayVec<aead::Open<'_>, AEAD_BATCH> = ArrayVec::new();
            for job in &*jobs {
                let (_, from_here) = rest.split_at_mut(job.span.start - at);
                let (datagram, behind) = from_here.split_at_mut(job.span.len);
                rest = behind;
                at = job.span.start + job.span.len;
                opens.push(aead::Open {
                    key: &self.sessions[job.session].1.keypair.recv.key,
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

    /// Leaves only what is authentic and new.
    fn accept(&mut self, now: Time) {
        let (device, sessions) = (&self.device, &self.sessions);
        self.jobs.retain(|job| {
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

    /// Notes what was received, once for each run of one session and endpoint.
    fn note(&mut self, now: Time) {
        let same = |a: &Job, b: &Job| a.session == b.session && a.endpoint == b.endpoint;
        for run in self.jobs.chunk_by(same) {
            let bytes = run.iter().map(|job| job.span.len).sum();
            let data = run.iter().any(|job| job.span.len > DATA_OVERHEAD);
            let (_, session) = &self.sessions[run[0].session];
            self.device.received(session, (bytes, data), run[0].endpoint, now);
        }
    }

    /// Finds the inner packets that may leave the tunnel.
    fn unwrap_packets(&mut self) {
        self.packets.clear();
        let routes = self.device.routes();
        for job in &self.jobs {
            let inner =
                Span { start: job.span.start + DATA_HEADER_LEN, len: job.span.len - DATA_OVERHEAD };
            if inner.len == 0 {
                continue;
            }
            let peer = &self.sessions[job.session].1.peer;
            let packet = self.batch.get_mut(inner);
            match unwrap_packet(&routes, peer, packet, job.ecn) {
                Ok(len) => self.packets.push(Span { len, ..inner }),
                Err(reason) => self.device.drops.count(reason, 1),
            }
        }
    }
}

/// The session of a message, looked up once a batch for each index.
fn find(
    sessions: &mut Vec<(u32, Session)>,
    device: &Device,
    header: DataHeader,
    now: Time,
) -> Result<usize, DropReason> {
    // The last one is nearly always the one.
    if let Some(at) = sessions.iter().rposition(|(index, _)| *index == header.receiver) {
        return Ok(at);
    }
    let session = device.session(header, now)?;
    sessions.push((header.receiver, session));
    Ok(sessions.len() - 1)
}

/// Checks an inner packet and puts the outer ECN mark on it. Returns its length
/// without padding.
fn unwrap_packet(
    routes: &Routes<'_>,
    peer: &Arc<Peer>,
    packet: &mut [u8],
    outer: Ecn,
) -> Result<usize, DropReason> {
    let header = IpHeader::parse(packet).map_err(|_| DropReason::InInvalid)?;
    let owner = routes.lookup(header.source);
    if !owner.is_some_and(|owner| Arc::ptr_eq(owner, peer)) {
        return Err(DropReason::InSpoofed);
    }
    let ecn = header.ecn.decapsulate(outer).ok_or(DropReason::InCongestion)?;
    if ecn != header.ecn {
        set_ecn(packet, ecn);
    }
    Ok(header.total_len)
}
