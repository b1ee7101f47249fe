//! The data plane of a relay. Datagrams of one received batch are sent as one batch.
//!
//! ```text
//!   slot of GRO ── same header ──► run ── forward ──► run of GSO
//!               ── another ──────► run ── forward ──► ...
//! ```

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use ipc::{Incoming, LocalAddress, relay_process::FromRelayServer};
use mesh::peer_relay::Server;
use packet::{Ecn, RecvBatch, RecvMeta, SendBatch, Span, Transmit, UdpRecv, UdpSend};
use sys::Channel;
use tailnet::{
    geneve::{GENEVE_LEN, Geneve},
    stun,
};

use super::{lock, send_to_agent};

/// The slots of a batch, each with the datagrams that the kernel coalesced: 4 MiB in total, of
/// which GRO uses eight slots at a time.
const SLOTS: usize = 64;
/// Runs of at least this many bytes on average are sent without a copy. If the kernel did not
/// coalesce, copying each datagram costs less than a pass of each through the network stack, which
/// GSO saves.
const MIN_RUN_BYTES: usize = 8 << 10;
/// The most STUN datagrams that are forwarded from one batch. The agent sends one request a second.
const MAX_STUN: usize = 16;

/// Forwards datagrams between clients.
pub(super) struct Forwarder<R, S> {
    table: Arc<Mutex<Server>>,
    receiver: R,
    sender: S,
    line: Arc<Channel>,
    received: RecvBatch,
    /// Runs in the received batch, with their destinations.
    runs: Vec<Transmit>,
    outgoing: SendBatch,
    answers: SendBatch,
    stun: Vec<Incoming>,
}

impl<R: UdpRecv, S: UdpSend> Forwarder<R, S> {
    pub(super) fn new(
        table: Arc<Mutex<Server>>,
        receiver: R,
        sender: S,
        line: Arc<Channel>,
    ) -> Self {
        let (received, runs, stun) = (RecvBatch::new(SLOTS), Vec::new(), Vec::new());
        let (outgoing, answers) = (SendBatch::default(), SendBatch::default());
        Self { table, receiver, sender, line, received, runs, outgoing, answers, stun }
    }

    /// Waits for a batch and forwards it.
    ///
    /// # Errors
    /// The socket failed permanently.
    pub(super) fn step(&mut self, clock: impl Fn() -> Duration) -> io::Result<()> {
        self.receiver.recv(&mut self.received, false, true)?;
        self.answers.clear();
        self.runs.clear();
        self.sort(clock());
        // Datagrams that cannot be sent are lost.
        if !self.runs.is_empty() {
            self.batch_runs();
            self.sender.send(&mut self.outgoing);
        }
        if !self.answers.is_empty() {
            self.sender.send(&mut self.answers);
        }
        if !self.stun.is_empty() {
            send_to_agent(&self.line, &FromRelayServer::Datagrams(std::mem::take(&mut self.stun)));
        }
        Ok(())
    }

    /// Makes one batch of the runs, either with or without copies, so that no flow is reordered.
    fn batch_runs(&mut self) {
        let Self { received, runs, outgoing, .. } = self;
        let bytes: usize = runs.iter().map(|run| run.span.len).sum();
        if bytes / runs.len() >= MIN_RUN_BYTES {
            return outgoing.forward(received, runs);
        }
        outgoing.clear();
        for run in runs {
            for datagram in received.get(run.span).chunks(run.segment) {
                outgoing.push(datagram.len(), run.endpoint, run.tos).copy_from_slice(datagram);
            }
        }
    }

    fn sort(&mut self, now: Duration) {
        let Self { table, received, runs, answers, stun, .. } = self;
        // No system call is made while the lock is held. The other thread holds it only for
        // allocations, which are rare.
        let mut table = lock(table);
        for (slot, meta) in received.filled() {
            let (mut start, end) = (slot.start, slot.start + slot.len);
            while start < end {
                let rest = received.get(Span { start, len: end - start });
                let span = Span { start, len: run_len(rest, meta.stride) };
                let run = &rest[..span.len];
                start += span.len;
                let segment = meta.stride.clamp(1, run.len());
                match Geneve::read(run) {
                    Some(header) if header.control => {
                        for datagram in run.chunks(segment) {
                            let bind = &datagram[GENEVE_LEN..];
                            let answer = table.handle_control(header, bind, meta.endpoint, now);
                            if let Some(answer) = answer {
                                answers
                                    .push(answer.len(), meta.endpoint, Ecn::NotEct)
                                    .copy_from_slice(&answer);
                            }
                        }
                    }
                    Some(header) => {
                        let count = run.len().div_ceil(segment);
                        let size = (count as u64, run.len() as u64);
                        let from = meta.endpoint.remote.direct();
                        let to = from.and_then(|from| table.forward(header.vni, from, size, now));
                        if let Some(endpoint) = to {
                            runs.push(Transmit { span, segment, endpoint, tos: meta.ecn.into() });
                        }
                    }
                    None if stun::is_stun(run) && stun.len() < MAX_STUN => {
                        stun.extend(incoming(&run[..segment], meta, now));
                    }
                    None => {}
                }
            }
        }
    }
}

