//! Processes packets from the IP side to the network.
//!
//! ```text
//!   recv until empty -> queue -> a round of packets -> route -> runs to one peer
//!     -> reserve counters -> write header + packet at its final place
//!     -> seal batch -> send
//! ```
//!
//! The IP side is emptied again between two rounds, so that urgent packets are seen. A run without
//! a session is staged. Notices of the control half (a session was established, a keepalive is due)
//! are handled before the next round, so that staged packets leave before newer ones.

mod datagram_writer;
mod fit;
mod own_packets;
mod sealer;

use std::{
    collections::VecDeque,
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use arrayvec::ArrayVec;
use datagram_writer::{Item, Unsealed};
use fit::Fit;
use packet::{Ecn, IpRecv, Segments, UdpSend, ip::udp_payload, pcapng::Direction, wire::IpHeader};
use sealer::Sealer;
pub(crate) use sealer::count_failure;
use wg::{Device, DropReason, KeyUser, OutboundNotice, Peer, Routes, StagedPackets, Time};

use crate::{
    Clock, Filter, IcmpErrors, Load, OwnPackets, Shared,
    observer::{View, Watch},
    outbound_queue::{Queue, QueuedPacket, ROUND_PACKETS, Round},
    stage::Stage,
};

/// The outbound half, with its queue.
pub struct Outbound<I, U> {
    device: Arc<Device>,
    clock: Clock,
    ip: I,
    mtu: Arc<AtomicU32>,
    returned: Arc<IcmpErrors>,
    staged: StagedPackets,
    queue: Queue,
    round: Round,
    unsealed: Unsealed,
    load: Arc<Load>,
    watch: Option<Watch>,
    filter: Arc<Filter>,
    own_packets: OwnPackets,
    sealer: Stage<Sealer<U>>,
}

impl<I: IpRecv, U: UdpSend> Outbound<I, U> {
    /// Creates an outbound half from `ip` to `udp`. Packets are padded up to `mtu`, the IP side's
    /// MTU. The inbound half writes the ICMP errors of this half.
    pub fn new(shared: &Shared, ip: I, udp: U, mtu: Arc<AtomicU32>) -> Self {
        Self {
            device: shared.device.clone(),
            clock: shared.clock.clone(),
            ip,
            mtu,
            returned: shared.returned.clone(),
            staged: StagedPackets::default(),
            queue: Queue::new(),
            round: Round::new(),
            unsealed: Unsealed::default(),
            load: shared.load.clone(),
            watch: shared.watch(),
            filter: shared.attached.filter.clone(),
            own_packets: shared.attached.own_packets.clone(),
            sealer: Stage::new(Sealer::new(shared, udp)),
        }
    }

    /// Starts a second thread that seals and sends while this one reads and writes the next round.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_second_thread(&mut self, begin: fn()) -> io::Result<()> {
        self.sealer.start_second_thread("outbound exit", begin)
    }

    /// Reads the available packets and processes one round. If `wait` is set and no packet is
    /// queued, it waits for a packet or a notice. Returns whether more packets are queued.
    ///
    /// # Errors
    /// The IP side is gone.
    pub fn step(&mut self, wait: bool) -> io::Result<bool> {
        self.fill(wait)?;
        let wipes = self.device.stack_wipes.wipe_if_requested(KeyUser::Outbound);
        let now = (self.clock)().time;
        self.handle_notices(now);
        self.send_own(now);
        if let Some(since) = self.queue.oldest() {
            self.load.queued.count_time(now.since(since));
        }
        self.queue.next_round(&mut self.round, now);
        self.handle_round(now);
        if !self.unsealed.lens.is_empty() {
            self.load.outbound.count(self.unsealed.lens.len() as u64);
        }
        self.queue.release(&mut self.round);
        let more = !self.queue.is_empty();
        let sealer = self.sealer.get()?;
        mem::swap(&mut sealer.unsealed, &mut self.unsealed);
        sealer.now = now;
        sealer.wipes = wipes;
        // The thread that seals has keys on its stack, so it must run for a wipe.
        self.sealer.run(more || wipes);
        if let Some(sealer) = self.sealer.on_this_thread() {
            // The round was sent by this thread, so its buffer is free again and in the cache.
            mem::swap(&mut sealer.unsealed, &mut self.unsealed);
        }
        Ok(more)
    }

    fn fill(&mut self, mut wait: bool) -> io::Result<()> {
        wait &= self.queue.is_empty();
        while let Some(batch) = self.queue.spare() {
            self.ip.recv(batch, wait)?;
            let full = self.queue.enqueue_new((self.clock)().time);
            if !full {
                break;
            }
            wait = false;
        }
        Ok(())
    }

    fn handle_round(&mut self, now: Time) {
        let Self { device, unsealed, staged, queue, round, returned, .. } = self;
        let mtu = self.mtu.load(Ordering::Relaxed) as usize;
        let mut items: ArrayVec<Item<'_>, ROUND_PACKETS> = ArrayVec::new();
        let mut runs: ArrayVec<PeerRun, ROUND_PACKETS> = ArrayVec::new();
        let routes = device.routes();
        for queued in &*round {
            let Some((peer, item)) = route(device, &routes, queue, *queued, now) else { continue };
            items.push(item);
            match runs.last_mut() {
                Some(run) if Arc::ptr_eq(&run.peer, peer) => run.end = items.len(),
                _ => runs.push(PeerRun { peer: peer.clone(), end: items.len() }),
            }
        }
        drop(routes);
        self.watch.as_ref().and_then(Watch::look).inspect(|view| show(view, &items, &runs));
        self.filter.note(items.iter().map(|item| item.segments.packet()));
        let mut first = 0;
        for PeerRun { peer, end } in &runs {
            let run = &mut items[first..*end];
            first = *end;
            let narrow = peer.path_limit().filter(|limit| usize::from(limit.bytes) < mtu);
            if let Some(limit) = narrow {
                Fit { device, returned, now }.run(peer, run, limit);
            }
            let mtu = narrow.map_or(mtu, |limit| limit.bytes.into());
            // Packets must not overtake staged ones.
            let waits = staged.has(peer);
            if waits {
                device.handle_staged(peer, now);
            }
            if waits || !unsealed.push(device, peer, run, mtu, now) {
                run.iter().for_each(|item| item.stage(device, staged, peer));
            }
        }
    }

    fn handle_notices(&mut self, now: Time) {
        let device = self.device.clone();
        let mtu = self.mtu.load(Ordering::Relaxed) as usize;
        for (peer, notices) in device.outbound_mailbox.take() {
            let mut staged = self.staged.take(&peer);
            if notices.has(OutboundNotice::Purge) {
                device.drops.count(DropReason::OutHandshakeFailed, staged.len() as u64);
                staged.clear();
            }
            if notices.has(OutboundNotice::Refuse) {
                device.drops.count(DropReason::OutNotPostQuantum, staged.len() as u64);
                staged.clear();
            }
            let sends_nothing = staged.is_empty() || device.is_data_withheld(&peer, now);
            if sends_nothing && notices.has(OutboundNotice::Keepalive) {
                // Without a session, the call requests one. The keepalive is not staged, because
                // the initiator sends one anyway.
                self.unsealed.push_keepalive(&device, &peer, now);
            }
            if notices.has(OutboundNotice::Probe) {
                for probe in device.take_probes(&peer) {
                    self.unsealed.push_probe(&device, &peer, probe, now);
                }
            }
            if notices.has(OutboundNotice::Exchange) {
                for message in device.take_exchange(&peer) {
                    self.unsealed.push_exchange(&device, &peer, &message, now);
                }
            }
            self.flush(&peer, &staged, mtu, now);
        }
    }

    fn flush(&mut self, peer: &Arc<Peer>, staged: &VecDeque<Box<[u8]>>, mtu: usize, now: Time) {
        let ecn = |packet: &[u8]| IpHeader::parse(packet).map_or(Ecn::NotEct, |header| header.ecn);
        let run: Vec<_> = staged.iter().map(|packet| Item::plain(packet, ecn(packet))).collect();
        // They were made to fit before they were staged.
        let mtu = peer.path_limit().map_or(mtu, |limit| mtu.min(limit.bytes.into()));
        if !self.unsealed.push(&self.device, peer, &run, mtu, now) {
            for packet in staged {
                self.staged.push(peer, packet);
            }
        }
    }
}

