//! Drives the state of one stack directly with packets, without threads.

mod errors;
mod fragments;

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use packet::wire::IpHeader;

use super::{
    config::{Clock, Config, CongestionControl, Counters},
    segments::{BACKLOG, Flow},
    state::{ORPHANS, State, TIME_WAITS},
};
use crate::{
    budget::FIRST,
    ip::{self, Packet},
    tcp::{self, Header, Seq, Timestamps, flags},
    time::Time,
};

const US: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
const THEM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
/// Port of the listener in all scenarios.
const PORT: u16 = 80;

fn config(memory: usize) -> Config {
    let clock: Clock = Arc::new(|| Duration::from_secs(1000));
    let control = CongestionControl::default();
    Config { addresses: vec![US], mtu: 1420, memory, control, secret: 7, clock }
}

fn listening(memory: usize) -> State {
    let mut state = State::new(config(memory));
    state.listen(SocketAddr::new(US, PORT)).unwrap();
    state
}

fn now() -> Time {
    Time::new(Duration::from_secs(1000))
}

fn flow(port: u16) -> Flow {
    Flow { local: (US, PORT).into(), remote: (THEM, port).into() }
}

/// A segment of a peer without options.
fn segment(port: u16, flags: u8, (seq, ack): (Seq, Seq), window: u16) -> Header {
    let options = Default::default();
    Header { source: port, destination: PORT, seq, ack, flags, window, options }
}

fn packet(bytes: &[u8]) -> Packet<'_> {
    Packet::whole(bytes, &IpHeader::parse(bytes).unwrap()).unwrap()
}

fn arrive(state: &mut State, header: &Header, payload: &[u8], now: Time) {
    let len = header.len() + payload.len();
    let mut bytes = vec![0; 20 + len];
    ip::write_header(&mut bytes, (THEM, US), ip::TCP, len);
    header.write(&mut bytes[20..]);
    bytes[20 + header.len()..].copy_from_slice(payload);
    state.handle_tcp(&packet(&bytes), now);
}

/// Sends a SYN from a peer. Returns the id of its socket.
fn send_syn(state: &mut State, port: u16) -> usize {
    arrive(state, &segment(port, flags::SYN, (Seq(0), Seq(0)), 0), &[], now());
    state.flows[&flow(port)]
}

/// Completes the handshake from a peer with a window of `window` bytes. Returns the accepted socket
/// and the next sequence number to acknowledge.
fn establish(state: &mut State, port: u16, window: u16) -> (usize, Seq) {
    let id = send_syn(state, port);
    let ack = answered(state, id);
    arrive(state, &segment(port, flags::ACK, (Seq(1), ack), window), &[], now());
    (id, ack)
}

/// Takes the SYN-ACK of a socket. Returns the sequence number that acknowledges it.
fn answered(state: &mut State, id: usize) -> Seq {
    let mut to = vec![0; usize::from(u16::MAX)];
    let (len, _) = state.poll_socket(id, now(), &mut to).unwrap();
    let (answer, _) = Header::parse(&to[20..len]).unwrap();
    answer.seq + 1
}

fn accept(state: &mut State) -> Option<usize> {
    let context = Context::from_waker(Waker::noop());
    match state.poll_accept((US, PORT).into(), &context) {
        Poll::Ready(id) => Some(id.unwrap()),
        Poll::Pending => None,
    }
}

/// Takes all packets that the stack sends.
fn drain(state: &mut State, now: Time) {
    let mut to = vec![0; usize::from(u16::MAX)];
    while let Some(id) = state.schedule.ready.pop_front() {
        while state.poll_socket(id, now, &mut to).is_some() {}
        let Some(socket) = state.sockets.get_mut(id) else { continue };
        socket.queued = false;
        state.update_timers(id);
    }
}

/// Takes the datagrams that the stack sends, as packets.
fn leaving(state: &mut State, now: Time) -> Vec<Vec<u8>> {
    let mut to = vec![0; usize::from(u16::MAX)];
    let mut packets = Vec::new();
    while let Some((len, _)) = state.poll_datagram(&mut to, now) {
        packets.push(to[..len].to_vec());
    }
    packets
}

