//! Messages of PCP (RFC 6887) and NAT-PMP (RFC 6886). Only the client's part is implemented.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Nonce;

/// The port of a gateway for both protocols.
pub const PORT: u16 = 5351;

/// The longest response that is read, in bytes (RFC 6887, section 7).
pub const LONGEST: usize = 1100;

const NAT_PMP: u8 = 0;
const PCP: u8 = 2;
/// The response bit in the operation.
const RESPONSE: u8 = 0x80;

const PCP_ANNOUNCE: u8 = 0;
const PCP_MAP: u8 = 1;
const PCP_HEADER: usize = 24;
const PCP_MAP_LEN: usize = PCP_HEADER + 36;
const UDP: u8 = 17;

const PMP_ADDRESS: u8 = 0;
const PMP_MAP_UDP: u8 = 1;
const PMP_ADDRESS_LEN: usize = 12;
const PMP_MAP_LEN: usize = 16;
/// The minimum length of a response with an error, which may end after the epoch.
const PMP_REFUSAL_LEN: usize = 8;

/// The result code for an unsupported version in both protocols.
const UNSUPPORTED_VERSION: u16 = 1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Creates a PCP mapping, or deletes it with a lifetime of 0.
    PcpMap {
        /// The owner of the mapping.
        nonce: Nonce,
        /// The source address of the request.
        client: Ipv4Addr,
        /// The local port.
        internal: u16,
        /// The suggested public port; 0 for any.
        external: u16,
        /// The suggested public address; unspecified for any.
        address: Ipv4Addr,
        /// In seconds.
        lifetime: u32,
    },
    /// Requests the epoch through PCP.
    PcpAnnounce {
        /// The source address of the request.
        client: Ipv4Addr,
    },
    /// Requests the public address through NAT-PMP.
    PmpAddress,
    /// Creates a NAT-PMP mapping, or deletes it with a lifetime of 0.
    PmpMap {
        /// The local port.
        internal: u16,
        /// The suggested public port; 0 for any.
        external: u16,
        /// In seconds.
        lifetime: u32,
    },
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// A PCP mapping was created.
    PcpMap {
        /// As in the request.
        nonce: Nonce,
        /// As in the request.
        internal: u16,
        /// The public port.
        external: u16,
        /// The public address.
        address: Ipv4Addr,
        /// In seconds.
        lifetime: u32,
        /// Seconds since the gateway lost its mappings.
        epoch: u32,
    },
    /// The epoch through PCP.
    PcpAnnounce {
        /// Seconds since the gateway lost its mappings.
        epoch: u32,
    },
    /// PCP refused the mapping.
    PcpRefused {
        /// The result code.
        result: u8,
        /// The lifetime of the refusal in seconds.
        lifetime: u32,
    },
    /// The public address through NAT-PMP.
    PmpAddress {
        /// The address.
        address: Ipv4Addr,
        /// Seconds since the gateway lost its mappings.
        epoch: u32,
    },
    /// A NAT-PMP mapping was created.
    PmpMap {
        /// As in the request.
        internal: u16,
        /// The public port.
        external: u16,
        /// In seconds.
        lifetime: u32,
        /// Seconds since the gateway lost its mappings.
        epoch: u32,
    },
    /// NAT-PMP refused.
    PmpRefused {
        /// The result code.
        result: u16,
    },
    /// The gateway supports NAT-PMP but not PCP.
    NoPcp,
}

impl Request {
    /// Returns the datagram.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::PcpMap { nonce, client, internal, external, address, lifetime } => {
                let mut bytes = pcp_header(PCP_MAP, *lifetime, *client);
                bytes.extend_from_slice(&nonce.0);
                bytes.extend_from_slice(&[UDP, 0, 0, 0]);
                bytes.extend_from_slice(&internal.to_be_bytes());
                bytes.extend_from_slice(&external.to_be_bytes());
                bytes.extend_from_slice(&address.to_ipv6_mapped().octets());
                bytes
            }
            Self::PcpAnnounce { client } => pcp_header(PCP_ANNOUNCE, 0, *client),
            Self::PmpAddress => vec![NAT_PMP, PMP_ADDRESS],
            Self::PmpMap { internal, external, lifetime } => {
                let mut bytes = vec![NAT_PMP, PMP_MAP_UDP, 0, 0];
                bytes.extend_from_slice(&internal.to_be_bytes());
                bytes.extend_from_slice(&external.to_be_bytes());
                bytes.extend_from_slice(&lifetime.to_be_bytes());
                bytes
            }
        }
    }
}