/// Passes packets to the observer, super-packets as one.
#[cold]
fn show(view: &View<'_>, items: &[Item<'_>], runs: &[PeerRun]) {
    let mut first = 0;
    for PeerRun { peer, end } in runs {
        let packets = items[first..*end].iter().map(|item| item.segments.packet());
        view.show(Direction::Outbound, Some(peer.public_key()), packets);
        first = *end;
    }
}

/// Consecutive packets to one peer.
struct PeerRun {
    peer: Arc<Peer>,
    /// Index of the next run's first packet.
    end: usize,
}

/// The peer that a packet goes to, and the packet with its division into segments.
fn route<'a, 'r>(
    device: &Device,
    routes: &'r Routes<'_>,
    queue: &'a Queue,
    queued: QueuedPacket,
    now: Time,
) -> Option<(&'r Arc<Peer>, Item<'a>)> {
    let (packet, offload) = queue.packet(queued);
    let (Some(header), Ok(segments)) = (queued.header, Segments::new(packet, offload)) else {
        device.drops.count(DropReason::OutInvalid, 1);
        return None;
    };
    let destination = header.destination(packet);
    let Some(peer) = routes.lookup(destination) else {
        device.drops.count(DropReason::OutNoPeer, 1);
        device.report_unknown_address(destination, now);
        return None;
    };
    if let Some((port, payload)) = udp_payload(&header, packet)
        && device.is_own(peer, (destination, port).into(), payload)
    {
        device.drops.count(DropReason::OutLoop, segments.count() as u64);
        return None;
    }
    if queued.drops_first {
        device.drops.count(DropReason::OutCongestion, 1);
    }
    Some((peer, Item { segments, first: queued.drops_first.into(), ecn: header.ecn }))
}
