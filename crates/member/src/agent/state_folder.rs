//! The files of an agent. Each file is replaced atomically, so a full disk or a power failure
//! leaves the previous one.
//!
//! ```text
//!   machine.key   identifies this machine to the coordinator
//!   lock.key      signs the next node key of this node, under tailnet lock
//!   disco.key     stored, so that a restarted agent is the same machine to peers
//!   prefs.json    settings, the coordinator's URL and key, the user
//!   map.json      the last map, for a start without the coordinator
//!   lock.json     the keys that may sign node keys, under tailnet lock
//! ```

use std::{fs, io, str::FromStr, sync::Arc};

use anyhow::Context;
use serde::{Serialize, de::DeserializeOwned};
use sys::atomic_file;
use tailnet::{
    keys::{DiscoKey, MachineKey},
    tka::TkaKey,
};
use zeroize::Zeroizing;

use super::Folder;

/// The folder. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct StateFolder {
    folder: Arc<Folder>,
}

impl StateFolder {
    pub(super) fn new(folder: Folder) -> Self {
        Self { folder: Arc::new(folder) }
    }

    /// Reads the machine key, or creates one.
    ///
    /// # Errors
    /// The file is invalid, or a new one cannot be written.
    pub(super) fn machine_key(&self) -> anyhow::Result<MachineKey> {
        self.key("machine.key", MachineKey::new, MachineKey::text)
    }

    /// Reads the disco key, or creates one.
    ///
    /// # Errors
    /// The file is invalid, or a new one cannot be written.
    pub(super) fn disco_key(&self) -> anyhow::Result<DiscoKey> {
        self.key("disco.key", DiscoKey::new, DiscoKey::text)
    }

    /// Reads this node's key of tailnet lock, or creates one.
    ///
    /// # Errors
    /// The file is invalid, or a new one cannot be written.
    pub(super) fn tka_key(&self) -> anyhow::Result<TkaKey> {
        self.key("lock.key", |seed| TkaKey::new(&seed), TkaKey::text)
    }

    fn key<K: FromStr<Err: std::error::Error + Send + Sync + 'static>>(
        &self,
        name: &str,
        new: fn(Box<Zeroizing<[u8; 32]>>) -> K,
        text: fn(&K) -> Zeroizing<String>,
    ) -> anyhow::Result<K> {
        let path = self.folder.path.join(name);
        let what = || self.folder.display.join(name).display().to_string();
        match fs::read_to_string(&path).map(Zeroizing::new) {
            Ok(text) => text.trim().parse().with_context(what),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut bytes = Box::new(Zeroizing::new([0; 32]));
                getrandom::fill(&mut **bytes).context("randomness")?;
                let key = new(bytes);
                self.write(name, &text(&key)).with_context(what)?;
                Ok(key)
            }
            Err(error) => Err(error).with_context(what),
        }
    }

    /// Whether a file exists, or cannot be checked.
    pub(super) fn may_exist(&self, name: &str) -> bool {
        self.folder.path.join(name).try_exists().unwrap_or(true)
    }

    /// Reads a file. `None` if it is absent or invalid. The latter is logged.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let path = self.folder.path.join(name);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            text => text,
        };
        let read = text.map_err(anyhow::Error::from);
        match read.and_then(|text| Ok(serde_json::from_str(&text)?)) {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!("{}: {error:#}", self.folder.display.join(name).display());
                None
            }
        }
    }

    /// Saves a value.
    ///
    /// # Errors
    /// The file cannot be written; the previous one remains.
    pub(super) fn save(&self, name: &str, value: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string(value).map_err(io::Error::other)?;
        self.write(name, &text)
    }

    /// The message for users about a file that could not be saved.
    pub(super) fn save_error(&self, name: &str, error: &io::Error) -> String {
        let file = self.folder.display.join(name);
        format!(
            "{}: {error}; until it can be written, a restart uses the previous version",
            file.display()
        )
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        atomic_file::replace(&self.folder.path.join(name), text)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// The file remains.
    pub(super) fn remove(&self, name: &str) -> io::Result<()> {
        atomic_file::remove(&self.folder.path.join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn state(name: &str) -> StateFolder {
        let folder = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        StateFolder::new(Folder { path: folder.clone(), display: folder, open: None })
    }

    #[test]
    fn machine_key_is_persistent_and_readable_only_by_its_owner() {
        let state = state("machine-key");
        let first = state.machine_key().unwrap().public();
        assert_eq!(state.machine_key().unwrap().public(), first);
        let mode =
            fs::metadata(state.folder.path.join("machine.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::write(state.folder.path.join("machine.key"), "nonsense").unwrap();
        let refused = format!("{:#}", state.machine_key().unwrap_err());
        assert!(refused.contains("machine.key") && refused.contains("not a key"), "{refused}");
        fs::remove_dir_all(&state.folder.path).unwrap();
    }

    #[test]
    fn unreadable_file_counts_as_absent() {
        let state = state("prefs");
        assert_eq!(state.read::<Vec<u8>>("map.json"), None);
        state.save("map.json", &[1, 2]).unwrap();
        assert_eq!(state.read::<Vec<u8>>("map.json"), Some(vec![1, 2]));
        fs::write(state.folder.path.join("map.json"), "[1, 2").unwrap();
        assert_eq!(state.read::<Vec<u8>>("map.json"), None);
        state.remove("map.json").unwrap();
        state.remove("map.json").unwrap();
        fs::remove_dir_all(&state.folder.path).unwrap();
    }
}
