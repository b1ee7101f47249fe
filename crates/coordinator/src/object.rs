//! What is kept: each object has a kind, a number that is never given twice, and a body of JSON.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tailnet::keys::{DiscoPublic, MachinePublic, NodePublic};

pub use crate::identity::Identity;
use crate::{audit::AuditHash, hostinfo::Hostinfo, secret::Hash, time::Time};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub i64);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// The number of a user.
    UserId
);
id!(
    /// The number of a pre-auth key.
    KeyId
);
id!(
    /// The number of a node.
    NodeId
);
id!(
    /// The number of a policy.
    PolicyId
);
id!(
    /// The number of an API key.
    ApiKeyId
);
id!(
    /// The number of an entry of the audit.
    AuditId
);
id!(
    /// The number of what is kept of tailnet lock: always the same.
    TkaId
);
id!(
    /// The number of an update of tailnet lock.
    TkaUpdateId
);

/// Of what kind an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A [`User`].
    User,
    /// A [`PreAuthKey`].
    PreAuthKey,
    /// A [`Node`].
    Node,
    /// A [`Policy`].
    Policy,
    /// An [`ApiKey`].
    ApiKey,
    /// An [`AuditEntry`].
    AuditEntry,
    /// A [`Lock`].
    TkaState,
    /// A [`TkaUpdate`].
    TkaUpdate,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::User,
        Self::PreAuthKey,
        Self::Node,
        Self::Policy,
        Self::ApiKey,
        Self::AuditEntry,
        Self::TkaState,
        Self::TkaUpdate,
    ];

    /// Its name in the store.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::PreAuthKey => "preauthkey",
            Self::Node => "node",
            Self::Policy => "policy",
            Self::ApiKey => "apikey",
            Self::AuditEntry => "audit",
            Self::TkaState => "lock",
            Self::TkaUpdate => "lockupdate",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An object that is to be written, or was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its kind.
    pub kind: Kind,
    /// Its number among its kind.
    pub id: i64,
    /// JSON; none if it is gone: what remains is that its number was given.
    pub body: Option<String>,
}

/// Something that is kept.
pub trait Object: Serialize + DeserializeOwned {
    /// Its kind.
    const KIND: Kind;

    /// Its number.
    fn number(&self) -> i64;

    /// As it is written.
    fn stored(&self) -> Stored {
        let body = serde_json::to_string(self).expect("keys are texts, and nothing refuses");
        Stored { kind: Self::KIND, id: self.number(), body: Some(body) }
    }
}

macro_rules! object {
    ($name:ident) => {
        impl Object for $name {
            const KIND: Kind = Kind::$name;

            fn number(&self) -> i64 {
                self.id.0
            }
        }
    };
}

object!(User);
object!(PreAuthKey);
object!(Node);
object!(Policy);
object!(ApiKey);
object!(AuditEntry);
object!(TkaState);
object!(TkaUpdate);

/// Who owns nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The number.
    pub id: UserId,
    /// The name that is unique.
    pub name: String,
    /// The name that is shown.
    #[serde(default)]
    pub display_name: String,
    /// An address.
    #[serde(default)]
    pub email: String,
    /// Where a picture is.
    #[serde(default)]
    pub picture_url: String,
    /// Who it is for the provider that vouches for it; none if an administrator made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Whether it was made the owner of the network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_owner: bool,
    /// The groups that the provider had it in at its last login.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// When it was made.
    pub created: Time,
}

/// What stands for a login. The key itself is not kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreAuthKey {
    /// The number.
    pub id: KeyId,
    /// Whose nodes it makes; nobody's if they are tagged.
    pub user: Option<UserId>,
    /// The part of the key that names it.
    pub prefix: String,
    /// Of the part that is secret.
    pub hash: Hash,
    /// Whether it makes more than one node.
    pub reusable: bool,
    /// Whether its nodes are forgotten when they go.
    pub ephemeral: bool,
    /// Whether it has made a node.
    pub used: bool,
    /// When it ends.
    pub expires: Option<Time>,
    /// The tags of its nodes.
    #[serde(default)]
    pub tags: Vec<String>,
    /// When it was made.
    pub created: Time,
}

/// Who may reach whom. The newest is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The number.
    pub id: PolicyId,
    /// As it was written, with its comments.
    pub text: String,
    /// When it was saved.
    pub created: Time,
}

