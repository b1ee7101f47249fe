//! Handshake messages written from the paper, independent of the library, so that a scenario can
//! send messages that no correct implementation sends.

use blake2::{Blake2s256, Blake2sMac, Digest, digest::consts::U16};
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use hmac::{Mac, SimpleHmac};
use wg::{PrivateKey, PublicKey};
use x25519_dalek::StaticSecret;

/// The points of small order and their other encodings below 2^255 (Bernstein, "Curve25519: new
/// Diffie-Hellman speed records", and libsodium's list).
pub(crate) const LOW_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    first_byte(0, 1, 0),
    hex(b"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    hex(b"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    first_byte(0xff, 0xec, 0x7f),
    first_byte(0xff, 0xed, 0x7f),
    first_byte(0xff, 0xee, 0x7f),
];

const fn first_byte(filler: u8, first: u8, last: u8) -> [u8; 32] {
    let mut bytes = [filler; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

const fn hex(text: &[u8; 64]) -> [u8; 32] {
    const fn digit(character: u8) -> u8 {
        match character {
            b'0'..=b'9' => character - b'0',
            b'a'..=b'f' => character - b'a' + 10,
            _ => panic!("a lower-case hexadecimal digit"),
        }
    }
    let mut bytes = [0; 32];
    let mut at = 0;
    while at < 32 {
        bytes[at] = digit(text[2 * at]) << 4 | digit(text[2 * at + 1]);
        at += 1;
    }
    bytes
}

/// A sender with a key that may violate the protocol.
pub(crate) struct Stranger {
    secret: StaticSecret,
}

impl Stranger {
    /// Creates the sender with this key.
    pub(crate) fn with(key: &PrivateKey) -> Self {
        let text = key.to_hex();
        Self { secret: hex(text.as_bytes().try_into().unwrap()).into() }
    }

    /// A valid initiation with this timestamp.
    pub(crate) fn initiation(&self, to: &PublicKey, sender: u32, stamp: [u8; 12]) -> Vec<u8> {
        let name = x25519_dalek::PublicKey::from(&self.secret).to_bytes();
        let static_static = diffie_hellman(&self.secret, to.as_bytes());
        initiation_by(&name, static_static, to, (sender, stamp))
    }

    /// The response to an initiation to this key, without a preshared key. With `point` as the
    /// ephemeral key of low order, every Diffie-Hellman result is zero.
    pub(crate) fn response(
        &self,
        initiation: &[u8],
        sender: u32,
        point: Option<[u8; 32]>,
    ) -> Vec<u8> {
        let own = x25519_dalek::PublicKey::from(&self.secret).to_bytes();
        let remote_ephemeral: [u8; 32] = initiation[8..40].try_into().unwrap();
        let mut noise = Noise::new(&own);
        noise.mix_hash(&remote_ephemeral);
        noise.mix_key(&remote_ephemeral);
        let key = noise.mix_key(&diffie_hellman(&self.secret, &remote_ephemeral));
        let name: [u8; 32] = noise.open(&key, &initiation[40..88]).try_into().unwrap();
        let key = noise.mix_key(&diffie_hellman(&self.secret, &name));
        noise.open(&key, &initiation[88..116]);

        let ephemeral = StaticSecret::from([77; 32]);
        let secret = |public| match point {
            None => diffie_hellman(&ephemeral, public),
            Some(_) => [0; 32],
        };
        let public = point.unwrap_or(x25519_dalek::PublicKey::from(&ephemeral).to_bytes());
        noise.mix_hash(&public);
        noise.mix_key(&public);
        noise.mix_key(&secret(&remote_ephemeral));
        noise.mix_key(&secret(&name));
        let key = noise.mix_psk(&[0; 32]);
        let nothing = noise.seal(&key, &[]);
        let receiver = &initiation[4..8];
        let message = [&[2, 0, 0, 0], &sender.to_le_bytes(), receiver, &public, &nothing].concat();
        with_macs(message, &name)
    }
}

/// An initiation that claims the public key `name`.
pub(crate) fn initiation_by(
    name: &[u8; 32],
    static_static: [u8; 32],
    to: &PublicKey,
    (sender, stamp): (u32, [u8; 12]),
) -> Vec<u8> {
    let mut noise = Noise::new(to.as_bytes());
    let ephemeral = StaticSecret::from([sender as u8 | 1; 32]);
    let public = x25519_dalek::PublicKey::from(&ephemeral).to_bytes();
    noise.mix_hash(&public);
    noise.mix_key(&public);
    let key = noise.mix_key(&diffie_hellman(&ephemeral, to.as_bytes()));
    let name = noise.seal(&key, name);
    let key = noise.mix_key(&static_static);
    let stamp = noise.seal(&key, &stamp);
    let message = [&[1, 0, 0, 0], &sender.to_le_bytes()[..], &public, &name, &stamp].concat();
    with_macs(message, to.as_bytes())
}

/// An initiation with an ephemeral key of low order, made with a Diffie-Hellman result of zero.
pub(crate) fn initiation_with_ephemeral(
    point: [u8; 32],
    name: &[u8; 32],
    static_static: [u8; 32],
    to: &PublicKey,
    stamp: [u8; 12],
) -> Vec<u8> {
    let mut noise = Noise::new(to.as_bytes());
    noise.mix_hash(&point);
    noise.mix_key(&point);
    let key = noise.mix_key(&[0; 32]);
    let name = noise.seal(&key, name);
    let key = noise.mix_key(&static_static);
    let stamp = noise.seal(&key, &stamp);
    let message = [&[1, 0, 0, 0], &[9, 0, 0, 0][..], &point, &name, &stamp].concat();
    with_macs(message, to.as_bytes())
}

/// The Diffie-Hellman result of both static keys.
pub(crate) fn static_static(one: &PrivateKey, other: &PublicKey) -> [u8; 32] {
    diffie_hellman(&Stranger::with(one).secret, other.as_bytes())
}

/// A TAI64N timestamp.
pub(crate) fn stamp(seconds: u64, nanos: u32) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&((1 << 62) + 10 + seconds).to_be_bytes());
    bytes[8..].copy_from_slice(&nanos.to_be_bytes());
    bytes
}

