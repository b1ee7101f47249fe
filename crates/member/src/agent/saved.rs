//! The map and the preferences on disk.

use serde::{Deserialize, Serialize};
use sys::process::release_heap;
use tailnet::{keys::NodePublic, map::NetworkMap, prefs::Prefs};

use super::{core::Agent, state_folder::StateFolder};

const PREFS: &str = "prefs.json";
const MAP: &str = "map.json";

/// The saved map with the node key that it belongs to.
#[derive(Serialize, Deserialize)]
struct SavedMap<M> {
    version: u32,
    node_key: NodePublic,
    map: M,
}

/// The version of the file format.
const MAP_VERSION: u32 = 1;

/// Loads the preferences.
pub(super) fn load_prefs(state: &StateFolder) -> Prefs {
    // Not `unwrap_or_default`: the defaults of a node differ from Go's zero values.
    match state.read(PREFS) {
        Some(saved) => saved,
        None => Prefs::new(),
    }
}

impl Agent {
    /// Loads the map of this node key.
    pub fn load_map(&self) -> Option<NetworkMap> {
        let saved: SavedMap<NetworkMap> = self.state.read(MAP)?;
        let is_ours = saved.version == MAP_VERSION && saved.node_key == self.own.key;
        (is_ours && !self.own.key.is_zero()).then(|| saved.map.restored())
    }

    pub fn save_map(&mut self) {
        let saved = SavedMap { version: MAP_VERSION, node_key: self.own.key, map: &self.map };
        match &self.state.save(MAP, &saved) {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => {
                let problem = self.state.save_error(MAP, error);
                self.problems.insert("disk", problem);
            }
        }
        // Returns the memory of a large map's text.
        release_heap();
    }

    /// Removes the map, in memory and on disk.
    pub fn remove_map(&mut self) {
        self.map = NetworkMap::default();
        self.save_map_at = None;
        if let Err(error) = self.state.remove(MAP) {
            self.problems.insert("disk", format!("{MAP}: {error}"));
        }
        self.apply_settings();
    }

    pub fn save_prefs(&mut self) -> std::io::Result<()> {
        let saved = self.state.save(PREFS, &self.prefs);
        match &saved {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => {
                let problem = self.state.save_error(PREFS, error);
                self.problems.insert("disk", problem);
            }
        }
        saved
    }
}
