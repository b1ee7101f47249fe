//! QUIC without cryptography, for measurements only.
//!
//! The messages that TLS would carry are exchanged in the clear, each in one CRYPTO frame:
//!
//! ```text
//!   client                                        server
//!     Initial:   transport parameters  -->
//!                                      <--  Initial:    one byte
//!                                      <--  Handshake:  transport parameters
//!     Handshake: one byte              -->
//! ```
//!
//! Packets have the same lengths as with an AEAD: the tag is present and zero.

use std::any::Any;
use std::sync::Arc;

use bytes::BytesMut;
use quinn_proto::crypto::{
    self, AeadKey, CryptoError, ExportKeyingMaterialError, HandshakeTokenKey, HeaderKey, HmacKey,
    KeyPair, Keys, PacketKey, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

/// Bytes of an AEAD's tag, and of a sample for header protection, with TLS's ciphers.
const TAG: usize = 16;

/// All keys and configurations; they do nothing.
#[derive(Clone, Copy)]
pub(super) struct Plain;

struct PlainSession {
    side: Side,
    params: TransportParameters,
    peer_params: Option<TransportParameters>,
    /// Number of messages read.
    read: usize,
    /// Calls to `write_handshake` that had something to do.
    written: usize,
}

impl PlainSession {
    fn boxed(side: Side, params: &TransportParameters) -> Box<dyn Session> {
        Box::new(Self { side, params: *params, peer_params: None, read: 0, written: 0 })
    }

    /// The index of the peer's message with its parameters.
    fn params_at(&self) -> usize {
        usize::from(self.side.is_client())
    }
}

impl Session for PlainSession {
    fn initial_keys(&self, _: &ConnectionId, _: Side) -> Keys {
        keys()
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.read < 2
    }

    fn read_handshake(&mut self, mut message: &[u8]) -> Result<bool, TransportError> {
        if self.read == self.params_at() {
            self.peer_params = Some(TransportParameters::read(self.side, &mut message)?);
        }
        self.read += 1;
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.peer_params)
    }

    fn write_handshake(&mut self, message: &mut Vec<u8>) -> Option<Keys> {
        // Each step: the messages that must have been read before, the message to write, and
        // whether keys for the next space follow.
        let (after, has_params, is_empty, with_keys) = match (self.side, self.written) {
            (Side::Client, 0) => (0, true, false, false),
            (Side::Client, 1) => (1, false, true, true),
            (Side::Client, 2) => (2, false, false, true),
            (Side::Server, 0) => (1, false, false, true),
            (Side::Server, 1) => (1, true, false, true),
            _ => return None,
        };
        if self.read < after {
            return None;
        }
        self.written += 1;
        if has_params {
            self.params.write(message);
        } else if !is_empty {
            message.push(0);
        }
        with_keys.then(keys)
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        Some(keys().packet)
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        true
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

fn keys() -> Keys {
    Keys {
        header: KeyPair { local: Box::new(Plain), remote: Box::new(Plain) },
        packet: KeyPair { local: Box::new(Plain), remote: Box::new(Plain) },
    }
}

impl crypto::ClientConfig for Plain {
    fn start_session(
        self: Arc<Self>,
        _: u32,
        _: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(PlainSession::boxed(Side::Client, params))
    }
}

impl crypto::ServerConfig for Plain {
    fn initial_keys(&self, _: u32, _: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        Ok(keys())
    }

    fn retry_tag(&self, _: u32, _: &ConnectionId, _: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(self: Arc<Self>, _: u32, params: &TransportParameters) -> Box<dyn Session> {
        PlainSession::boxed(Side::Server, params)
    }
}

impl PacketKey for Plain {
    fn encrypt(&self, _: u64, _: &mut [u8], _: usize) {}

    fn decrypt(&self, _: u64, _: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let len = payload.len().checked_sub(TAG).ok_or(CryptoError)?;
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

impl HeaderKey for Plain {
    fn decrypt(&self, _: usize, _: &mut [u8]) {}

    fn encrypt(&self, _: usize, _: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        TAG
    }
}

impl HmacKey for Plain {
    fn sign(&self, _: &[u8], signature: &mut [u8]) {
        // A stateless reset ends with this value, and bulk data of zeros must not look like one.
        signature.fill(0xa5);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, _: &[u8], _: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }
}

impl HandshakeTokenKey for Plain {
    fn aead_from_hkdf(&self, _: &[u8]) -> Box<dyn AeadKey> {
        Box::new(Self)
    }
}

impl AeadKey for Plain {
    fn seal(&self, _: &mut Vec<u8>, _: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }

    fn open<'a>(&self, data: &'a mut [u8], _: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        Ok(data)
    }
}
