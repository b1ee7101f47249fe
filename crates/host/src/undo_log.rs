//! The undo log of an interface: changes that outlive the interface, and how they are undone. Each
//! entry is written before its change is made, so that the next `linerate up` or `linerate down`
//! can undo the changes of a killed process.
//!
//! ```text
//!   record(entry) ──► /run/linerate/up/wg0.undo ──► undo: settings, then the last entry first
//! ```
//!
//! Several interfaces may change the same kernel setting. Each reads the logs of the others to
//! determine which of them restores it. Only one at a time may do so ([`UndoLog::lock_settings`]).

use std::{
    collections::HashMap,
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context;
use sys::netlink::{Family, FwMark, Netlink, Rule};

use super::{dns, nft, records, settings::UnwrittenSetting};
use sys::atomic_file;

/// An entry. Routes and addresses need none, because the kernel removes them with the interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undo {
    /// A policy rule, with its priority.
    Rule(Rule),
    /// The nftables table of the interface.
    Table,
    /// Servers that were passed to resolvconf(8) under this name.
    Resolvconf(String),
    /// Servers in resolv.conf(5), which contains its previous text.
    ResolvConf,
    /// A setting below `/proc/sys`.
    Setting(Setting),
}

/// A changed kernel setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its file.
    pub path: PathBuf,
    /// The value that was written.
    pub ours: String,
    /// The value before the change.
    pub previous: String,
}

impl Undo {
    fn is_setting(&self) -> bool {
        matches!(self, Self::Setting(_))
    }
}

/// Prevents other interfaces from reading or changing settings until it is dropped. The lock is on
/// the open folder and leaves no file.
#[derive(Debug)]
pub struct SettingsLock {
    _folder: File,
}

/// The entries of one interface, in the order in which they were recorded.
pub struct UndoLog {
    interface: String,
    path: PathBuf,
    entries: Vec<Undo>,
}

impl UndoLog {
    /// Opens the log of an interface, with the entries of a killed process.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(interface: &str) -> anyhow::Result<Self> {
        let path = records::path(interface, EXTENSION);
        let mut entries = read(&path).with_context(|| path.display().to_string())?;
        // After a power failure the log is lost, but this file is not.
        if dns::file_is_ours(interface) && !entries.contains(&Undo::ResolvConf) {
            entries.insert(0, Undo::ResolvConf);
        }
        Ok(Self { interface: interface.to_owned(), path, entries })
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn entries(&self) -> &[Undo] {
        &self.entries
    }

    pub fn rules(&self) -> impl Iterator<Item = Rule> {
        self.entries.iter().filter_map(|entry| match entry {
            Undo::Rule(rule) => Some(*rule),
            _ => None,
        })
    }

    /// Records a change before it is made.
    pub fn record(&mut self, entry: Undo) -> anyhow::Result<()> {
        self.entries.push(entry);
        self.write().with_context(|| self.path.display().to_string())
    }

    /// Removes the last entry, because its change was not made.
    pub fn remove_last(&mut self) -> anyhow::Result<()> {
        self.entries.pop();
        self.write().with_context(|| self.path.display().to_string())
    }

    /// Removes rules that this process does not manage any more.
    pub fn remove_rules(&mut self, rules: &[Rule]) -> anyhow::Result<()> {
        if rules.is_empty() {
            return Ok(());
        }
        self.entries.retain(|entry| !matches!(entry, Undo::Rule(rule) if rules.contains(rule)));
        self.write().with_context(|| self.path.display().to_string())
    }

    /// Waits until no other interface reads or changes settings.
    ///
    /// # Errors
    /// The folder of the logs cannot be locked.
    pub fn lock_settings(&self) -> anyhow::Result<SettingsLock> {
        let folder = self.path.parent().expect("a log is in a folder");
        let lock = || -> io::Result<File> {
            records::make_folder(&self.path)?;
            let folder = File::open(folder)?;
            folder.lock()?;
            Ok(folder)
        };
        Ok(SettingsLock { _folder: lock().with_context(|| folder.display().to_string())? })
    }

