//! Stored objects. Each has a kind, a number that is never reused, and a body of JSON.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tailnet::keys::{DiscoPublic, MachinePublic, NodePublic};

pub use crate::identity::Identity;
use crate::{audit_hash::AuditHash, hostinfo::Hostinfo, secret::Hash, time::Time};

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
    /// The number of an entry of the audit log.
    AuditId
);
id!(
    /// The number of the state of tailnet lock, which is always the same.
    TkaId
);
id!(
    /// The number of an update of tailnet lock.
    TkaUpdateId
);

/// The kind of an object.
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
    /// The [`TkaState`].
    TkaState,
    /// A [`TkaUpdate`].
    TkaUpdate,
}

impl Kind {
    /// All kinds.
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

    /// The name in the store.
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

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// An object in the form of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub kind: Kind,
    /// The number, unique among objects of the kind.
    pub id: i64,
    /// The JSON. `None` if the object was deleted; the number stays used.
    pub body: Option<String>,
}

/// A type of stored objects.
pub trait Object: Serialize + DeserializeOwned {
    const KIND: Kind;

    fn number(&self) -> i64;

    /// The form of the store.
    fn stored(&self) -> Stored {
        let body = serde_json::to_string(self).expect("all keys are strings, and no field fails");
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

/// A user, the owner of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub id: UserId,
    /// The unique name.
    pub name: String,
    /// The displayed name.
    #[serde(default)]
    pub display_name: String,
    /// The mail address.
    #[serde(default)]
    pub email: String,
    /// The URL of a picture.
    #[serde(default)]
    pub picture_url: String,
    /// The identity at the provider. `None` if an administrator created the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// Whether the user was made the owner of the network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_owner: bool,
    /// The groups from the provider at the last login.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    pub created: Time,
}

/// A pre-auth key, which registers nodes without a login. The key itself is not stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreAuthKey {
    pub id: KeyId,
    /// The owner of its nodes. `None` if they are tagged.
    pub user: Option<UserId>,
    /// The public part of the key, which identifies it.
    pub prefix: String,
    /// The hash of the secret part.
    pub hash: Hash,
    /// Whether it can register more than one node.
    pub reusable: bool,
    /// Whether its nodes are deleted after they disconnect.
    pub ephemeral: bool,
    /// Whether it has registered a node.
    pub used: bool,
    pub expires: Option<Time>,
    /// The tags of its nodes.
    #[serde(default)]
    pub tags: Vec<String>,
    pub created: Time,
}

/// An access control policy. The newest one is active.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    pub id: PolicyId,
    /// The text with its comments.
    pub text: String,
    pub created: Time,
}

/// An API key, with which programs of administrators authenticate. The key itself is not stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiKey {
    pub id: ApiKeyId,
    /// The public part of the key, which identifies it.
    pub prefix: String,
    /// The hash of the secret part.
    pub hash: Hash,
    pub expires: Option<Time>,
    pub created: Time,
}

/// An action of an administrator. Entries are never changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// The number, in the order of the actions.
    pub id: AuditId,
    pub at: Time,
    /// The authorization: the local socket, an API key, or a session of the web page.
    pub who: String,
    /// The command as text.
    pub what: String,
    /// The reason of the refusal, if the command was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// The hash of the previous entry. `None` in entries from before the chain was introduced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<AuditHash>,
}

/// The state of tailnet lock, without its updates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TkaState {
    pub id: TkaId,
    /// The node that may turn it on, and the end of its permission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<(NodeId, Time)>,
    /// The node that is turning it on, and the checkpoint that it made, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<(NodeId, String)>,
    /// Whether it is on. Then there are updates.
    #[serde(default)]
    pub is_on: bool,
    /// The disablement secret that turned it off, in base64. Each node verifies it. It is public by then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// An update of tailnet lock. Numbers are in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TkaUpdate {
    pub id: TkaUpdateId,
    /// The update in base64.
    pub text: String,
}

/// The way in which a node was registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RegisterMethod {
    /// With a pre-auth key.
    #[default]
    AuthKey,
    /// By an administrator.
    Cli,
    /// By a login at an OpenID provider.
    Oidc,
}

/// A node of the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// The machine key.
    pub machine: MachinePublic,
    /// The node key, for WireGuard.
    pub key: NodePublic,
    /// The disco key; zero until the node reports one.
    pub disco: DiscoPublic,
    /// The owner. `None` if the node is tagged.
    pub user: Option<UserId>,
    /// The tags, instead of an owner.
    #[serde(default)]
    pub tags: Vec<String>,
    /// The name, without the domain of the network.
    pub name: String,
    /// Whether an administrator set the name. Then it does not follow the host name.
    #[serde(default)]
    pub renamed: bool,
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
    #[serde(default)]
    pub endpoints: Vec<SocketAddr>,
    /// The region of the home relay.
    #[serde(default, rename = "home")]
    pub home_relay: u16,
    /// The capability version of the client.
    #[serde(default)]
    pub version: u16,
    pub hostinfo: Hostinfo,
    /// Whether it is deleted after it disconnects.
    #[serde(default)]
    pub ephemeral: bool,
    /// The pre-auth key that registered it.
    pub auth_key: Option<KeyId>,
    #[serde(default)]
    pub method: RegisterMethod,
    pub expires: Option<Time>,
    pub created: Time,
    /// The time of the last change of the node key. `None` if it has its first key.
    #[serde(default)]
    pub rekeyed: Option<Time>,
    /// The number of changes that were sent to clients. Another server reads only the last of several changes.
    #[serde(default)]
    pub changes: u64,
    /// The time of the last connection. For a connected node, this is the time of the last write.
    pub last_seen: Option<Time>,
    /// Approved routes.
    #[serde(default)]
    pub approved: Vec<IpNet>,
    /// The networks for which it is the primary router. All servers agree on them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub primaries: Vec<IpNet>,
    /// The node's public key for tailnet lock.
    #[serde(default, rename = "lock_key", skip_serializing_if = "String::is_empty")]
    pub tka_key: String,
    /// The signature of its node key by tailnet lock, in base64.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub signature: String,
}

impl Node {
    /// Whether the node can be reached. A node that never reported a disco key cannot.
    pub(crate) fn is_reachable(&self) -> bool {
        self.disco != DiscoPublic::default()
    }

    /// Whether the node key has expired.
    pub fn has_expired(&self, now: Time) -> bool {
        self.expires.is_some_and(|at| at <= now)
    }

    /// Whether the node has tags instead of an owner.
    pub fn is_tagged(&self) -> bool {
        !self.tags.is_empty()
    }

    /// The advertised and approved routes.
    pub fn routes(&self) -> impl Iterator<Item = IpNet> {
        self.hostinfo.routable.iter().filter(|net| self.approved.contains(net)).copied()
    }
}
