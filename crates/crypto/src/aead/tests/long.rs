//! Tests that take too long to run every time:
//!
//! ```text
//!   cargo test --release -p linerate-crypto --lib -- --ignored --nocapture random_bytes
//! ```

use std::time::{SystemTime, UNIX_EPOCH};

use super::{batch::*, *};

/// Number of bytes that each variant seals and opens.
const BYTES: usize = 500_000_000;

/// A small generator. Its random values need not be secret.
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }

    #[cfg(target_arch = "x86_64")]
    pub(super) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    fn len(&mut self) -> usize {
        match self.below(8) {
            0 => self.below(17),
            1 | 2 => self.below(130),
            3 => 16 * self.below(92),
            4 => 1400 + self.below(60),
            5 => self.below(9000),
            _ => self.below(1500),
        }
    }

    fn batch(&mut self) -> Vec<Packet> {
        let (packets, keys, equal) = (1 + self.below(64), 1 + self.below(3), self.below(2) == 0);
        let len = self.len();
        (0..packets)
            .map(|_| {
                let len = if equal { len } else { self.len() };
                let mut text = text(self.next() as usize, len);
                if self.below(16) == 0 {
                    text.fill(0xff);
                }
                Packet::new(self.below(keys), self.next(), self.below(64), &text)
            })
            .collect()
    }
}

#[test]
#[ignore = "takes minutes; see the module"]
#[expect(clippy::disallowed_methods, reason = "a different seed each time")]
fn hundreds_of_millions_of_random_bytes() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let seed = now.as_nanos() as u64 | 1;
    println!("seed {seed}");
    let mut random = Random(seed);
    let (mut bytes, mut packets, mut forgeries) = (0, 0, 0);
    while bytes < BYTES {
        let plain = random.batch();
        let mut sealed = plain.clone();
        for packet in &mut sealed {
            let nonce = spec::nonce(packet.counter);
            let data = spec::seal(&key(packet.key), &nonce, &[], packet.text());
            packet.data_mut().copy_from_slice(&data);
        }
        check(&plain, &sealed);
        let mut forged = sealed.clone();
        let at = random.below(forged.len());
        let data = forged[at].data_mut();
        let byte = random.below(data.len());
        data[byte] ^= 1 << random.below(8);
        for variant in variants() {
            let mut forged = forged.clone();
            let authentic = open_all(&variant, &mut forged);
            assert!((0..plain.len()).all(|index| authentic[index] == (index != at)), "{variant}");
            forgeries += 1;
        }
        bytes += plain.iter().map(|packet| packet.text().len()).sum::<usize>();
        packets += plain.len();
    }
    println!("{bytes} bytes, {packets} packets, {forgeries} batches with a forged packet");
}
