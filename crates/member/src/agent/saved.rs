//! What of the agent's knowledge outlives it: the map and the preferences.

use serde::{Deserialize, Serialize};
use sys::process::release_heap;
use tailnet::{keys::NodePublic, map::NetworkMap, prefs::Prefs};

use super::{core::Agent, state_folder::StateFolder};

/// The name of the preferences' file.
const PREFS: &str = "prefs.json";
/// The name of the map's file.
const MAP: &str = "map.json";

/// The map as it is kept: for the node key that it was told to.
#[derive(Serialize, Deserialize)]
struct SavedMap<M> {
    version: u32,
    node_key: NodePublic,
    map: M,
}

/// The version of the kept map's form.
const MAP_VERSION: u32 = 1;

/// The preferences.
pub(super) fn load_prefs(state: &StateFolder) -> Prefs {
    // Not `unwrap_or_default`: Go's zero is not what a node begins with.
    match state.read(PREFS) {
        Some(saved) => saved,
        None => Prefs::new(),
    }
}

impl Agent {
    /// The map of this node key.
    pub fn load_map(&self) -> Option<NetworkMap> {
        let saved: SavedMap<NetworkMap> = self.state.read(MAP)?;
        let is_ours = saved.version == MAP_VERSION && saved.node_key == self.own.key;
        (is_ours && !self.own.key.is_zero()).then(|| saved.map.restored())
    }

    /// Keeps the map for the next start.
    pub fn save_map(&mut self) {
        let saved = SavedMap { version: MAP_VERSION, node_key: self.own.key, map: &self.map };
        match &self.state.save(MAP, &saved) {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => {
                let problem = self.state.save_error(MAP, error);
                self.problems.insert("disk", problem);
            }
        }
        // Of a large map, its text is.
        release_heap();
    }

    /// Forgets the network.
    pub fn remove_map(&mut self) {
        self.map = NetworkMap::default();
        self.save_map_at = None;
        if let Err(error) = self.state.remove(MAP) {
            self.problems.insert("disk", format!("{MAP}: {error}"));
        }
        self.apply_settings();
    }

    /// Keeps the preferences.
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