    /// Changes kernel settings in this order. They are restored when the last interface that
    /// changed them goes down. Returns the settings that cannot be written.
    ///
    /// # Errors
    /// The log cannot be written. Then no setting is changed.
    pub fn change_settings(
        &mut self,
        lock: &SettingsLock,
        wanted: &[(PathBuf, &'static str)],
    ) -> anyhow::Result<Vec<UnwrittenSetting>> {
        let others = self.settings_of_others(lock);
        let (mut to_write, mut unwritten) = (Vec::new(), Vec::new());
        let recorded = self.entries.len();
        for &(ref path, value) in wanted {
            let current = match fs::read_to_string(path) {
                Ok(current) => current.trim().to_owned(),
                // The device was removed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    unwritten.push(UnwrittenSetting { path: path.clone(), value, error });
                    continue;
                }
            };
            if current != value {
                to_write.push((path, value));
            }
            let previous = match others.get(path) {
                Some(other) => other.previous.clone(),
                None if current == value => continue,
                None => current,
            };
            let setting = Setting { path: path.clone(), ours: value.to_owned(), previous };
            self.entries.push(Undo::Setting(setting));
        }
        if self.entries.len() > recorded {
            self.write().with_context(|| self.path.display().to_string())?;
        }
        for (path, value) in to_write {
            if let Err(error) = fs::write(path, value) {
                unwritten.push(UnwrittenSetting { path: path.clone(), value, error });
            }
        }
        self.remove_settings(&unwritten)?;
        Ok(unwritten)
    }

    /// Removes settings that were not changed.
    fn remove_settings(&mut self, unwritten: &[UnwrittenSetting]) -> anyhow::Result<()> {
        if unwritten.is_empty() {
            return Ok(());
        }
        self.entries.retain(|entry| {
            let Undo::Setting(setting) = entry else { return true };
            unwritten.iter().all(|one| (&one.path, one.value) != (&setting.path, &*setting.ours))
        });
        self.write().with_context(|| self.path.display().to_string())
    }

    /// The settings that other interfaces changed, by path.
    pub fn settings_of_others(&self, _: &SettingsLock) -> HashMap<PathBuf, Setting> {
        self.others()
    }

    /// Undoes all entries, also after failures. Failed entries stay in the log.
    pub fn undo(&mut self, netlink: &Netlink) {
        // First, so that the kernel does not forward without the packet filter.
        self.undo_settings();
        self.undo_some(netlink, |entry| !entry.is_setting());
        self.path = records::path(&self.interface, EXTENSION);
    }

    /// Undoes changes of name resolution.
    pub fn undo_names(&mut self, netlink: &Netlink) {
        self.undo_some(netlink, |entry| matches!(entry, Undo::ResolvConf | Undo::Resolvconf(_)));
    }

    /// Whether another program has overwritten the file with our servers.
    pub fn names_are_overwritten(&self) -> bool {
        self.entries.contains(&Undo::ResolvConf) && !dns::file_is_ours(&self.interface)
    }

    /// Undoes policy rules.
    pub fn undo_rules(&mut self, netlink: &Netlink) {
        self.undo_some(netlink, |entry| matches!(entry, Undo::Rule(_)));
    }

    /// Undoes the packet filter and kernel settings.
    pub fn undo_router(&mut self, netlink: &Netlink) {
        self.undo_settings();
        self.undo_some(netlink, |entry| matches!(entry, Undo::Table));
    }

    fn undo_settings(&mut self) {
        if !self.entries.iter().any(Undo::is_setting) {
            return;
        }
        let lock = self.lock_settings();
        if let Err(error) = &lock {
            tracing::error!("{error:#}");
        }
        let others = self.others();
        self.undo_each(Undo::is_setting, |_, entry| match entry {
            Undo::Setting(setting) if !others.contains_key(&setting.path) => {
                Ok(restore_setting(setting)?)
            }
            _ => Ok(()),
        });
    }

    /// Undoes entries other than settings, and removes them.
    fn undo_some(&mut self, netlink: &Netlink, is_one: impl Fn(&Undo) -> bool) {
        self.undo_each(is_one, |log, entry| log.undo_one(netlink, entry));
    }

    fn undo_each(
        &mut self,
        is_one: impl Fn(&Undo) -> bool,
        undo: impl Fn(&Self, &Undo) -> anyhow::Result<()>,
    ) {
        let mut left = Vec::new();
        for entry in std::mem::take(&mut self.entries).into_iter().rev() {
            if !is_one(&entry) {
                left.push(entry);
            } else if let Err(error) = undo(self, &entry) {
                tracing::error!("cannot undo: {entry}: {error:#}");
                left.push(entry);
            }
        }
        left.reverse();
        self.entries = left;
        if let Err(error) = self.write() {
            tracing::error!(%error, path = %self.path.display(), "cannot update the undo log");
        }
    }

    /// Writes the remaining entries again if the file was removed.
    pub fn rewrite_if_removed(&self) -> anyhow::Result<()> {
        if self.entries.is_empty() || self.path.exists() {
            return Ok(());
        }
        self.write().with_context(|| self.path.display().to_string())
    }

    fn undo_one(&self, netlink: &Netlink, entry: &Undo) -> anyhow::Result<()> {
        match entry {
            Undo::Rule(rule) => match netlink.rules(rule.family)?.contains(rule) {
                true => Ok(netlink.delete_rule(rule)?),
                false => Ok(()),
            },
            Undo::Table => nft::remove(&self.interface),
            Undo::Resolvconf(name) => Ok(dns::remove_from_resolvconf(name)?),
            Undo::ResolvConf => Ok(dns::restore_file(&self.interface)?),
            // By [`UndoLog::undo_settings`], under the lock.
            Undo::Setting(_) => Ok(()),
        }
    }

    fn others(&self) -> HashMap<PathBuf, Setting> {
        let files = records::folders(&self.path).flat_map(fs::read_dir).flatten().flatten();
        let others = files.map(|file| file.path()).filter(|other| {
            other.extension().is_some_and(|extension| extension == EXTENSION) && *other != self.path
        });
        let mut settings = HashMap::new();
        for entry in others.filter_map(|other| read(&other).ok()).flatten() {
            if let Undo::Setting(setting) = entry {
                settings.entry(setting.path.clone()).or_insert(setting);
            }
        }
        settings
    }

    fn write(&self) -> io::Result<()> {
        if self.entries.is_empty() {
            return atomic_file::remove(&self.path);
        }
        records::make_folder(&self.path)?;
        let text: String = self.entries.iter().map(|entry| format!("{entry}\n")).collect();
        atomic_file::replace(&self.path, &text)
    }
}

fn restore_setting(setting: &Setting) -> io::Result<()> {
    match fs::read_to_string(&setting.path) {
        Ok(current) if current.trim() == setting.ours => {
            fs::write(&setting.path, &setting.previous)
        }
        // Another program has changed it since, or its device was removed.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// The suffix of a log's file.
const EXTENSION: &str = "undo";

/// Reads the entries of a file, which may be absent. Unknown lines of other versions are skipped
/// with a warning.
fn read(path: &Path) -> io::Result<Vec<Undo>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let mut entries = Vec::new();
    for line in text.lines() {
        match line.parse() {
            Ok(entry) => entries.push(entry),
            Err(ParseUndoError) => tracing::warn!("{}: unknown entry: {line}", path.display()),
        }
    }
    Ok(entries)
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(rule) => {
                let family = if rule.family == Family::V4 { 4 } else { 6 };
                write!(f, "rule {family} {} {}", rule.priority.unwrap_or(0), rule.table)?;
                if let Some(FwMark { value, mask }) = rule.fwmark {
                    write!(f, " fwmark {value:#x}/{mask:#x}")?;
                }
                if let Some(length) = rule.suppress_prefix_length {
                    write!(f, " suppress {length}")?;
                }
                if rule.invert { f.write_str(" not") } else { Ok(()) }
            }
            Self::Table => f.write_str("nftables"),
            Self::Resolvconf(name) => write!(f, "resolvconf {name}"),
            Self::ResolvConf => f.write_str("resolv.conf"),
            Self::Setting(Setting { path, ours, previous }) => {
                write!(f, "setting {ours} {previous} {}", path.display())
            }
        }
    }
}

