//! The other end of WireGuard's handshake (paper 5.4), written to record every secret. It has no
//! cookies and no timers.

use std::time::{SystemTime, UNIX_EPOCH};

use blake2::digest::consts::U16;
use blake2::{Blake2s256, Blake2sMac, Digest};
use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};
use hmac::{Mac, SimpleHmac};
use x25519_dalek::{PublicKey, StaticSecret};

use super::scan::Secrets;
use super::world::random;

/// TAI64N counts from 2^62, and was 10 s ahead of UTC in 1970.
const TAI64_EPOCH: u64 = (1 << 62) + 10;

/// One end of the protocol.
pub(super) struct Noise {
    private: StaticSecret,
    remote: [u8; 32],
    psk: [u8; 32],
}

/// A session of this end.
pub(super) struct Session {
    /// The other end's index.
    pub receiver: u32,
    send: [u8; 32],
    recv: [u8; 32],
    counter: u64,
    /// All secrets of the handshake and the session that the other end also had.
    pub secrets: Secrets,
}

/// An initiation that waits for its response.
pub(super) struct Initiated {
    state: Symmetric,
    ephemeral: StaticSecret,
}

impl Noise {
    /// The end with this private key, and `remote` as its peer.
    pub(super) fn new(private: [u8; 32], remote: [u8; 32], psk: [u8; 32]) -> Self {
        Self { private: private.into(), remote, psk }
    }

    /// The same end with another preshared key.
    pub(super) fn with_psk(&self, psk: [u8; 32]) -> Self {
        Self { private: self.private.clone(), remote: self.remote, psk }
    }

    /// The other end's public key.
    pub(super) fn remote(&self) -> [u8; 32] {
        self.remote
    }

    /// Our public key.
    pub(super) fn public(&self) -> [u8; 32] {
        PublicKey::from(&self.private).to_bytes()
    }

    /// The product of both static keys, which both ends store.
    pub(super) fn static_static(&self) -> [u8; 32] {
        dh(&self.private, &self.remote)
    }

    /// An initiation with this index of ours.
    pub(super) fn initiate(&self, index: u32) -> (Vec<u8>, Initiated) {
        let ephemeral = StaticSecret::from(random());
        let public = PublicKey::from(&ephemeral).to_bytes();
        let mut state = Symmetric::new(&self.remote);
        state.mix_hash(&public);
        state.mix_key("e of the initiator", &public);
        let key = state.mix_secret("es", &dh(&ephemeral, &self.remote));
        let name = state.seal(&key, &self.public());
        let key = state.mix_key("ss", &self.static_static());
        let stamp = state.seal(&key, &timestamp());
        let message = [&[1, 0, 0, 0], &index.to_le_bytes()[..], &public, &name, &stamp].concat();
        (with_macs(message, &self.remote), Initiated { state, ephemeral })
    }

    /// Processes the response to our initiation.
    pub(super) fn finish(&self, initiated: Initiated, response: &[u8]) -> Session {
        let Initiated { mut state, ephemeral } = initiated;
        let remote: [u8; 32] = field(response, 12);
        state.mix_hash(&remote);
        state.mix_key("e of the responder", &remote);
        state.mix_secret("ee", &dh(&ephemeral, &remote));
        state.mix_secret("se", &dh(&self.private, &remote));
        let key = state.mix_psk(&self.psk);
        assert!(state.open(&key, &response[44..60]).is_empty());
        let [send, recv] = state.split();
        let receiver = u32::from_le_bytes(field(response, 4));
        Session { receiver, send, recv, counter: 0, secrets: state.secrets }
    }

    /// Answers an initiation, with the index 2.
    pub(super) fn answer(&self, initiation: &[u8]) -> (Vec<u8>, Session) {
        let own = self.public();
        let remote: [u8; 32] = field(initiation, 8);
        let mut state = Symmetric::new(&own);
        state.mix_hash(&remote);
        state.mix_key("e of the initiator", &remote);
        let key = state.mix_secret("es", &dh(&self.private, &remote));
        assert_eq!(state.open(&key, &initiation[40..88]), self.remote);
        let key = state.mix_key("ss", &self.static_static());
        state.open(&key, &initiation[88..116]);

        let ephemeral = StaticSecret::from(random());
        let public = PublicKey::from(&ephemeral).to_bytes();
        state.mix_hash(&public);
        state.mix_key("e of the responder", &public);
        state.mix_secret("ee", &dh(&ephemeral, &remote));
        state.mix_secret("se", &dh(&ephemeral, &self.remote));
        let key = state.mix_psk(&self.psk);
        let nothing = state.seal(&key, &[]);
        let [recv, send] = state.split();
        let message =
            [&[2, 0, 0, 0, 2, 0, 0, 0], &initiation[4..8], &public[..], &nothing].concat();
        let receiver = u32::from_le_bytes(field(initiation, 4));
        let session = Session { receiver, send, recv, counter: 0, secrets: state.secrets };
        (with_macs(message, &self.remote), session)
    }
}

impl Session {
    /// Seals transport data.
    pub(super) fn seal(&mut self, plaintext: &[u8]) -> Vec<u8> {
        let mut sealed = plaintext.to_vec();
        let cipher = ChaCha20Poly1305::new((&self.send).into());
        cipher.encrypt_in_place(&nonce(self.counter), b"", &mut sealed).expect("it is short");
        let header = [&[4, 0, 0, 0], &self.receiver.to_le_bytes()[..], &self.counter.to_le_bytes()];
        self.counter += 1;
        [&header.concat(), &sealed[..]].concat()
    }

