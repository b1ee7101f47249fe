//! This node: its key, its preferences and its map, in memory and on disk.

use std::{io, net::IpAddr, time::Duration};

use mesh::{
    dialing::ControlUrl,
    local_json::PingResult,
    network_map::{Changes, NetworkMap},
    permitted_addresses::Scope,
    prefs::{Login, Prefs},
};
use tailnet::{
    keys::{MachinePublic, NodePublic},
    map_messages::{MapResponse, Node, UserProfile},
};

use super::{
    clock::Clock, local_api::ApiError, problems::Problems, saved::SavedState,
    state_folder::StateFolder,
};

/// Host names that the user of this machine configured (hosts(5)).
const HOSTS: &str = "/etc/hosts";

/// The key, the preferences and the map of this node.
pub(super) struct ThisNode {
    /// Whether the data plane has described this node.
    is_described: bool,
    /// The node key; zero without one.
    key: NodePublic,
    /// The UDP port of the data plane.
    port: u16,
    /// The index of the interface.
    interface: u32,
    prefs: Prefs,
    map: NetworkMap,
    saved: SavedState,
}

impl ThisNode {
    /// A node with its saved preferences, and without a key until the data plane describes it.
    pub(super) fn new(folder: StateFolder) -> Self {
        let saved = SavedState::new(folder);
        Self {
            is_described: false,
            key: NodePublic::default(),
            port: 0,
            interface: 0,
            prefs: saved.load_prefs(),
            map: NetworkMap::default(),
            saved,
        }
    }

    /// Whether the data plane has described this node.
    pub(super) fn is_described(&self) -> bool {
        self.is_described
    }

    /// Handles the data plane's description of this node.
    pub(super) fn describe(&mut self, key: NodePublic, port: u16, interface: u32) {
        (self.is_described, self.key, self.port, self.interface) = (true, key, port, interface);
    }

    pub(super) fn key(&self) -> NodePublic {
        self.key
    }

    pub(super) fn has_key(&self) -> bool {
        !self.key.is_zero()
    }

    pub(super) fn set_key(&mut self, key: NodePublic) {
        self.key = key;
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn set_port(&mut self, port: u16) {
        self.port = port;
    }

    /// The index of the interface.
    pub(super) fn interface(&self) -> u32 {
        self.interface
    }

    pub(super) fn prefs(&self) -> &Prefs {
        &self.prefs
    }

    pub(super) fn map(&self) -> &NetworkMap {
        &self.map
    }

    /// Whether the user wants this node to run, and it has a key.
    pub(super) fn is_enabled(&self) -> bool {
        self.prefs.want_running && self.has_key()
    }

    /// Whether the map contains this node.
    pub(super) fn is_in_map(&self) -> bool {
        self.map.node().is_some()
    }

    /// Whether this node's key has expired according to the map. Peers drop it by their own clocks.
    /// Until then, and if the coordinator extends it, everything continues.
    pub(super) fn has_expired(&self, wall: Duration) -> bool {
        let now = self.map.time(wall);
        self.has_key() && self.map.node().is_some_and(|node| node.has_expired(now))
    }

    /// The addresses that the coordinator may direct this node to.
    pub(super) fn scope(&self) -> Scope {
        let Ok(url) = self.prefs.control_url.parse() else { return Scope::default() };
        let hosts = std::fs::read(HOSTS).unwrap_or_default();
        Scope::of_control(&url, &String::from_utf8_lossy(&hosts))
    }

    /// The short name of a region.
    pub(super) fn region_code(&self, region: u16) -> String {
        let regions = self.map.derp_map().regions.as_ref();
        let found = regions.and_then(|regions| regions.get(&region)?.as_ref());
        found.map_or_else(|| region.to_string(), |found| found.region_code.clone())
    }

    /// The key of the peer at an address and a ping result with its name; otherwise a result with
    /// an error.
    pub(super) fn ping_target(
        &self,
        ip: IpAddr,
    ) -> Result<(NodePublic, PingResult), Box<PingResult>> {
        let result = |node: Option<&Node>, error: &str| PingResult {
            ip: ip.to_string(),
            node_ip: ip.to_string(),
            node_name: node.map(|node| short(node).to_owned()).unwrap_or_default(),
            err: error.to_owned(),
            ..PingResult::default()
        };
        if self.map.node().is_some_and(|own| own.addresses.iter().any(|net| net.addr() == ip)) {
            return Err(Box::new(PingResult {
                is_local_ip: true,
                ..result(self.map.node(), &format!("{ip} is local Tailscale IP"))
            }));
        }
        let peer = self.map.node_at(ip).map(|node| (node.key, result(Some(node), "")));
        peer.ok_or_else(|| Box::new(result(None, "no matching peer")))
    }

    /// Checks preferences of a program.
    ///
    /// # Errors
    /// They are invalid.
    pub(super) fn check_prefs(&self, prefs: &Prefs) -> Result<(), ApiError> {
        prefs.check()?;
        if !prefs.control_url.is_empty() {
            let url = prefs.control_url.parse::<ControlUrl>();
            url.map_err(|error| ApiError::bad(format!("{}: {error}", prefs.control_url)))?;
        }
        Ok(())
    }

    /// Completes preferences of a program, which may replace the present ones.
    ///
    /// # Errors
    /// They are invalid, or belong to another network.
    pub(super) fn completed_prefs(&self, mut prefs: Prefs) -> Result<Prefs, ApiError> {
        self.check_prefs(&prefs)?;
        // An address stands for the node that has it.
        if let Some(ip) = prefs.exit_node_ip
            && let Some(node) = self.map.node_at(ip)
        {
            prefs.exit_node_id.clone_from(&node.stable_id);
            prefs.exit_node_ip = None;
        }
        let is_other = prefs.control_url != self.prefs.control_url;
        // Preferences from Tailscale's programs lack the server key.
        if !is_other && prefs.server_key.is_zero() {
            prefs.server_key = self.prefs.server_key;
        }
        if is_other && self.has_key() && !self.prefs.control_url.is_empty() {
            return Err(ApiError::bad(format!(
                "this node belongs to the network of {}: leave it with `linerate leave`",
                self.prefs.control_url
            )));
        }
        Ok(prefs)
    }

    /// Replaces the preferences, unless they cannot be saved.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn set_prefs(&mut self, prefs: Prefs, problems: &mut Problems) -> io::Result<()> {
        let previous = std::mem::replace(&mut self.prefs, prefs);
        let saved = self.saved.save_prefs(&self.prefs, problems);
        if saved.is_err() {
            self.prefs = previous;
        }
        saved
    }

