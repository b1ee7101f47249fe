//! A stack with both halves of its boundary, as an engine owns them, on the target's clock. Its
//! packets must fit the MTU, and its buffers the memory limit.

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use netstack::{Config, CongestionControl, Stack, StackRecv, StackSend};
use packet::{
    Batch, Ecn, Endpoint, IpPacket, IpRecv, IpSend, RecvBatch, RecvMeta, Segments, Span, checksum,
};

const MTU: u16 = 1420;
/// Limit of the streams' buffers in bytes.
const MEMORY: usize = 1 << 20;

pub struct Boundary {
    pub stack: Stack,
    recv: StackRecv,
    send: StackSend,
    batch: Batch,
    arrivals: RecvBatch,
}

impl Boundary {
    pub fn new(addresses: Vec<IpAddr>, secret: u128, nanos: &Arc<AtomicU64>) -> Self {
        let time = nanos.clone();
        let (stack, recv, send) = Stack::new(Config {
            addresses,
            mtu: MTU,
            memory: MEMORY,
            control: CongestionControl::default(),
            secret,
            clock: Arc::new(move || Duration::from_nanos(time.load(Ordering::Relaxed))),
        });
        let batch = Batch::new(128, 2 * Batch::ROOM);
        Self { stack, recv, send, batch, arrivals: RecvBatch::new(1) }
    }

    /// Delivers the first packets in one batch, as many as one datagram slot holds, and returns
    /// their number. Invalid IP packets are dropped, as behind an engine.
    pub fn deliver<'a>(&mut self, packets: impl IntoIterator<Item = &'a Vec<u8>>) -> usize {
        self.arrivals.clear();
        let slot = self.arrivals.slots_mut().next().expect("there is a slot");
        let (mut read, mut taken, mut at) = (Vec::new(), 0, 0);
        for packet in packets {
            let Some(room) = slot.get_mut(at..at + packet.len()) else { break };
            room.copy_from_slice(packet);
            read.extend(IpPacket::read(slot, Span { start: at, len: packet.len() }));
            taken += 1;
            at += packet.len();
        }
        let endpoint = Endpoint::new(([192, 0, 2, 1], 1).into());
        self.arrivals.commit(RecvMeta { len: at, stride: at, endpoint, ecn: Ecn::NotEct });
        self.send.send(&self.arrivals, &read).expect("the stack is there");
        taken
    }

    /// Takes the stack's packets one by one.
    pub fn collect(&mut self, mut each: impl FnMut(Vec<u8>)) {
        for _ in 0..50 {
            self.batch.clear();
            self.recv.recv(&mut self.batch, false).expect("the stack is there");
            if self.batch.is_empty() {
                break;
            }
            for (packet, offload) in self.batch.iter() {
                let segments = Segments::new(packet, offload).expect("what it sends can be sent");
                for index in 0..segments.count() {
                    let mut bytes = vec![0; segments.segment_len(index)];
                    segments.write(index, &mut bytes);
                    assert!(bytes.len() <= usize::from(MTU));
                    each(bytes);
                }
            }
        }
        // Each stream may exceed the budget by a chunk in each direction.
        let bound = MEMORY + self.stack.connections() * 2 * 16 * 1024;
        assert!(self.stack.memory_used() <= bound);
    }
}

/// A packet of a protocol from one address to another.
pub fn ipv4(protocol: u8, (from, to): ([u8; 4], [u8; 4]), payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0];
    packet.extend(from);
    packet.extend(to);
    let total = (packet.len() + payload.len()) as u16;
    packet[2..4].copy_from_slice(&total.to_be_bytes());
    let sum = !checksum::sum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}
