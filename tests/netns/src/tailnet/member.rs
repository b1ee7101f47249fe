//! A host that has joined a tailnet, by linerate or by tailscaled, with the same interface for
//! both.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::Tailnet;
use crate::host::{Host, Outcome};
use crate::implementation::Implementation;
use crate::pair::{Addresses, Family, PORT};
use crate::service::Service;
use crate::traffic::ping;
use crate::wait::eventually;

const INTERFACE: &str = "tailnet0";

/// Files of a member, which are removed with the host.
const STATE: &str = "/run/rig/member";
const SOCKET: &str = "/run/rig/tailscaled.sock";
const LOG: &str = "/run/rig/join.log";

/// Time in which members reach an agreed state. tailscaled needs 5 s for its first answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lines of a log that a failed test prints.
const LOG_TAIL: &str = "60";

/// The implementation of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// Ours.
    Linerate,
    /// Tailscale's.
    Tailscaled,
}

/// A program that joins a host to a tailnet.
#[derive(Clone, Debug)]
pub struct MemberProgram {
    /// The implementation.
    pub kind: MemberKind,
    /// The daemon's binary.
    pub daemon: PathBuf,
    /// The client's binary.
    pub client: PathBuf,
    /// Environment variables as `NAME=VALUE`.
    pub environment: Vec<String>,
}

/// The path from one member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// Direct, to this address of the other.
    Direct(String),
    /// Through a peer relay, at this address and network number.
    PeerRelay(String),
    /// Through a DERP relay of this region.
    Relay(String),
    /// No path yet.
    None,
}

/// A host that has joined.
pub struct Member {
    /// The host.
    pub host: Host,
    /// Its addresses in the tailnet.
    pub addresses: Addresses,
    program: MemberProgram,
    daemon: Option<Service>,
}

impl From<MemberKind> for MemberProgram {
    /// The installed program.
    ///
    /// # Panics
    /// If it is not installed.
    fn from(kind: MemberKind) -> Self {
        let peer = |name| crate::peer(name).unwrap_or_else(|| panic!("{name} is not installed"));
        let (daemon, client) = match kind {
            MemberKind::Linerate => {
                let path = Implementation::Linerate.path();
                (path.clone(), path)
            }
            MemberKind::Tailscaled => (peer("tailscaled"), peer("tailscale")),
        };
        Self { kind, daemon, client, environment: Vec::new() }
    }
}

impl Member {
    /// The interface of every member.
    pub const INTERFACE: &str = INTERFACE;

    /// The state folder of every member.
    pub const STATE: &str = STATE;

    /// Joins a host to the tailnet, and waits until it is connected. `flags` are those of `tailscale up`
    /// and of `linerate join`.
    ///
    /// # Panics
    /// If it fails; its output is in the message.
    pub fn join(
        tailnet: &Tailnet,
        host: Host,
        program: impl Into<MemberProgram>,
        flags: &str,
    ) -> Self {
        let coordinator = &tailnet.coordinator;
        Self::join_at(coordinator.url(), coordinator.auth_key(), host, program, flags)
    }

    /// The same with any coordinator and this auth key.
    ///
    /// # Panics
    /// If it does not join; its output is in the message.
    pub fn join_at(
        url: &str,
        key: &str,
        host: Host,
        program: impl Into<MemberProgram>,
        flags: &str,
    ) -> Self {
        let mut member = Self::start(host, program);
        let joined = member.log_in(url, key, flags);
        assert!(joined.ok, "{} does not join: {}", member.host.name(), joined.stderr);
        member.addresses = member.own_addresses();
        member
    }

