//! STUN: the address of this machine as a server observes it (RFC 8489; tailscale
//! `net/stun/stun.go`).
//!
//! Nodes send requests and read responses. The coordinator's STUN server reads requests and sends
//! responses.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// The transaction ID of a request and its response.
pub type TxId = [u8; 12];

/// The length of a request.
pub const REQUEST_LEN: usize = HEADER + 4 + SOFTWARE.len() + FINGERPRINT_LEN;

const HEADER: usize = 20;
const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const BINDING_REQUEST: [u8; 2] = [0, 1];
const BINDING_SUCCESS: [u8; 2] = [1, 1];

const MAPPED_ADDRESS: u16 = 0x0001;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
/// From drafts before RFC 5389; some servers still send it.
const XOR_MAPPED_ADDRESS_DRAFT: u16 = 0x8020;
const SOFTWARE_TYPE: u16 = 0x8022;
const FINGERPRINT_TYPE: u16 = 0x8028;

/// Relays only answer requests with this software attribute and a fingerprint at the end.
const SOFTWARE: [u8; 8] = *b"tailnode";
const FINGERPRINT_LEN: usize = 8;
/// RFC 8489, section 14.7.
const FINGERPRINT_XOR: u32 = 0x5354_554e;

/// The reason why a datagram is not the expected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StunError {
    /// It is not STUN.
    NotStun,
    /// The datagram is not a binding success.
    NotSuccess,
    /// The datagram is not a binding request of a Tailscale client.
    NotRequest,
    /// The attributes are malformed, or contain no address.
    Malformed,
}

impl fmt::Display for StunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotStun => "not a STUN message",
            Self::NotSuccess => "a STUN message that is not a binding success",
            Self::NotRequest => {
                "a STUN message that is not a binding request of a Tailscale client"
            }
            Self::Malformed => "a STUN response without a valid address",
        })
    }
}

impl std::error::Error for StunError {}

/// Returns whether a datagram is STUN.
pub fn is_stun(datagram: &[u8]) -> bool {
    datagram.len() >= HEADER && datagram[0] & 0xc0 == 0 && datagram[4..8] == COOKIE
}

/// Returns a binding request.
pub fn request(tx: TxId) -> [u8; REQUEST_LEN] {
    let mut datagram = [0; REQUEST_LEN];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        datagram[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&BINDING_REQUEST);
    put(&((REQUEST_LEN - HEADER) as u16).to_be_bytes());
    put(&COOKIE);
    put(&tx);
    put(&SOFTWARE_TYPE.to_be_bytes());
    put(&(SOFTWARE.len() as u16).to_be_bytes());
    put(&SOFTWARE);
    put(&FINGERPRINT_TYPE.to_be_bytes());
    put(&4u16.to_be_bytes());
    let fingerprint = crc32(&datagram[..REQUEST_LEN - FINGERPRINT_LEN]) ^ FINGERPRINT_XOR;
    datagram[REQUEST_LEN - 4..].copy_from_slice(&fingerprint.to_be_bytes());
    datagram
}

/// Returns the transaction ID of a response and the observed address.
///
/// # Errors
/// The datagram is not a success with an address.
pub fn read_response(datagram: &[u8]) -> Result<(TxId, SocketAddr), StunError> {
    if !is_stun(datagram) {
        return Err(StunError::NotStun);
    }
    if datagram[..2] != BINDING_SUCCESS {
        return Err(StunError::NotSuccess);
    }
    let mut tx = TxId::default();
    tx.copy_from_slice(&datagram[8..HEADER]);
    let len = usize::from(u16::from_be_bytes([datagram[2], datagram[3]]));
    let attributes = datagram[HEADER..].get(..len).ok_or(StunError::Malformed)?;
    read_attributes(attributes, &tx).map(|addr| (tx, addr)).ok_or(StunError::Malformed)
}