/// The length of the datagrams with the same header at the start; at least one datagram.
fn run_len(bytes: &[u8], stride: usize) -> usize {
    let stride = stride.max(1);
    let same_header = match bytes.first_chunk::<GENEVE_LEN>().filter(|_| stride >= GENEVE_LEN) {
        Some(header) => bytes.chunks(stride).take_while(|one| one.starts_with(header)).count(),
        None => 1,
    };
    (same_header * stride).min(bytes.len())
}

fn incoming(datagram: &[u8], meta: &RecvMeta, at: Duration) -> Option<Incoming> {
    let local = meta.endpoint.local;
    Some(Incoming {
        from: meta.endpoint.remote.direct()?,
        local: local.map(|at| LocalAddress { addr: at.addr, interface: at.interface }),
        at,
        to: None,
        bytes: datagram.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, net::SocketAddr};

    use getrandom::{SysRng, rand_core::UnwrapErr};
    use ipc::{PART, Reader};
    use packet::{Endpoint, SendError, Waker};
    use tailnet::{
        disco::{Bind, Disco, Message},
        geneve::{Protocol, Vni},
        keys::DiscoKey,
    };
    use zeroize::Zeroizing;

    use super::*;

    /// The source or destination, the datagrams, and the length of each except the last.
    type Run = (SocketAddr, Vec<u8>, usize);

    /// A socket in memory: received slots, and all sent runs.
    #[derive(Default)]
    struct Memory {
        arriving: VecDeque<Run>,
        left: Vec<Run>,
    }

    impl UdpRecv for Memory {
        fn recv(&mut self, batch: &mut RecvBatch, _drain: bool, _wait: bool) -> io::Result<()> {
            batch.clear();
            for (slot, (from, bytes, stride)) in self.arriving.drain(..).enumerate() {
                batch.slots_mut().nth(slot).unwrap()[..bytes.len()].copy_from_slice(&bytes);
                let (len, endpoint) = (bytes.len(), Endpoint::new(from));
                batch.commit(RecvMeta { len, stride, endpoint, ecn: Ecn::Ect0 });
            }
            Ok(())
        }

        fn waker(&self) -> Waker {
            Arc::new(|| ())
        }
    }

    impl UdpSend for Memory {
        fn send(&mut self, batch: &mut SendBatch) {
            for run in batch.transmits() {
                let bytes = batch.datagram_bytes(run, 0, run.datagrams()).to_vec();
                let to = run.endpoint.remote.direct().unwrap();
                self.left.push((to, bytes, run.segment));
            }
        }

        fn send_unfragmented(&mut self, _: &[u8], _: Endpoint) -> Result<(), SendError> {
            Ok(())
        }
    }

    struct World {
        forwarder: Forwarder<Memory, Memory>,
        agent: Channel,
        clients: [Disco; 3],
        server: tailnet::keys::DiscoPublic,
    }

    fn address(client: usize) -> SocketAddr {
        ([192, 0, 2, 1 + client as u8], 41641).into()
    }

    fn header(vni: Vni) -> [u8; GENEVE_LEN] {
        Geneve { control: false, protocol: Protocol::WireGuard, vni }.bytes()
    }

    /// Datagrams of the same length and header, except a shorter last one.
    fn data(vni: Vni, count: usize, len: usize, last: usize) -> Vec<u8> {
        let mut run = Vec::new();
        for number in 0..count {
            run.extend_from_slice(&header(vni));
            let len = if number + 1 == count { last } else { len };
            run.resize(run.len() + len - GENEVE_LEN, number as u8);
        }
        run
    }

    impl World {
        fn new() -> Self {
            let key = |byte: u8| DiscoKey::new(Box::new(Zeroizing::new([byte; 32])));
            let server = Server::new(key(9), Box::new(UnwrapErr(SysRng)), Duration::ZERO);
            let public = server.key();
            let (line, agent) = Channel::pair().unwrap();
            let table = Arc::new(Mutex::new(server));
            let left = Memory::default();
            let forwarder = Forwarder::new(table, Memory::default(), left, Arc::new(line));
            let clients = [1, 2, 3].map(|byte| Disco::new(key(byte)));
            Self { forwarder, agent, clients, server: public }
        }

        fn step(&mut self, slots: Vec<(usize, Vec<u8>, usize)>) -> Vec<Run> {
            let slots =
                slots.into_iter().map(|(from, bytes, stride)| (address(from), bytes, stride));
            self.forwarder.receiver.arriving.extend(slots);
            self.forwarder.step(|| Duration::ZERO).unwrap();
            std::mem::take(&mut self.forwarder.sender.left)
        }

        fn bound(&mut self, pair: [usize; 2]) -> Vni {
            let keys = pair.map(|client| self.clients[client].public());
            let made = lock(&self.forwarder.table).allocate(keys[0], keys, Duration::ZERO).unwrap();
            let vni = made.vni;
            for (client, other) in [(pair[0], keys[1]), (pair[1], keys[0])] {
                let mut bind = Bind { vni, generation: 1, other, challenge: [0; 32] };
                for step in [Message::Bind, Message::BindAnswer] {
                    let message = self.clients[client].seal(self.server, &step(bind), [0; 24]);
                    let control = Geneve { control: true, protocol: Protocol::Disco, vni };
                    let datagram = [&control.bytes()[..], &message].concat();
                    let len = datagram.len();
                    for (to, answer, _) in self.step(vec![(client, datagram, len)]) {
                        assert_eq!(to, address(client));
                        let opened = self.clients[client].open(&answer[GENEVE_LEN..]);
                        let Ok((_, Message::BindChallenge(challenge))) = opened else { panic!() };
                        bind = challenge;
                    }
                }
            }
            vni
        }
    }

    #[test]
    fn slot_of_one_session_leaves_as_one_run() {
        let mut world = World::new();
        let vni = world.bound([0, 1]);
        let run = data(vni, 40, 1400, 300);
        let left = world.step(vec![(0, run.clone(), 1400), (1, run.clone(), 1400)]);
        assert_eq!(left, [(address(1), run.clone(), 1400), (address(0), run, 1400)]);
    }

    #[test]
    fn single_datagrams_leave_as_one_run() {
        let mut world = World::new();
        let vni = world.bound([0, 1]);
        let run = data(vni, 40, 1400, 300);
        let single = run.chunks(1400).map(|one| (0, one.to_vec(), one.len()));
        assert_eq!(world.step(single.collect()), [(address(1), run, 1400)]);
    }

    #[test]
    fn slot_is_split_by_session_in_order() {
        let mut world = World::new();
        let (to_1, to_2) = (world.bound([0, 1]), world.bound([0, 2]));
        let parts = [data(to_1, 3, 200, 200), data(to_2, 2, 200, 200), data(to_1, 2, 200, 80)];
        let left = world.step(vec![(0, parts.concat(), 200)]);
        let [first, second, third] = parts;
        let expected =
            [(address(1), first, 200), (address(2), second, 200), (address(1), third, 200)];
        assert_eq!(left, expected);
    }

    #[test]
    fn datagrams_without_a_session_are_dropped() {
        let mut world = World::new();
        let vni = world.bound([0, 1]);
        let unknown = Vni::new(vni.get() + 1).unwrap();
        let slots = vec![
            (2, data(vni, 3, 100, 100), 100),
            (0, data(unknown, 3, 100, 100), 100),
            (0, vec![4, 0, 0, 0, 1, 2, 3, 4, 5], 9),
            (0, vec![], 0),
            (0, header(vni)[..7].to_vec(), 7),
            (0, vec![0; 65_000], 1),
        ];
        assert_eq!(world.step(slots), []);
    }

    #[test]
    fn stun_goes_to_the_agent() {
        let mut world = World::new();
        let request = stun::request([7; 12]).to_vec();
        assert_eq!(world.step(vec![(2, request.clone(), request.len())]), []);
        let mut buffer = vec![0; PART];
        let len = world.agent.receive(&mut buffer).unwrap();
        let sent = Reader::default().handle_part(&buffer[..len]).unwrap();
        let Some(FromRelayServer::Datagrams(datagrams)) = sent else { panic!("{sent:?}") };
        assert_eq!((&datagrams[0].bytes, datagrams[0].from), (&request, address(2)));
    }
}