/// A line that is not an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct ParseUndoError;

impl FromStr for Undo {
    type Err = ParseUndoError;

    fn from_str(line: &str) -> Result<Self, ParseUndoError> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (kind, rest) {
            ("nftables", "") => Ok(Self::Table),
            ("resolv.conf", "") => Ok(Self::ResolvConf),
            ("resolvconf", name) if !name.is_empty() => Ok(Self::Resolvconf(name.to_owned())),
            ("setting", rest) => {
                let mut words = rest.splitn(3, ' ').map(str::to_owned);
                let (ours, previous) = (words.next(), words.next());
                match (ours, previous, words.next()) {
                    (Some(ours), Some(previous), Some(path)) if path.starts_with("/proc/sys/") => {
                        Ok(Self::Setting(Setting { path: path.into(), ours, previous }))
                    }
                    _ => Err(ParseUndoError),
                }
            }
            ("rule", rest) => rule(rest).map(Self::Rule).ok_or(ParseUndoError),
            _ => Err(ParseUndoError),
        }
    }
}

fn rule(text: &str) -> Option<Rule> {
    let mut words = text.split(' ');
    let family = match words.next()? {
        "4" => Family::V4,
        "6" => Family::V6,
        _ => return None,
    };
    let mut rule = Rule {
        family,
        priority: Some(words.next()?.parse().ok()?),
        table: words.next()?.parse().ok()?,
        fwmark: None,
        invert: false,
        suppress_prefix_length: None,
    };
    while let Some(word) = words.next() {
        match word {
            "not" => rule.invert = true,
            "suppress" => rule.suppress_prefix_length = Some(words.next()?.parse().ok()?),
            "fwmark" => {
                let (value, mask) = words.next()?.split_once('/')?;
                let number = |hex: &str| u32::from_str_radix(hex.strip_prefix("0x")?, 16).ok();
                rule.fwmark = Some(FwMark { value: number(value)?, mask: number(mask)? });
            }
            _ => return None,
        }
    }
    Some(rule)
}

