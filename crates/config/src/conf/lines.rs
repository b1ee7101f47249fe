//! The first pass: splits lines into sections and checks that each key is known and in the right
//! section. A key of linerate must not repeat. Keys of wg(8) and wg-quick(8) may, with a warning. This
//! pass does not parse values.

use std::{borrow::Cow, fmt};

use super::{Reason, error::Fault, similar, warnings::Warnings};
use crate::value;

/// A kind of section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The settings of this host. Several such sections count as one.
    Interface,
    /// The settings of one peer.
    Peer,
}

/// A key of the format.
#[expect(clippy::enum_variant_names, reason = "the names are the format's")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    PrivateKey,
    ListenPort,
    FwMark,
    Address,
    Dns,
    Mtu,
    Table,
    SaveConfig,
    PreUp,
    PostUp,
    PreDown,
    PostDown,
    Socks5,
    HttpProxy,
    Forward,
    Expose,
    ProxyUser,
    FwMask,
    DefaultRouteTable,
    RulePriority,
    ConnectedFirst,
    OfferRoutes,
    Masquerade,
    ClampMss,
    IpForward,
    PathMtu,
    PostQuantum,
    Crypto,
    ReresolveEndpoints,
    PublicKey,
    PresharedKey,
    AllowedIps,
    Endpoint,
    PersistentKeepalive,
}

/// The names of all keys, those of `[Interface]` first.
pub fn key_names() -> impl Iterator<Item = &'static str> {
    Key::ALL.into_iter().map(Key::name)
}

/// Whether the text is the name of a hook, possibly between blanks.
pub(super) fn is_hook_name(name: &str) -> bool {
    Key::from_name(name.trim()).is_some_and(Key::is_hook)
}

/// The sections of a file.
pub(super) struct Sections<'a> {
    pub(super) interface: Entries<'a>,
    pub(super) peers: Vec<Entries<'a>>,
}

/// The lines of one section.
pub(super) struct Entries<'a> {
    /// The line of the section's name.
    pub(super) line: usize,
    pub(super) entries: Vec<Entry<'a>>,
    /// A bit for each key that the section has.
    keys: u64,
}

/// A line `key = value`.
pub(super) struct Entry<'a> {
    pub(super) line: usize,
    pub(super) key: Key,
    /// The value without outer spaces. A comment is removed, except from a hook.
    pub(super) value: &'a str,
}

pub(super) fn read<'a>(text: &'a str, warnings: &mut Warnings<'_>) -> Result<Sections<'a>, Fault> {
    let mut interface: Option<Entries<'_>> = None;
    let mut peers: Vec<Entries<'_>> = Vec::new();
    let mut current = None;
    // Editors of Windows put a byte order mark first.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (line, text) in (1..).zip(text.lines()) {
        let whole = text;
        let text = text.split('#').next().unwrap_or_default().trim();
        if text.is_empty() {
            continue;
        }
        if text.starts_with('[') {
            let entries = Entries { line, entries: Vec::new(), keys: 0 };
            let section = section(line, text)?;
            match section {
                Section::Interface if interface.is_some() => {}
                Section::Interface => interface = Some(entries),
                Section::Peer => peers.push(entries),
            }
            current = Some(section);
            continue;
        }
        let mut entry = entry(line, text, current)?;
        // The shell decides which # starts a comment (as in wg-quick since v1.0.20250521).
        if entry.key.is_hook()
            && let Some((_, command)) = whole.split_once('=')
        {
            entry.value = command.trim();
        }
        let entries = match entry.key.section() {
            Section::Interface => interface.as_mut(),
            Section::Peer => peers.last_mut(),
        };
        entries.expect("the key is in its section, which was opened").add(entry, warnings)?;
    }
    match interface {
        Some(interface) => Ok(Sections { interface, peers }),
        None => {
            let key = Some(Cow::Borrowed(Section::Interface.name()));
            Err(Fault { line: 1, key, reason: Reason::NoInterface })
        }
    }
}

