//! Two stacks and a network between them that loses, duplicates, reorders and delays packets and
//! reduces its MTU. The bytes read are always the bytes written. Once the network is reliable
//! again, everything arrives, and after all streams end no memory remains in use.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use netstack::{TcpListener, TcpStream};
use packet::checksum;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    boundary::{Boundary, ipv4},
    steps, take,
};

const ADDRESSES: [[u8; 4]; 2] = [[10, 0, 0, 1], [10, 0, 0, 2]];
const PORT: u16 = 80;
/// Limit of the queue to an end; the network drops more.
const QUEUE: usize = 200;
/// Limit of streams.
const STREAMS: usize = 16;
/// An end that received nothing for this time may have given up: the shortest timeout, that of
/// connecting and of closed streams.
const PATIENCE: Duration = Duration::from_secs(55);

/// Calls, time, and faults of the network, in any order.
pub fn streams(data: &[u8]) {
    let mut world = World::new();
    steps(data, 200, |step, rest| {
        world.step(step, rest);
        world.settle();
    });
    world.finish();
}

type Dial = Pin<Box<dyn Future<Output = io::Result<TcpStream>>>>;

struct World {
    ends: [End; 2],
    nanos: Arc<AtomicU64>,
    streams: Vec<Stream>,
    /// Streams that have lost an end or may have.
    broken: BTreeSet<Name>,
    /// Total time in which the network may have been faulty.
    faulty: Duration,
}

struct End {
    boundary: Boundary,
    listener: TcpListener,
    dials: Vec<Dial>,
    /// Packets in flight to it.
    queue: VecDeque<Vec<u8>>,
}

/// The end that connected, and its port.
type Name = (usize, u16);

struct Stream {
    tcp: TcpStream,
    end: usize,
    name: Name,
    written: u64,
    read: u64,
    /// Whether it closed its half, and whether it received the other end's FIN.
    is_shut: bool,
    is_over: bool,
}

