//! TAI64N timestamps. A responder uses them to detect replayed initiations (paper 5.1).

use std::time::Duration;

/// Bytes of a timestamp.
pub(crate) const TAI64N_LEN: usize = 12;

/// The label of 1970-01-01 00:00:00 TAI, plus the ten seconds that TAI was ahead of UTC. Later leap
/// seconds are ignored, as in every implementation.
const EPOCH: u64 = (1 << 62) + 10;

/// Nanoseconds are rounded down to a multiple of this (about 17 ms), so that the timestamp reveals
/// less about the host's clock. Two initiations that are both answered are further apart (kernel
/// `tai64n_now`).
const GRAIN: u32 = 1 << 24;

/// A timestamp in an initiation. Later ones compare greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tai64N([u8; TAI64N_LEN]);

impl Tai64N {
    /// Returns the timestamp for `wall` (since the Unix epoch), or a later one if that is not after
    /// `last`. Otherwise the peer would ignore us after our clock stepped back.
    pub(crate) fn after(last: Self, wall: Duration) -> Self {
        let now = Self::encode(wall.as_secs(), wall.subsec_nanos() / GRAIN * GRAIN);
        if now > last { now } else { last.next() }
    }

    fn next(self) -> Self {
        let (seconds, nanos) = self.decode();
        match nanos + GRAIN {
            nanos if nanos < 1_000_000_000 => Self::encode(seconds, nanos),
            _ => Self::encode(seconds + 1, 0),
        }
    }

    fn encode(seconds: u64, nanos: u32) -> Self {
        let mut bytes = [0; TAI64N_LEN];
        bytes[..8].copy_from_slice(&seconds.wrapping_add(EPOCH).to_be_bytes());
        bytes[8..].copy_from_slice(&nanos.to_be_bytes());
        Self(bytes)
    }

    fn decode(self) -> (u64, u32) {
        let (seconds, nanos) = self.0.split_first_chunk().expect("a stamp has 12 bytes");
        let nanos = nanos.try_into().expect("a stamp has 12 bytes");
        (u64::from_be_bytes(*seconds).wrapping_sub(EPOCH), u32::from_be_bytes(nanos))
    }

    /// The bytes, as in an initiation.
    pub(crate) fn as_bytes(&self) -> &[u8; TAI64N_LEN] {
        &self.0
    }
}

impl From<[u8; TAI64N_LEN]> for Tai64N {
    fn from(bytes: [u8; TAI64N_LEN]) -> Self {
        Self(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_has_the_tai64_label_of_its_second() {
        let stamp = Tai64N::after(Tai64N::default(), Duration::new(1, GRAIN + 5));
        assert_eq!(stamp.as_bytes()[..8], [0x40, 0, 0, 0, 0, 0, 0, 0x0b]);
        assert_eq!(stamp.as_bytes()[8..], GRAIN.to_be_bytes());
    }

    #[test]
    fn timestamps_increase_when_the_clock_stops_or_steps_back() {
        let mut last = Tai64N::after(Tai64N::default(), Duration::new(1_000_000, 999_999_999));
        for step in 0..200u64 {
            let next = Tai64N::after(last, Duration::from_secs(1_000_000 - step));
            assert!(next > last, "step {step}");
            last = next;
        }
        assert_eq!(last.decode().0, 1_000_004, "200 grains are about 3.4 seconds");
    }
}
