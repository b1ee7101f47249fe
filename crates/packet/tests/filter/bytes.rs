//! Packets, described by the fields that a filter examines, and their bytes.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub from: IpAddr,
    pub to: IpAddr,
    pub transport: Transport,
    pub fragment: Option<Fragment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp {
        ports: (u16, u16),
        flags: u8,
    },
    Udp {
        ports: (u16, u16),
    },
    Sctp {
        ports: (u16, u16),
    },
    /// ICMP or ICMPv6, by the packet's family.
    Icmp {
        kind: u8,
        code: u8,
    },
    Other(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fragment {
    /// In units of 8 bytes.
    pub offset: u16,
    pub more: bool,
}

pub(crate) const SYN: u8 = 0x02;
pub(crate) const ACK: u8 = 0x10;

pub(crate) fn udp(from: &str, to: &str, ports: (u16, u16)) -> Packet {
    packet(from, to, Transport::Udp { ports })
}

pub(crate) fn tcp(from: &str, to: &str, ports: (u16, u16), flags: u8) -> Packet {
    packet(from, to, Transport::Tcp { ports, flags })
}

pub(crate) fn packet(from: &str, to: &str, transport: Transport) -> Packet {
    Packet { from: from.parse().unwrap(), to: to.parse().unwrap(), transport, fragment: None }
}

impl Packet {
    pub(crate) fn protocol(&self) -> u8 {
        match self.transport {
            Transport::Tcp { .. } => 6,
            Transport::Udp { .. } => 17,
            Transport::Sctp { .. } => 132,
            Transport::Icmp { .. } if self.to.is_ipv4() => 1,
            Transport::Icmp { .. } => 58,
            Transport::Other(protocol) => protocol,
        }
    }

    /// Length of the transport header.
    pub(crate) fn least(&self) -> usize {
        match (self.transport, self.protocol()) {
            (Transport::Tcp { .. }, _) => 20,
            (Transport::Udp { .. }, _) => 8,
            (Transport::Sctp { .. }, _) => 12,
            (Transport::Icmp { .. }, _) => 4,
            (Transport::Other(_), 2) if self.to.is_ipv4() => 8,
            (Transport::Other(_), _) => 0,
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let behind = [self.transport(), vec![0xa5; 12]].concat();
        let fragment = self.fragment.unwrap_or(Fragment { offset: 0, more: false });
        match (self.from, self.to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let field = fragment.offset | u16::from(fragment.more) << 13;
                let mut packet = vec![0x45, 0, 0, 0, 0, 0];
                packet[2..4].copy_from_slice(&(20 + behind.len() as u16).to_be_bytes());
                packet.extend(field.to_be_bytes());
                packet.extend([64, self.protocol(), 0, 0]);
                packet.extend([from.octets(), to.octets()].concat());
                [packet, behind].concat()
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let field = fragment.offset << 3 | u16::from(fragment.more);
                let extension = [&[self.protocol(), 0][..], &field.to_be_bytes(), &[7; 4]].concat();
                let (next, extension) = match self.fragment {
                    Some(_) => (44, extension),
                    None => (self.protocol(), Vec::new()),
                };
                let mut packet = vec![0x60, 0, 0, 0];
                packet.extend(((extension.len() + behind.len()) as u16).to_be_bytes());
                packet.extend([next, 64]);
                packet.extend([from.octets(), to.octets()].concat());
                [packet, extension, behind].concat()
            }
            _ => panic!("both of one family"),
        }
    }

    fn transport(&self) -> Vec<u8> {
        let ports = |(from, to): (u16, u16)| [from.to_be_bytes(), to.to_be_bytes()].concat();
        let mut header = match self.transport {
            Transport::Tcp { ports: of, .. }
            | Transport::Udp { ports: of }
            | Transport::Sctp { ports: of } => ports(of),
            Transport::Icmp { kind, code } => vec![kind, code],
            Transport::Other(_) => Vec::new(),
        };
        header.resize(self.least(), 0);
        if let Transport::Tcp { flags, .. } = self.transport {
            header[12..14].copy_from_slice(&[0x50, flags]);
        }
        header
    }
}
