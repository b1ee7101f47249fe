//! Bytes that depend on their position in a stream, so that a receiver detects loss, duplicates,
//! reordering and changes.

/// Period of the pattern: a prime, so that no packet or buffer length divides it.
const PERIOD: usize = 65_521;

/// The longest piece.
pub(crate) const MOST: usize = 64 * 1024;

/// The pattern of one flow.
pub struct Pattern(Vec<u8>);

impl Pattern {
    /// The pattern of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut bytes: Vec<u8> = (0..PERIOD).map(|_| random.draw() as u8).collect();
        for place in 0..MOST {
            bytes.push(bytes[place]);
        }
        Self(bytes)
    }

    /// The bytes at this position.
    ///
    /// # Panics
    /// If `len` exceeds [`MOST`].
    pub fn at(&self, position: u64, len: usize) -> &[u8] {
        let from = (position % PERIOD as u64) as usize;
        &self.0[from..from + len]
    }
}

/// Reproducible pseudo-random numbers (xorshift64*, Vigna 2016).
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.draw() as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_continues_across_pieces_and_its_period() {
        let pattern = Pattern::new(7);
        for place in [0, 1, 1_000, PERIOD as u64 - 1, 10 * PERIOD as u64 + 5] {
            let whole = pattern.at(place, MOST);
            for cut in [1, 1_369, MOST - 1] {
                assert_eq!(pattern.at(place + cut as u64, MOST - cut), &whole[cut..]);
            }
        }
        assert_ne!(pattern.at(0, 64), pattern.at(1, 64));
        assert_ne!(pattern.at(0, 64), Pattern::new(8).at(0, 64));
    }
}
