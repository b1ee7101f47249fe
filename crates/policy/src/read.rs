//! Parses a text to a [`Policy`]: first the sections that define names, then the sections that use them.

mod access;
mod definitions;
mod sets;
mod ssh;
mod tests;

use crate::{
    alias::{Alias, Autogroup, NO_SERVICES},
    hujson::{self, Entry, Kind, Value},
    model::{Location, Mention, Policy},
    refusal::{Fault, Reason, Refusal},
};

/// The maximum length of a policy, in bytes. Real policies are much shorter.
const LENGTH: usize = 4 << 20;

const NO_POSTURE: &str = ": this coordinator does not check device posture";

/// Sections of Tailscale that are not supported, each with a hint for the message.
const UNSUPPORTED: [(&str, &str); 7] = [
    ("derpmap", ": relays are set in the server's configuration"),
    ("disableipv4", ": use the attribute disable-ipv4 in nodeAttrs"),
    ("onecgnatroute", ""),
    ("postures", NO_POSTURE),
    ("defaultsrcposture", NO_POSTURE),
    ("attrconfig", NO_POSTURE),
    ("services", NO_SERVICES),
];

impl Policy {
    /// Parses a policy.
    ///
    /// # Errors
    /// All defects of the text, including unsupported parts.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let (mut policy, mut faults) = read(text)?;
        faults.append(&mut policy.left_out);
        policy.unless(faults)
    }

    /// Parses a policy without its unsupported parts, which [`Policy::left_out`] returns. A rule with an
    /// unsupported condition is omitted, so the policy never grants more than its text. The exception is a
    /// login by SSH that an omitted rule would check or record.
    pub fn parse_supported(text: &str) -> Result<Self, Refusal> {
        let (policy, faults) = read(text)?;
        policy.unless(faults)
    }

    /// Parses a stored policy. An earlier version, which accepted more names, may have stored it: invalid
    /// names are omitted like unsupported ones, and the tests may be invalid.
    pub fn parse_saved(text: &str) -> Result<Self, Refusal> {
        let (mut policy, faults) = read(text)?;
        let (left_out, faults) = faults.into_iter().partition(|fault| {
            let reason = &fault.reason;
            matches!(reason, Reason::Alias(_) | Reason::Test(_)) || *reason == NO_USER
        });
        policy.left_out.extend::<Vec<Fault>>(left_out);
        policy.unless(faults)
    }

    /// The unsupported parts that were omitted, in the order of their lines.
    pub fn left_out(&self) -> &[Fault] {
        &self.left_out
    }

    fn unless(mut self, mut faults: Vec<Fault>) -> Result<Self, Refusal> {
        self.left_out.sort_by_key(|fault| fault.line);
        if faults.is_empty() {
            return Ok(self);
        }
        faults.sort_by_key(|fault| fault.line);
        Err(Refusal { faults })
    }
}

/// Parses a policy, and returns it with its defects. Unsupported parts are in [`Policy::left_out`].
fn read(text: &str) -> Result<(Policy, Vec<Fault>), Refusal> {
    let refusal = |fault| Refusal { faults: vec![fault] };
    if text.len() > LENGTH {
        let reason = Reason::WrongType("at most 4 MiB");
        return Err(refusal(Fault { line: 1, key: String::new(), reason }));
    }
    let mut reader = Reader { policy: Policy::default(), faults: Vec::new() };
    // An empty file is an empty object.
    let empty = Value { line: 1, span: 0..0, kind: Kind::Null };
    let value = hujson::parse_optional(text).map_err(refusal)?;
    reader.sections(value.as_ref().unwrap_or(&empty));
    let Reader { mut policy, faults } = reader;
    policy.mentions.sort_by_key(|mention| mention.span.start);
    Ok((policy, faults))
}

/// The defect of an invalid member of a group.
const NO_USER: Reason = Reason::WrongType("a user, name@domain or name@");

/// The side of a rule with an alias. It decides which autogroups are allowed.
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

/// A value and its key path.
#[derive(Clone)]
struct At<'a> {
    value: &'a Value,
    key: String,
}

impl Reader {
    fn sections(&mut self, value: &Value) {
        let top = At { value, key: String::new() };
        let all = self.entries(&top);
        let has = |name: &str| all.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
        self.policy.is_open = !has("grants") && !has("acls");
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
        for (name, at) in &sections {
            if readers.iter().any(|(known, _)| known == name) {
                continue;
            }
            match UNSUPPORTED.iter().find(|(known, _)| known == name) {
                Some(&(_, why)) => self.unsupported_section(name, at, why),
                None => self.unknown(at),
            }
        }
    }

    fn unsupported_section(&mut self, name: &str, at: &At<'_>, why: &'static str) {
        let kind = &at.value.kind;
        let wanted = match (name, kind) {
            (_, Kind::Null)
            | ("derpmap" | "postures" | "attrconfig" | "services", Kind::Table(_))
            | ("services" | "defaultsrcposture", Kind::List(_))
            | ("disableipv4", Kind::Bool(_)) => None,
            ("onecgnatroute", Kind::Text(text)) => {
                let is_known = matches!(text.as_str(), "" | "mac-always" | "mac-never");
                (!is_known).then_some("mac-always, mac-never or empty")
            }
            ("disableipv4", _) => Some("true or false"),
            ("defaultsrcposture", _) => Some("an array"),
            ("onecgnatroute", _) => Some("a string"),
            _ => Some("an object"),
        };
        if let Some(wanted) = wanted {
            return self.fault(at, Reason::WrongType(wanted));
        }
        let is_empty = match name {
            "derpmap" => self.is_empty_derp_map(at),
            _ => at.value.is_empty(),
        };
        if is_empty {
            return;
        }
        self.unsupported(at, why);
        if name == "defaultsrcposture" {
            // The default posture is a condition of every rule.
            self.policy.is_open = false;
            self.policy.grants.clear();
            self.policy.ssh.clear();
        }
    }

