//! The users and nodes that a policy is applied to.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// The users and nodes of a network. A node is identified by its index in the list. A default node is an
/// unused entry.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    pub users: Vec<User>,
    pub nodes: Vec<Node>,
    /// Mail domains of the network, for `user:*@domain`. If empty, any domain is allowed.
    pub domains: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    pub id: u64,
    /// The login name.
    pub name: String,
    /// The mail address; may be empty.
    pub email: String,
    pub role: Option<Role>,
}

/// The administrative role of a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// No rights.
    #[default]
    Member,
    /// Administers the network.
    Admin,
    /// Owns and administers the network.
    Owner,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The name, for messages.
    pub name: String,
    /// The owner. Ignored if the node has tags.
    pub user: Option<u64>,
    /// The tags, with the prefix `tag:`.
    pub tags: Vec<String>,
    /// Addresses, IPv4 before IPv6.
    pub addresses: Vec<IpAddr>,
    /// Advertised routes that are approved.
    pub routes: Vec<IpNet>,
}

/// The JSON format of nodes in headscale's records and in `--nodes`.
#[derive(Deserialize)]
struct Topology {
    #[serde(default)]
    users: Vec<User>,
    nodes: BTreeMap<String, Listed>,
    domains: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Listed {
    #[serde(default, deserialize_with = "nil")]
    tags: Vec<String>,
    user: Option<String>,
    ipv4: Option<IpAddr>,
    ipv6: Option<IpAddr>,
    #[serde(default, deserialize_with = "nil")]
    routable_ips: Vec<IpNet>,
    #[serde(default, deserialize_with = "nil")]
    approved_routes: Vec<IpNet>,
}

/// Go writes an empty list as null.
fn nil<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl Nodes {
    /// Reads `{users, nodes}` with nodes by name. If no user has a role, the first user is the owner. If
    /// `domains` is absent, the domain of the owner's mail address is the network's.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        let Topology { mut users, nodes, domains } = serde_json::from_str(text)?;
        users.sort_by_key(|user| user.id);
        if users.iter().all(|user| user.role.is_none())
            && let Some(first) = users.first_mut()
        {
            first.role = Some(Role::Owner);
        }
        let owner = users.iter().find(|user| user.role == Some(Role::Owner));
        let domain = owner.and_then(|owner| owner.domain()).map(str::to_owned);
        let domains = domains.unwrap_or_else(|| domain.into_iter().collect());
        let nodes = nodes.into_iter().map(|(name, listed)| listed.node(name, &users)).collect();
        Ok(Self { users, nodes, domains })
    }

    /// The indexes of all nodes.
    pub fn indices(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// The user with this name, given as `name@domain`, `name@` or the bare name.
    pub fn user(&self, name: &str) -> Option<&User> {
        let bare = name.strip_suffix('@').unwrap_or(name);
        let is_named = |user: &&User| is_address(&user.email, bare) || is_name(name, &user.name);
        self.users.iter().find(is_named)
    }
}

/// Whether a text in a policy is this name. An empty name matches no text.
pub(crate) fn is_name(text: &str, name: &str) -> bool {
    !name.is_empty() && text.strip_suffix('@').unwrap_or(text) == name
}

fn is_address(email: &str, text: &str) -> bool {
    !email.is_empty() && email.eq_ignore_ascii_case(text)
}

impl Listed {
    fn node(self, name: String, users: &[User]) -> Node {
        let user = self.user.filter(|_| self.tags.is_empty());
        let user = user.and_then(|name| users.iter().find(|user| user.name == name));
        let mut routes = self.routable_ips;
        routes.retain(|net| self.approved_routes.contains(net));
        Node {
            name,
            user: user.map(|user| user.id),
            tags: self.tags,
            addresses: self.ipv4.into_iter().chain(self.ipv6).collect(),
            routes,
        }
    }
}

impl User {
    /// The domain of the mail address.
    pub fn domain(&self) -> Option<&str> {
        self.address().map(|(_, domain)| domain)
    }

    /// Both parts of the mail address, neither of them empty.
    fn address(&self) -> Option<(&str, &str)> {
        let (local, domain) = self.email.rsplit_once('@')?;
        (!local.is_empty() && !domain.is_empty()).then_some((local, domain))
    }

    /// Whether the mail address is in a domain.
    pub(crate) fn is_of(&self, domain: &str) -> bool {
        self.domain().is_some_and(|own| own.eq_ignore_ascii_case(domain))
    }

    /// The part of the mail address before the `@`.
    pub fn local_part(&self) -> Option<&str> {
        self.address().map(|(local, _)| local)
    }
}

impl Node {
    /// Whether this is an unused entry of the list.
    pub fn is_vacant(&self) -> bool {
        self.addresses.is_empty() && self.user.is_none() && self.tags.is_empty()
    }

    /// Whether the node belongs to a user, and not to tags.
    pub fn is_personal(&self) -> bool {
        self.tags.is_empty()
    }

    /// Whether the node has an address in a network.
    pub fn is_in(&self, net: &IpNet) -> bool {
        self.addresses.iter().any(|address| net.contains(address))
    }

    /// Whether the node is an exit node.
    pub fn is_exit(&self) -> bool {
        self.routes.iter().any(|net| net.prefix_len() == 0)
    }

    /// The routes without the default routes.
    pub fn subnets(&self) -> impl Iterator<Item = &IpNet> {
        self.routes.iter().filter(|net| net.prefix_len() > 0)
    }

    /// Whether the node routes a part of a network.
    pub fn routes_to(&self, net: &IpNet) -> bool {
        self.subnets().any(|route| overlaps(route, net))
    }
}

/// Whether two networks have addresses in common: then one contains the other.
pub(crate) fn overlaps(one: &IpNet, two: &IpNet) -> bool {
    one.contains(two) || two.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_name_and_mail_address_matches_no_text() {
        let nodes = Nodes { users: vec![User::default()], ..Nodes::default() };
        for text in ["", "@"] {
            assert!(nodes.user(text).is_none(), "{text:?}");
        }
    }
}