    /// Stores the proven key of the coordinator.
    pub(super) fn set_server_key(&mut self, key: MachinePublic, problems: &mut Problems) {
        self.prefs.server_key = key;
        let _ = self.saved.save_prefs(&self.prefs, problems);
    }

    /// Stores the user of a finished login.
    pub(super) fn log_in(&mut self, user_profile: UserProfile, problems: &mut Problems) {
        self.prefs.login = Some(Login { user_profile, node_id: String::new() });
        self.prefs.logged_out = false;
        let _ = self.saved.save_prefs(&self.prefs, problems);
    }

    /// Removes the key and the user.
    pub(super) fn log_out(&mut self, problems: &mut Problems) {
        self.key = NodePublic::default();
        (self.prefs.logged_out, self.prefs.want_running) = (true, false);
        self.prefs.login = None;
        let _ = self.saved.save_prefs(&self.prefs, problems);
    }

    /// Loads the saved map of this node key. Returns whether there is one.
    pub(super) fn load_map(&mut self) -> bool {
        let saved = self.saved.load_map(self.key);
        let has_map = saved.is_some();
        if let Some(map) = saved {
            self.map = map;
        }
        has_map
    }

    /// Applies a map or a change of it, and schedules its write to disk.
    pub(super) fn apply_map(&mut self, map: MapResponse, is_first: bool, clock: Clock) -> Changes {
        let changes = match is_first {
            true => self.map.apply_first(map, clock.wall),
            false => self.map.apply(map, clock.wall),
        };
        if changes.settings {
            self.saved.schedule_map(clock.now);
        }
        changes
    }

    /// Removes the map, in memory and on disk.
    pub(super) fn remove_map(&mut self, problems: &mut Problems) {
        self.map = NetworkMap::default();
        self.saved.remove_map(problems);
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.saved.poll_timeout()
    }

    /// Saves the map if it is due.
    pub(super) fn handle_timeout(&mut self, now: Duration, problems: &mut Problems) {
        self.saved.handle_timeout(self.key, &self.map, now, problems);
    }
}

/// The first label of a node's name.
pub(super) fn short(node: &Node) -> &str {
    node.name.split('.').next().unwrap_or_default()
}
