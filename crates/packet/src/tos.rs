//! The byte of an outer IP header that says how a packet is to be treated.

use crate::Ecn;

/// The TOS byte of an IPv4 header or the traffic class of an IPv6 one: six bits of DSCP
/// (RFC 2474), then two of ECN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tos(u8);

impl Tos {
    /// DSCP AF41 (RFC 2597), not ECN-capable.
    pub const AF41: Self = Self(0x88);

    /// The value of the byte.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Its ECN bits.
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
    fn a_byte_made_of_ecn_has_these_bits_alone() {
        for ecn in [Ecn::NotEct, Ecn::Ect1, Ecn::Ect0, Ecn::Ce] {
            assert_eq!((Tos::from(ecn).bits(), Tos::from(ecn).ecn()), (ecn.bits(), ecn));
        }
        assert_eq!((Tos::AF41.bits() >> 2, Tos::AF41.ecn()), (34, Ecn::NotEct));
    }
}
