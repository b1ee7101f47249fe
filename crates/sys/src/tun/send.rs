//! The sending half, for packets that the kernel receives from the interface. Consecutive packets
//! of a flow are written as one super-packet, gathered from the buffer in which they were
//! decrypted.
//!
//! ```text
//!   super-packet -> writev -> sent
//!                          -> refused (`refusal`):
//!     queue is full            retried after a wait, then counted as refused
//!     the interface is down    counted as refused
//!     out of memory            its packets are written singly
//!     other errors             its packets are written singly; if that works, the gate
//!                              of its transport closes for a while
//! ```

use std::{
    io::{self, IoSlice},
    sync::Arc,
    time::Duration,
};

use nix::errno::Errno;
use packet::{
    Coalesce, Coalescer, IpPacket, IpSend, RecvBatch, SegmentProtocol, SuperPacket, VNET_HEADER_LEN,
};

use super::{
    device::{Calls, TunDevice},
    refusal::Cause,
};
use crate::offload::{Gate, Offloads, Switch};

/// The total time that one batch waits while the device's send buffer is full. By default, the
/// buffer of a TUN device is not limited.
const TIMEOUT: Duration = Duration::from_millis(5);
/// The duration of one wait.
const WAIT: Duration = Duration::from_millis(1);
/// The maximum number of pieces of one write: headers, and the payload of each packet.
const MAX_PIECES: usize = 1 + SuperPacket::MAX_PACKETS;

/// The sending half of a TUN device.
#[derive(Debug)]
pub struct TunSend<D = TunDevice> {
    device: Arc<D>,
    offloads: Arc<Offloads>,
    tcp: Gate,
    udp: Gate,
    coalescer: Coalescer,
}

impl<D: Calls> TunSend<D> {
    pub fn new(device: Arc<D>, offloads: Arc<Offloads>) -> Self {
        let (tcp, udp) = (Gate::default(), Gate::default());
        Self { device, offloads, tcp, udp, coalescer: Coalescer::default() }
    }
}

impl<D: Calls> IpSend for TunSend<D> {
    fn send(&mut self, batch: &RecvBatch, packets: &[IpPacket]) -> io::Result<usize> {
        let Self { device, offloads, tcp, udp, coalescer } = self;
        let coalesce = Coalesce {
            tcp: tcp.is_open(&offloads.tun_tcp_gro, &**device),
            udp: udp.is_open(&offloads.tun_udp_gro, &**device),
        };
        coalescer.clear();
        for packet in packets {
            coalescer.push(batch.bytes(), packet, coalesce);
        }
        let mut pass = Pass { device: &**device, batch, time_left: TIMEOUT, refused: 0 };
        let (mut tcp, mut udp) = (
            Transport::new(tcp, &offloads.tun_tcp_gro),
            Transport::new(udp, &offloads.tun_udp_gro),
        );
        for packet in coalescer.finish() {
            match packet.protocol() {
                None => pass.write_single(packet)?,
                Some(SegmentProtocol::Udp) => pass.write_super(packet, &mut udp)?,
                Some(_) => pass.write_super(packet, &mut tcp)?,
            }
        }
        Ok(pass.refused)
    }
}

/// The state of one transport during one batch.
struct Transport<'a> {
    gate: &'a mut Gate,
    switch: &'a Switch,
    /// Whether the kernel refused a super-packet in this batch. A batch causes at most one
    /// demotion.
    demoted: bool,
}

impl<'a> Transport<'a> {
    fn new(gate: &'a mut Gate, switch: &'a Switch) -> Self {
        Self { gate, switch, demoted: false }
    }
}

/// The state of sending one batch.
struct Pass<'a, D> {
    device: &'a D,
    batch: &'a RecvBatch,
    time_left: Duration,
    /// The number of packets that the kernel refused.
    refused: usize,
}

impl<D: Calls> Pass<'_, D> {
    fn write_single(&mut self, packet: &SuperPacket) -> io::Result<()> {
        let payload = packet.payload().first().map_or(&[][..], |span| self.batch.get(*span));
        let pieces = [IoSlice::new(packet.header()), IoSlice::new(payload)];
        self.write_packet(&pieces).map(drop)
    }

    fn write_super(
        &mut self,
        packet: &SuperPacket,
        transport: &mut Transport<'_>,
    ) -> io::Result<()> {
        if transport.demoted {
            return self.write_singly(packet).map(drop);
        }
        let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
        pieces[0] = IoSlice::new(packet.header());
        for (piece, span) in pieces[1..].iter_mut().zip(packet.payload()) {
            *piece = IoSlice::new(self.batch.get(*span));
        }
        let Err(errno) = self.write(&pieces[..=packet.packets()]) else {
            transport.gate.succeeded();
            return Ok(());
        };
        match Cause::of(errno) {
            Cause::Gone => return Err(errno.into()),
            Cause::Signal | Cause::Queue | Cause::Down => self.refused += packet.packets(),
            Cause::Memory => drop(self.write_singly(packet)?),
            Cause::Packet => {
                if self.write_singly(packet)? {
                    transport.gate.demote(transport.switch, self.device);
                    transport.demoted = true;
                }
            }
        }
        Ok(())
    }

    /// Writes the packets of a super-packet singly, as they were received. Returns whether any was
    /// accepted.
    fn write_singly(&mut self, packet: &SuperPacket) -> io::Result<bool> {
        let mut any = false;
        for whole in packet.packet_spans() {
            let pieces = [IoSlice::new(&[0; VNET_HEADER_LEN]), IoSlice::new(self.batch.get(whole))];
            any |= self.write_packet(&pieces)?;
        }
        Ok(any)
    }

    /// Writes one packet. Returns whether it was accepted. It fails only if the device was
    /// deleted.
    fn write_packet(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<bool> {
        match self.write(pieces) {
            Ok(()) => Ok(true),
            Err(errno) if Cause::of(errno) == Cause::Gone => Err(errno.into()),
            Err(_) => {
                self.refused += 1;
                Ok(false)
            }
        }
    }

    fn write(&mut self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        loop {
            let Err(errno) = self.device.write(pieces) else { return Ok(()) };
            match Cause::of(errno) {
                Cause::Signal => {}
                Cause::Queue if !self.time_left.is_zero() => {
                    self.time_left = self.time_left.saturating_sub(WAIT);
                    self.device.wait_writable(self.device.as_fd(), WAIT);
                }
                _ => return Err(errno),
            }
        }
    }
}