    /// A member that has not joined yet: for linerate no process runs.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn start(host: Host, program: impl Into<MemberProgram>) -> Self {
        let program = program.into();
        let daemon = match program.kind {
            MemberKind::Linerate => None,
            MemberKind::Tailscaled => Some(start_tailscaled(&host, &program)),
        };
        Self { host, addresses: Addresses::from_texts("", ""), program, daemon }
    }

    /// Logs in with a key. The output is in `stderr`.
    pub fn log_in(&self, url: &str, key: &str, flags: &str) -> Outcome {
        let key = format!("file:{}", self.host.write_secret("auth.key", key));
        let name = self.host.name();
        match self.program.kind {
            MemberKind::Linerate => {
                self.restart(&format!("{url} --auth-key={key} --hostname={name} {flags}"))
            }
            MemberKind::Tailscaled => self.attempt(&format!(
                "up --login-server={url} --auth-key={key} --hostname={name} --timeout=30s {flags}"
            )),
        }
    }

    /// Runs `linerate join` with these arguments. The output is in `stderr`.
    pub fn restart(&self, words: &str) -> Outcome {
        self.start_as(INTERFACE, words)
    }

    /// The same with another interface name and the same state.
    pub fn start_as(&self, interface: &str, words: &str) -> Outcome {
        // A daemon in the background would keep a pipe open.
        let line = self.words(&format!("join --state-dir={STATE} {words} {interface}"));
        let mut outcome = self.host.attempt(format!(
            "mktemp {LOG}.XXXXXX | tee {LOG}; {line} </dev/null >$(cat {LOG}) 2>&1"
        ));
        outcome.stderr = self.host.read(outcome.stdout.trim());
        outcome
    }

    /// Runs a command of the unmodified tailscale(1), which connects to both implementations.
    pub fn tailscale(&self, arguments: &str) -> Outcome {
        let client = crate::peer("tailscale").expect("the tailnet started with it");
        let socket = match self.program.kind {
            MemberKind::Linerate => format!("/run/linerate/{INTERFACE}.tailscaled.sock"),
            MemberKind::Tailscaled => SOCKET.to_owned(),
        };
        self.host.attempt(format!("{} --socket={socket} {arguments}", client.display()))
    }

    /// Runs a command of the member's client: `status`, `netcheck`, ...
    pub fn attempt(&self, arguments: &str) -> Outcome {
        self.host.attempt(self.words(arguments))
    }

    fn words(&self, arguments: &str) -> String {
        let client = self.program.client.display();
        match self.program.kind {
            MemberKind::Linerate => {
                format!("env {} {client} {arguments}", environment(&self.program))
            }
            MemberKind::Tailscaled => format!("{client} --socket={SOCKET} {arguments}"),
        }
    }

    /// Its status and those of its peers.
    ///
    /// # Panics
    /// If the command fails or prints invalid JSON.
    pub fn status(&self) -> Value {
        let output = self.attempt("status --json");
        let parsed = serde_json::from_str(&output.stdout);
        parsed.unwrap_or_else(|error| panic!("{}: {error}: {output:?}", self.host.name()))
    }

    fn own_addresses(&self) -> Addresses {
        let status = self.status();
        let all: Vec<&str> = status["Self"]["TailscaleIPs"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let of = |is_v6| all.iter().find(|text| text.contains(':') == is_v6);
        match (of(false), of(true)) {
            (Some(v4), Some(v6)) => Addresses::from_texts(v4, v6),
            _ => panic!("{} lacks an address: {all:?}", self.host.name()),
        }
    }

    /// The path by which it sends to another, from its status.
    pub fn path_to(&self, other: &Self) -> Path {
        let status = self.status();
        let peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
        let v4 = other.addresses.of(Family::V4);
        let is_other = |peer: &&Value| {
            let mut addresses = peer["TailscaleIPs"].as_array().into_iter().flatten();
            addresses.any(|address| address.as_str() == Some(v4))
        };
        let Some(peer) = peers.into_iter().find(is_other) else { return Path::None };
        let text = |key: &str| peer[key].as_str().unwrap_or_default().to_owned();
        match (text("CurAddr"), text("PeerRelay"), text("Relay")) {
            (address, ..) if !address.is_empty() => Path::Direct(address),
            (_, relay, _) if !relay.is_empty() => Path::PeerRelay(relay),
            (.., region) if !region.is_empty() => Path::Relay(region),
            _ => Path::None,
        }
    }

    /// Waits until its home relay is in this region.
    ///
    /// # Panics
    /// If that does not happen.
    pub fn wait_for_home_relay(&self, region: &str) {
        eventually(&format!("the home relay is in {region}"), PATIENCE, || {
            self.status()["Self"]["Relay"].as_str() == Some(region)
        });
    }

    /// Whose program it runs.
    pub fn kind(&self) -> MemberKind {
        self.program.kind
    }

    /// Pings another in the tailnet until it answers.
    ///
    /// # Panics
    /// If it does not.
    pub fn reaches(&self, other: &Self, family: Family) {
        let target = other.addresses.of(family);
        let what = format!("{} reaches {}, {target}", self.host.name(), other.host.name());
        eventually(&what, PATIENCE, || {
            ping(&self.host, format!("-c 1 -W 1 {target}")).is_complete()
        });
    }

    /// Waits until it sends to another directly, with some traffic that makes it search for a path.
    /// Returns the address to which it sends. On a busy machine a direct path may be in doubt for some
    /// seconds at any time.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_until_direct(&self, other: &Self) -> String {
        let target = other.addresses.of(Family::V4);
        let what = format!("a direct path from {} to {}", self.host.name(), other.host.name());
        let mut at = None;
        eventually(&what, PATIENCE, || {
            ping(&self.host, format!("-c 1 -W 1 {target}"));
            let Path::Direct(address) = self.path_to(other) else { return false };
            at = Some(address);
            true
        });
        at.expect("it is direct")
    }

    /// Waits until it sends to another through a peer relay at this address, with some traffic that
    /// makes it search for a path.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_until_relayed(&self, other: &Self, relay: &str) {
        let target = other.addresses.of(Family::V4);
        let what = format!("{} to {} by {relay}", self.host.name(), other.host.name());
        eventually(&what, PATIENCE, || {
            ping(&self.host, format!("-c 1 -W 1 {target}"));
            matches!(self.path_to(other), Path::PeerRelay(at) if at.starts_with(relay))
        });
    }

    /// Makes it a peer relay at this UDP port; an empty text disables that.
    ///
    /// # Panics
    /// If it refuses.
    pub fn set_relay_port(&self, port: &str) {
        let interface = if self.kind() == MemberKind::Linerate { INTERFACE } else { "" };
        let set = self.attempt(&format!("set {interface} --relay-server-port={port}"));
        assert!(set.ok, "{}: {set:?}", self.host.name());
    }

    /// Sends a signal to tailscaled by name: `STOP`, `CONT`, ...
    ///
    /// # Panics
    /// If it is not tailscaled.
    pub fn signal(&self, signal: &str) {
        self.daemon.as_ref().expect("tailscaled runs").signal(signal);
    }

    /// The pid, inside the host, of the process with its interface.
    ///
    /// # Panics
    /// If there is none.
    pub fn pid(&self) -> u32 {
        self.host.daemon_of(INTERFACE).expect("a member serves its interface")
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if thread::panicking() && self.program.kind == MemberKind::Linerate {
            let log = self.host.attempt(format!("tail -n {LOG_TAIL} {LOG}.*")).stdout;
            eprintln!("--- end of the log of linerate on {} ---\n{log}", self.host.name());
        }
    }
}

fn environment(program: &MemberProgram) -> String {
    let own = "SSL_CERT_FILE=/run/rig/ca.pem";
    program.environment.iter().fold(own.to_owned(), |all, one| format!("{all} {one}"))
}

fn start_tailscaled(host: &Host, program: &MemberProgram) -> Service {
    let words = format!(
        "env {} HOME={STATE} TS_NO_LOGS_NO_SUPPORT=true {} --statedir={STATE} --socket={SOCKET} \
         --tun={INTERFACE} --port={PORT} --no-logs-no-support",
        environment(program),
        program.daemon.display()
    );
    Service::start(host, "tailscaled", words.split_whitespace()).wait_until(|| host.has(SOCKET))
}
