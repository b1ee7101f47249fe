//! The users and nodes that a policy is applied to.

use std::{collections::BTreeMap, net::IpAddr};

use ipnet::IpNet;
use serde::{Deserialize, Deserializer};

/// A network's users and nodes; a node is named by its place in the list. A default node is a place
/// that is free.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    /// The users.
    pub users: Vec<User>,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Mail domains of the network, for `user:*@domain`; empty for any.
    pub domains: Vec<String>,
}

/// A user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// Its number.
    pub id: u64,
    /// As it signs in.
    pub name: String,
    /// May be empty.
    pub email: String,
    /// What it may administer.
    pub role: Option<Role>,
}

/// What a user may administer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Nothing.
    #[default]
    Member,
    /// The network.
    Admin,
    /// The network, which is its own.
    Owner,
}

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// For messages.
    pub name: String,
    /// The user whose it is; none counts if it has tags.
    pub user: Option<u64>,
    /// With `tag:`.
    pub tags: Vec<String>,
    /// IPv4 before IPv6.
    pub addresses: Vec<IpAddr>,
    /// Networks that it routes and was allowed to.
    pub routes: Vec<IpNet>,
}

/// Nodes as in headscale's records and in `--nodes`.
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
    /// Reads `{users, nodes}` with nodes by name. Where nobody has a role, the first user is the
    /// owner; where there are no `domains`, the network's is the owner's.
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

    /// The nodes' places.
    pub fn indices(&self) -> std::ops::Range<usize> {
        0..self.nodes.len()
    }

    /// Who is named so, as `name@domain`, as a name, or as `name@`.
    pub fn user(&self, name: &str) -> Option<&User> {
        let bare = name.strip_suffix('@').unwrap_or(name);
        let is_named = |user: &&User| is_address(&user.email, bare) || is_name(name, &user.name);
        self.users.iter().find(is_named)
    }
}

/// Whether a policy's text is this name. An empty name matches no text.
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
    /// The domain of its address.
    pub fn domain(&self) -> Option<&str> {
        self.address().map(|(_, domain)| domain)
    }

    /// Both parts of its address, neither of them empty.
    fn address(&self) -> Option<(&str, &str)> {
        let (local, domain) = self.email.rsplit_once('@')?;
        (!local.is_empty() && !domain.is_empty()).then_some((local, domain))
    }

    /// Whether it is of a mail domain.
    pub(crate) fn is_of(&self, domain: &str) -> bool {
        self.domain().is_some_and(|own| own.eq_ignore_ascii_case(domain))
    }

    /// What stands before it.
    pub fn local_part(&self) -> Option<&str> {
        self.address().map(|(local, _)| local)
    }
}

impl Node {
    /// Whether it is nobody: a place in the list that is free.
    pub fn is_vacant(&self) -> bool {
        self.addresses.is_empty() && self.user.is_none() && self.tags.is_empty()
    }

    /// Whether it is its user's and no service.
    pub fn is_personal(&self) -> bool {
        self.tags.is_empty()
    }

    /// Whether it has an address there.
    pub fn is_in(&self, net: &IpNet) -> bool {
        self.addresses.iter().any(|address| net.contains(address))
    }

    /// Whether it is the way to the internet.
    pub fn is_exit(&self) -> bool {
        self.routes.iter().any(|net| net.prefix_len() == 0)
    }

    /// Its routes but the one to the internet.
    pub fn subnets(&self) -> impl Iterator<Item = &IpNet> {
        self.routes.iter().filter(|net| net.prefix_len() > 0)
    }

    /// Whether it routes a part of it.
    pub fn routes_to(&self, net: &IpNet) -> bool {
        self.subnets().any(|route| overlaps(route, net))
    }
}

/// Whether they have addresses in common: then one is within the other.
pub fn overlaps(one: &IpNet, two: &IpNet) -> bool {
    one.contains(two) || two.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_names_a_user_without_a_name_and_an_address() {
        let nodes = Nodes { users: vec![User::default()], ..Nodes::default() };
        for text in ["", "@"] {
            assert!(nodes.user(text).is_none(), "{text:?}");
        }
    }
}