fn read_attributes(mut attributes: &[u8], tx: &TxId) -> Option<SocketAddr> {
    let (mut seen, mut plain) = (None, None);
    while !attributes.is_empty() {
        let (&[kind_high, kind_low, len_high, len_low], rest) = attributes.split_first_chunk()?;
        let len = usize::from(u16::from_be_bytes([len_high, len_low]));
        let value = rest.get(..len)?;
        match u16::from_be_bytes([kind_high, kind_low]) {
            XOR_MAPPED_ADDRESS | XOR_MAPPED_ADDRESS_DRAFT => {
                let mut mask = [0; 16];
                mask[..4].copy_from_slice(&COOKIE);
                mask[4..].copy_from_slice(tx);
                seen = Some(read_address(value, &mask)?);
            }
            MAPPED_ADDRESS => plain = Some(read_address(value, &[0; 16])?),
            _ => {}
        }
        attributes = rest.get(len.next_multiple_of(4)..)?;
    }
    seen.or(plain)
}

/// Reads an address after XOR with the mask. The port uses the first two bytes of the mask.
fn read_address(value: &[u8], mask: &[u8; 16]) -> Option<SocketAddr> {
    let (&[_, family, high, low], address) = value.split_first_chunk()?;
    let port = u16::from_be_bytes([high ^ mask[0], low ^ mask[1]]);
    let ip: IpAddr = match family {
        1 => {
            let bytes: [u8; 4] = *address.first_chunk()?;
            Ipv4Addr::from(std::array::from_fn::<u8, 4, _>(|i| bytes[i] ^ mask[i])).into()
        }
        2 => {
            let bytes: [u8; 16] = *address.first_chunk()?;
            let ip = Ipv6Addr::from(std::array::from_fn::<u8, 16, _>(|i| bytes[i] ^ mask[i]));
            ip.to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// CRC-32 of ISO 3309, bit by bit, for 32 bytes per request.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let low = crc & 1;
            crc = (crc >> 1) ^ (0xedb8_8320 * low);
        }
    }
    !crc
}

/// Returns the transaction ID of a client's binding request.
///
/// # Errors
/// The datagram is not a request of Tailscale's protocol. Others get no answer.
pub fn read_request(datagram: &[u8]) -> Result<TxId, StunError> {
    if !is_stun(datagram) {
        return Err(StunError::NotStun);
    }
    if datagram[..2] != BINDING_REQUEST {
        return Err(StunError::NotRequest);
    }
    let len = usize::from(u16::from_be_bytes([datagram[2], datagram[3]]));
    let (Some(software), true) =
        (datagram.get(HEADER..HEADER + 12), datagram.len() == HEADER + len)
    else {
        return Err(StunError::Malformed);
    };
    let is_members = software[..2] == SOFTWARE_TYPE.to_be_bytes()
        && software[2..4] == (SOFTWARE.len() as u16).to_be_bytes()
        && software[4..] == SOFTWARE;
    let (text, fingerprint) = datagram.split_at(datagram.len() - FINGERPRINT_LEN);
    let expected = (crc32(text) ^ FINGERPRINT_XOR).to_be_bytes();
    let is_sealed = fingerprint[..2] == FINGERPRINT_TYPE.to_be_bytes()
        && fingerprint[2..4] == 4u16.to_be_bytes()
        && fingerprint[4..] == expected;
    if !(is_members && is_sealed) {
        return Err(StunError::NotRequest);
    }
    let mut tx = TxId::default();
    tx.copy_from_slice(&datagram[8..HEADER]);
    Ok(tx)
}

