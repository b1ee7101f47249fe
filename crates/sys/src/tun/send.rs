//! The sending half: packets for the kernel to take as received. Consecutive
//! packets of a flow are written as one super-packet, gathered out of the buffer
//! that they were decrypted in. Where the kernel refuses one, its packets are
//! written one by one.

use std::{
    io::{self, IoSlice},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use nix::{errno::Errno, sys::uio::writev};
use packet::{
    Coalesce, Coalescer, IpSend, RecvBatch, SegmentProtocol, Span, SuperPacket, VNET_HEADER_LEN,
};

use crate::{
    offload::{Gate, Offloads, Switch},
    poll,
};

/// How long one write waits for room in a device whose send buffer is full.
/// TUN devices have no such bound unless somebody set one, so that this is
/// only to keep the loop finite.
const WRITE_PATIENCE: Duration = Duration::from_millis(5);
/// The most pieces of one write: headers, and the payload of each packet.
const MAX_PIECES: usize = 1 + SuperPacket::MAX_PACKETS;

/// The sending half of a TUN device.
#[derive(Debug)]
pub struct TunSend {
    fd: Arc<OwnedFd>,
    offloads: Arc<Offloads>,
    tcp: Gate,
    udp: Gate,
    coalescer: Coalescer,
}

impl TunSend {
    pub(super) fn new(fd: Arc<OwnedFd>, offloads: Arc<Offloads>) -> Self {
        let (tcp, udp) = (Gate::default(), Gate::default());
        Self { fd, offloads, tcp, udp, coalescer: Coalescer::default() }
    }
}

impl IpSend for TunSend {
    fn send(&mut self, batch: &RecvBatch, packets: &[Span]) -> io::Result<usize> {
        let Self { fd, offloads, tcp, udp, coalescer } = self;
        let coalesce = Coalesce {
            tcp: tcp.is_open(&offloads.tun_tcp_gro),
            udp: udp.is_open(&offloads.tun_udp_gro),
        };
        coalescer.clear();
        for packet in packets {
            coalescer.push(batch.bytes(), *packet, coalesce);
        }
        let mut refused = 0;
        // One batch is one refusal, however many of its super-packets it meets.
        let mut demoted = Coalesce { tcp: false, udp: false };
        for packet in coalescer.finish() {
            let (gate, switch, demoted): (&mut Gate, &Switch, &mut bool) = match packet.protocol() {
                Some(SegmentProtocol::Udp) => (udp, &offloads.tun_udp_gro, &mut demoted.udp),
                _ => (tcp, &offloads.tun_tcp_gro, &mut demoted.tcp),
            };
            if *demoted && packet.packets() > 1 {
                refused += write_one_by_one(fd, batch, packet)?;
                continue;
            }
            refused += match write(fd, batch, packet) {
                Ok(()) if packet.packets() > 1 => {
                    gate.went();
                    0
                }
                Ok(()) => 0,
                Err(Errno::EBADFD) => return Err(Errno::EBADFD.into()),
                Err(Errno::EINVAL) if packet.packets() > 1 => {
                    gate.demote(switch);
                    *demoted = true;
                    write_one_by_one(fd, batch, packet)?
                }
                // EIO: the interface is down. EINVAL: no IP packet. ENOBUFS,
                // ENOMEM: no memory. All concern these packets alone.
                Err(_) => packet.packets(),
            };
        }
        Ok(refused)
    }
}

/// Writes the packets of a super-packet by themselves, as they came. Returns how
/// many the kernel refused.
fn write_one_by_one(fd: &OwnedFd, batch: &RecvBatch, packet: &SuperPacket) -> io::Result<usize> {
    let mut refused = 0;
    for whole in packet.wholes() {
        let pieces = [IoSlice::new(&[0; VNET_HEADER_LEN]), IoSlice::new(batch.get(whole))];
        match write_pieces(fd, &pieces) {
            Ok(()) => {}
            Err(Errno::EBADFD) => return Err(Errno::EBADFD.into()),
            Err(_) => refused += 1,
        }
    }
    Ok(refused)
}

fn write(fd: &OwnedFd, batch: &RecvBatch, packet: &SuperPacket) -> Result<(), Errno> {
    if let [only] = packet.payload() {
        return write_pieces(fd, &[IoSlice::new(packet.header()), IoSlice::new(batch.get(*only))]);
    }
    let mut pieces = [IoSlice::new(&[]); MAX_PIECES];
    pieces[0] = IoSlice::new(packet.header());
    for (piece, span) in pieces[1..].iter_mut().zip(packet.payload()) {
        *piece = IoSlice::new(batch.get(*span));
    }
    write_pieces(fd, &pieces[..=packet.packets()])
}

fn write_pieces(fd: &OwnedFd, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
    let mut patient = true;
    loop {
        match writev(fd, pieces) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if patient => {
                patient = poll::writable(fd.as_fd(), WRITE_PATIENCE);
            }
            Err(errno) => return Err(errno),
        }
    }
}
