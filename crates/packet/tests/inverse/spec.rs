//! The fields of a packet: every field may have any value, and every length is correct.

pub(super) const FIN: u8 = 0x01;
pub(super) const SYN: u8 = 0x02;
pub(super) const RST: u8 = 0x04;
pub(super) const PSH: u8 = 0x08;
pub(super) const ACK: u8 = 0x10;
pub(super) const URG: u8 = 0x20;
pub(super) const ECE: u8 = 0x40;
pub(super) const CWR: u8 = 0x80;

/// The IPv4 fragment field: "don't fragment".
pub(super) const DF: u16 = 0x4000;
/// More fragments follow.
pub(super) const MF: u16 = 0x2000;

#[derive(Clone, Debug)]
pub(super) struct Spec {
    pub ipv6: bool,
    pub tcp: bool,
    /// Identifies the flow: last byte of the source address, and source port.
    pub host: u8,
    pub tos: u8,
    pub ttl: u8,
    /// IPv6 only.
    pub flow_label: u16,
    /// IPv4 only, like the next fields.
    pub id: u16,
    pub fragment: u16,
    /// Added to the header's checksum. Zero leaves it correct.
    pub ip_checksum_off_by: u16,
    /// IPv4 options, or a destination options header of IPv6.
    pub ip_options: bool,
    pub sequence: u32,
    pub ack: u32,
    pub window: u16,
    pub urgent: u16,
    pub flags: u8,
    /// The four bits next to the data offset.
    pub reserved: u8,
    pub tcp_options: Vec<u8>,
    pub payload: Vec<u8>,
    pub checksum: Checksum,
}

/// State of the transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksum {
    Right,
    Zero,
    OffBy(u16),
}

impl Spec {
    pub(super) fn new(tcp: bool, ipv6: bool, payload: Vec<u8>) -> Self {
        Self {
            ipv6,
            tcp,
            host: 1,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            id: 7,
            fragment: 0,
            ip_checksum_off_by: 0,
            ip_options: false,
            sequence: 1_000,
            ack: 5,
            window: 500,
            urgent: 0,
            flags: ACK,
            reserved: 0,
            tcp_options: vec![1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            payload,
            checksum: Checksum::Right,
        }
    }

    pub(super) fn build(&self) -> Vec<u8> {
        let mut transport = if self.tcp { self.tcp_header() } else { self.udp_header() };
        let field = if self.tcp { 16..18 } else { 6..8 };
        transport.extend(&self.payload);
        let mut summed = self.addresses();
        summed.extend([0, self.protocol()]);
        summed.extend((transport.len() as u16).to_be_bytes());
        summed.extend(&transport);
        let right = match slow_checksum(&summed) {
            0 => 0xffff,
            checksum => checksum,
        };
        let checksum = match self.checksum {
            Checksum::Right => right,
            Checksum::Zero => 0,
            Checksum::OffBy(by) => right.wrapping_add(by),
        };
        transport[field].copy_from_slice(&checksum.to_be_bytes());
        let mut packet = self.ip_header(transport.len());
        packet.extend(transport);
        packet
    }

    /// Bytes of the headers.
    pub(super) fn headers(&self) -> usize {
        let transport = if self.tcp { 20 + self.tcp_options.len() } else { 8 };
        self.ip_header(0).len() + transport
    }

    fn protocol(&self) -> u8 {
        if self.tcp { 6 } else { 17 }
    }

    fn addresses(&self) -> Vec<u8> {
        let len = if self.ipv6 { 16 } else { 4 };
        let mut addresses = vec![10; 2 * len];
        addresses[len - 1] = self.host;
        addresses[2 * len - 1] = 200;
        addresses
    }

    fn ip_header(&self, payload: usize) -> Vec<u8> {
        let mut header = if self.ipv6 { self.ipv6_header() } else { self.ipv4_header() };
        let total = header.len() + payload;
        if self.ipv6 {
            header[4..6].copy_from_slice(&(total as u16 - 40).to_be_bytes());
            return header;
        }
        header[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        let checksum = slow_checksum(&header).wrapping_add(self.ip_checksum_off_by);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        header
    }

    fn ipv6_header(&self) -> Vec<u8> {
        const DESTINATION_OPTIONS: u8 = 60;
        let next = if self.ip_options { DESTINATION_OPTIONS } else { self.protocol() };
        let mut header = vec![0x60 | self.tos >> 4, self.tos << 4];
        header.extend(self.flow_label.to_be_bytes());
        header.extend([0, 0, next, self.ttl]);
        header.extend(self.addresses());
        if self.ip_options {
            header.extend([self.protocol(), 0, 1, 4, 0, 0, 0, 0]);
        }
        header
    }

    fn ipv4_header(&self) -> Vec<u8> {
        let options: &[u8] = if self.ip_options { &[1, 1, 1, 0] } else { &[] };
        let mut header = vec![0x45 + (options.len() / 4) as u8, self.tos, 0, 0];
        header.extend(self.id.to_be_bytes());
        header.extend(self.fragment.to_be_bytes());
        header.extend([self.ttl, self.protocol(), 0, 0]);
        header.extend(self.addresses());
        header.extend(options);
        header
    }

    fn tcp_header(&self) -> Vec<u8> {
        let words = (20 + self.tcp_options.len()) / 4;
        let mut header = vec![0, self.host, 0, 80];
        header.extend(self.sequence.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        header.extend([(words << 4) as u8 | self.reserved, self.flags]);
        header.extend(self.window.to_be_bytes());
        header.extend([0, 0]);
        header.extend(self.urgent.to_be_bytes());
        header.extend(&self.tcp_options);
        header
    }

    fn udp_header(&self) -> Vec<u8> {
        let mut header = vec![0, self.host, 0, 53];
        header.extend((8 + self.payload.len() as u16).to_be_bytes());
        header.extend([0, 0]);
        header
    }
}

/// RFC 1071, word by word.
pub(super) fn slow_checksum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