fn section(line: usize, text: &str) -> Result<Section, Fault> {
    let name = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).map(str::trim);
    match name {
        Some(name) if name.eq_ignore_ascii_case("Interface") => Ok(Section::Interface),
        Some(name) if name.eq_ignore_ascii_case("Peer") => Ok(Section::Peer),
        _ => {
            let end = if text.ends_with(']') { "]" } else { "" };
            let shown = format!("[{}{end}", value::key_name(text.trim_matches(['[', ']', ' '])));
            let meant =
                similar::nearest(text, [Section::Interface, Section::Peer].map(Section::name));
            Err(Fault { line, key: Some(Cow::Owned(shown)), reason: Reason::UnknownSection(meant) })
        }
    }
}

fn entry<'a>(line: usize, text: &'a str, section: Option<Section>) -> Result<Entry<'a>, Fault> {
    let (name, value) =
        text.split_once('=').ok_or(Fault { line, key: None, reason: Reason::NotAPair })?;
    let name = name.trim_end();
    let key = Key::from_name(name).or_else(|| Key::of_wg_with_blanks(name));
    let reason = match (section, key) {
        (None, _) => Reason::NoSection,
        (Some(section), Some(key)) if key.section() == section => {
            return Ok(Entry { line, key, value: value.trim_start() });
        }
        (Some(_), Some(key)) => Reason::WrongSection(key.section()),
        (Some(section), None) => {
            let keys = Key::ALL.into_iter().filter(|key| key.section() == section);
            Reason::UnknownKey(similar::nearest(name, keys.map(Key::name)))
        }
    };
    let shown = key.map_or_else(|| value::key_name(name), |key| Cow::Borrowed(key.name()));
    Err(Fault { line, key: Some(shown), reason })
}

impl<'a> Entries<'a> {
    fn add(&mut self, entry: Entry<'a>, warnings: &mut Warnings<'_>) -> Result<(), Fault> {
        let bit = 1 << entry.key as u32;
        if self.keys & bit != 0 && !entry.key.accumulates() {
            // Searches from the end, so that repeated keys do not make this quadratic.
            let former = self.entries.iter().rfind(|former| former.key == entry.key);
            let line = former.expect("its bit is set").line;
            if !entry.key.is_of_wg_quick() {
                return Err(entry.fault(Reason::Duplicate(line)));
            }
            let name = entry.key.name();
            warnings.add(entry.line, name, format_args!("replaces the value in line {line}"));
        }
        self.keys |= bit;
        self.entries.push(entry);
        Ok(())
    }

    /// The lines of one key.
    pub(super) fn of(&self, key: Key) -> impl Iterator<Item = &Entry<'a>> {
        self.entries.iter().filter(move |entry| entry.key == key)
    }
}

impl Key {
    fn is_hook(self) -> bool {
        matches!(self, Self::PreUp | Self::PostUp | Self::PreDown | Self::PostDown)
    }
}

impl Entry<'_> {
    /// Whether this is a hook with a command.
    pub(super) fn is_command(&self) -> bool {
        self.key.is_hook() && !self.value.is_empty()
    }

    pub(super) fn fault(&self, reason: Reason) -> Fault {
        Fault { line: self.line, key: Some(Cow::Borrowed(self.key.name())), reason }
    }
}

