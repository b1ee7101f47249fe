//! Applies settings and undoes them. The previous values are first recorded in
//! `/run/linerate/doctor`. Neither the settings nor the file survive a reboot.
//!
//! ```text
//!   NAMESPACE <tab> TARGET <tab> BEFORE <tab> AFTER
//! ```

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::{Setting, Settings, Target};
use sys::atomic_file;

/// The folder of the record.
const FOLDER: &str = "/run/linerate";
/// The file of the record.
const FILE: &str = "doctor";

/// A changed setting.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Inode of the network namespace in which it was changed.
    namespace: u64,
    target: Target,
    before: String,
    after: String,
}

/// A setting, and the result of applying it.
pub type Applied = (Setting, io::Result<()>);

/// The result of undoing a setting.
#[derive(Debug)]
pub enum UndoOutcome {
    /// It has its previous value.
    Restored,
    /// Another program has set this value since. It is not changed.
    Changed(String),
    /// The target no longer exists.
    Gone,
    /// It could not be undone. A later attempt may succeed.
    Failed(io::Error),
}

/// Applies and undoes settings. Other processes wait until this is dropped.
#[derive(Debug)]
pub struct Remedy<S> {
    settings: S,
    namespace: u64,
    path: PathBuf,
    entries: Vec<Entry>,
    /// The locked folder.
    _lock: File,
}

impl<S: Settings> Remedy<S> {
    /// Opens the record for the network namespace of this thread.
    ///
    /// # Errors
    /// The file cannot be opened, which requires root.
    pub fn open(settings: S) -> io::Result<Self> {
        let namespace = fs::metadata("/proc/self/ns/net")?.ino();
        Self::open_in(Path::new(FOLDER), settings, namespace)
    }

    fn open_in(folder: &Path, settings: S, namespace: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let lock = File::open(folder)?;
        lock.lock()?;
        let path = folder.join(FILE);
        let entries = match fs::read_to_string(&path) {
            Ok(text) => text.lines().filter_map(Entry::parse).collect(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Self { settings, namespace, path, entries, _lock: lock })
    }

    /// Applies settings. If one is refused, the others are applied nevertheless.
    ///
    /// # Errors
    /// A previous value cannot be recorded. That setting and those after it are not applied.
    pub fn apply<'a>(
        &mut self,
        wanted: impl Iterator<Item = &'a Setting>,
    ) -> io::Result<Vec<Applied>> {
        let mut all = Vec::new();
        for setting in wanted {
            let applied = self.apply_one(setting)?;
            all.push((setting.clone(), applied));
        }
        Ok(all)
    }

    fn apply_one(&mut self, setting: &Setting) -> io::Result<io::Result<()>> {
        let before = match self.settings.read(&setting.target) {
            Ok(Some(value)) => value,
            Ok(None) => return Ok(Err(io::ErrorKind::NotFound.into())),
            Err(error) => return Ok(Err(error)),
        };
        if before == setting.value {
            return Ok(Ok(()));
        }
        let previous = self.entries.clone();
        let known = self.ours().position(|entry| entry.target == setting.target);
        match known {
            // It was applied before and then changed: the first recorded value is restored later.
            Some(index) => self.nth_of_ours(index).after.clone_from(&setting.value),
            None => self.entries.push(Entry {
                namespace: self.namespace,
                target: setting.target.clone(),
                before,
                after: setting.value.clone(),
            }),
        }
        self.save()?;
        let written = self.settings.write(&setting.target, &setting.value);
        if written.is_err() {
            self.entries = previous;
            self.save()?;
        }
        Ok(written)
    }

    /// Undoes the settings that were applied in this namespace, the last first. Returns each with
    /// its
    /// restored value.
    ///
    /// # Errors
    /// The remaining entries cannot be recorded.
    pub fn undo(&mut self) -> io::Result<Vec<(Setting, UndoOutcome)>> {
        let mut all = Vec::new();
        let (ours, mut remaining): (Vec<_>, Vec<_>) =
            self.entries.drain(..).partition(|entry| entry.namespace == self.namespace);
        for entry in ours.into_iter().rev() {
            let undone = undo_one(&self.settings, &entry);
            if matches!(undone, UndoOutcome::Failed(_)) {
                remaining.push(entry.clone());
            }
            all.push((Setting { target: entry.target, value: entry.before }, undone));
        }
        self.entries = remaining;
        self.save()?;
        Ok(all)
    }

    fn ours(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.namespace == self.namespace)
    }

    fn nth_of_ours(&mut self, index: usize) -> &mut Entry {
        let namespace = self.namespace;
        let mut ours = self.entries.iter_mut().filter(|entry| entry.namespace == namespace);
        ours.nth(index).expect("the index was counted among them")
    }

    fn save(&self) -> io::Result<()> {
        if self.entries.is_empty() {
            return atomic_file::remove(&self.path);
        }
        let text: String = self.entries.iter().map(Entry::line).collect();
        atomic_file::replace(&self.path, &text)
    }
}

fn undo_one(settings: &impl Settings, entry: &Entry) -> UndoOutcome {
    match settings.read(&entry.target) {
        Ok(None) => UndoOutcome::Gone,
        Ok(Some(now)) if now == entry.before => UndoOutcome::Restored,
        Ok(Some(now)) if now != entry.after => UndoOutcome::Changed(now),
        Ok(Some(_)) => match settings.write(&entry.target, &entry.before) {
            Ok(()) => UndoOutcome::Restored,
            Err(error) => UndoOutcome::Failed(error),
        },
        Err(error) => UndoOutcome::Failed(error),
    }
}

impl Entry {
    fn line(&self) -> String {
        let Self { namespace, target, before, after } = self;
        format!("{namespace}\t{target}\t{before}\t{after}\n")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        Some(Self {
            namespace: next()?.parse().ok()?,
            target: next()?.parse().ok()?,
            before: next()?.to_owned(),
            after: next()?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
