//! A text to a [`Policy`]: sections that define names first, then those that use them.

mod access;
mod definitions;
mod sets;
mod ssh;

use crate::{
    alias::{Alias, Autogroup},
    hujson::{self, Entry, Kind, Value},
    model::{Place, Policy},
    refusal::{Fault, Reason, Refusal},
};

/// More than any policy has, and as much as is read of one.
const LENGTH: usize = 4 << 20;

/// Sections of Tailscale's that we have nothing for, and what is instead.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("derpMap", ": relays are set in the server's configuration"),
    ("disableIPv4", ": give the attribute disable-ipv4 in nodeAttrs"),
    ("OneCGNATRoute", ""),
    ("postures", ": there is no device posture"),
    ("defaultSrcPosture", ": there is no device posture"),
    ("attrConfig", ": there is no device posture"),
    ("services", ": there are no services"),
];

impl Policy {
    /// Reads a policy. Refuses with all that is wrong.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        if text.len() > LENGTH {
            let reason = Reason::Wanted("at most 4 MiB");
            return Err(Refusal { faults: vec![Fault { line: 1, key: String::new(), reason }] });
        }
        let value = hujson::parse(text).map_err(|fault| Refusal { faults: vec![fault] })?;
        let mut reader = Reader { policy: Self::default(), faults: Vec::new() };
        reader.sections(&value);
        let Reader { policy, mut faults } = reader;
        if faults.is_empty() {
            return Ok(policy);
        }
        faults.sort_by_key(|fault| fault.line);
        Err(Refusal { faults })
    }
}

/// Where an alias stands decides which are allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Target,
    NodeAttribute,
}

struct Reader {
    policy: Policy,
    faults: Vec<Fault>,
}

/// A value and the way to it.
#[derive(Clone)]
struct At<'a> {
    value: &'a Value,
    key: String,
}

