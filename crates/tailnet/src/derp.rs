//! DERP: relays that forward datagrams by node key (tailscale `derp/derp.go`).
//!
//! ```text
//!   relay  ── ServerKey ──►  agent  ── the relay's key ──►  data plane: seal_login
//!   relay  ◄─ ClientInfo ──  agent  ◄─ the frame's contents ──'
//!   relay  ── ServerInfo ──►  a rate limit, encrypted for the node key: not read
//!   relay  ◄─ SendPacket, RecvPacket, NotePreferred, Ping, Pong, .. ─►  agent
//! ```

mod bundle;
mod derp_frame;
mod relay_end;
pub mod relay_mesh;

use crypto::{nacl, x25519};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

pub use self::{
    bundle::{Bundles, read_bundle, write_bundles},
    derp_frame::{
        Decoder, FrameError, FromRelay, GoneReason, HEADER_LEN, MAX_FRAME, MAX_PACKET,
        SEND_OVERHEAD, kind, write_frame, write_packet,
    },
    relay_end::{FromClient, Login, RelayKey},
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
    [&x25519::public_key(node)[..], &seal_box(node, server, info, rng)].concat()
}

/// Returns a random nonce and the box of a text.
fn seal_box(own: &[u8; 32], other: &[u8; 32], text: &[u8], rng: &mut impl CryptoRng) -> Vec<u8> {
    let mut nonce = [0; nacl::NONCE_LEN];
    rng.fill_bytes(&mut nonce);
    let mut text = text.to_vec();
    let tag = nacl::BoxKey::new(own, other).seal(&nonce, &mut text);
    [&nonce[..], &tag, &text].concat()
}

/// Opens a nonce and a box.
fn open_box(own: &[u8; 32], other: &[u8; 32], sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (nonce, sealed) = sealed.split_first_chunk()?;
    let (tag, text) = sealed.split_first_chunk()?;
    let mut text = Zeroizing::new(text.to_vec());
    nacl::BoxKey::new(own, other).open(nonce, &mut text, tag).then_some(text)
}
