//! Applies map and preferences to the data plane, the paths, the host and the names.

use std::{collections::HashSet, io, net::IpAddr, sync::Arc, time::Duration};

use sys::process::release_heap;
use tailnet::{
    ipc::{ToDataPlane, ToSteward},
    settings::{Environment, Settings, settings},
};

use super::{
    core::Agent,
    dns::{self, Served, Sockets},
    endpoints,
    login::EXPIRED,
};

impl Agent {
    /// Applies map and preferences to the data plane, the paths, the host and the names.
    pub fn apply_settings(&mut self) {
        self.settings_update.begin(self.clock.now);
        let wall = self.clock.wall;
        let connected = endpoints::connected_networks((self.effects.addresses)(self.own.index));
        let around = Environment {
            now: wall,
            connected: &connected,
            ranges: &self.address_ranges,
            servers: &self.servers,
            has_interface: self.has_interface,
            tka: self.tka.trust(),
            scope: self.scope(),
        };
        let runs = self.prefs.want_running && !self.own.key.is_zero();
        let new =
            if runs { settings(&self.map, &self.prefs, &around) } else { Settings::default() };
        self.expiry = self.map.next_expiry(wall).map(|wait| self.clock.now + wait);
        let old = std::mem::replace(&mut self.settings, new);
        // Until the agent has settings, it does not replace those of the previous agent.
        let has_settings = self.has_hello && (!runs || self.map.node().is_some());
        // A saved map may be older than the settings of the previous agent, so it removes no peer.
        let is_current = !runs || self.login.has_map;
        let previous_until = self.mesh.previous_agent_until();
        let waits = !is_current && self.clock.now < previous_until;
        let has_sent = self.sent_all || (self.sent_saved_map && !is_current);
        let previous = (has_sent || !has_settings).then_some(&old);
        let is_same = waits || previous.is_some_and(|old| old.host == self.settings.host);
        if waits {
            self.settings_update
                .set_due((previous_until < Duration::MAX).then_some(previous_until));
        } else {
            self.update_plane(previous, is_current);
            self.sent_saved_map |= has_settings;
            self.sent_all |= has_settings && is_current;
        }
        let now = self.clock.now;
        self.mesh.set_peer_relays(self.settings.peer_relays.clone());
        self.mesh.set_birthday_probing(runs && !self.prefs.no_port_guessing);
        self.mesh.set_peers(&std::mem::take(&mut self.settings.paths), now);
        let is_in = runs && self.map.node().is_some();
        self.mesh.network().port_mapping().set_port(is_in.then_some(self.own.port));
        match self.settings.problems.first() {
            Some(_) => drop(self.problems.insert("settings", self.settings.problems.join("; "))),
            None => drop(self.problems.remove("settings")),
        }
        match self.has_expired() {
            true => drop(self.problems.insert("expiry", EXPIRED.to_owned())),
            false => drop(self.problems.remove("expiry")),
        }
        if self.settings.host.relay_server.is_none() {
            self.relay_process.stop();
            self.problems.remove("peer relay");
        }
        if !is_same && let Some(steward) = &self.steward {
            steward.send(ToSteward::Host(self.settings.host.clone()));
        }
        // Without an interface, programs in the same process get the names from the data plane.
        if self.has_interface {
            let names = std::mem::take(&mut self.settings.names);
            self.serve_names(&names);
        }
        self.announce();
        // Returns the memory of the old settings and of the map's text, which a large network has.
        drop(old);
        release_heap();
    }

    /// Sends the changed settings to the data plane; all of them without `previous`.
    fn update_plane(&self, previous: Option<&Settings>, is_current: bool) {
        let new = &self.settings;
        // The filter comes first, so that no packet of a new peer passes by the old rules.
        if previous.is_none_or(|previous| previous.filter != new.filter) {
            self.plane.send(ToDataPlane::Filter(new.filter.clone()));
        }
        let identity = new.identity();
        if !self.has_interface && previous.is_none_or(|previous| previous.identity() != identity) {
            self.plane.send(ToDataPlane::Identity(identity));
        }
        if let Some(mut peers) = new.peers_update(previous) {
            if let ToDataPlane::Peers { complete, .. } = &mut peers {
                *complete &= is_current;
            }
            self.plane.send(peers);
        }
    }

    /// Answers DNS queries from these names.
    fn serve_names(&mut self, names: &tailnet::dns::Config) {
        let own: HashSet<_> = self.settings.host.addresses.iter().map(ipnet::IpNet::addr).collect();
        let (names, skipped) = tailnet::dns::Names::new(names);
        for one in skipped {
            tracing::debug!(?one, "a name was skipped");
        }
        let served = Served { names, own: own.clone() };
        let names_config = self.settings.host.names.as_ref();
        let address = names_config.and_then(|names_config| names_config.servers.first()).copied();
        // A server that is not needed now continues, unless the address differs.
        self.names.take_if(|(at, _)| address.is_some_and(|address| address != *at));
        if let Some((_, server)) = &self.names {
            server.set(served);
            return;
        }
        let Some(address) = address else {
            self.problems.remove("names");
            return;
        };
        let hook: dns::SocketHook = match self.hook.clone() {
            Some(hook) => hook,
            None => Arc::new(|_| Ok(())),
        };
        let bound = bind(address).and_then(|sockets| dns::Server::start(sockets, served, hook));
        match bound {
            Ok(server) => {
                self.names = Some((address, server));
                self.problems.remove("names");
            }
            Err(error) => {
                self.problems
                    .insert("names", format!("the DNS server cannot start at {address}: {error}"));
            }
        }
    }
}

/// Sockets for DNS queries.
fn bind(address: IpAddr) -> io::Result<Sockets> {
    let at = (address, 53);
    let udp = vec![std::net::UdpSocket::bind(at)?];
    Ok(Sockets { udp, tcp: vec![std::net::TcpListener::bind(at)?] })
}
