//! The settings that follow from map and preferences, and which of them the data plane and the
//! steward have.
//!
//! ```text
//!   no settings ── saved map ──► sent, without removing peers ── map, or stopped ──► all sent
//!        ▲                            │ the data plane has peers of a previous agent:
//!        │                            ╰─ wait for a map, or 5 s
//!        `── another node key ── all of it is sent again
//! ```

use std::{net::IpAddr, time::Duration};

use ipc::{DesiredHost, ToDataPlane};
use ipnet::IpNet;
use mesh::{
    magic_dns,
    node_settings::{Environment, Settings, TkaStatus, settings},
    peer_paths::PeerInfo,
};
use tailnet::keys::NodePublic;

use super::{clock::Clock, this_node::ThisNode, throttle::Throttle};

/// The applied settings.
pub(super) struct AppliedSettings {
    has_interface: bool,
    /// Networks of addresses that the user accepts, in addition to tailnet addresses.
    address_ranges: Vec<IpNet>,
    settings: Settings,
    /// Whether data plane and steward have all settings of this agent, and none of the previous
    /// one.
    sent_all: bool,
    /// Whether they have the settings of the saved map.
    sent_saved_map: bool,
    /// Updates of the settings from maps: at most a fifth of the time, so that a flood of maps
    /// leaves time for all other work.
    updates: Throttle,
    /// The time at which the next key expires.
    expiry: Option<Duration>,
}

/// The input of an update.
pub(super) struct Surroundings<'a> {
    pub tka: TkaStatus<'a>,
    /// The networks to which this machine is connected.
    pub connected: &'a [IpNet],
    /// The resolvers that the host used before.
    pub resolvers: &'a [IpAddr],
    /// Whether the coordinator sent a map in this session.
    pub has_new_map: bool,
    /// The time until which the settings of the previous agent have priority over the saved map.
    pub previous_until: Duration,
}

/// The changes of an update.
pub(super) struct Update {
    /// Messages to the data plane, in this order.
    pub plane: Vec<ToDataPlane>,
    /// The desired state of the host, if it changed.
    pub host: Option<DesiredHost>,
    /// The previous settings, which may use much memory.
    pub previous: Settings,
}

impl AppliedSettings {
    pub(super) fn new(has_interface: bool, address_ranges: Vec<IpNet>) -> Self {
        Self {
            has_interface,
            address_ranges,
            settings: Settings::default(),
            sent_all: false,
            sent_saved_map: false,
            updates: Throttle::new(Duration::ZERO),
            expiry: None,
        }
    }

    pub(super) fn has_interface(&self) -> bool {
        self.has_interface
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Takes the map entries of the peers. The settings do not need them afterwards.
    pub(super) fn take_paths(&mut self) -> Vec<(NodePublic, PeerInfo)> {
        std::mem::take(&mut self.settings.paths)
    }

    /// Takes the names. The settings do not need them afterwards.
    pub(super) fn take_names(&mut self) -> magic_dns::Config {
        std::mem::take(&mut self.settings.names)
    }

    /// Forgets the settings, because the data plane removes those of another node key.
    pub(super) fn reset(&mut self) {
        self.settings = Settings::default();
        (self.sent_all, self.sent_saved_map) = (false, false);
    }

    /// Requests an update. Returns whether to start it now; otherwise it is due later, because
    /// another one was shortly before.
    pub(super) fn request(&mut self, now: Duration) -> bool {
        self.updates.request(now);
        self.updates.is_due(now)
    }

    /// Computes the settings again.
    pub(super) fn update(
        &mut self,
        node: &ThisNode,
        around: Surroundings<'_>,
        clock: Clock,
    ) -> Update {
        let Clock { now, wall } = clock;
        self.updates.begin(now);
        let environment = Environment {
            now: wall,
            connected: around.connected,
            ranges: &self.address_ranges,
            servers: around.resolvers,
            has_interface: self.has_interface,
            tka: around.tka,
            scope: node.scope(),
        };
        let runs = node.is_enabled();
        let new = match runs {
            true => settings(node.map(), node.prefs(), &environment),
            false => Settings::default(),
        };
        self.expiry = node.map().next_expiry(wall).map(|wait| now + wait);
        let old = std::mem::replace(&mut self.settings, new);
        // Until the agent has settings, it does not replace those of the previous agent.
        let has_settings = node.is_described() && (!runs || node.is_in_map());
        // A saved map may be older than the settings of the previous agent, so it removes no peer.
        let is_current = !runs || around.has_new_map;
        let previous_until = around.previous_until;
        if !is_current && now < previous_until {
            self.updates.set_due((previous_until < Duration::MAX).then_some(previous_until));
            return Update { plane: Vec::new(), host: None, previous: old };
        }
        let has_sent = self.sent_all || (self.sent_saved_map && !is_current);
        let previous = (has_sent || !has_settings).then_some(&old);
        let plane = self.plane_messages(previous, is_current);
        self.sent_saved_map |= has_settings;
        self.sent_all |= has_settings && is_current;
        let is_same = previous.is_some_and(|old| old.host == self.settings.host);
        let host = (!is_same).then(|| self.settings.host.clone());
        Update { plane, host, previous: old }
    }

    /// The changes for the data plane; all settings without `previous`.
    fn plane_messages(&self, previous: Option<&Settings>, is_current: bool) -> Vec<ToDataPlane> {
        let (new, mut messages) = (&self.settings, Vec::new());
        // The filter comes first, so that no packet of a new peer passes by the old rules.
        if previous.is_none_or(|previous| previous.filter != new.filter) {
            messages.push(ToDataPlane::Filter(new.filter.clone()));
        }
        let identity = new.identity();
        if !self.has_interface && previous.is_none_or(|previous| previous.identity() != identity) {
            messages.push(ToDataPlane::Identity(identity));
        }
        if let Some(mut peers) = new.peers_update(previous) {
            if let ToDataPlane::Peers { complete, .. } = &mut peers {
                *complete &= is_current;
            }
            messages.push(peers);
        }
        messages
    }

    /// The time of the next update.
    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.expiry.into_iter().chain(self.updates.due()).min()
    }

    /// Takes the time at which the event of `began` was handled.
    pub(super) fn handle_done(&mut self, began: Duration, now: Duration) {
        self.updates.handle_done(began, now);
    }
}
