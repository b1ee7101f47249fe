//! Rules for logins by SSH, in the format of Tailscale's clients (`tailcfg.SSHRule`).

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    alias::{Alias, Autogroup},
    compile::Compiled,
    model::Ssh,
    nodes::{Nodes, User},
    resolve::Names,
    set::NodeSet,
};

/// A rule: nodes, accounts and the action.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SshRule {
    /// The nodes that may log in.
    pub principals: Vec<SshPrincipal>,
    /// The requested account and the local account: `=` is the same account, empty refuses the login.
    pub ssh_users: BTreeMap<String, String>,
    pub action: SshAction,
    /// Environment variables that are accepted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub accept_env: Vec<String>,
}

/// A node that may log in.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct SshPrincipal {
    /// One of the node's addresses.
    #[serde(rename = "nodeIP")]
    pub node_ip: String,
}

/// The action for a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SshAction {
    /// The connection is accepted.
    #[serde(skip_serializing_if = "is_false")]
    pub accept: bool,
    /// Agent forwarding is allowed.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_agent_forwarding: bool,
    /// The connection is held, and the client requests the action from this URL.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hold_and_delegate: String,
    /// Local port forwarding is allowed.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_local_port_forwarding: bool,
    /// Remote port forwarding is allowed.
    #[serde(skip_serializing_if = "is_false")]
    pub allow_remote_port_forwarding: bool,
}

impl SshAction {
    /// Accepts the connection, and allows all kinds of forwarding.
    pub fn accepted() -> Self {
        Self {
            accept: true,
            allow_agent_forwarding: true,
            allow_local_port_forwarding: true,
            allow_remote_port_forwarding: true,
            hold_and_delegate: String::new(),
        }
    }
}

/// A login that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SshCheck {
    /// How long a check is valid. `None` if each login is checked.
    pub period: Option<Duration>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(yes: &bool) -> bool {
    !yes
}

/// A rule of the section ssh, with its names resolved.
#[derive(Clone, Debug)]
pub(crate) struct SshEdge {
    pub sources: NodeSet,
    pub targets: NodeSet,
    /// Whether autogroup:self is a target.
    pub reaches_own: bool,
    has_others: bool,
    accounts: BTreeMap<String, String>,
    /// The account that the mail address of each user names.
    pub locals: BTreeMap<u64, String>,
    pub has_locals: bool,
    is_checked: bool,
    period: Option<Duration>,
    environment: Vec<String>,
}

impl SshEdge {
    pub(crate) fn compile(names: Names<'_>, rule: &Ssh) -> Self {
        let is_self = |alias: &&Alias| alias.is(Autogroup::Itself);
        let others: Vec<&Alias> = rule.targets.iter().filter(|alias| !is_self(alias)).collect();
        let domains: Vec<&str> = rule.users.iter().filter_map(|user| local_domain(user)).collect();
        Self {
            sources: names.members(&names.resolve(&rule.sources)),
            targets: names.members(&names.resolve(others.iter().copied())),
            reaches_own: others.len() < rule.targets.len(),
            has_others: !others.is_empty(),
            accounts: accounts(&rule.users),
            locals: names.nodes.users.iter().filter_map(|user| local(user, &domains)).collect(),
            has_locals: !domains.is_empty(),
            is_checked: rule.is_checked,
            period: rule.period,
            environment: rule.environment.clone(),
        }
    }
}

/// The domain of `localpart:*@domain`. Other texts are names of accounts.
pub(crate) fn local_domain(user: &str) -> Option<&str> {
    user.strip_prefix("localpart:*@").filter(|domain| !domain.is_empty())
}

fn local(user: &User, domains: &[&str]) -> Option<(u64, String)> {
    let own = user.domain()?;
    let is_meant = domains.iter().any(|domain| domain.eq_ignore_ascii_case(own));
    is_meant.then(|| (user.id, user.local_part().unwrap_or_default().to_owned()))
}

fn accounts(users: &[String]) -> BTreeMap<String, String> {
    // A login as root is refused unless root is named.
    let mut accounts = BTreeMap::from([("root".to_owned(), String::new())]);
    for user in users {
        match user.as_str() {
            "autogroup:nonroot" => drop(accounts.insert("*".into(), "=".into())),
            user if local_domain(user).is_some() => {}
            user => drop(accounts.insert(user.into(), user.into())),
        }
    }
    accounts
}

impl Compiled {
    /// The rules for logins at a node, with the checked ones first. `server` is the base URL at which a client
    /// asks about a checked login, without a trailing slash.
    pub fn ssh(&self, node: usize, server: &str) -> Vec<SshRule> {
        let mut rules = Vec::new();
        for edge in &self.ssh {
            Logins { nodes: &self.nodes, edge, server, rules: &mut rules }.at(node);
        }
        rules.sort_by_key(|rule: &SshRule| rule.action.accept);
        rules
    }

