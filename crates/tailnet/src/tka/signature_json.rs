//! Keys and signatures in the JSON of `tailscale lock` (`ipn/ipnstate`, `tka/sig.go`).

use base64ct::{Base64, Encoding as _};
use serde_json::{Value, json};

use super::{
    Authority, DecodeError, cbor,
    node_signature::{CREDENTIAL, DIRECT, Kind, NodeSignature, ROTATION},
    private_key::public,
};

impl Authority {
    /// Returns the trusted keys.
    pub fn keys_json(&self) -> Vec<Value> {
        let shown = |key: &super::trusted_key::Key| {
            json!({
                "Kind": "25519",
                "Key": public(&key.id),
                "Metadata": key.notes.as_ref().map(cbor::Texts::all),
                "Votes": key.votes,
            })
        };
        self.state.keys.iter().map(shown).collect()
    }

    /// Returns the random number of the chain.
    pub fn state_id(&self) -> u64 {
        self.state.numbers.0
    }
}

/// Returns the signature of a node key.
///
/// # Errors
/// It cannot be decoded.
pub fn signature_json(text: &[u8]) -> Result<Value, DecodeError> {
    Ok(shown(&NodeSignature::read(cbor::read(text)?)?))
}

fn shown(signature: &NodeSignature) -> Value {
    let (number, nested) = match &signature.kind {
        Kind::Direct => (DIRECT, None),
        Kind::Rotation(nested) => (ROTATION, Some(shown(nested))),
        Kind::Credential => (CREDENTIAL, None),
    };
    json!({
        "SigKind": number,
        "Pubkey": Base64::encode_string(&signature.node),
        "KeyID": Base64::encode_string(&signature.signer),
        "Signature": Base64::encode_string(&signature.signature),
        "Nested": nested,
        "WrappingPubkey": Base64::encode_string(&signature.wrapping),
    })
}
