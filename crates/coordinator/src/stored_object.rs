//! Stored objects in memory, typed by their kind.

use std::fmt;

use crate::object::{
    self, ApiKey, ApiKeyId, AuditEntry, AuditId, KeyId, Kind, Node, NodeId, PolicyId, PreAuthKey,
    Stored, TkaId, TkaUpdate, TkaUpdateId, User, UserId,
};

/// A stored object cannot be read.
#[derive(Debug)]
pub struct LoadError {
    kind: Kind,
    id: i64,
    why: Unreadable,
}

impl LoadError {
    pub(crate) fn new(kind: Kind, id: i64, why: Unreadable) -> Self {
        Self { kind, id, why }
    }
}

/// The reason of a [`LoadError`].
#[derive(Debug)]
pub(crate) enum Unreadable {
    Json(serde_json::Error),
    Policy(policy::Refusal),
    /// An update of tailnet lock is invalid.
    Tka(tailnet::tka::VerifyError),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of the store cannot be read: ", self.kind.name(), self.id)?;
        match &self.why {
            Unreadable::Json(why) => why.fmt(f),
            Unreadable::Policy(why) => why.fmt(f),
            Unreadable::Tka(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for LoadError {}

/// An object by its number; `None` if it does not exist.
#[derive(Debug)]
pub(crate) enum StoredObject {
    User(UserId, Option<User>),
    PreAuthKey(KeyId, Option<PreAuthKey>),
    Node(NodeId, Option<Box<Node>>),
    Policy(PolicyId, Option<object::Policy>),
    ApiKey(ApiKeyId, Option<ApiKey>),
    AuditEntry(AuditId, Option<AuditEntry>),
    TkaState(TkaId, Option<object::TkaState>),
    TkaUpdate(TkaUpdateId, Option<TkaUpdate>),
}

impl StoredObject {
    pub(crate) fn absent(kind: Kind, id: i64) -> Self {
        match kind {
            Kind::User => Self::User(UserId(id), None),
            Kind::PreAuthKey => Self::PreAuthKey(KeyId(id), None),
            Kind::Node => Self::Node(NodeId(id), None),
            Kind::Policy => Self::Policy(PolicyId(id), None),
            Kind::ApiKey => Self::ApiKey(ApiKeyId(id), None),
            Kind::AuditEntry => Self::AuditEntry(AuditId(id), None),
            Kind::TkaState => Self::TkaState(TkaId(id), None),
            Kind::TkaUpdate => Self::TkaUpdate(TkaUpdateId(id), None),
        }
    }

    pub(crate) fn read(stored: &Stored) -> Result<Self, LoadError> {
        let mut object = Self::absent(stored.kind, stored.id);
        let Some(body) = &stored.body else { return Ok(object) };
        let read = match &mut object {
            Self::User(_, user) => serde_json::from_str(body).map(|read| *user = Some(read)),
            Self::PreAuthKey(_, key) => serde_json::from_str(body).map(|read| *key = Some(read)),
            Self::Node(_, node) => serde_json::from_str(body).map(|read| *node = Some(read)),
            Self::Policy(_, policy) => serde_json::from_str(body).map(|read| *policy = Some(read)),
            Self::ApiKey(_, key) => serde_json::from_str(body).map(|read| *key = Some(read)),
            Self::AuditEntry(_, entry) => {
                serde_json::from_str(body).map(|read| *entry = Some(read))
            }
            Self::TkaState(_, state) => serde_json::from_str(body).map(|read| *state = Some(read)),
            Self::TkaUpdate(_, update) => {
                serde_json::from_str(body).map(|read| *update = Some(read))
            }
        };
        read.map_err(|why| LoadError::new(stored.kind, stored.id, Unreadable::Json(why)))?;
        Ok(object)
    }
}
