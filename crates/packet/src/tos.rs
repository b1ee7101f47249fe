//! The TOS byte of an outer IP header.

use crate::Ecn;

/// The TOS byte of an IPv4 header or the traffic class of an IPv6 header: six bits of DSCP (RFC
/// 2474), then two bits of ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tos(u8);

impl Tos {
    /// DSCP AF41 (RFC 2597), not ECN-capable.
    pub const AF41: Self = Self(0x88);

    /// The value of the byte.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The ECN bits.
    pub fn ecn(self) -> Ecn {
        Ecn::from_bits(self.0)
    }
}

/// DSCP 0 with these ECN bits.
impl From<Ecn> for Tos {
    fn from(ecn: Ecn) -> Self {
        Self(ecn.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tos_byte_from_ecn_has_only_the_ecn_bits() {
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            assert_eq!((Tos::from(ecn).bits(), Tos::from(ecn).ecn()), (ecn.bits(), ecn));
        }
        assert_eq!((Tos::AF41.bits() >> 2, Tos::AF41.ecn()), (34, Ecn::NotEct));
    }
}
