//! The session with a coordinator: a task that this node starts, and the queue of its commands. If
//! the channel is full, the latest value of each state waits here.

use mesh::{
    dialing::ControlUrl, netcheck::NetInfo, permitted_addresses::Scope, prefs::Prefs,
    tka_follower::SyncRequest,
};
use serde_json::{Value, json};
use tailnet::{
    keys::{MachineKey, MachinePublic},
    ts2021::requests::Announcement,
};
use tokio::sync::mpsc;

use crate::agent::{
    control::{
        self, Command,
        dial::{Dialer, SocketHook},
    },
    roots::Roots,
};

/// The length of a log ID (`logtail/id.go`). This node uploads no log.
const LOG_ID_LEN: usize = 64;

/// Starts the task of a session.
pub(in crate::agent) type Connect =
    dyn Fn(control::Settings, mpsc::Receiver<Command>, mpsc::Sender<control::Event>);

/// The constant parts of sessions.
pub(in crate::agent) struct SessionParts {
    pub machine_key: MachineKey,
    /// The certificate authorities that TLS trusts.
    pub roots: Roots,
    /// Runs on each socket.
    pub hook: Option<SocketHook>,
    pub has_interface: bool,
    /// Receives the events, with the number of the session.
    pub events: mpsc::Sender<(u32, control::Event)>,
    pub connect: Box<Connect>,
}

/// The present session, if there is one.
pub(super) struct Session {
    parts: SessionParts,
    /// The number of the present session. Events of ended sessions are ignored.
    number: u32,
    open: Option<OpenSession>,
}

struct OpenSession {
    url: String,
    server_key: MachinePublic,
    announced: Announcement,
    commands: Commands,
}

/// Commands to the task of a session.
struct Commands {
    channel: mpsc::Sender<Command>,
    announced: Option<Box<Announcement>>,
    /// The latest goal; a new one replaces it.
    goal: Option<Command>,
    tka_request: Option<SyncRequest>,
    reconnect: bool,
}

impl Session {
    pub(super) fn new(parts: SessionParts) -> Self {
        Self { parts, number: 0, open: None }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the events of this session count.
    pub(super) fn is_current(&self, session: u32) -> bool {
        session == self.number
    }

    /// Whether it is the session of these preferences.
    pub(super) fn matches(&self, prefs: &Prefs) -> bool {
        let is_same = |open: &OpenSession| {
            open.url == prefs.control_url && open.server_key == prefs.server_key
        };
        self.open.as_ref().is_some_and(is_same)
    }

    /// Starts a session with the coordinator of the preferences. `url` is its parsed URL.
    pub(super) fn start(
        &mut self,
        url: ControlUrl,
        prefs: &Prefs,
        scope: Scope,
        announced: Announcement,
    ) {
        let SessionParts { machine_key, roots, hook, events, connect, .. } = &self.parts;
        let settings = control::Settings {
            url,
            server_key: prefs.server_key,
            machine_key: machine_key.clone(),
            dialer: Dialer::from_environment(hook.clone(), roots).within(scope),
        };
        let (channel, inbox) = mpsc::channel(64);
        let (sender, mut receiver) = mpsc::channel(16);
        self.number += 1;
        let (number, to_core) = (self.number, events.clone());
        connect(settings, inbox, sender);
        tokio::spawn(async move {
            while let Some(event) = receiver.recv().await {
                if to_core.send((number, event)).await.is_err() {
                    return;
                }
            }
        });
        let commands = Commands {
            channel,
            announced: Some(Box::new(announced.clone())),
            goal: None,
            tka_request: None,
            reconnect: false,
        };
        let (url, server_key) = (prefs.control_url.clone(), prefs.server_key);
        self.open = Some(OpenSession { url, server_key, announced, commands });
    }

    /// Ends the session. Its events are ignored from now on.
    pub(super) fn end(&mut self) {
        // A session ends when its channel is closed.
        if self.open.take().is_some() {
            self.number += 1;
        }
    }

    /// The coordinator proved that it has this key.
    pub(super) fn set_server_key(&mut self, key: MachinePublic) {
        if let Some(open) = &mut self.open {
            open.server_key = key;
        }
    }

    /// Sends the present state of this node, if it changed.
    pub(super) fn announce(&mut self, announced: Announcement) {
        if let Some(open) = self.open.as_mut().filter(|open| open.announced != announced) {
            open.commands.announced = Some(Box::new(announced.clone()));
            open.announced = announced;
        }
    }

    /// Sets the goal: to log in, to resume, or to log out.
    pub(super) fn set_goal(&mut self, goal: Command) {
        if let Some(open) = &mut self.open {
            open.commands.goal = Some(goal);
        }
    }

    /// Connects again after a network change.
    pub(super) fn reconnect(&mut self) {
        if let Some(open) = &mut self.open {
            open.commands.reconnect = true;
        }
    }

    /// Sends the request about tailnet lock.
    pub(super) fn request_tka(&mut self, request: SyncRequest) {
        if let Some(open) = &mut self.open {
            open.commands.tka_request = Some(request);
        }
    }

    /// Answers a ping, unless the channel is full: the answer would be late.
    pub(super) fn answer_ping(&self, url: String, over_noise: bool, body: Vec<u8>) {
        if let Some(open) = &self.open {
            let _ = open.commands.channel.try_send(Command::Answer { url, over_noise, body });
        }
    }

    /// Sends all states that were set. A session receives commands at all times, so capacity is
    /// soon available.
    pub(super) async fn flush(&mut self) {
        if let Some(open) = &mut self.open {
            open.commands.flush().await;
        }
    }

    /// The description of this machine for the coordinator (`tailcfg.Hostinfo`).
    pub(super) fn hostinfo(&self, prefs: &Prefs, net_info: &NetInfo) -> Value {
        let mut id = self.parts.machine_key.public().to_string().split_off("mkey:".len());
        id.truncate(LOG_ID_LEN);
        let hostname = match &*prefs.hostname {
            "" => sys::process::hostname(),
            name => name.to_owned(),
        };
        json!({
            "IPNVersion": concat!(env!("CARGO_PKG_VERSION"), "-linerate"),
            "BackendLogID": id,
            "OS": "linux",
            "GoArch": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "Hostname": hostname,
            "ShieldsUp": prefs.shields_up,
            "RoutableIPs": prefs.advertise_routes,
            "RequestTags": prefs.advertise_tags,
            "Userspace": true,
            "UserspaceRouter": !self.parts.has_interface,
            "PeerRelay": prefs.relay_server_port.is_some(),
            "NetInfo": net_info,
        })
    }
}

impl Commands {
    async fn flush(&mut self) {
        let reconnect = std::mem::take(&mut self.reconnect) && self.goal.is_none();
        let commands = [
            // First, since a registration needs it.
            self.announced.take().map(Command::Update),
            self.goal.take(),
            self.tka_request.take().map(Command::TkaRequest),
            reconnect.then_some(Command::Reconnect),
        ];
        for command in commands.into_iter().flatten() {
            // Fails for an ended session. The next one gets all states.
            let _ = self.channel.send(command).await;
        }
    }
}
