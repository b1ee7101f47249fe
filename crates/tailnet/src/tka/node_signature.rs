//! Signatures of node keys (`tka/sig.go`).

use blake2::{Blake2s256, Digest as _};
use ciborium::Value;

use super::{
    DecodeError, VerifyError,
    cbor::{self, Fields, Writing},
    private_key::TkaKey,
    trust_state::State,
    trusted_key::{KeyId, has_signed},
};
use crate::keys::NodePublic;

/// The prefix of a node key in bytes (`types/key/node.go`).
const NODE_KEY: &[u8] = b"np";

pub(super) const DIRECT: u8 = 1;
pub(super) const ROTATION: u8 = 2;
pub(super) const CREDENTIAL: u8 = 3;

/// A signature of a node key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeSignature {
    pub kind: Kind,
    /// The signed node key.
    pub node: Vec<u8>,
    /// The ID of the trusted key that signed.
    pub signer: Vec<u8>,
    pub signature: Vec<u8>,
    /// The key that signs a signature around this one.
    pub wrapping: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A trusted key signed the node key.
    Direct,
    /// The node signed its key, with the `wrapping` key of the nested signature.
    Rotation(Box<NodeSignature>),
    /// A trusted key signed a key of an auth key, which signs node keys.
    Credential,
}

/// The history of a node that renewed its key itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rotation {
    /// The previous keys.
    pub former: Vec<NodePublic>,
    /// The key that renews the signature, if it was signed only for this node.
    pub own: Option<Vec<u8>>,
}

impl NodeSignature {
    pub(super) fn read(value: Value) -> Result<Self, DecodeError> {
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

    /// Returns the encoded signature.
    pub(super) fn text(&self) -> Vec<u8> {
        cbor::write(&self.value(&self.signature))
    }

    /// Returns the hash that is signed.
    pub(super) fn hash(&self) -> [u8; 32] {
        Blake2s256::digest(cbor::write(&self.value(&[]))).into()
    }

    /// Returns the key that signs a signature around this one: the innermost one, unless a later
    /// one replaced it.
    fn wrapping(&self) -> &[u8] {
        match &self.kind {
            Kind::Rotation(nested) if self.wrapping.is_empty() => nested.wrapping(),
            _ => &self.wrapping,
        }
    }

    /// Signs a node key with a trusted key. The node renews it with the key `wrapping`, which may
    /// be empty.
    pub(super) fn direct(node: &NodePublic, wrapping: &[u8], by: &TkaKey) -> Self {
        Self::by(by, Kind::Direct, Self::bytes_of(node), wrapping)
    }

    /// Signs a key that in turn signs node keys.
    pub(super) fn credential(signer: &KeyId, by: &TkaKey) -> Self {
        Self::by(by, Kind::Credential, Vec::new(), signer)
    }

    fn by(by: &TkaKey, kind: Kind, node: Vec<u8>, wrapping: &[u8]) -> Self {
        let (signer, wrapping) = (by.id().to_vec(), wrapping.to_vec());
        let mut signature = Self { kind, node, signer, signature: Vec::new(), wrapping };
        signature.signature = by.sign(&signature.hash()).to_vec();
        signature
    }

    /// Returns the innermost signature, which is by a trusted key.
    fn innermost(&self) -> &Self {
        match &self.kind {
            Kind::Rotation(nested) => nested.innermost(),
            _ => self,
        }
    }

    /// Returns a node key in the signed form.
    pub(super) fn bytes_of(node: &NodePublic) -> Vec<u8> {
        [NODE_KEY, &node.0].concat()
    }

    /// Returns whether it signs this node key.
    pub(super) fn is_of(&self, node: &NodePublic) -> bool {
        self.node == Self::bytes_of(node)
    }

    fn node(&self) -> Result<NodePublic, VerifyError> {
        let key = self.node.strip_prefix(NODE_KEY).and_then(|key| key.try_into().ok());
        key.map(NodePublic).ok_or(VerifyError::Malformed(DecodeError::Key))
    }

    /// Checks the outer signature: by the node's own key or by a trusted key.
    fn check(&self, state: &State) -> Result<(), VerifyError> {
        let signer = match &self.kind {
            Kind::Direct | Kind::Credential => {
                let key = <&KeyId>::try_from(&self.signer[..]).ok().and_then(|id| state.key(id));
                &key.ok_or(VerifyError::UntrustedKey)?.id
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

/// The contents of a signature that was not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The signed node key.
    pub node: NodePublic,
    /// The trusted key.
    pub signer: KeyId,
    /// The key with which the node renews the signature; may be empty.
    pub wrapping: Vec<u8>,
}

/// Decodes a signature without checking it.
///
/// # Errors
/// It does not sign a node key.
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
