//! Commands to the relays' task and to the coordinator's session. If the channel is full, the
//! latest value of each state waits here.

use tailnet::{
    control::messages::Announcement, messages::DerpMap, scope::Scope, tka::follow::SyncRequest,
};
use tokio::sync::mpsc;

use super::{control, derp};

/// Commands to the relays' task.
pub(super) struct RelayCommands {
    commands: mpsc::Sender<derp::Command>,
    map: Option<(DerpMap, Scope)>,
    home: Option<Option<u16>>,
    key_changed: bool,
    network_changed: bool,
}

/// Commands to a session with the coordinator.
pub(super) struct SessionCommands {
    commands: mpsc::Sender<control::Command>,
    announced: Option<Box<Announcement>>,
    /// The latest goal; a new one replaces it.
    goal: Option<control::Command>,
    tka_request: Option<SyncRequest>,
    reconnect: bool,
}

impl RelayCommands {
    pub fn new(commands: mpsc::Sender<derp::Command>) -> Self {
        Self { commands, map: None, home: None, key_changed: false, network_changed: false }
    }

    pub fn set_map(&mut self, map: DerpMap, scope: Scope) {
        self.map = Some((map, scope));
    }

    pub fn set_home(&mut self, home: Option<u16>) {
        self.home = Some(home);
    }

    pub fn key_changed(&mut self) {
        self.key_changed = true;
    }

    pub fn network_changed(&mut self) {
        self.network_changed = true;
    }

    /// Sends a command that is not a state. Waits for capacity, which is short: the relays' task
    /// only distributes commands.
    pub async fn send(&self, command: derp::Command) {
        // If that task has ended, the agent has ended as well.
        let _ = self.commands.send(command).await;
    }

    /// Sends all states that were set.
    pub async fn flush(&mut self) {
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

impl SessionCommands {
    pub fn new(commands: mpsc::Sender<control::Command>) -> Self {
        Self { commands, announced: None, goal: None, tka_request: None, reconnect: false }
    }

    pub fn set_announced(&mut self, announced: Announcement) {
        self.announced = Some(Box::new(announced));
    }

    /// Sets the goal: to log in, to resume, or to log out.
    pub fn set_goal(&mut self, goal: control::Command) {
        self.goal = Some(goal);
    }

    /// Sets the request about tailnet lock.
    pub fn request_tka(&mut self, tka_request: SyncRequest) {
        self.tka_request = Some(tka_request);
    }

    pub fn reconnect(&mut self) {
        self.reconnect = true;
    }

    /// Answers a ping, unless the channel is full: the answer would be late.
    pub fn answer_ping(&self, url: String, over_noise: bool, body: Vec<u8>) {
        let _ = self.commands.try_send(control::Command::Answer { url, over_noise, body });
    }

    /// Sends all states that were set. A session receives commands at all times, so capacity is
    /// soon available.
    pub async fn flush(&mut self) {
        let reconnect = std::mem::take(&mut self.reconnect) && self.goal.is_none();
        let commands = [
            // First, since a registration needs it.
            self.announced.take().map(control::Command::Update),
            self.goal.take(),
            self.tka_request.take().map(control::Command::TkaRequest),
            reconnect.then_some(control::Command::Reconnect),
        ];
        for command in commands.into_iter().flatten() {
            // Fails for an ended session. The next one gets all states.
            let _ = self.commands.send(command).await;
        }
    }
}