/// A waiting task.
#[derive(Default)]
struct Waiter(AtomicUsize);

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_oldest_orphans_are_reset_beyond_the_limit() {
    const MORE: u16 = 100;
    let mut state = listening(64 << 20);
    let mut oldest = None;
    for port in 1..=ORPHANS as u16 + MORE {
        establish(&mut state, port, 0);
        let id = accept(&mut state).unwrap();
        oldest.get_or_insert(state.sockets[id].flow);
        state.drop_stream(id, now());
        drain(&mut state, now());
    }
    assert_eq!(state.sockets.len(), ORPHANS);
    assert!(!state.flows.contains_key(&oldest.unwrap()));
    assert!(state.flows.contains_key(&flow(MORE + 1)), "newer ones remain");
}

/// A reused slot does not wake the task that waited there before.
#[test]
fn time_wait_connections_are_evicted_without_limit() {
    let mut state = listening(64 << 20);
    let mut now = now();
    for _ in 0..TIME_WAITS + 10 {
        let (_, una) = establish(&mut state, 9, 1000);
        let id = accept(&mut state).unwrap();
        state.drop_stream(id, now);
        drain(&mut state, now);
        let numbers = (Seq(1), una + 1);
        arrive(&mut state, &segment(9, flags::FIN | flags::ACK, numbers, 0), &[], now);
        assert_eq!(state.sockets[id].tcp.state(), tcp::State::TimeWait);
        now = now + Duration::from_secs(61);
        state.handle_timeouts(now);
        assert_eq!((state.sockets.len(), state.ending.time_waits.len()), (0, 0));
    }
}

/// A connection in TIME-WAIT. The peer's last sequence number is 2, and its last timestamp is
/// `stamp`.
fn time_wait_connection(state: &mut State, stamp: Option<u32>) -> usize {
    let stamped = |mut header: Header| {
        header.options.timestamps = stamp.map(|value| Timestamps { value, echo: 0 });
        header
    };
    arrive(state, &stamped(segment(9, flags::SYN, (Seq(0), Seq(0)), 9)), &[], now());
    let id = state.flows[&flow(9)];
    let una = answered(state, id);
    arrive(state, &stamped(segment(9, flags::ACK, (Seq(1), una), 9)), &[], now());
    assert_eq!(accept(state), Some(id));
    state.drop_stream(id, now());
    drain(state, now());
    let fin = segment(9, flags::FIN | flags::ACK, (Seq(1), una + 1), 9);
    arrive(state, &stamped(fin), &[], now());
    assert_eq!(state.sockets[id].tcp.state(), tcp::State::TimeWait);
    id
}

/// RFC 9293 section 3.6.1, RFC 6191: the SYN must be newer than all previous segments, by its
/// timestamp if there is one, otherwise by its sequence number.
#[test]
fn a_newer_syn_replaces_a_connection_in_time_wait() {
    const STAMP: u32 = u32::MAX - 1;
    for (before, stamp, seq, may) in [
        (None, None, 3, true),
        (None, None, 2, false),
        (None, None, u32::MAX, false),
        (Some(STAMP), Some(STAMP + 1), u32::MAX, true),
        (Some(STAMP), Some(1), u32::MAX, true),
        (Some(STAMP), Some(STAMP), 3, true),
        (Some(STAMP), Some(STAMP), 2, false),
        (Some(STAMP), Some(STAMP - 1), 3, false),
        (Some(STAMP), None, 3, true),
    ] {
        let mut state = listening(1 << 20);
        let id = time_wait_connection(&mut state, before);
        let mut syn = segment(9, flags::SYN, (Seq(seq), Seq(0)), 9);
        syn.options.timestamps = stamp.map(|value| Timestamps { value, echo: 0 });
        arrive(&mut state, &syn, &[], now());
        let socket = &state.sockets[state.flows[&flow(9)]].tcp;
        let expected = if may { tcp::State::SynReceived } else { tcp::State::TimeWait };
        assert_eq!(socket.state(), expected, "{before:?}, then {stamp:?} and {seq}");
        assert_eq!(state.sockets.len(), 1, "{id} went");
    }
}

#[test]
fn without_a_listener_a_syn_does_not_end_time_wait() {
    let mut state = listening(1 << 20);
    time_wait_connection(&mut state, None);
    state.stop_listening((US, PORT).into());
    arrive(&mut state, &segment(9, flags::SYN, (Seq(1000), Seq(0)), 9), &[], now());
    assert_eq!(state.sockets[state.flows[&flow(9)]].tcp.state(), tcp::State::TimeWait);
}