impl Section {
    fn name(self) -> &'static str {
        match self {
            Self::Interface => "[Interface]",
            Self::Peer => "[Peer]",
        }
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Key {
    pub(super) const ALL: [Self; 34] = [
        Self::PrivateKey,
        Self::ListenPort,
        Self::FwMark,
        Self::Address,
        Self::Dns,
        Self::Mtu,
        Self::Table,
        Self::SaveConfig,
        Self::PreUp,
        Self::PostUp,
        Self::PreDown,
        Self::PostDown,
        Self::Socks5,
        Self::HttpProxy,
        Self::Forward,
        Self::Expose,
        Self::ProxyUser,
        Self::FwMask,
        Self::DefaultRouteTable,
        Self::RulePriority,
        Self::ConnectedFirst,
        Self::OfferRoutes,
        Self::Masquerade,
        Self::ClampMss,
        Self::IpForward,
        Self::PathMtu,
        Self::PostQuantum,
        Self::Crypto,
        Self::ReresolveEndpoints,
        Self::PublicKey,
        Self::PresharedKey,
        Self::AllowedIps,
        Self::Endpoint,
        Self::PersistentKeepalive,
    ];

    /// The spelling in wg-quick(8), wg(8) or linerate.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PrivateKey => "PrivateKey",
            Self::ListenPort => "ListenPort",
            Self::FwMark => "FwMark",
            Self::Address => "Address",
            Self::Dns => "DNS",
            Self::Mtu => "MTU",
            Self::Table => "Table",
            Self::SaveConfig => "SaveConfig",
            Self::PreUp => "PreUp",
            Self::PostUp => "PostUp",
            Self::PreDown => "PreDown",
            Self::PostDown => "PostDown",
            Self::Socks5 => "Socks5",
            Self::HttpProxy => "HttpProxy",
            Self::Forward => "Forward",
            Self::Expose => "Expose",
            Self::ProxyUser => "ProxyUser",
            Self::FwMask => "FwMask",
            Self::DefaultRouteTable => "DefaultRouteTable",
            Self::RulePriority => "RulePriority",
            Self::ConnectedFirst => "ConnectedFirst",
            Self::OfferRoutes => "OfferRoutes",
            Self::Masquerade => "Masquerade",
            Self::ClampMss => "ClampMss",
            Self::IpForward => "IpForward",
            Self::PathMtu => "PathMtu",
            Self::PostQuantum => "PostQuantum",
            Self::Crypto => "Crypto",
            Self::ReresolveEndpoints => "ReresolveEndpoints",
            Self::PublicKey => "PublicKey",
            Self::PresharedKey => "PresharedKey",
            Self::AllowedIps => "AllowedIPs",
            Self::Endpoint => "Endpoint",
            Self::PersistentKeepalive => "PersistentKeepalive",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name().eq_ignore_ascii_case(name))
    }

    /// wg(8) removes all blanks from a line before it compares the key; wg-quick(8) does not.
    fn of_wg_with_blanks(name: &str) -> Option<Self> {
        let name: String = name.split_ascii_whitespace().collect();
        Self::from_name(&name).filter(|key| key.is_of_wg())
    }

    /// Whether this is a key of wg(8).
    pub(super) fn is_of_wg(self) -> bool {
        matches!(self, Self::PrivateKey | Self::ListenPort | Self::FwMark)
            || self.section() == Section::Peer
    }

    /// Whether this is a key of wg(8) or wg-quick(8).
    fn is_of_wg_quick(self) -> bool {
        self.is_of_wg()
            || self.is_hook()
            || matches!(
                self,
                Self::Address | Self::Dns | Self::Mtu | Self::Table | Self::SaveConfig
            )
    }

    pub(super) fn section(self) -> Section {
        match self {
            Self::PublicKey
            | Self::PresharedKey
            | Self::AllowedIps
            | Self::Endpoint
            | Self::PersistentKeepalive => Section::Peer,
            _ => Section::Interface,
        }
    }

    /// Whether only `linerate proxy` uses this key.
    pub(super) fn is_of_proxy(self) -> bool {
        matches!(
            self,
            Self::Socks5 | Self::HttpProxy | Self::Forward | Self::Expose | Self::ProxyUser
        )
    }

    /// Whether only `linerate up` uses this key.
    pub(super) fn is_of_up(self) -> bool {
        self.is_of_policy()
            || matches!(
                self,
                Self::OfferRoutes | Self::Masquerade | Self::ClampMss | Self::IpForward
            )
    }

    /// Whether this key configures policy rules.
    pub(super) fn is_of_policy(self) -> bool {
        matches!(
            self,
            Self::FwMask | Self::DefaultRouteTable | Self::RulePriority | Self::ConnectedFirst
        )
    }

    /// Whether each line adds values to the key.
    fn accumulates(self) -> bool {
        self.is_of_proxy()
            || matches!(
                self,
                Self::Address
                    | Self::Dns
                    | Self::PreUp
                    | Self::PostUp
                    | Self::PreDown
                    | Self::PostDown
                    | Self::OfferRoutes
                    | Self::AllowedIps
            )
    }
}
