//! The relay's end: its key, logins, and the frames of clients.

use std::fmt;

use bytes::{Buf as _, Bytes};
use crypto::x25519;
use rand_core::CryptoRng;
use zeroize::Zeroizing;

use super::{
    derp_frame::{GREETING, MAX_PACKET, kind},
    open_box, seal_box,
};
use crate::keys::NodePublic;

/// The longest login, in bytes.
const MAX_LOGIN: usize = 4 << 10;
/// The relay's answer to a login (`derp.go`, `ServerInfo`): the version, without limits.
const SERVER_INFO: &[u8] = br#"{"version":2}"#;

/// The private key of a relay. Logins are sealed for its public key.
#[derive(Clone)]
pub struct RelayKey(Box<Zeroizing<[u8; 32]>>);

/// A client that proved that it has its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    /// The key.
    pub client: NodePublic,
    /// The client's information in JSON. A relay of the mesh includes the mesh key.
    pub text: Zeroizing<Vec<u8>>,
}

/// Omits the text, which may contain the mesh key.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("client", &self.client).finish_non_exhaustive()
    }
}

impl RelayKey {
    /// Creates the key from its bytes.
    pub fn new(bytes: Box<Zeroizing<[u8; 32]>>) -> Self {
        Self(bytes)
    }

    /// The public half.
    pub fn public(&self) -> [u8; 32] {
        x25519::public_key(self.bytes())
    }

    /// Returns the contents of the first frame, [`kind::SERVER_KEY`].
    pub fn greeting(&self) -> Vec<u8> {
        [&GREETING[..], &self.public()].concat()
    }

    /// Opens the contents of a login. `None`: the sender does not have the key.
    pub fn open_login(&self, contents: &[u8]) -> Option<Login> {
        if contents.len() > MAX_LOGIN {
            return None;
        }
        let (client, sealed) = contents.split_first_chunk::<32>()?;
        let text = open_box(self.bytes(), client, sealed)?;
        Some(Login { client: NodePublic(*client), text })
    }

    /// Returns the contents of the answer to a login, [`kind::SERVER_INFO`].
    pub fn server_info(&self, client: &NodePublic, rng: &mut impl CryptoRng) -> Vec<u8> {
        seal_box(self.bytes(), &client.0, SERVER_INFO, rng)
    }

    pub(super) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// A frame that a client sends after its login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromClient {
    /// A datagram.
    Packet {
        /// The receiver.
        to: NodePublic,
        /// The datagram.
        bytes: Bytes,
    },
    /// Whether this relay is the client's home relay.
    Preferred(bool),
    /// The data to return in a pong.
    Ping([u8; 8]),
    /// The data of the ping.
    Pong([u8; 8]),
    /// A keepalive.
    KeepAlive,
    /// A datagram of another relay of the mesh for a client of this one.
    Forward {
        /// The sender, a client of the other relay.
        from: NodePublic,
        /// The receiver.
        to: NodePublic,
        /// The datagram.
        bytes: Bytes,
    },
    /// A relay of the mesh subscribes to the list of clients.
    Watch,
    /// A relay of the mesh wants to close the connections of this key.
    Close(NodePublic),
}

impl FromClient {
    /// Reads a frame. `None`: clients do not send this type, or the length is not valid.
    pub fn read(kind: u8, mut contents: Bytes) -> Option<Self> {
        match kind {
            kind::SEND_PACKET => {
                let to = NodePublic(*contents.first_chunk()?);
                contents.advance(to.0.len());
                (contents.len() <= MAX_PACKET).then_some(Self::Packet { to, bytes: contents })
            }
            kind::NOTE_PREFERRED => Some(Self::Preferred(*contents.first()? != 0)),
            kind::PING => contents.first_chunk().copied().map(Self::Ping),
            kind::PONG => contents.first_chunk().copied().map(Self::Pong),
            kind::KEEP_ALIVE => Some(Self::KeepAlive),
            kind::FORWARD_PACKET => {
                let (from, rest) = contents.split_first_chunk()?;
                let (from, to) = (NodePublic(*from), NodePublic(*rest.first_chunk()?));
                contents.advance(from.0.len() + to.0.len());
                (contents.len() <= MAX_PACKET).then_some(Self::Forward {
                    from,
                    to,
                    bytes: contents,
                })
            }
            kind::WATCH_CONNS => Some(Self::Watch),
            kind::CLOSE_PEER => contents.first_chunk().map(|key| Self::Close(NodePublic(*key))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng as _};

    use super::*;
    use crate::derp::{FromRelay, seal_login};

    fn relay() -> RelayKey {
        RelayKey::new(Box::new([9; 32].into()))
    }

    #[test]
    fn login_is_authentic_and_the_answer_is_sealed_for_its_client() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let login = seal_login(&[7; 32], &relay().public(), &mut rng);
        let opened = relay().open_login(&login).unwrap();
        assert_eq!(opened.client.0, x25519::public_key(&[7; 32]));
        assert!(opened.text.starts_with(b"{\"version\":2"));
        for at in 0..login.len() {
            let mut changed = login.clone();
            changed[at] ^= 1;
            assert_eq!(relay().open_login(&changed), None, "byte {at}");
            assert_eq!(relay().open_login(&login[..at]), None);
        }
        let info = relay().server_info(&opened.client, &mut rng);
        let text = open_box(&[7; 32], &relay().public(), &info);
        assert_eq!(**text.unwrap(), *SERVER_INFO);
    }

    #[test]
    fn greeting_is_read_by_clients() {
        let read = FromRelay::read(kind::SERVER_KEY, relay().greeting().into());
        assert_eq!(read, Ok(Some(FromRelay::ServerKey(relay().public()))));
    }

    #[test]
    fn client_frames_are_read_and_short_ones_are_ignored() {
        let read = |kind, contents: &[u8]| FromClient::read(kind, Bytes::copy_from_slice(contents));
        let to = NodePublic([7; 32]);
        let packet = FromClient::Packet { to, bytes: Bytes::from_static(b"hi") };
        assert_eq!(read(kind::SEND_PACKET, &[&to.0[..], b"hi"].concat()), Some(packet));
        assert_eq!(read(kind::NOTE_PREFERRED, &[1]), Some(FromClient::Preferred(true)));
        assert_eq!(read(kind::PING, b"12345678"), Some(FromClient::Ping(*b"12345678")));
        let from = NodePublic([8; 32]);
        let forward = FromClient::Forward { from, to, bytes: Bytes::from_static(b"hi") };
        let contents = [&from.0[..], &to.0, b"hi"].concat();
        assert_eq!(read(kind::FORWARD_PACKET, &contents), Some(forward));
        assert_eq!(read(kind::CLOSE_PEER, &to.0), Some(FromClient::Close(to)));
        let short =
            [(4, 31), (7, 0), (0x12, 7), (0x13, 7), (5, 40), (0x77, 40), (10, 63), (17, 31)];
        for (kind, len) in short {
            assert_eq!(read(kind, &vec![0; len]), None, "type {kind}");
        }
    }

    proptest! {
        #[test]
        fn any_contents_are_refused_without_panic(
            kind in 0u8..0x20,
            contents in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert_eq!(relay().open_login(&contents), None);
            let _ = FromClient::read(kind, contents.into());
        }
    }
}