#[cfg(test)]
mod undoing_tests;

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use proptest::{option, prelude::*};

    use super::*;

    fn entry() -> impl Strategy<Value = Undo> {
        let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
        let mark = option::of((any::<u32>(), any::<u32>()));
        let rule =
            (family, any::<u32>(), any::<u32>(), mark, option::of(any::<u32>()), any::<bool>());
        let rule = rule.prop_map(|(family, priority, table, mark, suppress, invert)| {
            Undo::Rule(Rule {
                family,
                priority: Some(priority),
                table,
                fwmark: mark.map(|(value, mask)| FwMark { value, mask }),
                suppress_prefix_length: suppress,
                invert,
            })
        });
        let setting = ["[0-9]{1,3}", "[0-9]{1,3}", "/proc/sys/[a-z./ ]{0,20}[a-z]"];
        prop_oneof![
            rule,
            Just(Undo::Table),
            Just(Undo::ResolvConf),
            "[a-z0-9.=+_-]{1,20}".prop_map(Undo::Resolvconf),
            setting.prop_map(|[ours, previous, path]| {
                Undo::Setting(Setting { path: path.into(), ours, previous })
            }),
        ]
    }

    proptest! {
        #[test]
        fn entry_is_parsed_back(entry in entry()) {
            prop_assert_eq!(entry.to_string().parse(), Ok(entry));
        }

        #[test]
        fn any_line_is_parsed_without_panic(line in "(rule|setting|resolvconf|nftables)?[ 0-9a-fx/a-z]{0,30}") {
            let _ = line.parse::<Undo>();
        }
    }

    /// Each reads the log of the other, and removes its own entry.
    #[test]
    fn one_of_two_concurrent_undos_restores_the_setting() {
        let folder = std::env::temp_dir().join(format!("linerate-log-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = Path::new("/proc/sys/../..").join(folder.strip_prefix("/").unwrap()).join("x");
        fs::write(&path, "0").unwrap();
        let log = |name: &str| UndoLog {
            interface: name.into(),
            path: folder.join(name).with_extension(EXTENSION),
            entries: Vec::new(),
        };
        let mut logs = ["wg1", "wg2"].map(log);
        let lock = logs[0].lock_settings().unwrap();
        logs.iter_mut().for_each(|one| {
            assert!(one.change_settings(&lock, &[(path.clone(), "1")]).unwrap().is_empty());
        });
        let value = || fs::read_to_string(&path).unwrap();
        thread::scope(|scope| {
            for log in &mut logs {
                scope.spawn(|| log.undo(&Netlink::open().unwrap()));
            }
            // Neither has looked while the lock is held.
            thread::sleep(Duration::from_millis(200));
            assert_eq!((value(), fs::read_dir(&folder).unwrap().count()), ("1".into(), 3));
            drop(lock);
        });
        assert_eq!((value(), fs::read_dir(&folder).unwrap().count()), ("0".into(), 1));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn removed_log_is_rewritten_while_it_has_entries() {
        let path = std::env::temp_dir().join(format!("linerate-kept-{}", std::process::id()));
        let mut log = UndoLog { interface: "none".into(), path, entries: Vec::new() };
        log.rewrite_if_removed().unwrap();
        assert!(!log.path.exists());
        log.record(Undo::Table).unwrap();
        fs::remove_file(&log.path).unwrap();
        log.rewrite_if_removed().unwrap();
        assert_eq!(read(&log.path).unwrap(), [Undo::Table]);
        fs::write(&log.path, "resolv.conf\n").unwrap();
        log.rewrite_if_removed().unwrap();
        assert_eq!(read(&log.path).unwrap(), [Undo::ResolvConf], "the file existed");
        fs::remove_file(&log.path).unwrap();
    }

    #[test]
    fn path_outside_of_proc_sys_is_rejected() {
        assert_eq!("setting 1 0 /etc/passwd".parse::<Undo>(), Err(ParseUndoError));
        assert_eq!("setting 1 0".parse::<Undo>(), Err(ParseUndoError));
    }
}
