//! The stack's boundary, with a peer that sends arbitrary packets, mostly close to valid ones.

use std::{
    collections::HashMap,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use netstack::{TcpListener, TcpStream, UdpSocket};
use packet::{checksum, ip::IpHeader};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    boundary::{Boundary, ipv4},
    steps, take,
};

const US: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
/// The MSS option in the peer's SYNs.
const PEER_MSS: usize = 700;

/// Packets, segments close to valid ones, calls and time, in any order.
pub fn netstack(data: &[u8]) {
    let mut scene = Scene::new();
    steps(data, 300, |step, rest| {
        scene.step(step, rest);
        scene.collect();
    });
}

type Dial = Pin<Box<dyn Future<Output = std::io::Result<TcpStream>>>>;

struct Scene {
    boundary: Boundary,
    nanos: Arc<AtomicU64>,
    listener: TcpListener,
    udp: UdpSocket,
    dials: Vec<Dial>,
    streams: Vec<TcpStream>,
    /// For each flow of ours, by both ports: the next sequence number and the acknowledgement.
    flows: HashMap<(u16, u16), (u32, u32)>,
    last: (u16, u16),
}

impl Scene {
    fn new() -> Self {
        let nanos = Arc::new(AtomicU64::new(1 << 40));
        let addresses = vec![US.into(), "fd00::1".parse().expect("an address")];
        let boundary = Boundary::new(addresses, 1, &nanos);
        let everywhere = |port| SocketAddr::from(([0, 0, 0, 0], port));
        Self {
            listener: boundary.stack.listen(everywhere(80)).expect("the port is free"),
            udp: boundary.stack.bind_udp(everywhere(53)).expect("the port is free"),
            boundary,
            nanos,
            dials: Vec::new(),
            streams: Vec::new(),
            flows: HashMap::new(),
            last: (80, 1000),
        }
    }

    fn step(&mut self, step: u8, rest: &mut &[u8]) {
        let mut context = Context::from_waker(Waker::noop());
        match step % 10 {
            0 => {
                let [len] = take(rest);
                let (bytes, behind) = rest.split_at(usize::from(len).min(rest.len()));
                *rest = behind;
                // An engine passes only complete IP packets.
                if let Ok(header) = IpHeader::parse(bytes) {
                    let bytes = bytes[..header.total_len].to_vec();
                    self.deliver(&[bytes]);
                }
            }
            1..=4 => {
                let count = 1 + usize::from(step / 10 % 4);
                let segments: Vec<_> = (0..count).map(|_| self.segment(rest)).collect();
                self.deliver(&segments);
            }
            5 => {
                let [exponent] = take(rest);
                self.nanos.fetch_add(1 << (exponent % 38), Ordering::Relaxed);
            }
            6 => {
                let stack = self.boundary.stack.clone();
                let to = SocketAddr::from((PEER, 7));
                self.dials.push(Box::pin(async move { stack.connect(to).await }));
            }
            7 => {
                let [index, len] = take(rest);
                let bytes = vec![index; usize::from(len) * 64];
                if let Some(stream) = self.stream(index) {
                    let _ = Pin::new(stream).poll_write(&mut context, &bytes);
                }
            }
            8 => {
                let [index, len] = take(rest);
                let mut bytes = vec![0; usize::from(len) * 64];
                if let Some(stream) = self.stream(index) {
                    let _ = Pin::new(stream).poll_read(&mut context, &mut ReadBuf::new(&mut bytes));
                }
            }
            _ => self.end(step, rest),
        }
        self.dials.retain_mut(|dial| match dial.as_mut().poll(&mut context) {
            Poll::Ready(Ok(stream)) => {
                self.streams.push(stream);
                false
            }
            polled => polled.is_pending(),
        });
        let accepted = std::pin::pin!(self.listener.accept()).poll(&mut context);
        if let Poll::Ready(Ok((stream, _))) = accepted {
            self.streams.push(stream);
        }
    }