    fn is_empty_derp_map(&mut self, at: &At<'_>) -> bool {
        let mut is_empty = true;
        for (name, field) in self.fields(at) {
            match name.as_str() {
                "regions" | "omitdefaultregions" | "homeparams" => {
                    is_empty &= field.value.is_empty();
                }
                _ => self.unknown(&field),
            }
        }
        is_empty
    }

    fn fault(&mut self, at: &At<'_>, reason: Reason) {
        self.faults.push(Fault { line: at.value.line, key: at.key.clone(), reason });
    }

    /// Records an unsupported part. The caller omits it.
    fn unsupported(&mut self, at: &At<'_>, why: &'static str) {
        self.refuse(at, Reason::Unsupported(why));
    }

    /// Records an invalid or unsupported name. The caller omits it.
    fn refuse(&mut self, at: &At<'_>, reason: Reason) {
        let faults = match reason.is_unsupported() {
            true => &mut self.policy.left_out,
            false => &mut self.faults,
        };
        faults.push(Fault { line: at.value.line, key: at.key.clone(), reason });
    }

    /// The entries of an object, with unchanged keys.
    fn entries<'a>(&mut self, at: &At<'a>) -> Vec<(&'a str, At<'a>)> {
        let entries: &[Entry] = match &at.value.kind {
            Kind::Table(entries) => entries,
            Kind::Null => &[],
            _ => {
                self.fault(at, Reason::WrongType("an object"));
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

    /// The entries of an object with keys of the policy format, in lower case: their case is ignored. Keys that
    /// begin with `#` are comments of programs, and skipped.
    fn fields<'a>(&mut self, at: &At<'a>) -> Vec<(String, At<'a>)> {
        let entries = self.entries(at).into_iter();
        let mut fields: Vec<(String, At<'a>)> = Vec::new();
        for (key, child) in entries.filter(|(key, _)| !key.starts_with('#')) {
            let key = key.to_ascii_lowercase();
            if fields.iter().any(|(other, _)| *other == key) {
                self.fault(&child, Reason::DuplicateKey);
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
                self.fault(at, Reason::WrongType("an array"));
                &[]
            }
        };
        let child = |(index, value)| At { value, key: format!("{}[{index}]", at.key) };
        list.iter().enumerate().map(child).collect()
    }

    fn text<'a>(&mut self, at: &At<'a>) -> Option<&'a str> {
        if let Kind::Text(text) = &at.value.kind {
            return Some(text);
        }
        self.fault(at, Reason::WrongType("a string"));
        None
    }

    /// The text, or `None` for null.
    fn optional_text<'a>(&mut self, at: &At<'a>) -> Option<&'a str> {
        if at.value.kind == Kind::Null { None } else { self.text(at) }
    }

    fn texts(&mut self, at: &At<'_>) -> Vec<String> {
        let list = self.list(at);
        list.iter().filter_map(|at| self.text(at).map(str::to_owned)).collect()
    }

    /// Whether a rule has this unsupported condition. The caller omits the rule.
    fn has_condition(&mut self, at: &At<'_>, why: &'static str) -> bool {
        let is_condition = !at.value.is_empty();
        if is_condition {
            self.unsupported(at, why);
        }
        is_condition
    }

    fn unknown(&mut self, at: &At<'_>) {
        self.fault(at, Reason::UnknownKey);
    }

    fn aliases(&mut self, at: &At<'_>, side: Side) -> Vec<Alias> {
        let list = self.list(at);
        list.iter().filter_map(|at| self.alias(at, side)).collect()
    }

    fn alias(&mut self, at: &At<'_>, side: Side) -> Option<Alias> {
        let text = self.text(at)?;
        match Alias::parse(text) {
            Ok(alias) => {
                self.mention(at, text, &alias);
                self.defined(at, &alias, if side == Side::Source { "src=" } else { "" });
                self.allowed(at, &alias, side);
                Some(alias)
            }
            Err(reason) => {
                self.refuse(at, reason);
                None
            }
        }
    }

    /// Records the mention of a user or domain.
    fn mention(&mut self, at: &At<'_>, text: &str, alias: &Alias) {
        if matches!(alias, Alias::User(_) | Alias::Domain(_)) {
            let (location, span) = (at.location(), at.value.span.clone());
            let mention = Mention { location, span, text: text.to_owned(), alias: alias.clone() };
            self.policy.mentions.push(mention);
        }
    }

    /// Refuses a name that is not defined.
    fn defined(&mut self, at: &At<'_>, alias: &Alias, prefix: &str) {
        let policy = &self.policy;
        let reason = match alias {
            Alias::Group(name) if policy.groups.contains_key(name) => return,
            Alias::Group(name) if name.contains('@') => {
                let why = ": this coordinator does not read groups from a provider";
                Reason::UnsupportedName(name.clone(), why)
            }
            Alias::Group(name) => Reason::NoGroup(name.clone()),
            Alias::Host(name) if !policy.hosts.contains_key(name) => Reason::NoHost(name.clone()),
            Alias::Set(name) if !policy.sets.contains_key(name) => Reason::NoSet(name.clone()),
            Alias::Tag(name) if !policy.tag_owners.contains_key(name) => {
                Reason::NoTag { prefix: prefix.into(), tag: name.clone() }
            }
            _ => return,
        };
        self.refuse(at, reason);
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
            ) => Reason::NotAllowedHere(alias.to_string()),
            _ => return,
        };
        self.fault(at, reason);
    }
}

impl At<'_> {
    fn location(&self) -> Location {
        Location { line: self.value.line, key: self.key.clone() }
    }
}