    /// Opens transport data; `None` if it does not belong to this session.
    pub(super) fn open(&self, message: &[u8]) -> Option<Vec<u8>> {
        let counter = u64::from_le_bytes(message.get(8..16)?.try_into().ok()?);
        let mut text = message.get(16..)?.to_vec();
        let cipher = ChaCha20Poly1305::new((&self.recv).into());
        cipher.decrypt_in_place(&nonce(counter), b"", &mut text).ok()?;
        Some(text)
    }

    /// The keys for sealing and opening data, which the other end has during the session.
    pub(super) fn keys(&self) -> Secrets {
        Secrets::new().with("its receiving key", &self.send).with("its sending key", &self.recv)
    }
}

fn nonce(counter: u64) -> chacha20poly1305::Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&counter.to_le_bytes());
    nonce.into()
}

/// Noise's symmetric state, and every secret in it.
struct Symmetric {
    chaining_key: [u8; 32],
    hash: [u8; 32],
    secrets: Secrets,
}

impl Symmetric {
    fn new(responder: &[u8; 32]) -> Self {
        let name = Blake2s256::digest("Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s").into();
        let mut state = Self { chaining_key: name, hash: name, secrets: Secrets::new() };
        state.mix_hash(b"WireGuard v1 zx2c4 Jason@zx2c4.com");
        state.mix_hash(responder);
        state
    }

    fn mix_hash(&mut self, data: &[u8]) {
        self.hash = Blake2s256::new().chain_update(self.hash).chain_update(data).finalize().into();
    }

    /// Mixes a value that is not a secret of this handshake alone.
    fn mix_key(&mut self, token: &str, input: &[u8; 32]) -> [u8; 32] {
        let secret = hmac(&self.chaining_key, &[input]);
        self.chaining_key = hmac(&secret, &[&[1]]);
        let key = hmac(&secret, &[&self.chaining_key, &[2]]);
        // Values derived from public values alone are public.
        if token != "e of the initiator" {
            self.note(token, &secret, &key);
        }
        key
    }

    fn mix_secret(&mut self, token: &str, input: &[u8; 32]) -> [u8; 32] {
        self.secrets.add(&format!("{token}: the product"), input);
        self.mix_key(token, input)
    }

    fn mix_psk(&mut self, psk: &[u8; 32]) -> [u8; 32] {
        let secret = hmac(&self.chaining_key, &[psk]);
        self.chaining_key = hmac(&secret, &[&[1]]);
        let hash = hmac(&secret, &[&self.chaining_key, &[2]]);
        self.mix_hash(&hash);
        let key = hmac(&secret, &[&hash, &[3]]);
        self.note("psk", &secret, &key);
        key
    }

    fn split(&mut self) -> [[u8; 32]; 2] {
        let secret = hmac(&self.chaining_key, &[]);
        let first = hmac(&secret, &[&[1]]);
        let second = hmac(&secret, &[&first, &[2]]);
        self.secrets.add("split: the secret", &secret);
        [first, second]
    }

    fn note(&mut self, token: &str, secret: &[u8; 32], key: &[u8; 32]) {
        self.secrets.add(&format!("{token}: the extracted secret"), secret);
        self.secrets.add(&format!("{token}: the chaining key"), &self.chaining_key);
        self.secrets.add(&format!("{token}: the key"), key);
    }

    fn seal(&mut self, key: &[u8; 32], plaintext: &[u8]) -> Vec<u8> {
        let mut sealed = plaintext.to_vec();
        let cipher = ChaCha20Poly1305::new(key.into());
        cipher.encrypt_in_place(&nonce(0), &self.hash, &mut sealed).expect("it is short");
        self.mix_hash(&sealed);
        sealed
    }

    fn open(&mut self, key: &[u8; 32], sealed: &[u8]) -> Vec<u8> {
        let mut text = sealed.to_vec();
        let cipher = ChaCha20Poly1305::new(key.into());
        cipher.decrypt_in_place(&nonce(0), &self.hash, &mut text).expect("both ends agree");
        self.mix_hash(sealed);
        text
    }
}

/// The bytes of a message at this offset.
fn field<const N: usize>(message: &[u8], at: usize) -> [u8; N] {
    *message[at..].first_chunk().expect("the message is of its kind's length")
}

#[expect(clippy::disallowed_methods, reason = "a real peer compares it with the real clock")]
fn timestamp() -> [u8; 12] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    let mut stamp = [0; 12];
    stamp[..8].copy_from_slice(&(TAI64_EPOCH + now.as_secs()).to_be_bytes());
    stamp[8..].copy_from_slice(&now.subsec_nanos().to_be_bytes());
    stamp
}

fn dh(secret: &StaticSecret, public: &[u8; 32]) -> [u8; 32] {
    secret.diffie_hellman(&(*public).into()).to_bytes()
}

fn with_macs(mut message: Vec<u8>, receiver: &[u8; 32]) -> Vec<u8> {
    let key = Blake2s256::new().chain_update(b"mac1----").chain_update(receiver).finalize();
    let mut mac = <Blake2sMac<U16> as KeyInit>::new_from_slice(&key).expect("it has 32 bytes");
    mac.update(&message);
    message.extend_from_slice(&mac.finalize().into_bytes());
    message.extend_from_slice(&[0; 16]);
    message
}

pub(super) fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = <SimpleHmac<Blake2s256> as KeyInit>::new_from_slice(key).expect("it takes any");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}
