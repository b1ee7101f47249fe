//! What outlives an interface, and how it is taken back. Each deed is written down
//! before it is done, so that the next `linerate up` or `linerate down` takes back
//! what a process left that was killed.
//!
//! ```text
//!   note(deed) ──► /run/linerate/up/wg0.undo ──► undo, settings and then the last deed first
//! ```
//!
//! A setting of the kernel may be wanted by several interfaces. Which of them gives it back they
//! tell by each other's ledgers, so only one at a time looks there and acts ([`Ledger::alone`]).

use std::{
    fmt,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::Context;
use sys::netlink::{Family, FwMark, Netlink, Rule};

use super::{dns, nft, records};
use crate::whole_file;

/// One deed. Routes and addresses go with the interface, and are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// A policy rule, with its priority.
    Rule(Rule),
    /// The nftables table of the interface.
    Table,
    /// Servers given to resolvconf(8), under this name.
    Resolvconf(String),
    /// Servers in resolv.conf(5), which holds its former text.
    ResolvConf,
    /// A setting below `/proc/sys`.
    Setting(Setting),
}

/// A changed setting of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Its file.
    pub path: PathBuf,
    /// What was written.
    pub ours: String,
    /// What stood there.
    pub former: String,
}

impl Deed {
    fn is_setting(&self) -> bool {
        matches!(self, Self::Setting(_))
    }
}

/// That no other interface looks at settings or changes them, until it is dropped. The lock is
/// the open folder's, so that nothing is left of it.
#[derive(Debug)]
pub(super) struct Alone {
    _folder: File,
}

/// The deeds of one interface, in their order.
pub(super) struct Ledger {
    interface: String,
    path: PathBuf,
    deeds: Vec<Deed>,
}

