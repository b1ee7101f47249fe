//! The map and the preferences on disk. Maps come in bursts, so a changed map is saved after a
//! delay.

use std::{io, time::Duration};

use mesh::{network_map::NetworkMap, prefs::Prefs};
use serde::{Deserialize, Serialize};
use sys::process::release_heap;
use tailnet::keys::NodePublic;

use super::{problems::Problems, state_folder::StateFolder};

const PREFS: &str = "prefs.json";
const MAP: &str = "map.json";

/// The delay between a change of the map and its write to disk, because changes come in bursts.
pub(super) const SAVE_DELAY: Duration = Duration::from_secs(2);

/// The saved map with the node key that it belongs to.
#[derive(Serialize, Deserialize)]
struct SavedMap<M> {
    version: u32,
    node_key: NodePublic,
    map: M,
}

/// The version of the file format.
const MAP_VERSION: u32 = 1;

/// The files of the map and the preferences. A failure to write a file is a problem with the name of the file.
pub(super) struct SavedState {
    folder: StateFolder,
    /// The time at which to save the map.
    save_map_at: Option<Duration>,
    /// The time at which it was saved last.
    map_saved_at: Option<Duration>,
}

impl SavedState {
    pub(super) fn new(folder: StateFolder) -> Self {
        Self { folder, save_map_at: None, map_saved_at: None }
    }

    pub(super) fn load_prefs(&self) -> Prefs {
        // Not `unwrap_or_default`: the defaults of a node differ from Go's zero values.
        match self.folder.read(PREFS) {
            Some(saved) => saved,
            None => Prefs::new(),
        }
    }

    pub(super) fn save_prefs(&self, prefs: &Prefs, problems: &mut Problems) -> io::Result<()> {
        let saved = self.folder.save(PREFS, prefs);
        let problem = saved.as_ref().err().map(|error| self.folder.save_error(PREFS, error));
        problems.update(PREFS, problem);
        saved
    }

    /// Loads the map of this node key.
    pub(super) fn load_map(&self, node_key: NodePublic) -> Option<NetworkMap> {
        let saved: SavedMap<NetworkMap> = self.folder.read(MAP)?;
        let is_ours = saved.version == MAP_VERSION && saved.node_key == node_key;
        (is_ours && !node_key.is_zero()).then(|| saved.map.restored())
    }

    /// Schedules a write of the map: at once, or after a delay if it was saved before.
    pub(super) fn schedule_map(&mut self, now: Duration) {
        let due = self.map_saved_at.map_or(now, |at| at + SAVE_DELAY);
        self.save_map_at.get_or_insert(due);
    }

    /// The time at which [`Self::handle_timeout`] saves the map.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.save_map_at
    }

    /// Saves the map if it is due.
    pub(super) fn handle_timeout(
        &mut self,
        node_key: NodePublic,
        map: &NetworkMap,
        now: Duration,
        problems: &mut Problems,
    ) {
        if self.save_map_at.is_some_and(|at| at <= now) {
            self.save_map_at = None;
            self.map_saved_at = Some(now);
            self.save_map(node_key, map, problems);
        }
    }

    fn save_map(&self, node_key: NodePublic, map: &NetworkMap, problems: &mut Problems) {
        let saved = self.folder.save(MAP, &SavedMap { version: MAP_VERSION, node_key, map });
        let problem = saved.err().map(|error| self.folder.save_error(MAP, &error));
        problems.update(MAP, problem);
        // Returns the memory of a large map's text.
        release_heap();
    }

    pub(super) fn remove_map(&mut self, problems: &mut Problems) {
        self.save_map_at = None;
        if let Err(error) = self.folder.remove(MAP) {
            problems.set(MAP, format!("{MAP}: {error}"));
        }
    }
}
