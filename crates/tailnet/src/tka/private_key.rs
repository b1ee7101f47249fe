//! What a node signs itself: its next node key, by a key of its own or by that of an auth key.

use std::{fmt, str::FromStr};

use base64ct::{Base64Unpadded, Encoding as _};
use ed25519_dalek::{Signer as _, SigningKey};
use zeroize::Zeroizing;

use super::{
    DecodeError, KeyId, cbor,
    signature::{Kind, NodeSignature},
};
use crate::keys::NodePublic;

/// What the text of a key begins with (`types/key/nl.go`).
const PRIVATE: &str = "nlpriv:";
pub(super) const PUBLIC: &str = "nlpub:";
pub(super) const SHOWN: &str = "tlpub:";
/// What is behind an auth key that brings its own credential.
const CREDENTIAL: &str = "--TL";
/// How many signatures one may hold, with itself, so that another around it can be read.
const MOST_INSIDE: usize = 15;

/// A node's own key of tailnet lock.
#[derive(Clone)]
pub struct TkaKey(Box<SigningKey>);

impl TkaKey {
    /// The key that these bytes are.
    pub fn new(seed: &[u8; 32]) -> Self {
        Self(Box::new(SigningKey::from_bytes(seed)))
    }

    /// Its number.
    pub fn id(&self) -> KeyId {
        self.0.verifying_key().to_bytes()
    }

    /// Signs a hash.
    pub(super) fn sign(&self, hash: &[u8; 32]) -> [u8; 64] {
        self.0.sign(hash).to_bytes()
    }

    /// Its text, for its file.
    pub fn text(&self) -> Zeroizing<String> {
        let pair = Zeroizing::new(self.0.to_keypair_bytes());
        let hex = Zeroizing::new(base16ct::lower::encode_string(&*pair));
        Zeroizing::new(format!("{PRIVATE}{}", *hex))
    }

    /// The text of its public half, as it is registered.
    pub fn public(&self) -> String {
        public(self.0.verifying_key().as_bytes())
    }

    /// The same, as the command `tailscale lock` has it.
    pub fn cli_public(&self) -> String {
        format!("{SHOWN}{}", base16ct::lower::encode_string(self.0.verifying_key().as_bytes()))
    }

    /// The signature of this node's next key, made of that of its former one.
    ///
    /// # Errors
    /// The former one cannot be read.
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

    /// A signature with the last of its keys and the first, signed anew, where there are too many
    /// for another to be read (`tka/sig.go`, `maybeTrimRotationSignatureChain`, which lets one too
    /// many be behind an auth key's).
    fn shortened(&self, signature: NodeSignature) -> NodeSignature {
        let (mut nodes, mut at) = (Vec::new(), &signature);
        while let Kind::Rotation(nested) = &at.kind {
            nodes.push(&at.node);
            at = nested;
        }
        if nodes.len() < MOST_INSIDE {
            return signature;
        }
        let kept = nodes.into_iter().take(MOST_INSIDE - 1).rev();
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

/// An auth key for a network with tailnet lock: whoever has it may sign one node key.
#[derive(Clone)]
pub struct WrappedAuthKey {
    auth_key: Zeroizing<String>,
    credential: NodeSignature,
    signer: TkaKey,
}

impl WrappedAuthKey {
    /// What is in an auth key; `None` where it is one without more.
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

    /// The auth key, as the coordinator knows it.
    pub fn auth_key(&self) -> &str {
        &self.auth_key
    }

    /// The signature of a node key.
    pub fn sign(&self, node: &NodePublic) -> Vec<u8> {
        renewed(node, self.credential.clone(), &self.signer.0).text()
    }

    /// An auth key with a credential of this key's, and the key of this seed that signs by it.
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

/// The text of a key's public half.
pub(super) fn public(key: &KeyId) -> String {
    format!("{PUBLIC}{}", base16ct::lower::encode_string(key))
}

/// A private key and its public half, as Go has them.
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