impl Ledger {
    /// The ledger of an interface, with what a process left that was killed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(interface: &str) -> anyhow::Result<Self> {
        let path = records::path(interface, EXTENSION);
        let mut deeds = read(&path).with_context(|| path.display().to_string())?;
        // After a loss of power it is all that is left.
        if dns::file_is_ours(interface) && !deeds.contains(&Deed::ResolvConf) {
            deeds.insert(0, Deed::ResolvConf);
        }
        Ok(Self { interface: interface.to_owned(), path, deeds })
    }

    pub fn is_empty(&self) -> bool {
        self.deeds.is_empty()
    }

    /// What is written down, in its order.
    pub fn deeds(&self) -> &[Deed] {
        &self.deeds
    }

    /// The rules among it.
    pub fn rules(&self) -> impl Iterator<Item = Rule> {
        self.deeds.iter().filter_map(|deed| match deed {
            Deed::Rule(rule) => Some(*rule),
            _ => None,
        })
    }

    /// Writes down what is about to be done.
    pub fn note(&mut self, deed: Deed) -> anyhow::Result<()> {
        self.deeds.push(deed);
        self.write().with_context(|| self.path.display().to_string())
    }

    /// Strikes out the last deed, which was not done.
    pub fn strike(&mut self) -> anyhow::Result<()> {
        self.deeds.pop();
        self.write().with_context(|| self.path.display().to_string())
    }

    /// Strikes out rules that are not ours any more.
    pub fn strike_rules(&mut self, rules: &[Rule]) -> anyhow::Result<()> {
        if rules.is_empty() {
            return Ok(());
        }
        self.deeds.retain(|deed| !matches!(deed, Deed::Rule(rule) if rules.contains(rule)));
        self.write().with_context(|| self.path.display().to_string())
    }

    /// Waits until no other interface looks at settings or changes them.
    ///
    /// # Errors
    /// The folder of the ledgers cannot be locked.
    pub fn alone(&self) -> anyhow::Result<Alone> {
        let folder = self.path.parent().expect("a ledger is in a folder");
        let lock = || -> io::Result<File> {
            records::make_folder(&self.path)?;
            let folder = File::open(folder)?;
            folder.lock()?;
            Ok(folder)
        };
        Ok(Alone { _folder: lock().with_context(|| folder.display().to_string())? })
    }

    /// Changes a setting of the kernel, until the last of the interfaces that want it
    /// changed goes down.
    pub fn change_setting(&mut self, _: &Alone, path: &Path, ours: &str) -> anyhow::Result<()> {
        let what = || path.display().to_string();
        let current = fs::read_to_string(path).with_context(what)?.trim().to_owned();
        let former = match self.setting_of_another(path) {
            Some(other) => other.former,
            None if current == ours => return Ok(()),
            None => current.clone(),
        };
        let setting = Setting { path: path.to_owned(), ours: ours.to_owned(), former };
        self.note(Deed::Setting(setting))?;
        if current != ours {
            fs::write(path, ours).with_context(what)?;
        }
        Ok(())
    }

    /// Whether another interface wants a setting changed.
    pub fn is_changed_by_another(&self, path: &Path) -> bool {
        self.setting_of_another(path).is_some()
    }

    /// Takes everything back, and goes on whatever fails. What failed stays written
    /// down.
    pub fn undo(&mut self, netlink: &Netlink) {
        // First: nothing is forwarded any more when the packet filter goes.
        if self.deeds.iter().any(Deed::is_setting) {
            let alone = self.alone();
            if let Err(error) = &alone {
                tracing::error!("{error:#}");
            }
            self.undo_some(netlink, Deed::is_setting);
        }
        self.undo_some(netlink, |deed| !deed.is_setting());
        self.path = records::path(&self.interface, EXTENSION);
    }

    /// Takes deeds back, and strikes them out.
    fn undo_some(&mut self, netlink: &Netlink, is_one: impl Fn(&Deed) -> bool) {
        let mut left = Vec::new();
        for deed in std::mem::take(&mut self.deeds).into_iter().rev() {
            if !is_one(&deed) {
                left.push(deed);
            } else if let Err(error) = self.undo_one(netlink, &deed) {
                tracing::error!("it stays behind: {deed}: {error:#}");
                left.push(deed);
            }
        }
        left.reverse();
        self.deeds = left;
        if let Err(error) = self.write() {
            tracing::error!(%error, path = %self.path.display(), "the ledger stays behind");
        }
    }

    /// Writes down once more what was not taken back, where somebody removed the file.
    pub fn keep(&self) -> anyhow::Result<()> {
        if self.deeds.is_empty() || self.path.exists() {
            return Ok(());
        }
        self.write().with_context(|| self.path.display().to_string())
    }

    fn undo_one(&self, netlink: &Netlink, deed: &Deed) -> anyhow::Result<()> {
        match deed {
            Deed::Rule(rule) => match netlink.rules(rule.family)?.contains(rule) {
                true => Ok(netlink.delete_rule(rule)?),
                false => Ok(()),
            },
            Deed::Table => nft::remove(&self.interface),
            Deed::Resolvconf(name) => Ok(dns::leave_resolvconf(name)?),
            Deed::ResolvConf => Ok(dns::restore_file(&self.interface)?),
            Deed::Setting(setting) => Ok(self.restore_setting(setting)?),
        }
    }

    fn restore_setting(&self, setting: &Setting) -> io::Result<()> {
        if self.is_changed_by_another(&setting.path) {
            return Ok(());
        }
        match fs::read_to_string(&setting.path) {
            Ok(current) if current.trim() == setting.ours => {
                fs::write(&setting.path, &setting.former)
            }
            // Somebody else has changed it since, or its device is gone.
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn setting_of_another(&self, path: &Path) -> Option<Setting> {
        let files = records::folders(&self.path).flat_map(fs::read_dir).flatten().flatten();
        let others = files.map(|file| file.path()).filter(|other| {
            other.extension().is_some_and(|extension| extension == EXTENSION) && *other != self.path
        });
        others.filter_map(|other| read(&other).ok()).flatten().find_map(|deed| match deed {
            Deed::Setting(setting) if setting.path == path => Some(setting),
            _ => None,
        })
    }

    fn write(&self) -> io::Result<()> {
        if self.deeds.is_empty() {
            return whole_file::remove(&self.path);
        }
        records::make_folder(&self.path)?;
        let text: String = self.deeds.iter().map(|deed| format!("{deed}\n")).collect();
        whole_file::replace(&self.path, &text)
    }
}

/// The suffix of a ledger's file.
const EXTENSION: &str = "undo";

/// The deeds in a file, which may not be there. A line that another version wrote is
/// told and left out.
fn read(path: &Path) -> io::Result<Vec<Deed>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text?,
    };
    let mut deeds = Vec::new();
    for line in text.lines() {
        match line.parse() {
            Ok(deed) => deeds.push(deed),
            Err(NotADeed) => tracing::warn!("{}: not understood: {line}", path.display()),
        }
    }
    Ok(deeds)
}

impl fmt::Display for Deed {
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
            Self::Setting(Setting { path, ours, former }) => {
                write!(f, "setting {ours} {former} {}", path.display())
            }
        }
    }
}

/// A line that no deed was written as.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotADeed;

impl FromStr for Deed {
    type Err = NotADeed;

