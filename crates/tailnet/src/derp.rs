//! DERP: relays that forward datagrams by node key (tailscale `derp/derp.go`).
//!
//! ```text
//!   relay  ── ServerKey ──►  agent  ── the relay's key ──►  data plane: seal_login
//!   relay  ◄─ ClientInfo ──  agent  ◄─ the frame's contents ──'
//!   relay  ── ServerInfo ──►  a rate limit, encrypted for the node key: not read
//!   relay  ◄─ SendPacket, RecvPacket, NotePreferred, Ping, Pong, .. ─►  agent
//! ```

mod bundle;
mod frame;
pub mod home;
pub mod mesh;
mod server;

use crypto_box::{
    PublicKey, SalsaBox, SecretKey,
    aead::{Aead as _, generic_array::GenericArray},
};
use rand_core::CryptoRng;

pub use self::{
    bundle::{Bundles, read_bundle, write_bundles},
    frame::{
        Decoder, FrameError, FromRelay, GoneReason, HEADER_LEN, MAX_FRAME, MAX_PACKET,
        SEND_OVERHEAD, kind, write_frame, write_packet,
    },
    server::{FromClient, Login, RelayKey},
};

/// The client's information at login (`derp.go`, `clientInfo`).
const CLIENT_INFO: &[u8] = br#"{"version":2,"CanAckPings":true,"IsProber":false}"#;

/// Returns the contents of the login frame: the node key, a nonce, and the client's information,
/// sealed for the relay's key (`derp_client.go`, `sendClientKey`). It proves that the sender has
/// the private key.
pub fn seal_login(node: &[u8; 32], server: &[u8; 32], rng: &mut impl CryptoRng) -> Vec<u8> {
    seal_info(node, server, CLIENT_INFO, rng)
}

fn seal_info(node: &[u8; 32], server: &[u8; 32], info: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let secret = SecretKey::from(*node);
    let sealing = SalsaBox::new(&PublicKey::from(*server), &secret);
    let mut nonce = [0; 24];
    rng.fill_bytes(&mut nonce);
    let sealed = sealing.encrypt(GenericArray::from_slice(&nonce), info);
    let sealed = sealed.expect("a buffer in memory grows");
    [secret.public_key().as_bytes(), &nonce[..], &sealed].concat()
}