    /// Returns the check if the first rule for a login from one node at another, to this account, requires one.
    pub fn ssh_check(&self, from: usize, at: usize, account: &str) -> Option<SshCheck> {
        let source = &self.nodes.nodes.get(from)?.addresses;
        let mut checks = self.ssh.iter().filter(|edge| edge.is_checked);
        let edge = checks.find(|edge| {
            let mut rules = Vec::new();
            Logins { nodes: &self.nodes, edge, server: "", rules: &mut rules }.at(at);
            rules.iter().any(|rule| rule.is_for(source, account))
        })?;
        Some(SshCheck { period: edge.period })
    }
}

impl SshRule {
    fn is_for(&self, source: &[IpAddr], account: &str) -> bool {
        let is_source = |principal: &SshPrincipal| {
            principal.node_ip.parse().is_ok_and(|address| source.contains(&address))
        };
        let local = self.ssh_users.get(account).or_else(|| self.ssh_users.get("*"));
        local.is_some_and(|local| !local.is_empty()) && self.principals.iter().any(is_source)
    }
}

struct Logins<'a> {
    nodes: &'a Nodes,
    edge: &'a SshEdge,
    server: &'a str,
    rules: &'a mut Vec<SshRule>,
}

impl Logins<'_> {
    fn at(&mut self, node: usize) {
        let edge = self.edge;
        let own = self.nodes.nodes[node].user.filter(|_| self.nodes.nodes[node].is_personal());
        if edge.reaches_own
            && let Some(user) = own
        {
            self.push_user(user);
        }
        if !edge.has_others {
            return;
        }
        if edge.targets.contains(node) {
            self.push_all();
        } else if edge.has_locals && edge.sources.contains(node) {
            // Recorded: a source of `localpart` rules may also log in at its own nodes.
            match own {
                Some(user) => self.push_user(user),
                None => self.push(self.principals(&[node].into_iter().collect()), None),
            }
        }
    }

    fn push_all(&mut self) {
        let edge = self.edge;
        let users = self.users();
        let tagged = self.tagged();
        if edge.has_locals {
            users.into_iter().for_each(|user| self.push_user(user));
            self.push(tagged, None);
        } else {
            let mut all: Vec<SshPrincipal> =
                users.into_iter().flat_map(|user| self.of_user(user)).collect();
            all.extend(tagged);
            self.push(all, None);
        }
    }

    /// The users with nodes among the sources, sorted by ID.
    fn users(&self) -> Vec<u64> {
        let nodes = self.edge.sources.iter().map(|index| &self.nodes.nodes[index]);
        let nodes = nodes.filter(|node| node.is_personal());
        let mut users: Vec<u64> = nodes.filter_map(|node| node.user).collect();
        users.sort_unstable();
        users.dedup();
        users
    }

    /// The sources with tags, once for each tag. (Recorded.)
    fn tagged(&self) -> Vec<SshPrincipal> {
        let nodes = self.edge.sources.iter().map(|index| &self.nodes.nodes[index]);
        nodes
            .flat_map(|node| std::iter::repeat_n(&node.addresses, node.tags.len()).flatten())
            .map(|address| SshPrincipal { node_ip: address.to_string() })
            .collect()
    }

    fn of_user(&self, user: u64) -> Vec<SshPrincipal> {
        let is_own = |index: &usize| {
            let node = &self.nodes.nodes[*index];
            node.is_personal() && node.user == Some(user)
        };
        self.principals(&self.edge.sources.iter().filter(is_own).collect())
    }

    fn principals(&self, nodes: &NodeSet) -> Vec<SshPrincipal> {
        let addresses = nodes.iter().flat_map(|index| &self.nodes.nodes[index].addresses);
        addresses.map(|address| SshPrincipal { node_ip: address.to_string() }).collect()
    }

    fn push_user(&mut self, user: u64) {
        self.push(self.of_user(user), Some(user));
    }

    /// Adds one rule for the named accounts, and one for the account of the user's mail address.
    fn push(&mut self, principals: Vec<SshPrincipal>, user: Option<u64>) {
        if principals.is_empty() {
            return;
        }
        let local = user.and_then(|user| self.edge.locals.get(&user));
        let local = local.map(|local| BTreeMap::from([(local.clone(), local.clone())]));
        for ssh_users in std::iter::once(self.edge.accounts.clone()).chain(local) {
            self.rules.push(SshRule {
                principals: principals.clone(),
                ssh_users,
                action: self.action(),
                accept_env: self.edge.environment.clone(),
            });
        }
    }

    fn action(&self) -> SshAction {
        if self.edge.is_checked {
            let way = "/machine/ssh/action/$SRC_NODE_ID/to/$DST_NODE_ID?local_user=$LOCAL_USER";
            let hold_and_delegate = format!("{}{way}", self.server);
            return SshAction { hold_and_delegate, ..SshAction::default() };
        }
        SshAction::accepted()
    }
}