/// Tasks that are woken immediately would retry immediately, and so on.
#[test]
fn a_writer_without_memory_is_woken_only_by_progress_of_its_stream() {
    let mut state = listening(1 << 20);
    let (_, una) = establish(&mut state, 9, 60_000);
    let id = accept(&mut state).unwrap();
    let budget = state.budget.clone();
    let held = budget.left();
    budget.charge(held);
    let mut written = 0;
    while let Some(len @ 1..) = state.with(id, |socket| socket.tcp.write(&[0; 5000])) {
        written += len;
    }
    let waiter = Arc::new(Waiter::default());
    let waker = Waker::from(waiter.clone());
    state.with(id, |socket| socket.wait_writable(&Context::from_waker(&waker)));
    assert_eq!(state.take_wakers().len(), 0, "there is no memory to write");
    drain(&mut state, now());
    assert_eq!(state.take_wakers().len(), 0);
    for acked in (500..written + 500).step_by(500) {
        assert_eq!(state.take_wakers().len(), 0, "{acked} of {written} arrived");
        let ack = una + acked.min(written) as u32;
        arrive(&mut state, &segment(9, flags::ACK, (Seq(1), ack), 60_000), &[], now());
        drain(&mut state, now());
    }
    assert_eq!(state.take_wakers().len(), 1, "the chunk is free again");
    assert!(state.sockets[id].tcp.write_room() > 0);
    budget.refund(held);
}

#[test]
fn ten_thousand_connections_with_an_unread_byte_stay_within_the_memory() {
    const MEMORY: usize = 16 << 20;
    let mut state = listening(MEMORY);
    for port in 1..=10_000 {
        let (_, ack) = establish(&mut state, port, 60_000);
        let id = accept(&mut state).unwrap();
        arrive(&mut state, &segment(port, flags::ACK, (Seq(1), ack), 60_000), b"?", now());
        state.with(id, |socket| socket.tcp.write(b"!"));
        assert_eq!(state.sockets[id].tcp.readable(), 1);
    }
    let used = state.budget.used();
    assert!(used <= MEMORY, "{used} bytes");
    assert_eq!(used, 2 * 10_000 * FIRST);
}

#[test]
fn without_memory_new_connections_are_refused_and_existing_ones_continue() {
    let mut state = listening(64 << 10);
    let mut port = 0;
    while state.counters.backlog_full == 0 {
        port += 1;
        let (_, ack) = establish(&mut state, port, 60_000);
        let id = accept(&mut state).unwrap();
        arrive(&mut state, &segment(port, flags::ACK, (Seq(1), ack), 60_000), &[7; 1400], now());
        assert!(state.sockets[id].tcp.readable() >= 512);
        assert!(state.budget.used() <= 64 << 10);
        if !state.budget.has_room_for(tcp::BUFFERS) {
            arrive(&mut state, &segment(9999, flags::SYN, (Seq(0), Seq(0)), 0), &[], now());
            let error = state.dial((THEM, 80).into(), now()).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::OutOfMemory);
        }
    }
    assert!(port > 20, "{port} connections");
    assert!(!state.flows.contains_key(&flow(9999)));
    let id = state.flows[&flow(1)];
    let mut to = [0; 2000];
    assert!(state.with(id, |socket| socket.tcp.read(&mut to, now())) >= 512);
}

#[test]
fn queued_datagrams_count_as_memory() {
    let mut state = listening(1 << 20);
    let context = Context::from_waker(Waker::noop());
    for port in 1..200 {
        let at = state.bind((US, port).into()).unwrap();
        let to = (THEM, 53).into();
        while state.poll_send_to(at, (&[0; 1000], to), &context).is_ready() {}
    }
    let used = state.budget.used();
    assert!((500_000..=1 << 20).contains(&used), "{used} bytes");
    (1..200).for_each(|port| state.unbind((US, port).into()));
    assert_eq!(state.budget.used(), 0);
}

#[test]
fn a_task_that_waits_twice_is_registered_once() {
    let mut state = listening(1 << 20);
    let waiter = Arc::new(Waiter::default());
    let waker = Waker::from(waiter.clone());
    let context = Context::from_waker(&waker);
    let at = state.bind((US, 53).into()).unwrap();
    let before = Arc::strong_count(&waiter);
    for _ in 0..1000 {
        assert!(state.poll_recv_from(at, &mut [0; 9], &context).is_pending());
        assert!(state.poll_accept((US, PORT).into(), &context).is_pending());
        while state.poll_send_to(at, (&[0; 1000], (THEM, 53).into()), &context).is_ready() {}
    }
    assert_eq!(Arc::strong_count(&waiter) - before, 3, "as reader, as acceptor, as writer");
    let other = Arc::new(Waiter::default());
    let waker = Waker::from(other.clone());
    assert!(state.poll_recv_from(at, &mut [0; 9], &Context::from_waker(&waker)).is_pending());
    assert_eq!(Arc::strong_count(&other), 3, "another task is registered, too");
}