impl Reader {
    fn sections(&mut self, value: &Value) {
        let top = At { value, key: String::new() };
        let sections = self.fields(&top);
        let find = |name: &str| sections.iter().find(|(key, _)| key == name).map(|(_, at)| at);
        type Read = fn(&mut Reader, &At<'_>);
        let readers: [(&str, Read); 13] = [
            ("groups", Self::groups),
            ("hosts", Self::hosts),
            ("tagowners", Self::tag_owners),
            ("ipsets", Self::sets),
            ("grants", Self::grants),
            ("acls", Self::acls),
            ("autoapprovers", Self::approvers),
            ("nodeattrs", Self::attributes),
            ("randomizeclientport", Self::randomizes),
            ("ssh", Self::ssh),
            ("tests", Self::tests),
            ("sshtests", Self::ssh_tests),
            ("$schema", |_, _| {}),
        ];
        for (name, read) in readers {
            if let Some(at) = find(name) {
                read(self, at);
            }
        }
        self.policy.is_open = find("grants").is_none() && find("acls").is_none();
        for (name, at) in &sections {
            if readers.iter().any(|(known, _)| known == name) {
                continue;
            }
            let known = UNSUPPORTED.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            let reason = known.map_or(Reason::Unknown, |&(_, why)| Reason::Unsupported(why));
            self.fault(at, reason);
        }
    }

    fn fault(&mut self, at: &At<'_>, reason: Reason) {
        self.faults.push(Fault { line: at.value.line, key: at.key.clone(), reason });
    }

    /// The entries of a table; keys as they stand.
    fn entries<'a>(&mut self, at: &At<'a>) -> Vec<(&'a str, At<'a>)> {
        let entries: &[Entry] = match &at.value.kind {
            Kind::Table(entries) => entries,
            Kind::Null => &[],
            _ => {
                self.fault(at, Reason::Wanted("an object"));
                &[]
            }
        };
        let child = |entry: &'a Entry| {
            let dot = if at.key.is_empty() { "" } else { "." };
            let key = format!("{}{dot}{}", at.key, entry.key);
            (entry.key.as_str(), At { value: &entry.value, key })
        };
        entries.iter().map(child).collect()
    }

    /// The entries of a table whose keys are ours: in lower case, as their case does not matter.
    /// What begins with # is a program's note.
    fn fields<'a>(&mut self, at: &At<'a>) -> Vec<(String, At<'a>)> {
        let entries = self.entries(at).into_iter();
        let mut fields: Vec<(String, At<'a>)> = Vec::new();
        for (key, child) in entries.filter(|(key, _)| !key.starts_with('#')) {
            let key = key.to_ascii_lowercase();
            if fields.iter().any(|(other, _)| *other == key) {
                self.fault(&child, Reason::Twice);
            }
            fields.push((key, child));
        }
        fields
    }

    fn list<'a>(&mut self, at: &At<'a>) -> Vec<At<'a>> {
        let list: &[Value] = match &at.value.kind {
            Kind::List(list) => list,
            Kind::Null => &[],
            _ => {
                self.fault(at, Reason::Wanted("an array"));
                &[]
            }
        };
        let child = |(place, value)| At { value, key: format!("{}[{place}]", at.key) };
        list.iter().enumerate().map(child).collect()
    }

    fn text<'a>(&mut self, at: &At<'a>) -> Option<&'a str> {
        if let Kind::Text(text) = &at.value.kind {
            return Some(text);
        }
        self.fault(at, Reason::Wanted("a string"));
        None
    }

    fn texts(&mut self, at: &At<'_>) -> Vec<String> {
        let list = self.list(at);
        list.iter().filter_map(|at| self.text(at).map(str::to_owned)).collect()
    }

    fn unknown(&mut self, at: &At<'_>) {
        self.fault(at, Reason::Unknown);
    }

    fn aliases(&mut self, at: &At<'_>, side: Side) -> Vec<Alias> {
        let list = self.list(at);
        list.iter().filter_map(|at| self.alias(at, side)).collect()
    }

    fn alias(&mut self, at: &At<'_>, side: Side) -> Option<Alias> {
        let text = self.text(at)?;
        match Alias::parse(text) {
            Ok(alias) => {
                self.defined(at, &alias, if side == Side::Source { "src=" } else { "" });
                self.allowed(at, &alias, side);
                Some(alias)
            }
            Err(reason) => {
                self.fault(at, reason);
                None
            }
        }
    }

    /// Refuses a name that is not defined.
    fn defined(&mut self, at: &At<'_>, alias: &Alias, prefix: &str) {
        let policy = &self.policy;
        let reason = match alias {
            Alias::Group(name) if !policy.groups.contains_key(name) => {
                Reason::NoGroup(name.clone())
            }
            Alias::Host(name) if !policy.hosts.contains_key(name) => Reason::NoHost(name.clone()),
            Alias::Set(name) if !policy.sets.contains_key(name) => Reason::NoSet(name.clone()),
            Alias::Tag(name) if !policy.tag_owners.contains_key(name) => {
                Reason::NoTag { prefix: prefix.into(), tag: name.clone() }
            }
            _ => return,
        };
        self.fault(at, reason);
    }

    fn allowed(&mut self, at: &At<'_>, alias: &Alias, side: Side) {
        let Alias::Auto(group) = alias else { return };
        let reason = match (side, group) {
            (Side::Source, Autogroup::Itself) => Reason::SelfAsSource,
            (Side::Source, Autogroup::Internet) => Reason::InternetAsSource,
            (Side::Target, Autogroup::DangerAll) => Reason::DangerAllAsTarget,
            (
                Side::NodeAttribute,
                Autogroup::Itself | Autogroup::Internet | Autogroup::DangerAll,
            ) => Reason::NotHere(alias.to_string()),
            _ => return,
        };
        self.fault(at, reason);
    }
}

impl At<'_> {
    fn place(&self) -> Place {
        Place { line: self.value.line, key: self.key.clone() }
    }
}
