//! The node's own tailnet-lock key, and the keys in auth keys. They sign the node's next keys.

use std::{fmt, str::FromStr};

use base64ct::{Base64Unpadded, Encoding as _};
use ed25519_dalek::{Signer as _, SigningKey};
use zeroize::Zeroizing;

use super::{
    DecodeError, KeyId, cbor,
    node_signature::{Kind, NodeSignature},
};
use crate::keys::NodePublic;

/// The prefixes of keys as text (`types/key/nl.go`).
const PRIVATE: &str = "nlpriv:";
pub(super) const PUBLIC: &str = "nlpub:";
pub(super) const SHOWN: &str = "tlpub:";
/// The separator between an auth key and its credential.
const CREDENTIAL: &str = "--TL";
/// The maximum number of nested signatures, including the outer one, so that another one around it
/// can be decoded.
const MAX_INSIDE: usize = 15;

/// A node's own tailnet-lock key.
#[derive(Clone)]
pub struct TkaKey(Box<SigningKey>);

impl TkaKey {
    /// Creates the key from its seed.
    pub fn new(seed: &[u8; 32]) -> Self {
        Self(Box::new(SigningKey::from_bytes(seed)))
    }

    /// Returns the ID.
    pub fn id(&self) -> KeyId {
        self.0.verifying_key().to_bytes()
    }

    /// Signs a hash.
    pub(super) fn sign(&self, hash: &[u8; 32]) -> [u8; 64] {
        self.0.sign(hash).to_bytes()
    }

    /// Returns the text for the key file.
    pub fn text(&self) -> Zeroizing<String> {
        let pair = Zeroizing::new(self.0.to_keypair_bytes());
        let hex = Zeroizing::new(base16ct::lower::encode_string(&*pair));
        Zeroizing::new(format!("{PRIVATE}{}", *hex))
    }

    /// Returns the public key as text for the registration.
    pub fn public(&self) -> String {
        public(self.0.verifying_key().as_bytes())
    }

    /// Returns the public key as text for the command `tailscale lock`.
    pub fn cli_public(&self) -> String {
        format!("{SHOWN}{}", base16ct::lower::encode_string(self.0.verifying_key().as_bytes()))
    }

    /// Returns the signature of this node's next key, made from the previous signature.
    ///
    /// # Errors
    /// The previous signature cannot be decoded.
    pub fn renew_signature(
        &self,
        node: &NodePublic,
        former: &[u8],
    ) -> Result<Vec<u8>, DecodeError> {
        let signature = NodeSignature::read(cbor::read(former)?)?;
        if signature.is_of(node) {
            return Ok(former.to_vec());
        }
        let signature = self.shortened(signature);
        Ok(renewed(node, signature, &self.0).text())
    }

    /// Shortens a signature that has too many levels for another renewal: it signs the last keys
    /// and the first one again (`tka/sig.go`, `maybeTrimRotationSignatureChain`, which allows one
    /// level too many for auth keys).
    fn shortened(&self, signature: NodeSignature) -> NodeSignature {
        let (mut nodes, mut at) = (Vec::new(), &signature);
        while let Kind::Rotation(nested) = &at.kind {
            nodes.push(&at.node);
            at = nested;
        }
        if nodes.len() < MAX_INSIDE {
            return signature;
        }
        let kept = nodes.into_iter().take(MAX_INSIDE - 1).rev();
        kept.fold(at.clone(), |inner, node| signed(node.clone(), inner, &self.0))
    }
}

impl fmt::Debug for TkaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PRIVATE}..")
    }
}

impl FromStr for TkaKey {
    type Err = DecodeError;

    fn from_str(text: &str) -> Result<Self, DecodeError> {
        let hex = text.strip_prefix(PRIVATE).ok_or(DecodeError::Key)?;
        let pair = Zeroizing::new(base16ct::mixed::decode_vec(hex).map_err(|_| DecodeError::Key)?);
        pair_of(&pair)
    }
}

/// An auth key for a network with tailnet lock. Its owner may sign one node key.
#[derive(Clone)]
pub struct WrappedAuthKey {
    auth_key: Zeroizing<String>,
    credential: NodeSignature,
    signer: TkaKey,
}

impl WrappedAuthKey {
    /// Reads an auth key; `None` if it lacks a credential.
    pub fn read(text: &str) -> Option<Self> {
        let (auth_key, wrapped) = text.split_once(CREDENTIAL)?;
        let (credential, private) = wrapped.split_once('-')?;
        let credential = Base64Unpadded::decode_vec(credential).ok()?;
        let private = Zeroizing::new(Base64Unpadded::decode_vec(private).ok()?);
        let credential = NodeSignature::read(cbor::read(&credential).ok()?).ok()?;
        let signer = pair_of(&private).ok()?;
        let auth_key = Zeroizing::new(auth_key.to_owned());
        (credential.kind == Kind::Credential).then_some(Self { auth_key, credential, signer })
    }

    /// Returns the auth key without the credential.
    pub fn auth_key(&self) -> &str {
        &self.auth_key
    }

    /// Signs a node key.
    pub fn sign(&self, node: &NodePublic) -> Vec<u8> {
        renewed(node, self.credential.clone(), &self.signer.0).text()
    }

    /// Returns an auth key with a credential by this key. The credential authorizes the key of the
    /// seed.
    pub fn wrap(auth_key: &str, by: &TkaKey, seed: &[u8; 32]) -> Zeroizing<String> {
        let signer = TkaKey::new(seed);
        let credential = NodeSignature::credential(&signer.id(), by).text();
        let pair = Zeroizing::new(signer.0.to_keypair_bytes());
        let (credential, private) = (Base64Unpadded::encode_string(&credential), &*pair);
        let private = Zeroizing::new(Base64Unpadded::encode_string(private));
        Zeroizing::new(format!("{auth_key}{CREDENTIAL}{credential}-{}", *private))
    }
}

impl fmt::Debug for WrappedAuthKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// Returns a public key as text.
pub(super) fn public(key: &KeyId) -> String {
    format!("{PUBLIC}{}", base16ct::lower::encode_string(key))
}

/// Reads a private key followed by its public key, as in Go.
fn pair_of(bytes: &[u8]) -> Result<TkaKey, DecodeError> {
    let pair = bytes.try_into().map_err(|_| DecodeError::Key)?;
    let key = SigningKey::from_keypair_bytes(pair).map_err(|_| DecodeError::Key)?;
    Ok(TkaKey(Box::new(key)))
}

fn renewed(node: &NodePublic, nested: NodeSignature, by: &SigningKey) -> NodeSignature {
    signed(NodeSignature::bytes_of(node), nested, by)
}

fn signed(node: Vec<u8>, nested: NodeSignature, by: &SigningKey) -> NodeSignature {
    let mut signature = NodeSignature {
        kind: Kind::Rotation(Box::new(nested)),
        node,
        signer: Vec::new(),
        signature: Vec::new(),
        wrapping: Vec::new(),
    };
    signature.signature = by.sign(&signature.hash()).to_bytes().to_vec();
    signature
}
