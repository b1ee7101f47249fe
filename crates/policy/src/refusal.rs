//! Defects of policies, and their messages.

use std::fmt;

/// A policy is invalid: all its defects, in the order of their lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// At least one.
    pub faults: Vec<Fault>,
}

/// One defect, and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The line, from 1.
    pub line: u32,
    /// The key path of the value, like `acls[0].src[1]`.
    pub key: String,
    pub reason: Reason,
}

/// The kind of a defect. The messages are those of Tailscale's service if it has one for the defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    Syntax(&'static str),
    TooDeep,
    DuplicateKey,
    UnknownKey,
    /// A key of Tailscale that this coordinator does not support.
    Unsupported(&'static str),
    /// A value of Tailscale that this coordinator does not support.
    UnsupportedName(String, &'static str),
    /// A name that matches no user.
    NoUser(String),
    /// A name of a user in the policy.
    Mention(String),
    /// A policy without rules.
    NoRules,
    /// The value has the wrong type.
    WrongType(&'static str),
    GroupName,
    GroupInGroup {
        group: String,
        member: String,
    },
    TagName(String),
    TagNameIn(String),
    HostName,
    Address(String),
    Alias(String),
    Autogroup(String),
    NotAllowedHere(String),
    SelfAsSource,
    InternetAsSource,
    DangerAllAsTarget,
    SelfWithSources,
    NoGroup(String),
    NoHost(String),
    NoSet(String),
    NoTag {
        prefix: String,
        tag: String,
    },
    NoViaTag(String),
    ViaNotTag,
    SetInItself,
    Action(String),
    Ports(PortsFault),
    PortsOf {
        target: String,
        ports: String,
        fault: PortsFault,
    },
    PortsOfRule {
        ports: String,
        fault: PortsFault,
    },
    Protocol(String),
    ProtocolHasNoPorts(String),
    NeitherIpNorApp,
    CapabilityForm,
    CapabilityDomain,
    AppToInternet,
    DefaultRoute(String),
    Pool(String),
    PoolReserved(String),
    SshAction(String),
    SshNoAction,
    SshNoUsers,
    SshUser(String),
    SshEnvironment,
    SshTarget(String),
    SshSource(String),
    SshTagToUser,
    SshOtherUser,
    Period(String),
    PeriodNegative(String),
    PeriodTooLong(String),
    PeriodWithoutCheck,
    Domain {
        domain: String,
        is_alias: bool,
    },
    /// A test failed, or cannot be run.
    Test(TestFault),
    SshTestTag(String),
    SshTestTarget(String),
}

/// A defect of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortsFault {
    Missing,
    NotNumber,
    Zero,
    TooLarge,
    Order,
}

/// A defect of a test, or its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestFault {
    NoSource,
    Source(String),
    Target(String),
    Nothing,
    Protocol(String),
    Denied { source: String, target: String },
    Allowed { source: String, target: String },
    NotChecked { source: String, target: String },
}

