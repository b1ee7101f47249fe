//! A mesh: relays of one region that share their lists of clients (tailscale `derp/derpserver`).
//!
//! ```text
//!   one relay ── login with the mesh's key, WatchConns ──► another
//!             ◄─ PeerPresent, PeerGone of its clients ───
//!             ── ForwardPacket for one of them ─────────►
//! ```
//!
//! Each relay is a client of all others. A forwarded datagram is not forwarded again.

use std::{fmt, net::SocketAddr, str::FromStr};

use bytes::{BufMut, BytesMut};
use rand_core::CryptoRng;
use serde::Deserialize;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

use super::{
    RelayKey,
    derp_frame::{HEADER_LEN, kind},
    relay_end::Login,
    seal_info,
};
use crate::keys::NodePublic;

/// The shared key of the relays of a mesh. Its owner may watch which clients are connected.
#[derive(Clone, PartialEq, Eq)]
pub struct MeshKey(Box<Zeroizing<[u8; 32]>>);

/// A text is not a mesh key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseMeshKeyError;

/// The flags of a connected client.
pub mod present {
    /// An ordinary client.
    pub const REGULAR: u8 = 1;
    /// A relay of the mesh.
    pub const MESH: u8 = 2;
}

impl fmt::Debug for MeshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshKey(..)")
    }
}

impl fmt::Display for ParseMeshKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mesh key has 64 hexadecimal digits, not all of them zero")
    }
}

impl std::error::Error for ParseMeshKeyError {}

impl FromStr for MeshKey {
    type Err = ParseMeshKeyError;

    fn from_str(text: &str) -> Result<Self, ParseMeshKeyError> {
        let mut key = Box::new(Zeroizing::new([0; 32]));
        let read =
            base16ct::mixed::decode(text.trim(), &mut **key).map_err(|_| ParseMeshKeyError)?;
        // Zero is Go's value for an absent key.
        if read.len() != 32 || **key == [0; 32] {
            return Err(ParseMeshKeyError);
        }
        Ok(Self(key))
    }
}

impl MeshKey {
    /// Returns whether the login has this key. The comparison takes constant time.
    pub fn is_of(&self, login: &Login) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Info {
            #[serde(rename = "meshKey")]
            key: Zeroizing<String>,
        }
        let info: Info = serde_json::from_slice(&login.text).unwrap_or_default();
        let Ok(other) = info.key.parse::<Self>() else { return false };
        self.0[..].ct_eq(&other.0[..]).into()
    }
}

impl RelayKey {
    /// Returns this relay's login at another relay of its mesh.
    pub fn seal_mesh_login(
        &self,
        server: &[u8; 32],
        mesh: &MeshKey,
        rng: &mut impl CryptoRng,
    ) -> Vec<u8> {
        let key = Zeroizing::new(base16ct::lower::encode_string(&**mesh.0));
        let info = Zeroizing::new(format!(
            r#"{{"meshKey":"{}","version":2,"CanAckPings":true,"IsProber":false}}"#,
            *key
        ));
        seal_info(self.bytes(), server, info.as_bytes(), rng)
    }
}

/// Appends a frame that reports a connected client to `out`.
pub fn write_present(out: &mut BytesMut, client: &NodePublic, at: SocketAddr, flags: u8) {
    let address = match at.ip() {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        std::net::IpAddr::V6(v6) => v6,
    };
    let contents = [&client.0[..], &address.octets(), &at.port().to_be_bytes(), &[flags]].concat();
    super::write_frame(out, kind::PEER_PRESENT, &contents);
}

/// Returns the client of a [`kind::PEER_PRESENT`] frame. Old relays send only the key, and later
/// ones may send more.
pub fn read_present(contents: &[u8]) -> Option<NodePublic> {
    contents.first_chunk().map(|key| NodePublic(*key))
}

/// Appends a frame with a datagram for a client of another relay to `out`.
pub fn write_forward(out: &mut BytesMut, from: &NodePublic, to: &NodePublic, datagram: &[u8]) {
    let length = from.0.len() + to.0.len() + datagram.len();
    out.reserve(HEADER_LEN + length);
    out.put_u8(kind::FORWARD_PACKET);
    out.put_u32(u32::try_from(length).expect("datagrams that were read are short"));
    out.extend_from_slice(&from.0);
    out.extend_from_slice(&to.0);
    out.extend_from_slice(datagram);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng as _};

    use super::*;
    use crate::derp::{Decoder, FromClient, seal_login};

    fn relay(number: u8) -> RelayKey {
        RelayKey::new(Box::new([number; 32].into()))
    }

    fn mesh(digit: char) -> MeshKey {
        String::from(digit).repeat(64).parse().unwrap()
    }

    #[test]
    fn only_a_login_with_the_mesh_key_belongs_to_the_mesh() {
        let (one, other, mut rng) = (relay(9), relay(8), ChaCha8Rng::seed_from_u64(1));
        let login = one.seal_mesh_login(&other.public(), &mesh('a'), &mut rng);
        let login = other.open_login(&login).unwrap();
        assert_eq!(login.client.0, one.public());
        assert!(mesh('a').is_of(&login) && !mesh('b').is_of(&login));
        assert!(!format!("{login:?}").contains("97, 97"), "it shows the key: {login:?}");
        let of_client = other.open_login(&seal_login(&[7; 32], &other.public(), &mut rng)).unwrap();
        assert!(!mesh('a').is_of(&of_client));
        for text in ["", "7", "{", r#"{"meshKey":7}"#, r#"{"meshKey":"aa"}"#] {
            let login = Login { client: login.client, text: text.as_bytes().to_vec().into() };
            assert!(!mesh('a').is_of(&login), "{text}");
        }
    }

    #[test]
    fn mesh_key_has_64_digits_and_is_not_zero() {
        assert!(format!(" {}\n", "aB".repeat(32)).parse::<MeshKey>().is_ok());
        for text in ["", "a", &"a".repeat(63), &"a".repeat(66), &"0".repeat(64), &"x".repeat(64)] {
            assert_eq!(text.parse::<MeshKey>(), Err(ParseMeshKeyError), "{text}");
        }
        assert!(!format!("{:?}", mesh('a')).contains("aa"));
    }

    #[test]
    fn frames_for_another_relay_are_read_by_it() {
        let (from, to) = (NodePublic([1; 32]), NodePublic([2; 32]));
        let mut out = BytesMut::new();
        write_forward(&mut out, &from, &to, b"hi");
        write_present(&mut out, &from, "192.0.2.1:7".parse().unwrap(), present::REGULAR);
        let mut decoder = Decoder::default();
        let (kind, contents) = decoder.poll_frame(&mut out).unwrap().unwrap();
        let forward = FromClient::Forward { from, to, bytes: Bytes::from_static(b"hi") };
        assert_eq!(FromClient::read(kind, contents), Some(forward));
        let (kind, contents) = decoder.poll_frame(&mut out).unwrap().unwrap();
        assert_eq!((kind, contents.len()), (kind::PEER_PRESENT, 51));
        assert_eq!(contents[42..], [0xff, 0xff, 192, 0, 2, 1, 0, 7, 1]);
        assert_eq!(read_present(&contents), Some(from));
        assert_eq!(read_present(&contents[..31]), None);
    }
}