fn pcp_header(operation: u8, lifetime: u32, client: Ipv4Addr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(PCP_MAP_LEN);
    bytes.extend_from_slice(&[PCP, operation, 0, 0]);
    bytes.extend_from_slice(&lifetime.to_be_bytes());
    bytes.extend_from_slice(&client.to_ipv6_mapped().octets());
    bytes
}

impl Response {
    /// Reads a datagram of a gateway; `None` if it is not one of these responses.
    pub fn read(datagram: &[u8]) -> Option<Self> {
        if datagram.len() > LONGEST {
            return None;
        }
        match *datagram.first()? {
            PCP => read_pcp(datagram),
            NAT_PMP => read_pmp(datagram),
            _ => None,
        }
    }
}

fn read_pcp(datagram: &[u8]) -> Option<Response> {
    let header: &[u8; PCP_HEADER] = datagram.first_chunk()?;
    // RFC 6887, section 8.3.
    if !datagram.len().is_multiple_of(4) {
        return None;
    }
    let operation = header[1].checked_sub(RESPONSE)?;
    let (lifetime, epoch) = (u32_at(header, 4)?, u32_at(header, 8)?);
    match (operation, header[3]) {
        (_, result) if u16::from(result) == UNSUPPORTED_VERSION => Some(Response::NoPcp),
        (PCP_MAP, 0) => {
            let map = datagram.get(PCP_HEADER..PCP_MAP_LEN)?;
            if map[12] != UDP {
                return None;
            }
            let address = Ipv6Addr::from(*map[20..].first_chunk::<16>()?);
            Some(Response::PcpMap {
                nonce: Nonce(*map.first_chunk()?),
                internal: u16_at(map, 16)?,
                external: u16_at(map, 18)?,
                address: address.to_ipv4_mapped()?,
                lifetime,
                epoch,
            })
        }
        (PCP_ANNOUNCE, 0) => Some(Response::PcpAnnounce { epoch }),
        (PCP_MAP, result) => Some(Response::PcpRefused { result, lifetime }),
        _ => None,
    }
}

fn read_pmp(datagram: &[u8]) -> Option<Response> {
    let operation = datagram.get(1)?.checked_sub(RESPONSE)?;
    let result = u16_at(datagram, 2)?;
    // RFC 6886, section 3.5, with any operation: what answers version 2 may not look at more.
    if result == UNSUPPORTED_VERSION {
        return Some(Response::NoPcp);
    }
    match operation {
        PMP_ADDRESS | PMP_MAP_UDP if result != 0 => {
            (datagram.len() >= PMP_REFUSAL_LEN).then_some(Response::PmpRefused { result })
        }
        PMP_ADDRESS => {
            let datagram: &[u8; PMP_ADDRESS_LEN] = datagram.first_chunk()?;
            let address = Ipv4Addr::from(*datagram[8..].first_chunk::<4>()?);
            Some(Response::PmpAddress { address, epoch: u32_at(datagram, 4)? })
        }
        PMP_MAP_UDP => {
            let datagram: &[u8; PMP_MAP_LEN] = datagram.first_chunk()?;
            Some(Response::PmpMap {
                internal: u16_at(datagram, 8)?,
                external: u16_at(datagram, 10)?,
                lifetime: u32_at(datagram, 12)?,
                epoch: u32_at(datagram, 4)?,
            })
        }
        _ => None,
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|some| u16::from_be_bytes(*some))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|some| u32::from_be_bytes(*some))
}

