//! Tests of the specification against published vectors and a second implementation, and of every
//! variant against the specification, the vectors and the library.

mod batch;
mod long;
#[cfg(target_arch = "x86_64")]
mod memcheck;
mod poly1305;
mod specification;
#[cfg(target_arch = "x86_64")]
mod timing;
mod variants;
mod vectors;

use super::*;

/// The variants that this machine supports.
fn variants() -> impl Iterator<Item = Variant> {
    Variant::ALL.into_iter().filter(|variant| variant.is_available())
}

/// Seals one packet. Returns the ciphertext and its tag.
fn sealed(variant: Variant, key: &[u8; 32], counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let mut data = [plaintext, &[0; TAG_LEN]].concat();
    variant.seal(&mut [Seal { key: &Key::new(key), counter, data: &mut data }]);
    data
}

/// Opens one packet. Returns the plaintext if it is authentic.
fn opened(variant: Variant, key: &[u8; 32], counter: u64, sealed: &[u8]) -> Option<Vec<u8>> {
    let mut data = sealed.to_vec();
    let mut batch = [Open { key: &Key::new(key), counter, data: &mut data, authentic: false }];
    variant.open(&mut batch);
    let authentic = batch[0].authentic;
    data.truncate(sealed.len().saturating_sub(TAG_LEN));
    authentic.then_some(data)
}

#[test]
fn unsupported_variants_are_reported_as_skipped() {
    let lacking = Variant::ALL.into_iter().filter(|variant| !variant.is_available());
    lacking.for_each(|variant| skips::skip(&variant.to_string()));
}

#[test]
fn empty_batch_is_accepted() {
    seal(&mut []);
    open(&mut []);
    for variant in variants() {
        variant.seal(&mut []);
        variant.open(&mut []);
    }
}

#[test]
fn changed_bit_at_any_position_is_rejected() {
    let key = [9; 32];
    for variant in variants() {
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 1420] {
            let data = sealed(variant, &key, 5, &vec![0x55; len]);
            for at in 0..data.len() {
                let mut forged = data.clone();
                forged[at] ^= 1 << (at % 8);
                let opened = opened(variant, &key, 5, &forged);
                assert_eq!(opened, None, "{variant}, byte {at} of {}", data.len());
            }
        }
    }
}

#[test]
fn truncated_or_extended_data_is_rejected() {
    for variant in variants() {
        let data = sealed(variant, &[1; 32], 0, b"text");
        for len in 0..data.len() {
            assert_eq!(opened(variant, &[1; 32], 0, &data[..len]), None, "{variant}, {len} bytes");
        }
        let longer = [&data[..], &[0]].concat();
        assert_eq!(opened(variant, &[1; 32], 0, &longer), None, "{variant}");
    }
}

/// Known bug elsewhere: a 32-bit nonce counter.
#[test]
fn all_64_bits_of_the_counter_are_in_the_nonce() {
    for variant in variants() {
        let data = sealed(variant, &[2; 32], 0, b"text");
        for bit in 0..64 {
            assert_eq!(opened(variant, &[2; 32], 1 << bit, &data), None, "{variant}, bit {bit}");
            assert_ne!(sealed(variant, &[2; 32], 1 << bit, b"text"), data, "{variant}, bit {bit}");
        }
    }
}

#[test]
fn chosen_variant_is_available() {
    assert!(variant().is_available());
    assert_eq!(force(variant()), Ok(()));
    for other in variants().filter(|other| *other != variant()) {
        assert_eq!(force(other), Err(ForceError::InUse(variant())));
    }
}