#[test]
fn answers_use_only_a_part_of_a_round() {
    let (stack, mut recv, _send) = super::Stack::new(config(1 << 20));
    let mut state = stack.0.lock();
    for _ in 0..200 {
        state.queue_answer(vec![0; 1000], packet::Offload::None);
    }
    let at = state.bind((US, 53).into()).unwrap();
    let context = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        assert!(state.poll_send_to(at, (&[0; 1000], (THEM, 53).into()), &context).is_ready());
    }
    drop(state);
    let mut batch = packet::Batch::new(128, 2 * packet::Batch::ROOM);
    packet::IpRecv::recv(&mut recv, &mut batch, false).unwrap();
    let datagrams = batch.iter().filter(|(bytes, _)| bytes[0] == 0x45).count();
    assert_eq!((datagrams, batch.len()), (10, 23), "a quarter of 48 KiB are answers");
    let mut rounds = 1;
    while !stack.0.lock().schedule.answers.is_empty() {
        batch.clear();
        packet::IpRecv::recv(&mut recv, &mut batch, true).unwrap();
        rounds += 1;
    }
    assert_eq!(rounds, 16, "without datagrams, all leave");
}

#[test]
fn a_round_leaves_space_for_a_super_packet_in_the_batch() {
    let (stack, mut recv, _send) = super::Stack::new(config(1 << 20));
    let context = Context::from_waker(Waker::noop());
    let mut state = stack.0.lock();
    let at = state.bind((US, 53).into()).unwrap();
    for _ in 0..120 {
        assert!(state.poll_send_to(at, (&[0; 1000], (THEM, 53).into()), &context).is_ready());
    }
    drop(state);
    let mut batch = packet::Batch::new(128, 2 * packet::Batch::ROOM);
    let mut sent = 0;
    while sent < 120 {
        batch.clear();
        packet::IpRecv::recv(&mut recv, &mut batch, false).unwrap();
        assert!(!batch.is_empty() && !batch.is_full(), "{} packets", batch.len());
        sent += batch.len();
    }
}

#[test]
fn the_oldest_half_open_connection_is_evicted_for_a_new_syn() {
    let mut state = listening(64 << 20);
    for port in 1..=BACKLOG as u16 {
        send_syn(&mut state, port);
    }
    establish(&mut state, 9999, 1000);
    assert!(!state.flows.contains_key(&flow(1)), "the oldest");
    assert!(state.flows.contains_key(&flow(2)));
    assert_eq!((state.sockets.len(), state.counters.backlog_full), (BACKLOG, 1));
    let id = accept(&mut state).unwrap();
    assert_eq!(state.sockets[id].flow, flow(9999));
}

#[test]
fn established_connections_in_the_backlog_are_not_evicted() {
    let mut state = listening(64 << 20);
    for port in 1..=BACKLOG as u16 {
        establish(&mut state, port, 1000);
    }
    arrive(&mut state, &segment(9999, flags::SYN, (Seq(0), Seq(0)), 0), &[], now());
    assert_eq!((state.sockets.len(), state.counters.backlog_full), (BACKLOG, 1));
    assert!(!state.flows.contains_key(&flow(9999)));
    for port in 1..=BACKLOG as u16 {
        let id = accept(&mut state).unwrap();
        assert_eq!(state.sockets[id].flow, flow(port), "in order");
    }
    assert!(accept(&mut state).is_none());
    send_syn(&mut state, 9999);
}

/// The timer of a window probe is far in the future. Each delayed acknowledgement has an earlier
/// one.
#[test]
fn stale_timers_do_not_accumulate() {
    let mut state = listening(64 << 20);
    let (_, una) = establish(&mut state, 9, 0);
    let id = accept(&mut state).unwrap();
    state.with(id, |socket| socket.tcp.write(&[0; 100]));
    let mut now = now();
    let mut most = 0;
    for seq in 1..10_000 {
        now = now + Duration::from_millis(50);
        state.handle_timeouts(now);
        arrive(&mut state, &segment(9, flags::ACK, (Seq(seq), una), 0), &[1], now);
        drain(&mut state, now);
        most = most.max(state.schedule.timers.len());
        assert!(state.sockets[id].scheduled.is_some());
    }
    assert_eq!(state.sockets[id].tcp.state(), tcp::State::Established);
    assert!(most < 100, "{most} timers of one connection");
}