/// The gateway's encoder.
#[cfg(test)]
impl Response {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let pcp = |operation: u8, result: u8, lifetime: u32, epoch: u32| {
            let head = [PCP, operation | RESPONSE, 0, result];
            [&head[..], &lifetime.to_be_bytes(), &epoch.to_be_bytes(), &[0; 12]].concat()
        };
        let pmp = |operation: u8, result: u16, epoch: u32| {
            let head = [NAT_PMP, operation | RESPONSE];
            [&head[..], &result.to_be_bytes(), &epoch.to_be_bytes()].concat()
        };
        match self {
            Self::PcpMap { nonce, internal, external, address, lifetime, epoch } => [
                &pcp(PCP_MAP, 0, lifetime, epoch)[..],
                &nonce.0,
                &[UDP, 0, 0, 0],
                &internal.to_be_bytes(),
                &external.to_be_bytes(),
                &address.to_ipv6_mapped().octets(),
            ]
            .concat(),
            Self::PcpAnnounce { epoch } => pcp(PCP_ANNOUNCE, 0, 0, epoch),
            Self::PcpRefused { result, lifetime } => {
                [&pcp(PCP_MAP, result, lifetime, 0)[..], &[0; 36]].concat()
            }
            Self::PmpAddress { address, epoch } => {
                [&pmp(PMP_ADDRESS, 0, epoch)[..], &address.octets()].concat()
            }
            Self::PmpMap { internal, external, lifetime, epoch } => [
                &pmp(PMP_MAP_UDP, 0, epoch)[..],
                &internal.to_be_bytes(),
                &external.to_be_bytes(),
                &lifetime.to_be_bytes(),
            ]
            .concat(),
            Self::PmpRefused { result } => pmp(PMP_MAP_UDP, result, 0),
            Self::NoPcp => pmp(PCP_MAP, UNSUPPORTED_VERSION, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn responses() -> impl Strategy<Value = Response> {
        let numbers = any::<([u8; 12], u16, u16, [u8; 4], u32, u32)>();
        numbers.prop_flat_map(|(nonce, internal, external, address, lifetime, epoch)| {
            let (nonce, address) = (Nonce(nonce), Ipv4Addr::from(address));
            prop_oneof![
                Just(Response::PcpMap { nonce, internal, external, address, lifetime, epoch }),
                Just(Response::PcpAnnounce { epoch }),
                (2u8..).prop_map(move |result| Response::PcpRefused { result, lifetime }),
                Just(Response::PmpAddress { address, epoch }),
                Just(Response::PmpMap { internal, external, lifetime, epoch }),
                (2u16..).prop_map(|result| Response::PmpRefused { result }),
                Just(Response::NoPcp),
            ]
        })
    }

    #[test]
    fn requests_match_the_rfcs() {
        let client = Ipv4Addr::new(192, 168, 0, 2);
        let mapped = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 2];
        let map = Request::PcpMap {
            nonce: Nonce([7; 12]),
            client,
            internal: 0x1234,
            external: 0x5678,
            address: Ipv4Addr::UNSPECIFIED,
            lifetime: 7200,
        };
        let expected = [
            &[2, 1, 0, 0, 0, 0, 0x1c, 0x20][..],
            &mapped,
            &[7; 12],
            &[17, 0, 0, 0, 0x12, 0x34, 0x56, 0x78],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0],
        ];
        assert_eq!(map.to_bytes(), expected.concat());
        let announce = Request::PcpAnnounce { client }.to_bytes();
        assert_eq!(announce, [&[2, 0, 0, 0, 0, 0, 0, 0][..], &mapped].concat());
        assert_eq!(Request::PmpAddress.to_bytes(), [0, 0]);
        let map = Request::PmpMap { internal: 0x1234, external: 0x5678, lifetime: 7200 };
        let expected = [0, 1, 0, 0, 0x12, 0x34, 0x56, 0x78, 0, 0, 0x1c, 0x20];
        assert_eq!(map.to_bytes(), expected);
    }

    #[test]
    fn requests_are_not_read_as_responses() {
        let client = Ipv4Addr::LOCALHOST;
        let all = [
            Request::PcpAnnounce { client },
            Request::PmpAddress,
            Request::PmpMap { internal: 1, external: 1, lifetime: 1 },
        ];
        assert!(all.iter().all(|request| Response::read(&request.to_bytes()).is_none()));
    }

    #[test]
    fn mapping_for_tcp_or_ipv6_is_refused() {
        let response = Response::PcpMap {
            nonce: Nonce([1; 12]),
            internal: 1,
            external: 2,
            address: Ipv4Addr::new(203, 0, 113, 1),
            lifetime: 3,
            epoch: 4,
        };
        let good = response.to_bytes();
        assert_eq!(Response::read(&good), Some(response));
        // The protocol, and a byte of the address's prefix.
        for at in [PCP_HEADER + 12, PCP_HEADER + 20] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert_eq!(Response::read(&bad), None, "{at}");
        }
    }

    proptest! {
        #[test]
        fn response_is_read_back(response in responses()) {
            let bytes = response.to_bytes();
            prop_assert_eq!(Response::read(&bytes), Some(response));
        }

        #[test]
        fn truncated_response_is_refused_or_harmless(response in responses()) {
            let bytes = response.to_bytes();
            for len in 0..bytes.len() {
                let read = Response::read(&bytes[..len]);
                let harmless = matches!(
                    read,
                    None | Some(Response::NoPcp | Response::PcpRefused { .. })
                );
                prop_assert!(harmless, "{len} bytes: {read:?}");
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            version in 0u8..3,
            operation in 0x80u8..0x83,
            rest in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = Response::read(&rest);
            let _ = Response::read(&[&[version, operation][..], &rest].concat());
        }
    }
}