/// What an administrator's program shows instead of a password. The key itself is not kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiKey {
    /// The number.
    pub id: ApiKeyId,
    /// The part of the key that names it.
    pub prefix: String,
    /// Of the part that is secret.
    pub hash: Hash,
    /// When it ends.
    pub expires: Option<Time>,
    /// When it was made.
    pub created: Time,
}

/// What an administrator did. It is never changed, and never gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The number: entries are in its order.
    pub id: AuditId,
    /// When.
    pub at: Time,
    /// By what right: the local socket, an API key, a session of the page.
    pub who: String,
    /// The command, in words.
    pub what: String,
    /// Why it was not carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The hash of the entry before it; none in entries of before there was a chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<AuditHash>,
}

/// What is kept of tailnet lock, beside its updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TkaState {
    /// The number.
    pub id: TkaId,
    /// The node that may turn it on, and until when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<(NodeId, Time)>,
    /// The node that is turning it on, and the checkpoint that it made, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<(NodeId, String)>,
    /// Whether it is on: then there are updates.
    #[serde(default)]
    pub is_on: bool,
    /// The secret that turned it off, in base64: each node checks it by itself, and goes by nothing
    /// else. It is none any more by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// An update of tailnet lock, in the order in which they came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TkaUpdate {
    /// The number.
    pub id: TkaUpdateId,
    /// Its text, in base64.
    pub text: String,
}

/// How a node became one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisterMethod {
    /// By a pre-auth key.
    #[default]
    AuthKey,
    /// By an administrator.
    Cli,
    /// By a login at a provider of identities.
    Oidc,
}

/// A machine in the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The number.
    pub id: NodeId,
    /// The key of its machine.
    pub machine: MachinePublic,
    /// The key of WireGuard.
    pub key: NodePublic,
    /// The key of its disco messages; zero until it says one.
    pub disco: DiscoPublic,
    /// The owner; nobody if it is tagged.
    pub user: Option<UserId>,
    /// What it is, instead of whose.
    #[serde(default)]
    pub tags: Vec<String>,
    /// Its name in the network, without the network's.
    pub name: String,
    /// Whether the name is an administrator's and does not follow the host's.
    #[serde(default)]
    pub renamed: bool,
    /// Its address.
    pub v4: Ipv4Addr,
    /// Its address.
    pub v6: Ipv6Addr,
    /// Where it may be reached.
    #[serde(default)]
    pub endpoints: Vec<SocketAddr>,
    /// The region of its home.
    #[serde(default)]
    pub home_relay: u16,
    /// The capability version that it speaks.
    #[serde(default)]
    pub version: u16,
    /// What it says of itself.
    pub hostinfo: Hostinfo,
    /// Whether it is forgotten when it goes.
    #[serde(default)]
    pub ephemeral: bool,
    /// The key that it was made by.
    pub auth_key: Option<KeyId>,
    /// How it was made.
    #[serde(default)]
    pub method: RegisterMethod,
    /// When its key expires.
    pub expires: Option<Time>,
    /// When it was made.
    pub created: Time,
    /// When it took another key; none if it has its first.
    #[serde(default)]
    pub rekeyed: Option<Time>,
    /// The number of changes that clients were sent. Of several changes another server reads only the last one.
    #[serde(default)]
    pub changes: u64,
    /// When it was last connected; of one that is connected, when that was last written.
    pub last_seen: Option<Time>,
    /// The networks that an administrator lets it route.
    #[serde(default)]
    pub approved: Vec<IpNet>,
    /// The networks that go to it, of those that several may route: all servers say the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primaries: Vec<IpNet>,
    /// The public half of its key of tailnet lock, as it says it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tka_key: String,
    /// The signature of its node key by tailnet lock, in base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signature: String,
}

impl Node {
    /// Whether its key has expired.
    pub fn has_expired(&self, now: Time) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// Whether it has tags instead of an owner.
    pub fn is_tagged(&self) -> bool {
        !self.tags.is_empty()
    }

    /// The networks that it advertises and may route.
    pub fn routes(&self) -> impl Iterator<Item = IpNet> {
        self.hostinfo.routable.iter().filter(|net| self.approved.contains(net)).copied()
    }
}