    fn end(&mut self, step: u8, rest: &mut &[u8]) {
        let mut context = Context::from_waker(Waker::noop());
        let [index] = take(rest);
        match step / 10 % 5 {
            0 => {
                if let Some(stream) = self.stream(index) {
                    let _ = Pin::new(stream).poll_shutdown(&mut context);
                }
            }
            1 if !self.streams.is_empty() => {
                let index = usize::from(index) % self.streams.len();
                drop(self.streams.swap_remove(index));
            }
            2 => self.dials.clear(),
            3 => self.boundary.stack.set_offloads(index & 1 == 0, index & 2 == 0),
            _ => {
                let bytes = [index; 40];
                let sent = self.udp.send_to(&bytes, (PEER, 9).into());
                let _ = std::pin::pin!(sent).poll(&mut context);
            }
        }
    }

    fn stream(&mut self, index: u8) -> Option<&mut TcpStream> {
        let count = self.streams.len().max(1);
        self.streams.get_mut(usize::from(index) % count)
    }

    /// A segment of the flow that sent last, or of a new one.
    fn segment(&mut self, rest: &mut &[u8]) -> Vec<u8> {
        let [flags, seq, ack, window, len, options] = take(rest);
        let (ours, theirs) =
            if options & 0x80 != 0 { (80, 1000 + u16::from(seq % 4)) } else { self.last };
        let (sent, expected) = self.flows.get(&(ours, theirs)).copied().unwrap_or((0, 0));
        let near = |base: u32, offset: u8| match offset {
            0..=127 => base.wrapping_add(u32::from(offset) * 16),
            128..=200 => base.wrapping_sub(u32::from(offset - 127) * 16),
            _ => base.wrapping_add(u32::from(offset) << 22),
        };
        let mut tcp = Vec::new();
        tcp.extend(theirs.to_be_bytes());
        tcp.extend(ours.to_be_bytes());
        tcp.extend(near(expected, seq & !3).to_be_bytes());
        tcp.extend(near(sent, ack).to_be_bytes());
        tcp.extend([0, flags, window, 0, 0, 0, 0, 0]);
        tcp.extend([2, 4, (PEER_MSS >> 8) as u8, PEER_MSS as u8, 4, 2, 3, 3, options & 7, 0, 0, 0]);
        if options & 8 != 0 {
            tcp.extend([1, 1, 8, 10]);
            tcp.extend((self.nanos.load(Ordering::Relaxed) as u32 >> 20).to_be_bytes());
            tcp.extend([0; 4]);
        }
        if options & 16 != 0 {
            tcp.extend([1, 1, 5, 10]);
            tcp.extend(near(sent, seq).to_be_bytes());
            tcp.extend(near(sent, len).to_be_bytes());
        }
        tcp[12] = (tcp.len() as u8 / 4) << 4;
        tcp.extend(vec![len; usize::from(len) * 5]);
        ipv4(6, (PEER, US), &tcp)
    }

    fn deliver(&mut self, packets: &[Vec<u8>]) {
        assert_eq!(self.boundary.deliver(packets), packets.len(), "a slot holds them all");
    }

    /// Takes the stack's packets and checks them.
    fn collect(&mut self) {
        self.boundary.collect(|packet| {
            let header = IpHeader::parse(&packet).expect("an IP packet");
            assert_eq!(header.total_len, packet.len());
            if packet[0] >> 4 == 4 {
                assert_eq!(checksum::sum(&packet[..20]), 0xffff);
                note(&mut self.flows, &mut self.last, &packet);
            }
        });
    }
}

fn note(flows: &mut HashMap<(u16, u16), (u32, u32)>, last: &mut (u16, u16), bytes: &[u8]) {
    if bytes[9] != 6 {
        return;
    }
    let tcp = &bytes[20..];
    let short = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let long = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
    let payload = tcp.len() - usize::from(tcp[12] >> 4) * 4;
    assert!(payload <= PEER_MSS.max(536), "the segment exceeds the peer's MSS");
    let controls = u32::from(tcp[13] & 1) + u32::from(tcp[13] >> 1 & 1);
    *last = (short(0), short(2));
    flows.insert(*last, (long(4).wrapping_add(payload as u32 + controls), long(8)));
}
