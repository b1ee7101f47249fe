//! What of the agent's knowledge outlives it: the map and the preferences.

use serde::{Deserialize, Serialize};
use sys::process::release_heap;
use tailnet::{keys::NodePublic, map::NetworkMap, prefs::Prefs};

use super::{core::Agent, state::State};

/// The name of the preferences' file.
const PREFS: &str = "prefs.json";
/// The name of the map's file.
const MAP: &str = "map.json";

/// The map as it is kept: for the node key that it was told to.
#[derive(Serialize, Deserialize)]
struct KeptMap<M> {
    version: u32,
    node_key: NodePublic,
    map: M,
}

/// The version of the kept map's form.
const MAP_VERSION: u32 = 1;

/// The preferences.
pub(super) fn prefs(state: &State) -> Prefs {
    // Not `unwrap_or_default`: Go's zero is not what a node begins with.
    match state.read(PREFS) {
        Some(kept) => kept,
        None => Prefs::new(),
    }
}

impl Agent {
    /// The map of this node key.
    pub fn kept_map(&self) -> Option<NetworkMap> {
        let kept: KeptMap<NetworkMap> = self.state.read(MAP)?;
        let is_ours = kept.version == MAP_VERSION && kept.node_key == self.own.key;
        (is_ours && !self.own.key.is_zero()).then(|| kept.map.restored())
    }

    /// Keeps the map for the next start.
    pub fn keep_map(&mut self) {
        let kept = KeptMap { version: MAP_VERSION, node_key: self.own.key, map: &self.map };
        match &self.state.keep(MAP, &kept) {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => {
                let trouble = self.state.trouble(MAP, error);
                self.problems.insert("disk", trouble);
            }
        }
        // Of a large map, its text is.
        release_heap();
    }

    /// Forgets the network.
    pub fn forget_map(&mut self) {
        self.map = NetworkMap::default();
        self.keep_map = None;
        if let Err(error) = self.state.forget(MAP) {
            self.problems.insert("disk", format!("{MAP}: {error}"));
        }
        self.apply_settings();
    }

    /// Keeps the preferences.
    pub fn keep_prefs(&mut self) -> std::io::Result<()> {
        let kept = self.state.keep(PREFS, &self.prefs);
        match &kept {
            Ok(()) => drop(self.problems.remove("disk")),
            Err(error) => {
                let trouble = self.state.trouble(PREFS, error);
                self.problems.insert("disk", trouble);
            }
        }
        kept
    }
}
