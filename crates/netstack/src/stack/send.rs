//! The engine's sending half: packets that arrive at the stack.

use std::{io, sync::Arc};

use packet::{Coalesce, Coalescer, IpPacket, IpSend, RecvBatch, SuperPacket, VNET_HEADER_LEN};

use super::{shared::Shared, state::State};
use crate::{
    ip::{self, Packet, PacketError},
    time::Time,
};

/// Passes packets from the engine to the stack.
pub struct StackSend {
    shared: Arc<Shared>,
    coalescer: Coalescer,
}

impl StackSend {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, coalescer: Coalescer::default() }
    }
}

impl IpSend for StackSend {
    fn send(&mut self, batch: &RecvBatch, packets: &[IpPacket]) -> io::Result<usize> {
        // Sockets receive datagrams one by one.
        let coalesce = Coalesce { tcp: self.shared.has_gro(), udp: false };
        self.coalescer.clear();
        for packet in packets {
            self.coalescer.push(batch.bytes(), packet, coalesce);
        }
        let now = self.shared.now();
        let mut state = self.shared.lock();
        for packet in self.coalescer.finish() {
            state.handle_packet(batch, packet, now);
        }
        Ok(0)
    }
}

impl State {
    fn handle_packet(&mut self, batch: &RecvBatch, packet: &SuperPacket, now: Time) {
        let headers = &packet.header()[VNET_HEADER_LEN..];
        let header = packet.ip_header();
        match packet.payload() {
            [span] if headers.is_empty() => {
                let bytes = batch.get(*span);
                match Packet::whole(bytes, header) {
                    Ok(packet) => self.handle(&packet, now),
                    Err(PacketError::Fragment) => self.handle_fragment(bytes, header, now),
                    Err(PacketError::Malformed) => self.counters.malformed += 1,
                }
            }
            spans => {
                let packet = Packet::coalesced(headers, header, (batch.bytes(), spans));
                self.handle(&packet, now);
            }
        }
    }

    pub(super) fn handle(&mut self, packet: &Packet<'_>, now: Time) {
        if !self.local.has(packet.destination) {
            self.counters.not_ours += 1;
            return;
        }
        match packet.protocol {
            ip::TCP => self.handle_tcp(packet, now),
            ip::UDP => self.handle_udp(packet),
            ip::ICMP | ip::ICMPV6 => self.handle_icmp(packet, now),
            _ => self.counters.malformed += 1,
        }
    }
}
