//! Authenticated inner packets, through the inbound half into the writer of a TUN device
//! in memory, compared with the oracle.
//!
//! ```text
//!   packets -> sealed -> Datagrams -- engine::Inbound -- sys::TunSend -- Sink -> oracle
//! ```

use std::{
    collections::{HashSet, VecDeque},
    fs::File,
    io::{self, IoSlice},
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use engine::{Attachments, Clock, Inbound, Inbox, Shared};
use nix::errno::Errno;
use packet::{
    Ecn, Endpoint, RecvBatch, RecvMeta, UdpRecv, VNET_HEADER_LEN, Waker, ip::IpHeader, ip::set_ecn,
};
use sys::{
    Offloads, TunSend,
    time::Clock as DataPathClock,
    tun::{Calls, SuperPackets},
};
use wg::{
    DropReason, ExchangeMessage, Now, PROBE_FIRST_BYTE, Probe, Reservation,
    config::{AllowedIpChange, DeviceChange, PeerChange},
    message::{DATA_HEADER_LEN, DATA_OVERHEAD, DataHeader},
};

use super::{
    Pair, address,
    coalesce::Sender,
    oracle::{Vnet, repaired, split},
    same::{check, plain},
    take,
};

/// Limits of datagrams and bytes per delivery, for speed.
const PER_BATCH: usize = 160;
const BYTES: usize = 150_000;
/// The sender's networks, which contain half of the hosts.
const NETS: [&str; 2] = ["10.10.10.0/25", "a0a:a0a:a0a:a0a:a0a:a0a:a0a:a00/121"];

/// Allowed packets reach the device unchanged and in order, with a valid virtio-net header,
/// whatever errors the device returns. All other packets are dropped and counted.
pub fn delivery(data: &[u8]) {
    let mut rest = data;
    let mut tunnel = Tunnel::new();
    let mut sender = Sender::default();
    let mut total = 0;
    while !rest.is_empty() && total < BYTES {
        let [step] = take(&mut rest);
        match step {
            0..=179 => {
                let mut packets = Vec::new();
                sender.step(&mut rest, &mut packets);
                packets.iter().for_each(|packet| tunnel.send(packet));
            }
            180..=199 => {
                let [len] = take(&mut rest);
                let (plaintext, behind) = rest.split_at(usize::from(len).min(rest.len()));
                rest = behind;
                tunnel.send(plaintext);
            }
            200..=209 => [tunnel.padding, tunnel.outer] = take(&mut rest),
            210..=219 => tunnel.forge(take(&mut rest)),
            220..=229 => tunnel.replay(),
            230..=239 => tunnel.counter += u64::from(step - 229),
            _ => {
                let [refusal, at] = take(&mut rest);
                total += tunnel.deliver(refusal, at);
            }
        }
        if tunnel.sent.len() >= PER_BATCH || tunnel.bytes() >= BYTES {
            total += tunnel.deliver(0, 0);
        }
    }
    tunnel.deliver(0, 0);
}

/// Datagrams in flight with their ECN marks.
type Waiting = Arc<Mutex<VecDeque<(Vec<u8>, Ecn)>>>;

/// A sending peer and the receiving half.
struct Tunnel {
    pair: Pair,
    reservation: Reservation,
    counter: u64,
    /// Padding bytes behind an inner packet, and the outer ECN mark.
    padding: u8,
    outer: u8,
    sent: Vec<Sent>,
    datagrams: Waiting,
    sink: Arc<Sink>,
    inbound: Inbound<Datagrams, TunSend<Sink>>,
}

/// A datagram and its expected result.
struct Sent {
    bytes: Vec<u8>,
    ecn: Ecn,
    becomes: Result<Option<Vec<u8>>, DropReason>,
}

impl Tunnel {
    fn new() -> Self {
        let (pair, reservation) = connected();
        let device = pair.controls[1].device().clone();
        let now = pair.now();
        let clock: Clock = Arc::new(move || now);
        let sink = Arc::new(Sink::default());
        let offloads = Arc::<Offloads>::default();
        let datagrams = Waiting::default();
        let udp = Datagrams(datagrams.clone());
        let ip = TunSend::new(sink.clone(), offloads);
        let shared = Shared::new(device, clock, udp.waker(), Attachments::default());
        let inbound = Inbound::new(&shared, udp, ip, Arc::<Inbox>::default());
        let (counter, sent) = (reservation.counter, Vec::new());
        Self { pair, reservation, counter, padding: 0, outer: 0, sent, datagrams, sink, inbound }
    }

    fn bytes(&self) -> usize {
        self.sent.iter().map(|sent| sent.bytes.len()).sum()
    }

    /// Seals an inner packet or invalid bytes.
    fn send(&mut self, packet: &[u8]) {
        let keypair = &self.reservation.keypair.send;
        let header = DataHeader { receiver: keypair.remote_index, counter: self.counter };
        let mut bytes = header.encode().to_vec();
        bytes.extend(packet);
        bytes.extend(vec![0xaa; self.padding.into()]);
        let ecn = Ecn::from_bits(self.outer);
        let becomes = self.expected(&bytes[DATA_HEADER_LEN..], ecn);
        bytes.extend([0; DATA_OVERHEAD - DATA_HEADER_LEN]);
        let data = &mut bytes[DATA_HEADER_LEN..];
        crypto::aead::seal(&mut [crypto::aead::Seal {
            key: &keypair.key,
            counter: self.counter,
            data,
        }]);
        self.counter += 1;
        self.sent.push(Sent { bytes, ecn, becomes });
    }

    /// The expected result of a plaintext: a packet, nothing, or a drop.
    fn expected(&self, plaintext: &[u8], outer: Ecn) -> Result<Option<Vec<u8>>, DropReason> {
        if plaintext.is_empty() {
            return Ok(None);
        }
        let is_aside =
            Probe::parse(plaintext).is_some() || ExchangeMessage::parse(plaintext).is_some();
        if plaintext[0] == PROBE_FIRST_BYTE && is_aside {
            return Ok(None);
        }
        let header = IpHeader::parse(plaintext).map_err(|_| DropReason::InInvalid)?;
        let is_own = match plaintext[0] >> 4 {
            // The first address belongs to every host of the pair.
            4 if plaintext[12..16] == [10, 0, 0, 0] => true,
            4 => plaintext[12..15] == [10; 3] && plaintext[15] < 128,
            _ => plaintext[8..23] == [10; 15] && plaintext[23] < 128,
        };
        if !is_own {
            return Err(DropReason::InSpoofed);
        }
        let mut packet = plaintext[..header.total_len].to_vec();
        // RFC 6040 figure 4.
        let ecn = match (header.ecn, outer) {
            (Ecn::NotEct, Ecn::Ce) => return Err(DropReason::InCongestion),
            (Ecn::NotEct, _) => Ecn::NotEct,
            (_, Ecn::Ce) => Ecn::Ce,
            (Ecn::Ect0, Ecn::Ect1) => Ecn::Ect1,
            (inner, _) => inner,
        };
        if ecn != header.ecn {
            set_ecn(&mut packet, ecn);
        }
        Ok(Some(packet))
    }

    /// Changes bits of the last datagram.
    fn forge(&mut self, [at, mask]: [u8; 2]) {
        let Some(last) = self.sent.last_mut().filter(|_| mask != 0) else { return };
        let sealed = &mut last.bytes[DATA_HEADER_LEN..];
        let at = usize::from(at) * 7 % sealed.len();
        sealed[at] ^= mask;
        // A second forgery may restore the original.
        last.becomes = match last.becomes {
            Err(DropReason::InForged) => {
                self.sent.pop();
                return;
            }
            _ => Err(DropReason::InForged),
        };
    }

    /// Sends the last datagram again. A forged datagram does not use up its counter.
    fn replay(&mut self) {
        let Some(last) = self.sent.last() else { return };
        let becomes = match last.becomes {
            Err(DropReason::InForged) => Err(DropReason::InForged),
            _ => Err(DropReason::InReplayed),
        };
        let again = Sent { bytes: last.bytes.clone(), ecn: last.ecn, becomes };
        self.sent.push(again);
    }

    /// Delivers the datagrams to a device that returns some errors. Returns the number of bytes.
    fn deliver(&mut self, refusal: u8, at: u8) -> usize {
        let bytes = self.bytes();
        let sent = std::mem::take(&mut self.sent);
        let dropped = |tunnel: &Self, reason| tunnel.pair.controls[1].device().drops.get(reason);
        let before: Vec<u64> = DropReason::ALL.iter().map(|&it| dropped(self, it)).collect();
        let datagrams = sent.iter().map(|sent| (sent.bytes.clone(), sent.ecn));
        self.datagrams.lock().expect("nothing panicked").extend(datagrams);
        self.sink.refuse(refusal, at);
        while !self.datagrams.lock().expect("nothing panicked").is_empty() {
            self.inbound.step(true).expect("the device is there");
        }
        let written = self.sink.taken();
        let expected: Vec<Vec<u8>> =
            sent.iter().filter_map(|sent| sent.becomes.clone().ok().flatten()).collect();
        let mut refused = 0;
        if self.sink.state().is_down {
            assert!(written.is_empty());
            refused = expected.len() as u64;
        } else {
            check(&expected, &as_from_the_kernel(&expected, written));
        }
        for (&reason, before) in DropReason::ALL.iter().zip(before) {
            let of = |sent: &&Sent| sent.becomes == Err(reason);
            let mut count = sent.iter().filter(of).count() as u64;
            count += if reason == DropReason::InRefused { refused } else { 0 };
            assert_eq!(dropped(self, reason) - before, count, "{reason:?}");
        }
        bytes + 1
    }
}

/// Packets without offload are written as they were sent, and the kernel does not change their
/// checksums. The oracle needs correct checksums, as the kernel computes them for offloads.
fn as_from_the_kernel(
    sent: &[Vec<u8>],
    mut written: Vec<(Vec<u8>, usize)>,
) -> Vec<(Vec<u8>, usize)> {
    let sent: HashSet<_> = sent.iter().map(Vec::as_slice).collect();
    for (written, _) in written.iter_mut().filter(|(written, _)| written[..2] == [0, 0]) {
        let packet = &written[VNET_HEADER_LEN..];
        assert!(sent.contains(packet), "the packet was not sent");
        if let Some((start, udp)) = plain(packet)
            && !(udp && packet[start + 6..start + 8] == [0, 0])
        {
            let right = repaired(packet, start, udp);
            written.splice(VNET_HEADER_LEN.., right);
        }
    }
    written
}

/// Two hosts with a session, and counters of the first.
fn connected() -> (Pair, Reservation) {
    let mut pair = Pair::new();
    let nets = NETS
        .map(|net| AllowedIpChange { net: net.parse().expect("it is a network"), remove: false });
    let peer = PeerChange { allowed_ips: nets.to_vec(), ..Pair::peer(&pair.keys, 0) };
    let change = DeviceChange { peers: vec![peer], ..DeviceChange::default() };
    pair.controls[1].apply(change).expect("one peer is not too many");
    pair.send(0);
    for _ in 0..2 {
        pair.settle();
        pair.deliver(|_| {});
    }
    pair.settle();
    let device = pair.controls[0].device().clone();
    let peer = device.route(super::inner(1)).expect("the peer is there");
    let Now { time, .. } = pair.now();
    let reservation = device.reserve(&peer, 1, time).expect("there is a session");
    (pair, reservation)
}

/// The receiving half of a socket: consecutive datagrams of one length and mark form a run, as from
/// the kernel's GRO.
struct Datagrams(Waiting);

impl UdpRecv for Datagrams {
    fn recv(&mut self, batch: &mut RecvBatch, _drain: bool, _wait: bool) -> io::Result<()> {
        batch.clear();
        let mut queue = self.0.lock().expect("nothing panicked");
        let mut metas = Vec::new();
        for slot in batch.slots_mut() {
            let Some((first, ecn)) = queue.pop_front() else { break };
            let (stride, mut len) = (first.len(), first.len());
            slot[..len].copy_from_slice(&first);
            // A shorter datagram ends the run.
            while len.is_multiple_of(stride)
                && let Some((next, _)) = queue.front().filter(|(_, other)| *other == ecn)
                && next.len() <= stride
                && len + next.len() < 65_000
            {
                slot[len..][..next.len()].copy_from_slice(next);
                len += next.len();
                queue.pop_front();
            }
            metas.push(RecvMeta { len, stride, endpoint: Endpoint::new(address(0)), ecn });
        }
        metas.into_iter().for_each(|meta| batch.commit(meta));
        Ok(())
    }

    fn waker(&self) -> Waker {
        Arc::new(|| {})
    }
}

/// A TUN device that records the writes.
struct Sink {
    state: Mutex<State>,
    now: AtomicU64,
    quiet: File,
}

#[derive(Default)]
struct State {
    written: Vec<Vec<u8>>,
    writes: usize,
    refused: usize,
    /// The error, which writes it affects, the first affected write, and how many.
    answer: Option<Errno>,
    supers_only: bool,
    from: usize,
    most: usize,
    /// Whether all writes fail.
    is_down: bool,
}

impl Default for Sink {
    fn default() -> Self {
        let quiet = File::open("/dev/null").expect("there is one");
        Self { state: Mutex::default(), now: AtomicU64::new(1), quiet }
    }
}

impl Sink {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panicked")
    }

    /// Sets the errors of the following writes. Only the last kind loses packets.
    fn refuse(&self, refusal: u8, at: u8) {
        // Advances the clock, so that refused offloads are retried from time to time.
        self.now.fetch_add(400_000_000, Ordering::Relaxed);
        let (from, all) = (usize::from(at), usize::MAX);
        let supers = |answer, most| (Some(answer), true, most, false);
        let some = |answer, most| (Some(answer), false, most, false);
        let (answer, supers_only, most, is_down) = match refusal % 16 {
            1 => supers(Errno::EINVAL, all),
            2 => supers(Errno::EINVAL, 1),
            3 => supers(Errno::ENOBUFS, all),
            4 => supers(Errno::ENOMEM, 1),
            5 => supers(Errno::EPERM, 2),
            6 => some(Errno::EINTR, 9),
            // Shorter than the retry limit of the writer.
            7 => some(Errno::EAGAIN, 4),
            8 => (Some(Errno::EIO), false, all, true),
            _ => (None, false, 0, false),
        };
        let from = if is_down { 0 } else { from };
        *self.state() = State { answer, supers_only, from, most, is_down, ..State::default() };
    }

    /// The written packets, each with the number of packets that the kernel makes of it.
    fn taken(&self) -> Vec<(Vec<u8>, usize)> {
        let count = |written: Vec<u8>| {
            let (header, packet) = written.split_at(VNET_HEADER_LEN);
            let packets = split(Vnet::read(header), packet).expect("the kernel takes it");
            (packets.len(), written)
        };
        let written = std::mem::take(&mut self.state().written);
        written.into_iter().map(count).map(|(count, written)| (written, count)).collect()
    }
}

impl DataPathClock for Sink {
    fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn sleep(&self, _: Duration) {}

    fn wait_writable(&self, _: BorrowedFd<'_>, _: Duration) {}
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.quiet.as_fd()
    }
}

impl Calls for Sink {
    fn read(&self, _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::EAGAIN)
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let written: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        // IOV_MAX, beyond which writev(2) fails.
        assert!(
            pieces.len() <= 1024 && written.len() <= VNET_HEADER_LEN + 65_535,
            "{}",
            written.len()
        );
        let is_super = written[1] != 0;
        let mut state = self.state();
        state.writes += 1;
        if let Some(errno) = state.answer
            && state.writes > state.from
            && state.refused < state.most
            && (is_super || !state.supers_only)
        {
            state.refused += 1;
            return Err(errno);
        }
        let len = written.len();
        state.written.push(written);
        Ok(len)
    }

    fn set_offload(&self, _: SuperPackets) -> Result<(), Errno> {
        Ok(())
    }
}
