//! Explicit congestion notification across a tunnel (RFC 6040).

/// The two ECN bits of an IP header (RFC 3168 section 5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Ecn {
    /// Not ECN-capable transport.
    #[default]
    NotEct = 0b00,
    /// ECN-capable transport, codepoint 1.
    Ect1 = 0b01,
    /// ECN-capable transport, codepoint 0.
    Ect0 = 0b10,
    /// Congestion experienced.
    Ce = 0b11,
}

impl Ecn {
    /// Reads the low two bits of a TOS or traffic-class byte.
    pub fn from_bits(tos: u8) -> Self {
        match tos & 0b11 {
            0b00 => Self::NotEct,
            0b01 => Self::Ect1,
            0b10 => Self::Ect0,
            _ => Self::Ce,
        }
    }

    /// The value of the two bits.
    pub fn bits(self) -> u8 {
        self as u8
    }

    /// Returns the outer codepoint for an inner packet. This is normal mode, a copy (RFC 6040
    /// section 4.1).
    pub fn encapsulate(self) -> Self {
        self
    }

    /// Returns the codepoint of the inner packet after decapsulation. `None` means that the packet
    /// must be dropped: the outer header reports congestion, and the packet cannot carry the mark
    /// (RFC 6040 section 4.2, figure 4).
    pub fn decapsulate(self, outer: Self) -> Option<Self> {
        match (self, outer) {
            (Self::NotEct, Self::Ce) => None,
            (Self::NotEct, _) => Some(Self::NotEct),
            (_, Self::Ce) => Some(Self::Ce),
            (Self::Ect0, Self::Ect1) => Some(Self::Ect1),
            (inner, _) => Some(inner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ecn::{self, *};

    #[test]
    fn decapsulation_follows_the_table_of_rfc_6040_figure_4() {
        let outer = [NotEct, Ect0, Ect1, Ce];
        let table: [(Ecn, [Option<Ecn>; 4]); 4] = [
            (NotEct, [Some(NotEct), Some(NotEct), Some(NotEct), None]),
            (Ect0, [Some(Ect0), Some(Ect0), Some(Ect1), Some(Ce)]),
            (Ect1, [Some(Ect1), Some(Ect1), Some(Ect1), Some(Ce)]),
            (Ce, [Some(Ce), Some(Ce), Some(Ce), Some(Ce)]),
        ];
        for (inner, row) in table {
            for (outer, expected) in outer.into_iter().zip(row) {
                assert_eq!(inner.decapsulate(outer), expected, "{inner:?} in {outer:?}");
            }
        }
    }

    #[test]
    fn bits_round_trip_for_every_codepoint() {
        for bits in 0..=0xff {
            assert_eq!(Ecn::from_bits(bits).bits(), bits & 0b11);
        }
    }
}
