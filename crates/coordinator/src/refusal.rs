//! Refusals of administrators' commands.

use std::fmt;

use ipnet::IpNet;

use crate::object::{KeyId, NodeId, UserId};

/// The reason for which a command is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The user does not exist.
    NoUser(String),
    /// The pre-auth key does not exist.
    NoKey(KeyId),
    /// The API key does not exist.
    NoApiKey(String),
    /// The node does not exist.
    NoNode(NodeId),
    /// The user's name comes from the provider.
    NameFromProvider(UserId),
    /// The name is in use.
    NameTaken(String),
    /// The name is invalid.
    InvalidName(String),
    /// The user has nodes.
    HasNodes(UserId, usize),
    /// The user owns the network, and another user has to own it first.
    IsOwner(UserId),
    /// The policy names the user. The next user with that name would get the same rights.
    InPolicy(UserId, policy::Fault),
    /// The policy has the new name. The user would get its rights.
    NameInPolicy(policy::Fault),
    /// The text is not a tag: `tag:` and a name.
    InvalidTag(String),
    /// A key needs a user or tags.
    KeyWithoutOwner,
    /// A node needs an owner or tags.
    LastTag,
    /// The node does not advertise the network.
    NotAdvertised(IpNet),
    /// Another machine has the node key.
    NodeKeyInUse,
    /// The ID of a registration does not have 16 to 64 letters and digits.
    InvalidRegistrationId,
    /// The registration does not exist, or is not pending.
    NoRegistration,
    /// The SSH login does not exist, or is not pending.
    NoLogin,
    /// All addresses are in use.
    NoAddress,
    /// All addresses of the node's pool are in use.
    NoPoolAddress,
    /// The policy does not exist, or was deleted.
    NoPolicy(i64),
    /// The node may not have these tags.
    TagsDenied(Vec<String>),
    /// The policy is invalid, or its tests fail in this network.
    Policy(policy::Refusal),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUser(name) => write!(f, "user not found: {name}"),
            Self::NoKey(id) => write!(f, "pre-auth key not found: {id}"),
            Self::NoApiKey(which) => write!(f, "API key not found: {which}"),
            Self::NoNode(id) => write!(f, "node not found: {id}"),
            Self::NameFromProvider(id) => {
                write!(f, "user {id} logs in by OIDC: change the name at the provider")
            }
            Self::NameTaken(name) => write!(f, "the name {name} is taken"),
            Self::InvalidName(name) => write!(f, "{name:?} is not a valid name"),
            Self::HasNodes(id, nodes) => {
                write!(f, "user {id} has {nodes} nodes: delete or tag them first")
            }
            Self::IsOwner(id) => write!(
                f,
                "user {id} is the owner of the network: make another the owner first \
                 (`linerate-server users make-owner`)"
            ),
            Self::InPolicy(id, location) => write!(
                f,
                "the policy names user {id} ({location}): remove the name from the policy first, or the \
                 next user with that name gets the same rights"
            ),
            Self::NameInPolicy(location) => write!(
                f,
                "the policy has this name already ({location}): remove it from the policy first, or the \
                 user gets the rights of that name"
            ),
            Self::InvalidTag(tag) => {
                write!(f, "{tag:?} is not a tag: tag: and a name without spaces")
            }
            Self::KeyWithoutOwner => f.write_str("a pre-auth key needs a user or tags"),
            Self::LastTag => f.write_str("the last tag of a node cannot be removed"),
            Self::NotAdvertised(net) => write!(f, "the node does not advertise {net}"),
            Self::NodeKeyInUse => f.write_str("the node key belongs to another machine"),
            Self::InvalidRegistrationId => {
                f.write_str("the key of a registration has 16 to 64 letters, digits, - and _")
            }
            Self::NoRegistration => f.write_str("no registration is pending with this key"),
            Self::NoLogin => f.write_str("no SSH login is pending with this number"),
            Self::NoAddress => f.write_str("all addresses are in use"),
            Self::NoPoolAddress => {
                f.write_str("all addresses of the node's pool in the policy are in use")
            }
            Self::NoPolicy(id) => write!(f, "policy not found: {id}"),
            Self::TagsDenied(tags) => {
                write!(f, "requested tags [{}] are invalid or not permitted", tags.join(" "))
            }
            Self::Policy(refusal) => write!(f, "{refusal}"),
        }
    }
}

impl std::error::Error for Refusal {}