    fn from_str(line: &str) -> Result<Self, NotADeed> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (kind, rest) {
            ("nftables", "") => Ok(Self::Table),
            ("resolv.conf", "") => Ok(Self::ResolvConf),
            ("resolvconf", name) if !name.is_empty() => Ok(Self::Resolvconf(name.to_owned())),
            ("setting", rest) => {
                let mut words = rest.splitn(3, ' ').map(str::to_owned);
                let (ours, former) = (words.next(), words.next());
                match (ours, former, words.next()) {
                    (Some(ours), Some(former), Some(path)) if path.starts_with("/proc/sys/") => {
                        Ok(Self::Setting(Setting { path: path.into(), ours, former }))
                    }
                    _ => Err(NotADeed),
                }
            }
            ("rule", rest) => rule(rest).map(Self::Rule).ok_or(NotADeed),
            _ => Err(NotADeed),
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
mod undoing;

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use proptest::{option, prelude::*};

    use super::*;

    fn deed() -> impl Strategy<Value = Deed> {
        let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
        let mark = option::of((any::<u32>(), any::<u32>()));
        let rule =
            (family, any::<u32>(), any::<u32>(), mark, option::of(any::<u32>()), any::<bool>());
        let rule = rule.prop_map(|(family, priority, table, mark, suppress, invert)| {
            Deed::Rule(Rule {
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
            Just(Deed::Table),
            Just(Deed::ResolvConf),
            "[a-z0-9.=+_-]{1,20}".prop_map(Deed::Resolvconf),
            setting.prop_map(|[ours, former, path]| {
                Deed::Setting(Setting { path: path.into(), ours, former })
            }),
        ]
    }

    proptest! {
        #[test]
        fn a_deed_is_read_as_it_was_written(deed in deed()) {
            prop_assert_eq!(deed.to_string().parse(), Ok(deed));
        }

        #[test]
        fn no_line_panics(line in "(rule|setting|resolvconf|nftables)?[ 0-9a-fx/a-z]{0,30}") {
            let _ = line.parse::<Deed>();
        }
    }

    /// Each looks whether the other still wants it, and strikes out that it does itself.
    #[test]
    fn of_two_that_go_down_at_once_one_gives_the_setting_back() {
        let folder = std::env::temp_dir().join(format!("linerate-ledger-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = Path::new("/proc/sys/../..").join(folder.strip_prefix("/").unwrap()).join("x");
        fs::write(&path, "0").unwrap();
        let ledger = |name: &str| Ledger {
            interface: name.into(),
            path: folder.join(name).with_extension(EXTENSION),
            deeds: Vec::new(),
        };
        let mut ledgers = ["wg1", "wg2"].map(ledger);
        let alone = ledgers[0].alone().unwrap();
        ledgers.iter_mut().for_each(|one| one.change_setting(&alone, &path, "1").unwrap());
        let value = || fs::read_to_string(&path).unwrap();
        thread::scope(|scope| {
            for ledger in &mut ledgers {
                scope.spawn(|| ledger.undo(&Netlink::open().unwrap()));
            }
            // Neither has looked as long as one is alone.
            thread::sleep(Duration::from_millis(200));
            assert_eq!((value(), fs::read_dir(&folder).unwrap().count()), ("1".into(), 3));
            drop(alone);
        });
        assert_eq!((value(), fs::read_dir(&folder).unwrap().count()), ("0".into(), 1));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_ledger_that_was_removed_is_written_again_while_it_tells_of_anything() {
        let path = std::env::temp_dir().join(format!("linerate-kept-{}", std::process::id()));
        let mut ledger = Ledger { interface: "none".into(), path, deeds: Vec::new() };
        ledger.keep().unwrap();
        assert!(!ledger.path.exists());
        ledger.note(Deed::Table).unwrap();
        fs::remove_file(&ledger.path).unwrap();
        ledger.keep().unwrap();
        assert_eq!(read(&ledger.path).unwrap(), [Deed::Table]);
        fs::write(&ledger.path, "resolv.conf\n").unwrap();
        ledger.keep().unwrap();
        assert_eq!(read(&ledger.path).unwrap(), [Deed::ResolvConf], "it was there");
        fs::remove_file(&ledger.path).unwrap();
    }

    #[test]
    fn what_is_no_setting_of_the_kernel_is_not_written_to() {
        assert_eq!("setting 1 0 /etc/passwd".parse::<Deed>(), Err(NotADeed));
        assert_eq!("setting 1 0".parse::<Deed>(), Err(NotADeed));
    }
}
