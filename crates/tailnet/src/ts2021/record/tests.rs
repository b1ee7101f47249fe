use chacha20poly1305::{ChaCha20Poly1305, KeyInit as _, aead::Aead as _};
use proptest::prelude::*;
use zeroize::Zeroizing;

use super::*;
use crate::ts2021::noise_handshake::{
    Initiation,
    tests::{answer, coordinator, member},
};

/// Sends a text through both ends.
pub(in crate::ts2021) fn exchange(from: &mut Sealer, to: &mut Opener, text: &[u8]) -> Vec<u8> {
    let (mut sealed, mut plain) = (Vec::new(), Vec::new());
    assert_eq!(from.seal(text, &mut sealed), Ok(text.len()));
    to.handle_bytes(&sealed, &mut plain).unwrap();
    plain
}

fn ends() -> (Sealer, Opener) {
    let (key, public) = coordinator();
    let (initiation, message) =
        Initiation::new(&member(), &public, 119, Zeroizing::new([3; 32])).unwrap();
    let (reply, _, theirs, _) = answer(&key, 119, &message).unwrap();
    let (_, ours) = initiation.finish(&reply).unwrap();
    (theirs, ours)
}

fn seal_all(sealer: &mut Sealer, mut text: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    while !text.is_empty() {
        let taken = sealer.seal(text, &mut sealed).unwrap();
        text = &text[taken..];
    }
    sealed
}

#[test]
fn nonce_of_the_second_record_is_one_in_big_endian() {
    let mut sealer = Sealer::new(&[7; 32].into());
    let mut sealed = Vec::new();
    sealer.seal(b"first", &mut sealed).unwrap();
    let second = sealed.len() + HEADER;
    sealer.seal(b"second", &mut sealed).unwrap();
    let cipher = ChaCha20Poly1305::new(&[7; 32].into());
    let nonce = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    assert_eq!(cipher.decrypt(&nonce.into(), &sealed[second..]).unwrap(), b"second");
}

#[test]
fn record_holds_the_maximum_length() {
    let (mut sealer, mut opener) = ends();
    let mut sealed = Vec::new();
    assert_eq!(sealer.seal(&[7; PLAIN + 1], &mut sealed), Ok(PLAIN));
    assert_eq!((PLAIN, sealed.len()), (4077, RECORD));
    let mut plain = Vec::new();
    opener.handle_bytes(&sealed, &mut plain).unwrap();
    assert_eq!(plain, [7; PLAIN]);
}

#[test]
fn invalid_record_header_is_refused() {
    for (header, error) in [
        (*b"HTT", RecordError::NotARecord(b'H')),
        ([4, 0xff, 0xff], RecordError::BadLength(0xffff)),
        ([4, 0x0f, 0xfe], RecordError::BadLength(4094)),
        ([4, 0, 15], RecordError::BadLength(15)),
        ([3, 0, 20], RecordError::NotARecord(3)),
    ] {
        let (_, mut opener) = ends();
        let mut plain = Vec::new();
        assert_eq!(opener.handle_bytes(&header, &mut plain), Err(error));
        assert_eq!(opener.handle_bytes(&[], &mut plain), Err(RecordError::Closed));
        assert!(plain.is_empty());
    }
}

#[test]
fn changed_or_repeated_record_ends_the_connection() {
    let (mut sealer, mut opener) = ends();
    let mut first = Vec::new();
    sealer.seal(b"one", &mut first).unwrap();
    let mut plain = Vec::new();
    opener.handle_bytes(&first, &mut plain).unwrap();
    assert_eq!(opener.handle_bytes(&first, &mut plain), Err(RecordError::NotAuthentic));
    assert_eq!(plain, b"one");

    let (mut sealer, mut opener) = ends();
    let mut changed = Vec::new();
    sealer.seal(b"one", &mut changed).unwrap();
    changed[3] ^= 1;
    assert_eq!(opener.handle_bytes(&changed, &mut plain), Err(RecordError::NotAuthentic));
}

proptest! {
    #[test]
    fn text_is_opened_from_records_in_any_pieces(
        text in proptest::collection::vec(any::<u8>(), 0..20_000),
        pieces in proptest::collection::vec(1usize..5_000, 1..20),
    ) {
        let (mut sealer, mut opener) = ends();
        let sealed = seal_all(&mut sealer, &text);
        let (mut rest, mut plain) = (&sealed[..], Vec::new());
        for size in pieces.iter().cycle() {
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            opener.handle_bytes(piece, &mut plain).unwrap();
            prop_assert!(opener.partial.len() < RECORD);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(!opener.is_within_record());
        prop_assert_eq!(plain, text);
    }

    #[test]
    fn garbage_causes_no_panic(
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
        is_headed: bool,
    ) {
        let (_, mut opener) = ends();
        let mut plain = Vec::new();
        if is_headed {
            let _ = opener.handle_bytes(&[4, 0, 100], &mut plain);
        }
        let _ = opener.handle_bytes(&garbage, &mut plain);
        prop_assert!(plain.is_empty());
    }
}
