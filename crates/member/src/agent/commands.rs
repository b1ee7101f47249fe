//! What relays and the coordinator's session are told. A command that finds no room is kept until
//! there is some; of each state that is the latest.

use tailnet::{
    control::messages::Announced, messages::DerpMap, scope::Scope, tka::follow::Question,
};
use tokio::sync::mpsc;

use super::{control, derp};

/// What tells the relays.
pub(super) struct RelayCommands {
    commands: mpsc::Sender<derp::Command>,
    map: Option<(DerpMap, Scope)>,
    home: Option<Option<u16>>,
    key_changed: bool,
    network_changed: bool,
}

/// What tells a session.
pub(super) struct SessionCommands {
    commands: mpsc::Sender<control::Command>,
    announced: Option<Box<Announced>>,
    /// One ends the other.
    goal: Option<control::Command>,
    question: Option<Question>,
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

    /// Sends what is no state. Waits for room: the relays' task only distributes, so that there
    /// soon is some.
    pub async fn send(&self, command: derp::Command) {
        // Without that task the agent ends.
        let _ = self.commands.send(command).await;
    }

    /// Sends all that was set.
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
        Self { commands, announced: None, goal: None, question: None, reconnect: false }
    }

    pub fn set_announced(&mut self, announced: Announced) {
        self.announced = Some(Box::new(announced));
    }

    /// To log in, to resume, or to log out.
    pub fn set_goal(&mut self, goal: control::Command) {
        self.goal = Some(goal);
    }

    /// To ask about tailnet lock.
    pub fn request_tka(&mut self, question: Question) {
        self.question = Some(question);
    }

    pub fn reconnect(&mut self) {
        self.reconnect = true;
    }

    /// To answer a ping, unless so much waits that it would be late.
    pub fn answer_ping(&self, url: String, over_noise: bool, body: Vec<u8>) {
        let _ = self.commands.try_send(control::Command::Answer { url, over_noise, body });
    }

    /// Sends all that was set. A session takes commands whatever else it does, so that there soon
    /// is room.
    pub async fn flush(&mut self) {
        let reconnect = std::mem::take(&mut self.reconnect) && self.goal.is_none();
        let commands = [
            // A coordinator wants to know whom it registers.
            self.announced.take().map(control::Command::Update),
            self.goal.take(),
            self.question.take().map(control::Command::TkaRequest),
            reconnect.then_some(control::Command::Reconnect),
        ];
        for command in commands.into_iter().flatten() {
            // One that has ended is told nothing; the next one is told all.
            let _ = self.commands.send(command).await;
        }
    }
}