/// The byte at an offset of an end's data.
fn byte(name: Name, end: usize, at: u64) -> u8 {
    let seed = u64::from(name.1) << 2 | (name.0 as u64) << 1 | end as u64;
    ((at ^ seed << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

impl World {
    fn new() -> Self {
        let nanos = Arc::new(AtomicU64::new(1 << 40));
        let ends = [0, 1].map(|end| {
            let boundary = Boundary::new(vec![ADDRESSES[end].into()], 1 + end as u128, &nanos);
            let listener = boundary.stack.listen(SocketAddr::from((ADDRESSES[end], PORT)));
            let listener = listener.expect("the port is free");
            End { boundary, listener, dials: Vec::new(), queue: VecDeque::new() }
        });
        let (streams, broken) = (Vec::new(), BTreeSet::new());
        Self { ends, nanos, streams, broken, faulty: Duration::ZERO }
    }

    fn step(&mut self, step: u8, rest: &mut &[u8]) {
        let end = usize::from(step >> 7);
        let [value] = take(rest);
        let index = usize::from(value) % self.streams.len().max(1);
        let queue = &mut self.ends[end].queue;
        match step & 0x0f {
            0..=2 => self.deliver(end, 1 + usize::from(value % 64)),
            3 => drop(queue.pop_front()),
            4 => queue.extend(queue.front().cloned()),
            5 => queue.rotate_left(usize::from(value) % queue.len().max(1)),
            6 => self.pass(Duration::from_nanos(1 << (value % 36))),
            7 => self.dial(end),
            8 | 9 => self.write(index, 1 + usize::from(step >> 4 & 7) * 3000),
            10 => self.read(index, usize::from(value) * 64),
            11 => self.shut(index),
            12 if !self.streams.is_empty() => self.abandon(index),
            13 => self.ends[end].boundary.stack.set_offloads(value & 1 == 0, value & 2 == 0),
            14 => self.reduce_mtu(end, 600 + u16::from(value) * 3),
            _ => queue.clear(),
        }
    }

    fn dial(&mut self, end: usize) {
        let pending: usize = self.ends.iter().map(|end| end.dials.len()).sum();
        if self.streams.len() / 2 + pending < STREAMS / 2 {
            let stack = self.ends[end].boundary.stack.clone();
            let to = SocketAddr::from((ADDRESSES[1 - end], PORT));
            self.ends[end].dials.push(Box::pin(async move { stack.connect(to).await }));
        }
    }

    fn pass(&mut self, time: Duration) {
        self.faulty += time;
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    fn write(&mut self, index: usize, len: usize) {
        let Some(stream) = self.streams.get_mut(index).filter(|stream| !stream.is_shut) else {
            return;
        };
        let (name, end, at) = (stream.name, stream.end, stream.written);
        let bytes: Vec<u8> = (at..at + len as u64).map(|at| byte(name, end, at)).collect();
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut stream.tcp).poll_write(&mut context, &bytes) {
            Poll::Ready(Ok(len)) => stream.written += len as u64,
            Poll::Ready(Err(error)) => self.fail(index, &error),
            Poll::Pending => {}
        }
    }

    fn read(&mut self, index: usize, len: usize) {
        let Some(stream) = self.streams.get_mut(index).filter(|_| len > 0) else { return };
        let mut bytes = vec![0; len];
        let mut buffer = ReadBuf::new(&mut bytes);
        let mut context = Context::from_waker(Waker::noop());
        match Pin::new(&mut stream.tcp).poll_read(&mut context, &mut buffer) {
            Poll::Ready(Ok(())) => {
                stream.is_over |= buffer.filled().is_empty();
                for got in buffer.filled() {
                    let output = byte(stream.name, 1 - stream.end, stream.read);
                    assert_eq!(*got, output, "byte {} of {:?}", stream.read, stream.name);
                    stream.read += 1;
                }
            }
            Poll::Ready(Err(error)) => self.fail(index, &error),
            Poll::Pending => {}
        }
    }

    fn shut(&mut self, index: usize) {
        let Some(stream) = self.streams.get_mut(index) else { return };
        let mut context = Context::from_waker(Waker::noop());
        let _ = Pin::new(&mut stream.tcp).poll_shutdown(&mut context);
        stream.is_shut = true;
    }

    /// An application drops its stream.
    fn abandon(&mut self, index: usize) {
        let stream = self.streams.swap_remove(index);
        self.broken.insert(stream.name);
    }

    fn fail(&mut self, index: usize, error: &io::Error) {
        let stream = &mut self.streams[index];
        let may = self.broken.contains(&stream.name) || self.faulty > PATIENCE;
        assert!(may, "{:?} of {} failed: {error}", stream.name, stream.end);
        self.broken.insert(stream.name);
        stream.is_shut = true;
        stream.is_over = true;
    }

    /// Delivers the next packets to an end, as many at once as one slot holds.
    fn deliver(&mut self, end: usize, most: usize) {
        let end = &mut self.ends[end];
        let mut left = most.min(end.queue.len());
        while left > 0 {
            let delivered = end.boundary.deliver(end.queue.iter().take(left));
            end.queue.drain(..delivered);
            left -= delivered;
        }
    }

    /// A router on the path to an end drops the next packet as too long and reports it.
    fn reduce_mtu(&mut self, end: usize, mtu: u16) {
        let queue = &mut self.ends[end].queue;
        if queue.front().is_none_or(|packet| packet.len() <= usize::from(mtu)) {
            return;
        }
        let packet = queue.pop_front().expect("there is one");
        let mut message = [&[3, 4, 0, 0, 0, 0][..], &mtu.to_be_bytes(), &packet[..60]].concat();
        let sum = !checksum::sum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let report = ipv4(1, (ADDRESSES[end], ADDRESSES[1 - end]), &message);
        self.ends[1 - end].queue.push_back(report);
    }

    /// Runs all possible actions of both ends.
    fn settle(&mut self) {
        for end in [0, 1] {
            self.accept_and_connect(end);
            self.collect(end);
        }
    }

    /// Accepts new streams.
    fn accept_and_connect(&mut self, end: usize) {
        let mut context = Context::from_waker(Waker::noop());
        let mut new = Vec::new();
        let (faulty, this) = (self.faulty, &mut self.ends[end]);
        this.dials.retain_mut(|dial| match dial.as_mut().poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(Err(error)) => {
                assert!(faulty > PATIENCE, "no answer: {error}");
                false
            }
            Poll::Ready(Ok(tcp)) => {
                let port = tcp.local_addr().expect("it has one").port();
                new.push((tcp, (end, port)));
                false
            }
        });
        loop {
            let accepted = std::pin::pin!(this.listener.accept()).poll(&mut context);
            let Poll::Ready(accepted) = accepted else { break };
            let (tcp, from) = accepted.expect("it listens");
            new.push((tcp, (1 - end, from.port())));
        }
        self.streams.extend(new.into_iter().map(|(tcp, name)| Stream {
            tcp,
            end,
            name,
            written: 0,
            read: 0,
            is_shut: false,
            is_over: false,
        }));
    }

    /// Moves an end's packets to the queue of the other.
    fn collect(&mut self, end: usize) {
        let [one, other] = &mut self.ends;
        let (from, to) = if end == 0 { (one, other) } else { (other, one) };
        from.boundary.collect(|packet| {
            if to.queue.len() < QUEUE {
                to.queue.push_back(packet);
            }
        });
    }

    /// The network is reliable from now on: everything arrives, and all streams close.
    fn finish(&mut self) {
        for _ in 0..600 {
            self.run_until_idle();
            (0..self.streams.len()).for_each(|index| self.shut(index));
            self.run_until_idle();
            if self.streams.iter().all(|stream| stream.is_over) && self.is_idle() {
                break;
            }
            // Advances the time for streams that wait for a time-out.
            self.pass(Duration::from_secs(1));
        }
        self.check();
        for _ in 0..100 {
            self.streams.clear();
            self.run_until_idle();
            self.pass(Duration::from_secs(5));
        }
        for end in &self.ends {
            assert_eq!(
                (end.boundary.stack.connections(), end.boundary.stack.memory_used()),
                (0, 0)
            );
        }
    }

    /// Delivers and reads until no packet is in flight.
    fn run_until_idle(&mut self) {
        for _ in 0..200 {
            (0..self.streams.len()).for_each(|index| self.read(index, 1 << 16));
            self.settle();
            if self.ends.iter().all(|end| end.queue.is_empty()) {
                break;
            }
            [0, 1].into_iter().for_each(|end| self.deliver(end, QUEUE));
        }
    }

    fn is_idle(&self) -> bool {
        self.ends.iter().all(|end| end.dials.is_empty() && end.queue.is_empty())
    }

    /// Each unbroken stream received all data of its other end.
    fn check(&self) {
        for stream in self.streams.iter().filter(|stream| !self.broken.contains(&stream.name)) {
            let is_other = |other: &&Stream| other.name == stream.name && other.end != stream.end;
            let Some(other) = self.streams.iter().find(is_other) else {
                assert!(self.faulty > PATIENCE, "{:?} has one end", stream.name);
                continue;
            };
            assert!(stream.is_over, "{:?} has no end", stream.name);
            assert_eq!(stream.read, other.written, "{:?}", stream.name);
        }
    }
}
