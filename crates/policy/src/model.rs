//! The policy after parsing: all names in it are defined.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use ipnet::IpNet;
use serde_json::Value;
use tailnet::map_messages::PortRange;

use crate::{alias::Alias, refusal::Fault};

/// The access control policy of a network.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub(crate) groups: BTreeMap<String, Vec<String>>,
    pub(crate) hosts: BTreeMap<String, IpNet>,
    pub(crate) sets: BTreeMap<String, Vec<IpNet>>,
    pub(crate) tag_owners: BTreeMap<String, Vec<Alias>>,
    pub(crate) route_approvers: Vec<(IpNet, Vec<Alias>)>,
    pub(crate) exit_approvers: Vec<Alias>,
    /// Whether the text has neither acls nor grants: every node reaches every other.
    pub(crate) is_open: bool,
    /// Grants in the order of evaluation. An ACL is one grant for each destination.
    pub(crate) grants: Vec<Grant>,
    pub(crate) ssh: Vec<Ssh>,
    pub(crate) attributes: Vec<Attributes>,
    pub(crate) randomizes_port: bool,
    pub(crate) tests: Vec<Test>,
    pub(crate) ssh_tests: Vec<SshTest>,
    /// All mentions of users, in the order of the text.
    pub(crate) mentions: Vec<Mention>,
    /// Unsupported parts that were omitted.
    pub(crate) left_out: Vec<Fault>,
}

/// A string in the text that names a user, or the users of a domain.
#[derive(Clone, Debug)]
pub(crate) struct Mention {
    pub location: Location,
    /// The bytes of the string in the text, including its quotes.
    pub span: Range<usize>,
    pub text: String,
    /// The name in the string.
    pub alias: Alias,
}

/// The position of a rule in the text, for messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Location {
    pub line: u32,
    pub key: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub sources: Vec<Alias>,
    pub targets: Vec<Alias>,
    pub packets: Vec<Packets>,
    pub capabilities: Option<BTreeMap<String, Value>>,
    pub via: Vec<String>,
}

/// Packets that a rule allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packets {
    /// `None` for TCP, UDP and ICMP.
    pub protocol: Option<u8>,
    pub ports: Vec<PortRange>,
}

#[derive(Clone, Debug)]
pub(crate) struct Ssh {
    pub location: Location,
    pub sources: Vec<Alias>,
    pub targets: Vec<Alias>,
    pub users: Vec<String>,
    pub is_checked: bool,
    /// How long a check is valid. `None` if each login is checked.
    pub period: Option<Duration>,
    pub environment: Vec<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct Attributes {
    pub targets: Vec<Alias>,
    pub attributes: Vec<String>,
    pub pools: Vec<IpNet>,
}

#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub location: Location,
    pub source: Alias,
    /// `None` for TCP and UDP.
    pub protocol: Option<u8>,
    pub accept: Vec<TestTarget>,
    pub deny: Vec<TestTarget>,
}

/// One port of one machine.
#[derive(Clone, Debug)]
pub(crate) struct TestTarget {
    /// The text in the policy.
    pub text: String,
    pub alias: Alias,
    /// The port, for protocols with ports.
    pub port: u16,
}

#[derive(Clone, Debug)]
pub(crate) struct SshTest {
    pub location: Location,
    pub source: Alias,
    pub targets: Vec<Alias>,
    pub accept: Vec<String>,
    pub deny: Vec<String>,
    pub check: Vec<String>,
}
