//! Packets for the measurements. Their checksums are not valid; no measured code reads them.

use std::ops::Range;

/// Bytes of a TCP header with timestamps, as Linux sends it.
pub(crate) const TCP: usize = 32;
pub(crate) const UDP: usize = 8;

/// Packet `number` of a TCP stream, with `len` bytes of payload.
pub(crate) fn tcp(ipv6: bool, port: u16, number: usize, len: usize) -> Vec<u8> {
    let mut packet = ip(ipv6, 6, number, TCP + len);
    let at = packet.len();
    packet.resize(at + TCP + len, number as u8);
    let header = &mut packet[at..at + TCP];
    header.fill(0);
    put(header, 0..2, port);
    put(header, 2..4, 5201);
    header[4..8].copy_from_slice(&((number * len) as u32).to_be_bytes());
    header[12] = (TCP / 4 * 16) as u8;
    header[13] = 0x10;
    header[20..24].copy_from_slice(&[1, 1, 8, 10]);
    packet
}

/// A UDP datagram with `len` bytes of payload.
pub(crate) fn udp(ipv6: bool, port: u16, number: usize, len: usize) -> Vec<u8> {
    let mut packet = ip(ipv6, 17, number, UDP + len);
    let at = packet.len();
    packet.resize(at + UDP + len, number as u8);
    let header = &mut packet[at..at + UDP];
    put(header, 0..2, port);
    put(header, 2..4, 443);
    put(header, 4..6, (UDP + len) as u16);
    put(header, 6..8, 1);
    packet
}

fn ip(ipv6: bool, protocol: u8, number: usize, behind: usize) -> Vec<u8> {
    if ipv6 {
        let mut header = vec![0; 40];
        header[0] = 0x60;
        put(&mut header, 4..6, behind as u16);
        header[6..8].copy_from_slice(&[protocol, 64]);
        header[23] = 1;
        header[39] = 2;
        return header;
    }
    let mut header = vec![0; 20];
    header[0] = 0x45;
    put(&mut header, 2..4, (20 + behind) as u16);
    put(&mut header, 4..6, number as u16);
    header[6] = 0x40;
    header[8..10].copy_from_slice(&[64, protocol]);
    header[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum = !packet::checksum::sum(&header);
    put(&mut header, 10..12, sum);
    header
}

fn put(header: &mut [u8], field: Range<usize>, value: u16) {
    header[field].copy_from_slice(&value.to_be_bytes());
}
