//! To which flow a packet belongs, as a hash.

use crate::wire::IpHeader;

/// The hash of [`IpHeader::flow`]. Bytes that are no IP packet have some hash; the end of a
/// packet need not be there.
pub fn flow(packet: &[u8]) -> u64 {
    IpHeader::parse_truncated(packet).map_or(0, |header| header.flow(packet))
}

/// A hash of what names a flow.
pub(crate) fn hash(protocol: u8, addresses: &[u8], ports: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let words = addresses.chunks_exact(4).chain(ports.chunks_exact(4));
    words.fold(protocol.into(), |hash: u64, word| {
        let word = u32::from_ne_bytes(word.try_into().expect("chunks of four bytes"));
        (hash ^ u64::from(word)).wrapping_mul(ODD).rotate_left(29)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn udp(source_port: u8, fragment: u8) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 28, 0, 0, 0, fragment, 64, 17, 0, 0];
        packet.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, source_port, 0, 53, 0, 8, 0, 0]);
        packet
    }

    #[test]
    fn ports_tell_flows_apart_but_not_fragments() {
        assert_eq!(flow(&udp(1, 0)), flow(&udp(1, 0)));
        assert_ne!(flow(&udp(1, 0)), flow(&udp(2, 0)));
        assert_eq!(flow(&udp(1, 9)), flow(&udp(2, 9)));
    }

    #[test]
    fn every_field_of_an_ipv6_flow_counts() {
        let mut packet = vec![0x60; 48];
        packet[6] = 6;
        let whole = flow(&packet);
        for at in [6, 8, 23, 24, 39, 40, 43] {
            let mut other = packet.clone();
            other[at] = 17;
            assert_ne!(flow(&other), whole, "byte {at}");
        }
    }

    #[test]
    fn short_and_strange_bytes_have_a_hash() {
        for packet in [&[][..], &[0x45; 19], &[0x4f; 20], &[0x60; 39], &[0x60; 40], &[0xff; 60]] {
            flow(packet);
        }
    }
}