/// Appends a mac1 for `receiver`, and an empty mac2.
pub(crate) fn with_macs(mut message: Vec<u8>, receiver: &[u8; 32]) -> Vec<u8> {
    let key = Blake2s256::new().chain_update(b"mac1----").chain_update(receiver).finalize();
    let mut mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(&key).unwrap();
    mac.update(&message);
    message.extend_from_slice(&mac.finalize().into_bytes());
    message.extend_from_slice(&[0; 16]);
    message
}

/// Replaces the MACs of a changed message.
pub(crate) fn restamped(message: &[u8], receiver: &PublicKey) -> Vec<u8> {
    with_macs(message[..message.len() - 32].to_vec(), receiver.as_bytes())
}

fn diffie_hellman(secret: &StaticSecret, public: &[u8; 32]) -> [u8; 32] {
    secret.diffie_hellman(&(*public).into()).to_bytes()
}

/// Noise's symmetric state.
struct Noise {
    chaining_key: [u8; 32],
    hash: [u8; 32],
}

impl Noise {
    fn new(responder: &[u8; 32]) -> Self {
        let name = Blake2s256::digest("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s").into();
        let mut noise = Self { chaining_key: name, hash: name };
        noise.mix_hash(b"WireGuard v1 zx2c4 Jason@zx2c4.com");
        noise.mix_hash(responder);
        noise
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = Blake2s256::new().chain_update(self.hash).chain_update(data).finalize().into();
    }

    fn mix_key(&mut self, input: &[u8]) -> [u8; 32] {
        let secret = hmac(&self.chaining_key, &[input]);
        self.chaining_key = hmac(&secret, &[&[1]]);
        hmac(&secret, &[&self.chaining_key, &[2]])
    }

    fn mix_psk(&mut self, psk: &[u8; 32]) -> [u8; 32] {
        let secret = hmac(&self.chaining_key, &[psk]);
        self.chaining_key = hmac(&secret, &[&[1]]);
        let hash = hmac(&secret, &[&self.chaining_key, &[2]]);
        self.mix_hash(&hash);
        hmac(&secret, &[&hash, &[3]])
    }

    fn seal(&mut self, key: &[u8; 32], plaintext: &[u8]) -> Vec<u8> {
        let mut sealed = plaintext.to_vec();
        let cipher = ChaCha20Poly1305::new(key.into());
        cipher.encrypt_in_place(&[0; 12].into(), &self.hash, &mut sealed).unwrap();
        self.mix_hash(&sealed);
        sealed
    }

    fn open(&mut self, key: &[u8; 32], sealed: &[u8]) -> Vec<u8> {
        let mut plaintext = sealed.to_vec();
        let cipher = ChaCha20Poly1305::new(key.into());
        cipher.decrypt_in_place(&[0; 12].into(), &self.hash, &mut plaintext).unwrap();
        self.mix_hash(sealed);
        plaintext
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key).unwrap();
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}
