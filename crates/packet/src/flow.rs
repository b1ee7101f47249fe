//! A hash that identifies the flow of a packet.

use crate::wire::IpHeader;

/// Returns [`IpHeader::flow_hash`]. Bytes that are not an IP packet also have a hash, and the
/// packet may be truncated.
pub fn flow_hash(packet: &[u8]) -> u64 {
    IpHeader::parse_truncated(packet).map_or(0, |header| header.flow_hash(packet))
}

/// A hash of the values that identify a flow.
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
    fn ports_distinguish_flows_but_not_fragments() {
        assert_eq!(flow_hash(&udp(1, 0)), flow_hash(&udp(1, 0)));
        assert_ne!(flow_hash(&udp(1, 0)), flow_hash(&udp(2, 0)));
        assert_eq!(flow_hash(&udp(1, 9)), flow_hash(&udp(2, 9)));
    }

    #[test]
    fn every_field_of_an_ipv6_flow_is_hashed() {
        let mut packet = vec![0x60; 48];
        packet[6] = 6;
        let whole = flow_hash(&packet);
        for at in [6, 8, 23, 24, 39, 40, 43] {
            let mut other = packet.clone();
            other[at] = 17;
            assert_ne!(flow_hash(&other), whole, "byte {at}");
        }
    }

    #[test]
    fn short_and_malformed_packets_have_a_hash() {
        for packet in [&[][..], &[0x45; 19], &[0x4f; 20], &[0x60; 39], &[0x60; 40], &[0xff; 60]] {
            flow_hash(packet);
        }
    }
}
