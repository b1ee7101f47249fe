//! The peer's side of a post-quantum exchange (docs/decisions/0016), in the role that seals.

use ml_kem::{B32, EncapsulationKey, MlKem768};

use super::noise::{Noise, Session, hmac};
use super::world::{World, random};

const MAGIC: &[u8; 8] = b"\0PQ-KEM1";
const REQUEST: u8 = 1;
const KEY: u8 = 3;
const CIPHERTEXT: u8 = 4;
const DONE: u8 = 5;
const READY: u8 = 6;
const PART: usize = 400;

/// Result of an exchange.
pub(super) struct Agreed {
    pub secret: [u8; 32],
    /// The preshared key of handshakes, combined with the secret.
    pub combined: [u8; 32],
    id: [u8; 4],
}

/// Makes linerate offer a key, and seals a secret for it.
pub(super) fn agree(world: &World, noise: &Noise, psk: &[u8; 32], session: &mut Session) -> Agreed {
    world.send(&session.seal(&message(REQUEST, 0, [0; 4], &[])));
    let mut key = vec![0; 1184];
    let mut id = [0; 4];
    for part in 0..3 {
        let text = receive(world, session, KEY, part);
        id = text[12..16].try_into().expect("four bytes");
        key[PART * usize::from(part)..][..text.len() - 16].copy_from_slice(&text[16..]);
    }
    let key = EncapsulationKey::<MlKem768>::new(key[..].try_into().expect("1184 bytes"));
    let (ciphertext, secret) = key.expect("a key").encapsulate_deterministic(&B32::from(random()));
    for (part, body) in (0..).zip(ciphertext.chunks(PART)) {
        world.send(&session.seal(&message(CIPHERTEXT, part, id, body)));
    }
    receive(world, session, DONE, 0);
    let secret: [u8; 32] = secret.into();
    let mut pair = [noise.public(), noise.remote()];
    pair.sort();
    let input = [&b"linerate post-quantum v1"[..], &secret, &pair[0], &pair[1]].concat();
    let combined = hmac(&hmac(psk, &[&input]), &[&[1]]);
    Agreed { secret, combined, id }
}

/// Announces that the secret is in use, and answers the handshake that linerate starts with it.
pub(super) fn switch(
    world: &World,
    noise: &Noise,
    agreed: &Agreed,
    session: &mut Session,
) -> Session {
    // On a busy machine linerate may have begun a handshake before it had the first session.
    world.discard_received();
    world.send(&session.seal(&message(READY, 0, agreed.id, &[])));
    let initiation = world.receive(|message| message[0] == 1);
    let (response, new) = noise.with_psk(agreed.combined).answer(&initiation);
    world.send(&response);
    world.carry(new)
}

fn message(kind: u8, part: u8, id: [u8; 4], body: &[u8]) -> Vec<u8> {
    [&MAGIC[..], &[kind, part, 0, 0], &id, body].concat()
}

fn receive(world: &World, session: &Session, kind: u8, part: u8) -> Vec<u8> {
    let is_it = |text: &[u8]| text.starts_with(MAGIC) && text[8..10] == [kind, part];
    let message = world.receive(|message| session.open(message).is_some_and(|text| is_it(&text)));
    session.open(&message).expect("it was opened")
}
