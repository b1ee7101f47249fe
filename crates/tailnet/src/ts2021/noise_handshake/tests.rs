use snow::Builder;

use super::*;
use crate::ts2021::{CAPABILITY_VERSION, record::tests::exchange};

/// Returns the keys of a coordinator.
pub(in crate::ts2021) fn coordinator() -> (MachineKey, MachinePublic) {
    let key = MachineKey::new(Box::new(Zeroizing::new([9; 32])));
    let public = key.public();
    (key, public)
}

pub(in crate::ts2021) fn member() -> MachineKey {
    MachineKey::new(Box::new(Zeroizing::new([5; 32])))
}

/// Answers a first message with snow. Returns the reply without its header, and both ends of the
/// records.
pub(in crate::ts2021) fn answer(
    key: &MachineKey,
    version: u16,
    message: &[u8],
) -> Result<([u8; REPLY], MachinePublic, Sealer, Opener), snow::Error> {
    let prologue = prologue(version);
    let pattern = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
    let mut state = Builder::new(pattern.parse().unwrap())
        .prologue(prologue.as_bytes())?
        .local_private_key(key.bytes())?
        .build_responder()?;
    state.read_message(&message[5..], &mut [0; 128])?;
    let member = MachinePublic(state.get_remote_static().unwrap().try_into().unwrap());
    let mut reply = [0; REPLY];
    assert_eq!(state.write_message(&[], &mut reply)?, REPLY);
    let (recv, send) = state.dangerously_get_raw_split();
    Ok((reply, member, Sealer::new(&send.into()), Opener::new(&recv.into())))
}

fn begin() -> (Initiation, [u8; INITIATION]) {
    let (_, public) = coordinator();
    Initiation::new(&member(), &public, CAPABILITY_VERSION, Zeroizing::new([3; 32])).unwrap()
}

#[test]
fn records_of_a_snow_coordinator_are_opened_in_both_directions() {
    let (initiation, message) = begin();
    assert_eq!(message[..5], [0, 121, 1, 0, 96]);
    let (key, _) = coordinator();
    let (reply, known, mut theirs, mut at_theirs) = answer(&key, 121, &message).unwrap();
    assert_eq!(known, member().public());
    let (mut ours, mut at_ours) = initiation.finish(&reply).unwrap();
    for text in [&b"one"[..], b"two", b""] {
        assert_eq!(exchange(&mut ours, &mut at_theirs, text), text);
        assert_eq!(exchange(&mut theirs, &mut at_ours, text), text);
    }
}

#[test]
fn plaintext_version_is_the_version_in_the_prologue() {
    let (_, message) = begin();
    let (key, _) = coordinator();
    assert!(answer(&key, 118, &message).is_err());
}

#[test]
fn reply_of_another_coordinator_is_refused() {
    let (initiation, message) = begin();
    let (key, _) = coordinator();
    let (mut reply, ..) = answer(&key, 121, &message).unwrap();
    reply[47] ^= 1;
    assert_eq!(initiation.finish(&reply).err(), Some(HandshakeError::NotAuthentic));
    let (initiation, _) = begin();
    assert_eq!(initiation.finish(&[0; REPLY]).err(), Some(HandshakeError::NotAuthentic));
}

#[test]
fn zero_coordinator_key_is_refused() {
    let none = MachinePublic::default();
    let begun = Initiation::new(&member(), &none, 119, Zeroizing::new([3; 32]));
    assert_eq!(begun.err(), Some(HandshakeError::BadKey));
}

#[test]
fn reply_header_gives_the_type_or_an_error() {
    assert_eq!(Reply::read([2, 0, 48]), Ok(Reply::Accepted));
    assert_eq!(Reply::read([3, 0, 20]), Ok(Reply::Refused(20)));
    assert_eq!(Reply::read([3, 0xff, 0xff]), Ok(Reply::Refused(LONGEST_REFUSAL)));
    assert_eq!(Reply::read([2, 0, 49]), Err(HandshakeError::BadReply(2, 49)));
    assert_eq!(Reply::read(*b"HTT"), Err(HandshakeError::BadReply(b'H', 0x5454)));
}
