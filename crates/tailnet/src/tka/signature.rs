//! Signatures of node keys (`tka/sig.go`).

use blake2::{Blake2s256, Digest as _};
use ciborium::Value;

use super::{
    DecodeError, VerifyError,
    cbor::{self, Fields, Writing},
    key::{KeyId, has_signed},
    private_key::TkaKey,
    state::State,
};
use crate::keys::NodePublic;

/// What a node key begins with as bytes (`types/key/node.go`).
const NODE_KEY: &[u8] = b"np";

pub(super) const DIRECT: u8 = 1;
pub(super) const ROTATION: u8 = 2;
pub(super) const CREDENTIAL: u8 = 3;

/// A signature of a node key, in one of the forms of [`Kind`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeSignature {
    pub kind: Kind,
    /// The node key that is signed.
    pub node: Vec<u8>,
    /// The trusted key that signed.
    pub signer: Vec<u8>,
    pub signature: Vec<u8>,
    /// The key that signs what this one is put into.
    pub wrapping: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A trusted key signed the node key.
    Direct,
    /// The node itself did, by a key that what is inside names.
    Rotation(Box<NodeSignature>),
    /// A trusted key signed a key that signs node keys, for whoever has an auth key.
    Credential,
}

/// What a valid signature says of a node that renewed its key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rotation {
    /// The keys that it had before.
    pub former: Vec<NodePublic>,
    /// The key that it renews its key with, if that was signed for this node alone.
    pub own: Option<Vec<u8>>,
}

impl NodeSignature {
    pub fn read(value: Value) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(value)?;
        let number = fields.number::<u8>(1)?;
        let (node, signer, signature) = (fields.bytes(2)?, fields.bytes(3)?, fields.bytes(4)?);
        let nested = fields.take(5).map(Self::read).transpose()?;
        let wrapping = fields.bytes(6)?;
        fields.end()?;
        let kind = match (number, nested) {
            (Some(DIRECT), None) => Kind::Direct,
            (Some(ROTATION), Some(nested)) => Kind::Rotation(Box::new(nested)),
            (Some(CREDENTIAL), None) => Kind::Credential,
            _ => return Err(DecodeError::Field),
        };
        Ok(Self { kind, node, signer, signature, wrapping })
    }

    fn value(&self, signature: &[u8]) -> Value {
        let (number, nested) = match &self.kind {
            Kind::Direct => (DIRECT, None),
            Kind::Rotation(nested) => (ROTATION, Some(nested.value(&nested.signature))),
            Kind::Credential => (CREDENTIAL, None),
        };
        Writing::default()
            .field(1, number)
            .bytes(2, &self.node)
            .bytes(3, &self.signer)
            .bytes(4, signature)
            .some(5, nested)
            .bytes(6, &self.wrapping)
            .value()
    }

    /// Its text.
    pub fn text(&self) -> Vec<u8> {
        cbor::write(&self.value(&self.signature))
    }

    /// The hash that is signed.
    pub fn hash(&self) -> [u8; 32] {
        Blake2s256::digest(cbor::write(&self.value(&[]))).into()
    }

    /// The key that signs what this one is put into: the innermost one's, if none was named since.
    fn wrapping(&self) -> &[u8] {
        match &self.kind {
            Kind::Rotation(nested) if self.wrapping.is_empty() => nested.wrapping(),
            _ => &self.wrapping,
        }
    }

    /// The signature of a node key by a trusted key. The node renews it by the key `wrapping`, if
    /// there is one.
    pub fn direct(node: &NodePublic, wrapping: &[u8], by: &TkaKey) -> Self {
        Self::by(by, Kind::Direct, Self::bytes_of(node), wrapping)
    }

    /// The signature of a key that signs node keys in turn.
    pub fn credential(signer: &KeyId, by: &TkaKey) -> Self {
        Self::by(by, Kind::Credential, Vec::new(), signer)
    }

    fn by(by: &TkaKey, kind: Kind, node: Vec<u8>, wrapping: &[u8]) -> Self {
        let (signer, wrapping) = (by.id().to_vec(), wrapping.to_vec());
        let mut signature = Self { kind, node, signer, signature: Vec::new(), wrapping };
        signature.signature = by.sign(&signature.hash()).to_vec();
        signature
    }

    /// The innermost: the one by a trusted key.
    fn innermost(&self) -> &Self {
        match &self.kind {
            Kind::Rotation(nested) => nested.innermost(),
            _ => self,
        }
    }

    /// A node key, as it is signed.
    pub fn bytes_of(node: &NodePublic) -> Vec<u8> {
        [NODE_KEY, &node.0].concat()
    }

    /// Whether it is the signature of this node key.
    pub fn is_of(&self, node: &NodePublic) -> bool {
        self.node == Self::bytes_of(node)
    }

    fn node(&self) -> Result<NodePublic, VerifyError> {
        let key = self.node.strip_prefix(NODE_KEY).and_then(|key| key.try_into().ok());
        key.map(NodePublic).ok_or(VerifyError::Malformed(DecodeError::Key))
    }

    /// Whether the node's own key signed it, or a trusted one.
    fn check(&self, state: &State) -> Result<(), VerifyError> {
        let signer = match &self.kind {
            Kind::Direct | Kind::Credential => {
                let key = <&KeyId>::try_from(&self.signer[..]).ok().and_then(|id| state.key(id));
                &key.ok_or(VerifyError::NoSuchKey)?.id
            }
            Kind::Rotation(nested) => nested
                .wrapping()
                .try_into()
                .map_err(|_| VerifyError::Malformed(DecodeError::Key))?,
        };
        if has_signed(signer, &self.hash(), &self.signature) {
            Ok(())
        } else {
            Err(VerifyError::BadSignature)
        }
    }
}

/// What a signature says, whether or not it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node key that is signed.
    pub node: NodePublic,
    /// The trusted key by which it is.
    pub signer: KeyId,
    /// The key that the node renews its signature with; empty if there is none.
    pub wrapping: Vec<u8>,
}

/// Reads what a signature says. It has to be checked before it counts.
///
/// # Errors
/// It is none of a node key.
pub fn claim(text: &[u8]) -> Result<Claim, VerifyError> {
    let signature = NodeSignature::read(cbor::read(text)?)?;
    let signer = signature.innermost().signer.as_slice().try_into();
    let signer = signer.map_err(|_| VerifyError::Malformed(DecodeError::Key))?;
    let wrapping = signature.wrapping().to_vec();
    Ok(Claim { node: signature.node()?, signer, wrapping })
}

/// Checks the signature of a node key.
pub(super) fn check(
    state: &State,
    node: &NodePublic,
    text: &[u8],
) -> Result<Option<Rotation>, VerifyError> {
    let outer = NodeSignature::read(cbor::read(text)?)?;
    if outer.kind == Kind::Credential {
        return Err(VerifyError::Credential);
    }
    if !outer.is_of(node) {
        return Err(VerifyError::OtherNode);
    }
    let (mut at, mut former) = (&outer, Vec::new());
    at.check(state)?;
    while let Kind::Rotation(nested) = &at.kind {
        at = nested;
        at.check(state)?;
        if at.kind != Kind::Credential || !at.node.is_empty() {
            former.push(at.node()?);
        }
    }
    let own = (at.kind == Kind::Direct).then(|| at.wrapping.clone());
    let is_rotation = matches!(outer.kind, Kind::Rotation(_));
    Ok(is_rotation.then_some(Rotation { former, own }))
}