/// Returns a success with the source address of the request.
pub fn response(tx: TxId, addr: SocketAddr) -> Vec<u8> {
    let mask = [&COOKIE[..], &tx].concat();
    let (family, ip) = match addr.ip().to_canonical() {
        IpAddr::V4(v4) => (1, v4.octets().to_vec()),
        IpAddr::V6(v6) => (2, v6.octets().to_vec()),
    };
    let mut value = vec![0, family];
    let plain = [&addr.port().to_be_bytes()[..], &ip].concat();
    value.extend(plain[..2].iter().zip(&mask).map(|(a, b)| a ^ b));
    value.extend(plain[2..].iter().zip(&mask).map(|(a, b)| a ^ b));
    let mut datagram = BINDING_SUCCESS.to_vec();
    datagram.extend_from_slice(&(4 + value.len() as u16).to_be_bytes());
    datagram.extend_from_slice(&mask);
    datagram.extend_from_slice(&XOR_MAPPED_ADDRESS.to_be_bytes());
    datagram.extend_from_slice(&(value.len() as u16).to_be_bytes());
    datagram.extend_from_slice(&value);
    datagram
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// From RFC 5769, section 2.2: a response with SOFTWARE, XOR-MAPPED-ADDRESS 192.0.2.1:32853,
    /// MESSAGE-INTEGRITY and FINGERPRINT.
    const RFC5769: &str = "0101003c2112a442b7e7a701bc34d686fa87dfae\
        8022000b7465737420766563746f7220\
        002000080001a147e112a643\
        000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7\
        80280004c07d4c96";

    fn hex(text: &str) -> Vec<u8> {
        base16ct::lower::decode_vec(text).unwrap()
    }

    #[test]
    fn response_of_the_rfc_is_read() {
        let (tx, addr) = read_response(&hex(RFC5769)).unwrap();
        assert_eq!(tx[..], hex("b7e7a701bc34d686fa87dfae"));
        assert_eq!(addr, ([192, 0, 2, 1], 32853).into());
    }

    #[test]
    fn fingerprint_matches_the_rfc() {
        let datagram = hex(RFC5769);
        let (text, fingerprint) = datagram.split_at(datagram.len() - FINGERPRINT_LEN);
        let expected = (crc32(text) ^ FINGERPRINT_XOR).to_be_bytes();
        assert_eq!(fingerprint[4..], expected);
    }

    #[test]
    fn request_has_software_attribute_and_fingerprint() {
        let datagram = request([7; 12]);
        assert!(is_stun(&datagram));
        assert_eq!(datagram[..8], [0, 1, 0, 20, 0x21, 0x12, 0xa4, 0x42]);
        assert_eq!(datagram[8..20], [7; 12]);
        assert_eq!(datagram[20..32], *b"\x80\x22\0\x08tailnode");
        assert_eq!(datagram[32..36], [0x80, 0x28, 0, 4]);
        let fingerprint = crc32(&datagram[..32]) ^ FINGERPRINT_XOR;
        assert_eq!(datagram[36..], fingerprint.to_be_bytes());
        assert_eq!(read_response(&datagram), Err(StunError::NotSuccess));
    }

    #[test]
    fn only_a_valid_client_request_is_read() {
        let datagram = request([7; 12]);
        assert_eq!(read_request(&datagram), Ok([7; 12]));
        for at in 0..datagram.len() {
            assert!(read_request(&datagram[..at]).is_err(), "{at} bytes");
            let mut changed = datagram;
            changed[at] ^= 1;
            assert!(read_request(&changed).is_err(), "byte {at}");
        }
        assert_eq!(read_request(&hex(RFC5769)), Err(StunError::NotRequest));
    }

    #[test]
    fn plain_address_is_used_without_an_xor_address() {
        let mut datagram = hex("0101000c2112a442000102030405060708090a0b");
        datagram.extend_from_slice(&hex("0001000800010016c0000207"));
        let expected: SocketAddr = ([192, 0, 2, 7], 22).into();
        assert_eq!(read_response(&datagram).unwrap().1, expected);
        let both = response([1; 12], ([192, 0, 2, 9], 1).into());
        datagram[8..20].copy_from_slice(&[1; 12]);
        datagram.extend_from_slice(&both[20..]);
        datagram[3] += 12;
        assert_eq!(read_response(&datagram).unwrap().1, ([192, 0, 2, 9], 1).into());
    }

    #[test]
    fn truncated_response_is_refused() {
        let datagram = hex(RFC5769);
        for len in 0..datagram.len() {
            assert!(read_response(&datagram[..len]).is_err(), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn response_contains_the_address(tx: TxId, v4: [u8; 4], v6: [u8; 16], port: u16) {
            for addr in [SocketAddr::from((v4, port)), SocketAddr::from((v6, port))] {
                let canonical = SocketAddr::new(addr.ip().to_canonical(), port);
                prop_assert_eq!(read_response(&response(tx, addr)), Ok((tx, canonical)));
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            len: u8,
        ) {
            let _ = (read_response(&bytes), read_request(&bytes));
            let header = [&[1, 1, 0, len], &COOKIE[..], &[0; 12], &bytes].concat();
            let _ = read_response(&header);
            let request = [&[0, 1, 0, bytes.len() as u8], &COOKIE[..], &[0; 12], &bytes].concat();
            let _ = read_request(&request);
        }
    }
}
