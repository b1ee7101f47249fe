//! The specification: RFC 8439, step by step and as simple as possible. Every variant is tested
//! against it. It is neither fast nor constant-time, and for tests only.

use crate::aead::TAG_LEN;

/// A ChaCha20-Poly1305 key.
pub type Key = [u8; 32];

/// A nonce. [`nonce`] makes WireGuard's.
pub type Nonce = [u8; 12];

/// WireGuard's nonce: 32 zero bits, then the counter (paper section 5.4.6).
pub fn nonce(counter: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce
}

/// Section 2.8: ciphertext, then tag.
pub fn seal(key: &Key, nonce: &Nonce, associated: &[u8], plaintext: &[u8]) -> Vec<u8> {
    let mut sealed = plaintext.to_vec();
    chacha20(key, 1, nonce, &mut sealed);
    let tag = tag(key, nonce, associated, &sealed);
    sealed.extend(tag);
    sealed
}

/// Section 2.8: the plaintext, if the tag is valid.
pub fn open(key: &Key, nonce: &Nonce, associated: &[u8], sealed: &[u8]) -> Option<Vec<u8>> {
    let (ciphertext, received) = sealed.split_last_chunk::<TAG_LEN>()?;
    if tag(key, nonce, associated, ciphertext) != *received {
        return None;
    }
    let mut plaintext = ciphertext.to_vec();
    chacha20(key, 1, nonce, &mut plaintext);
    Some(plaintext)
}

fn tag(key: &Key, nonce: &Nonce, associated: &[u8], ciphertext: &[u8]) -> [u8; TAG_LEN] {
    let mut message = Vec::new();
    for part in [associated, ciphertext] {
        message.extend(part);
        message.resize(message.len().next_multiple_of(16), 0);
    }
    message.extend((associated.len() as u64).to_le_bytes());
    message.extend((ciphertext.len() as u64).to_le_bytes());
    poly1305(&poly1305_key(key, nonce), &message)
}

/// Section 2.6: the one-time key.
pub fn poly1305_key(key: &Key, nonce: &Nonce) -> [u8; 32] {
    let block = chacha20_block(key, 0, nonce);
    *block.first_chunk().expect("a block has 64 bytes")
}

/// Section 2.4: encrypts or decrypts.
pub fn chacha20(key: &Key, counter: u32, nonce: &Nonce, text: &mut [u8]) {
    for (index, chunk) in text.chunks_mut(64).enumerate() {
        let keystream = chacha20_block(key, counter.wrapping_add(index as u32), nonce);
        for (byte, keystream) in chunk.iter_mut().zip(keystream) {
            *byte ^= keystream;
        }
    }
}

/// Section 2.3.
pub fn chacha20_block(key: &Key, counter: u32, nonce: &Nonce) -> [u8; 64] {
    let word = |bytes: &[u8]| u32::from_le_bytes(*bytes.first_chunk().expect("four bytes"));
    let mut state = [0; 16];
    for (place, bytes) in state.iter_mut().zip(b"expand 32-byte k".chunks(4)) {
        *place = word(bytes);
    }
    for (place, bytes) in state[4..].iter_mut().zip(key.chunks(4)) {
        *place = word(bytes);
    }
    state[12] = counter;
    for (place, bytes) in state[13..].iter_mut().zip(nonce.chunks(4)) {
        *place = word(bytes);
    }
    let initial = state;
    for _ in 0..10 {
        quarter_round(&mut state, 0, 4, 8, 12);
        quarter_round(&mut state, 1, 5, 9, 13);
        quarter_round(&mut state, 2, 6, 10, 14);
        quarter_round(&mut state, 3, 7, 11, 15);
        quarter_round(&mut state, 0, 5, 10, 15);
        quarter_round(&mut state, 1, 6, 11, 12);
        quarter_round(&mut state, 2, 7, 8, 13);
        quarter_round(&mut state, 3, 4, 9, 14);
    }
    let mut block = [0; 64];
    for (index, bytes) in block.chunks_mut(4).enumerate() {
        bytes.copy_from_slice(&state[index].wrapping_add(initial[index]).to_le_bytes());
    }
    block
}

/// Section 2.1.
fn quarter_round(state: &mut [u32; 16], a: usize, b: usize, c: usize, d: usize) {
    for (a, b, d, by) in [(a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)] {
        state[a] = state[a].wrapping_add(state[b]);
        state[d] = (state[d] ^ state[a]).rotate_left(by);
    }
}

/// Section 2.5.
pub fn poly1305(key: &[u8; 32], message: &[u8]) -> [u8; TAG_LEN] {
    let (r, s) = key.split_at(16);
    let mut r = *r.first_chunk::<16>().expect("half a key");
    for index in [3, 7, 11, 15] {
        r[index] &= 15;
    }
    for index in [4, 8, 12] {
        r[index] &= 252;
    }
    let r = Number::from_le_bytes(&r);
    let mut accumulator = Number::from_le_bytes(&[]);
    for block in message.chunks(16) {
        let block = Number::from_le_bytes(&[block, &[1]].concat());
        accumulator = accumulator.plus(&block).times(&r);
    }
    let s = u128::from_le_bytes(*s.first_chunk().expect("half a key"));
    accumulator.modulo_2_128().wrapping_add(s).to_le_bytes()
}

/// A number modulo P = 2^130 - 5, in five digits of 26 bits, the lowest first. Always less than P.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::aead) struct Number(pub(in crate::aead) [u64; 5]);

const DIGIT: u64 = 1 << 26;
const P: [u64; 5] = [DIGIT - 5, DIGIT - 1, DIGIT - 1, DIGIT - 1, DIGIT - 1];

impl Number {
    /// Converts at most 17 bytes with a value below 2^130.
    pub(in crate::aead) fn from_le_bytes(bytes: &[u8]) -> Self {
        let mut digits = [0; 5];
        for bit in 0..8 * bytes.len() {
            if bytes[bit / 8] >> (bit % 8) & 1 == 1 {
                digits[bit / 26] |= 1 << (bit % 26);
            }
        }
        Self::modulo_p(digits)
    }

    pub(in crate::aead) fn plus(&self, other: &Self) -> Self {
        let mut digits = self.0;
        for (digit, other) in digits.iter_mut().zip(other.0) {
            *digit += other;
        }
        Self::modulo_p(digits)
    }

    pub(in crate::aead) fn times(&self, other: &Self) -> Self {
        let mut digits = [0; 5];
        for (i, a) in self.0.iter().enumerate() {
            for (j, b) in other.0.iter().enumerate() {
                // Digits at or above 2^130 wrap around with a factor of 5.
                let product = if i + j < 5 { a * b } else { 5 * a * b };
                digits[(i + j) % 5] += product;
            }
        }
        Self::modulo_p(digits)
    }

    fn modulo_p(mut digits: [u64; 5]) -> Self {
        while digits.iter().any(|digit| *digit >= DIGIT) {
            for at in 0..5 {
                let carry = digits[at] / DIGIT;
                digits[at] %= DIGIT;
                if at < 4 {
                    digits[at + 1] += carry;
                } else {
                    digits[0] += 5 * carry;
                }
            }
        }
        // All digits of P except the lowest are maximal.
        if digits[1..] == P[1..] && digits[0] >= P[0] {
            digits = [digits[0] - P[0], 0, 0, 0, 0];
        }
        Self(digits)
    }

    pub(in crate::aead) fn modulo_2_128(&self) -> u128 {
        let digits = self.0.iter().rev();
        digits.fold(0, |number, digit| number << 26 | u128::from(*digit))
    }
}