impl Reason {
    /// Whether Tailscale supports it, and this coordinator does not.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported(_) | Self::UnsupportedName(..))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            if index > 0 {
                writeln!(out)?;
            }
            write!(out, "{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.key.is_empty() {
            return write!(out, "line {}: {}", self.line, self.reason);
        }
        write!(out, "line {}, {}: {}", self.line, self.key, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax(wanted) => write!(out, "expected {wanted}"),
            Self::TooDeep => write!(out, "arrays and objects are nested too deeply"),
            Self::DuplicateKey => write!(out, "duplicate key"),
            Self::UnknownKey => write!(out, "unknown key"),
            Self::Unsupported(instead) => write!(out, "is not supported{instead}"),
            Self::UnsupportedName(name, why) => write!(out, "{name} is not supported{why}"),
            Self::NoUser(name) => write!(out, "{name:?} matches no user"),
            Self::Mention(name) => write!(out, "{name:?}"),
            Self::NoRules => {
                write!(out, "there are neither acls nor grants: every node reaches every other")
            }
            Self::WrongType(what) => write!(out, "must be {what}"),
            Self::GroupName => write!(out, "a group's name must begin with group:"),
            Self::GroupInGroup { group, member } => {
                write!(out, "groups[{group:?}]: {member:?}: group members cannot be recursive")
            }
            Self::TagName(tag) => write!(out, "{tag:?}: a tag must have the form tag:NAME"),
            Self::TagNameIn(tag) => {
                write!(out, "tagOwners[{tag:?}]: tag names must start with a letter, after 'tag:'")
            }
            Self::HostName => write!(out, "a host's name must not contain a colon or an @"),
            Self::Address(text) => write!(out, "{text:?} is neither an address nor a network"),
            Self::Alias(text) => write!(out, "{text:?} is not a user, group, tag, host or network"),
            Self::Autogroup(name) => write!(out, "{name} does not exist"),
            Self::NotAllowedHere(name) => write!(out, "{name} cannot be used here"),
            Self::SelfAsSource => {
                write!(out, "\"autogroup:self\" not valid on the src side of a rule")
            }
            Self::InternetAsSource => write!(out, "autogroup:internet can only be a destination"),
            Self::DangerAllAsTarget => write!(out, "cannot use autogroup:danger-all as a dst"),
            Self::SelfWithSources => write!(
                out,
                "autogroup:self can only be used with users, groups, or supported autogroups"
            ),
            Self::NoGroup(name) => write!(out, "group not found: {name:?}"),
            Self::NoHost(name) => {
                write!(out, "{name:?}: invalid address, and not a name in hosts")
            }
            Self::NoSet(name) => write!(out, "ipset not found: {name:?}"),
            Self::NoTag { prefix, tag } => write!(out, "{prefix}tag not found: {tag:?}"),
            Self::NoViaTag(tag) => write!(out, "tag {tag:?} not found"),
            Self::ViaNotTag => write!(out, "via can only be a tag"),
            Self::SetInItself => {
                write!(out, "an ipset cannot be part of itself, or be nested more than 16 deep")
            }
            Self::Action(action) => write!(out, "action={action:?} is not supported"),
            Self::Ports(fault) => write!(out, "{fault}"),
            Self::PortsOf { target, ports, fault } => {
                write!(out, "dst={target:?}: port range {ports:?}: {fault}")
            }
            Self::PortsOfRule { ports, fault } => write!(out, "port range {ports:?}: {fault}"),
            Self::Protocol(name) => {
                write!(out, "{name:?} is neither a protocol's name nor a number from 1 to 255")
            }
            Self::ProtocolHasNoPorts(name) => {
                write!(out, "{name} does not support ports, only * is allowed")
            }
            Self::NeitherIpNorApp => write!(out, "ip and app can not both be empty"),
            Self::CapabilityForm => {
                write!(out, "capability name must have the form {{domain}}/{{path}}")
            }
            Self::CapabilityDomain => {
                write!(out, "capability name must not be in the tailscale.com domain")
            }
            Self::AppToInternet => write!(out, "cannot use app grants with autogroup:internet"),
            Self::DefaultRoute(net) => write!(
                out,
                "dst {net:?}: to allow all IP addresses, use \"*\" or \"autogroup:internet\""
            ),
            Self::Pool(net) => write!(out, "IPPool({net}): network outside 100.64.0.0/10"),
            Self::PoolReserved(net) => write!(out, "IPPool({net}): network within reserved range"),
            Self::SshAction(action) => write!(out, "{action:?} is not a valid action"),
            Self::SshNoAction => write!(out, "action must be specified"),
            Self::SshNoUsers => write!(out, "users must be specified"),
            Self::SshUser(user) => write!(out, "user {user:?} is not valid"),
            Self::SshEnvironment => write!(out, "acceptEnv values cannot be empty"),
            Self::SshTarget(target) => write!(out, "invalid dst {target:?}"),
            Self::SshSource(source) => write!(out, "invalid src {source:?}"),
            Self::SshTagToUser => write!(out, "tagged nodes cannot reach users' nodes by SSH"),
            Self::SshOtherUser => {
                write!(out, "only the same user can reach a user's nodes by SSH")
            }
            Self::Period(text) => write!(out, "time: invalid duration {text:?}"),
            Self::PeriodNegative(text) => {
                write!(out, "checkPeriod {text} must be a positive duration")
            }
            Self::PeriodTooLong(text) => write!(out, "checkPeriod {text} is above the max (168h)"),
            Self::PeriodWithoutCheck => write!(out, "only the action check has a checkPeriod"),
            Self::Domain { domain, is_alias } => write!(
                out,
                "{}{domain} is not associated with this Tailnet and cannot be used in \
                 user:*@<domain> expressions",
                if *is_alias { "[ssh] " } else { "" }
            ),
            Self::Test(fault) => write!(out, "test(s) failed: {fault}"),
            Self::SshTestTag(tag) => write!(out, "SSH tests dst contains unknown tag {tag:?}"),
            Self::SshTestTarget(target) => {
                write!(out, "SSH tests dst contains disallowed element {target:?}")
            }
        }
    }
}

impl fmt::Display for PortsFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Missing => "a colon and ports must follow",
            Self::NotNumber => "invalid first integer",
            Self::Zero => "first port must be >0, or use '*' for wildcard",
            Self::TooLarge => "a port is at most 65535",
            Self::Order => "the first port must not be above the last",
        })
    }
}

impl fmt::Display for TestFault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSource => write!(out, "src is missing"),
            Self::Source(source) => write!(out, "src {source:?} matches no user or node"),
            Self::Target(target) => write!(out, "{target:?} is not one port of one machine"),
            Self::Nothing => write!(out, "accept and deny are both empty"),
            Self::Protocol(name) => {
                write!(out, "{name:?} is neither a protocol's name nor a number from 1 to 255")
            }
            Self::Denied { source, target } => write!(out, "{source} does not reach {target}"),
            Self::Allowed { source, target } => write!(out, "{source} reaches {target}"),
            Self::NotChecked { source, target } => {
                write!(out, "{source} cannot reach {target} by a checked login")
            }
        }
    }
}
