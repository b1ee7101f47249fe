//! The agent's side of the relays' task: commands to it, and logins that wait for the data plane,
//! which has the node key. If the channel is full, the latest value of each state waits here.

use std::collections::HashMap;

use bytes::Bytes;
use getrandom::{
    SysRng,
    rand_core::{Rng as _, UnwrapErr},
};
use mesh::permitted_addresses::Scope;
use tailnet::map_messages::DerpMap;
use tokio::sync::{mpsc, oneshot};

use super::derp;

/// Commands to the relays' task, and pending logins at relays.
pub(super) struct Relays {
    commands: mpsc::Sender<derp::Command>,
    map: Option<(DerpMap, Scope)>,
    home: Option<Option<u16>>,
    key_changed: bool,
    network_changed: bool,
    /// Logins by number.
    logins: HashMap<u32, oneshot::Sender<Bytes>>,
    last_login: u32,
}

impl Relays {
    pub(super) fn new(commands: mpsc::Sender<derp::Command>) -> Self {
        Self {
            commands,
            map: None,
            home: None,
            key_changed: false,
            network_changed: false,
            logins: HashMap::new(),
            // Logins of the previous agent may still be answered.
            last_login: UnwrapErr(SysRng).next_u32(),
        }
    }

    pub(super) fn set_map(&mut self, map: DerpMap, scope: Scope) {
        self.map = Some((map, scope));
    }

    pub(super) fn set_home(&mut self, home: Option<u16>) {
        self.home = Some(home);
    }

    pub(super) fn key_changed(&mut self) {
        self.key_changed = true;
    }

    pub(super) fn network_changed(&mut self) {
        self.network_changed = true;
    }

    /// Stores the reply of a login. Returns the number of the login.
    pub(super) fn begin_login(&mut self, reply: oneshot::Sender<Bytes>) -> u32 {
        self.last_login = self.last_login.wrapping_add(1);
        self.logins.retain(|_, waiting| !waiting.is_closed());
        self.logins.insert(self.last_login, reply);
        self.last_login
    }

    /// Answers a login with its sealed contents.
    pub(super) fn finish_login(&mut self, id: u32, sealed: Vec<u8>) {
        if let Some(reply) = self.logins.remove(&id) {
            let _ = reply.send(sealed.into());
        }
    }

    /// Sends a command that is not a state. Waits for capacity, which is short: the relays' task
    /// only distributes commands.
    pub(super) async fn send(&self, command: derp::Command) {
        // If that task has ended, the agent has ended as well.
        let _ = self.commands.send(command).await;
    }

    /// Sends all states that were set.
    pub(super) async fn flush(&mut self) {
        let commands = [
            self.map.take().map(|(map, scope)| derp::Command::Map(map, scope)),
            self.home.take().map(derp::Command::Home),
            std::mem::take(&mut self.key_changed).then_some(derp::Command::KeyChanged),
            std::mem::take(&mut self.network_changed).then_some(derp::Command::NetworkChanged),
        ];
        for command in commands.into_iter().flatten() {
            self.send(command).await;
        }
    }
}
