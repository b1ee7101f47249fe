//! A host that has joined, by linerate or by tailscaled: both answer the same questions alike.

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

/// Where a host has the files of its member; they are gone with the host.
const STATE: &str = "/run/rig/member";
const SOCKET: &str = "/run/rig/tailscaled.sock";
const LOG: &str = "/run/rig/join.log";

/// Within this what members agree on has happened. tailscaled has its first answer 5 s after it began.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lines of a log that a failed test prints.
const LOG_TAIL: &str = "60";

/// Whose program a member runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// Ours.
    Linerate,
    /// Tailscale's.
    Tailscaled,
}

/// A program that makes a host a member.
#[derive(Clone, Debug)]
pub struct MemberProgram {
    /// Whose it is.
    pub kind: MemberKind,
    /// The binary that a member runs.
    pub daemon: PathBuf,
    /// What asks it.
    pub client: PathBuf,
    /// What its environment has, as `NAME=VALUE`.
    pub environment: Vec<String>,
}

/// The way from one member to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Path {
    /// From address to address; which the other's is.
    Direct(String),
    /// By another node that relays, at an address and network number.
    PeerRelay(String),
    /// By a relay, of this region.
    Relay(String),
    /// There is none yet.
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
    /// The one that is installed.
    ///
    /// # Panics
    /// When none is.
    fn from(kind: MemberKind) -> MemberProgram {
        let peer = |name| crate::peer(name).unwrap_or_else(|| panic!("{name} is not installed"));
        let (daemon, client) = match kind {
            MemberKind::Linerate => {
                let path = Implementation::Linerate.path();
                (path.clone(), path)
            }
            MemberKind::Tailscaled => (peer("tailscaled"), peer("tailscale")),
        };
        MemberProgram { kind, daemon, client, environment: Vec::new() }
    }
}

impl Member {
    /// The interface of every member.
    pub const INTERFACE: &str = INTERFACE;

    /// The folder of every member's state.
    pub const STATE: &str = STATE;

    /// Has a host of the tailnet join, and waits until it is connected. `flags` are of `tailscale up`
    /// as of `linerate join`.
    ///
    /// # Panics
    /// When it does not; what it said is in the message.
    pub fn join(
        tailnet: &Tailnet,
        host: Host,
        program: impl Into<MemberProgram>,
        flags: &str,
    ) -> Member {
        let coordinator = &tailnet.coordinator;
        Member::join_at(coordinator.url(), coordinator.auth_key(), host, program, flags)
    }

    /// The same at any coordinator, by this auth key.
    ///
    /// # Panics
    /// When it does not join; what it said is in the message.
    pub fn join_at(
        url: &str,
        key: &str,
        host: Host,
        program: impl Into<MemberProgram>,
        flags: &str,
    ) -> Member {
        let mut member = Member::start(host, program);
        let joined = member.log_in(url, key, flags);
        assert!(joined.ok, "{} does not join: {}", member.host.name(), joined.stderr);
        member.addresses = member.own_addresses();
        member
    }

    /// One that has not joined yet: of linerate nothing runs.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub fn start(host: Host, program: impl Into<MemberProgram>) -> Member {
        let program = program.into();
        let daemon = match program.kind {
            MemberKind::Linerate => None,
            MemberKind::Tailscaled => Some(start_tailscaled(&host, &program)),
        };
        Member { host, addresses: Addresses::from_texts("", ""), program, daemon }
    }

    /// Logs in with a key: how that ended, with what was said in `stderr`.
    pub fn log_in(&self, url: &str, key: &str, flags: &str) -> Outcome {
        let key = format!("file:{}", self.host.write_secret("auth.key", key));
        let name = self.host.name();
        match self.program.kind {
            MemberKind::Linerate => {
                self.start_again(&format!("{url} --auth-key={key} --hostname={name} {flags}"))
            }
            MemberKind::Tailscaled => self.attempt(&format!(
                "up --login-server={url} --auth-key={key} --hostname={name} --timeout=30s {flags}"
            )),
        }
    }

    /// Runs `linerate join` with these words: how that ended, with what it said in `stderr`.
    pub fn start_again(&self, words: &str) -> Outcome {
        self.start_as(INTERFACE, words)
    }

    /// Starts one with another name and the same state.
    pub fn start_as(&self, interface: &str, words: &str) -> Outcome {
        // A daemon in the background would hold a pipe open.
        let line = self.words(&format!("join --state-dir={STATE} {words} {interface}"));
        let mut outcome = self.host.attempt(format!(
            "mktemp {LOG}.XXXXXX | tee {LOG}; {line} </dev/null >$(cat {LOG}) 2>&1"
        ));
        outcome.stderr = self.host.read(outcome.stdout.trim());
        outcome
    }

    /// Runs a command of the unmodified tailscale(1), which speaks to both.
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

    /// What it says of itself and of the others.
    ///
    /// # Panics
    /// When it does not say, or other than as JSON.
    pub fn status(&self) -> Value {
        let asked = self.attempt("status --json");
        let parsed = serde_json::from_str(&asked.stdout);
        parsed.unwrap_or_else(|error| panic!("{}: {error}: {asked:?}", self.host.name()))
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

    /// The way that it sends to another by, as it says.
    pub fn path_to(&self, other: &Member) -> Path {
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

    /// Waits until the region of its home relay is this one.
    ///
    /// # Panics
    /// When it does not get so.
    pub fn wait_for_home(&self, region: &str) {
        eventually(&format!("the home is {region}"), PATIENCE, || {
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
    /// When it does not.
    pub fn reaches(&self, other: &Member, family: Family) {
        let target = other.addresses.of(family);
        let what = format!("{} reaches {}, {target}", self.host.name(), other.host.name());
        eventually(&what, PATIENCE, || {
            ping(&self.host, format!("-c 1 -W 1 {target}")).is_complete()
        });
    }

    /// Waits until it sends to another directly, with some traffic that makes it look for a way.
    /// Returns the address to which it sends. On a busy machine a direct path may be in doubt for some
    /// seconds at any time.
    ///
    /// # Panics
    /// When it does not.
    pub fn becomes_direct(&self, other: &Member) -> String {
        let target = other.addresses.of(Family::V4);
        let what = format!("a direct way from {} to {}", self.host.name(), other.host.name());
        let mut at = None;
        eventually(&what, PATIENCE, || {
            ping(&self.host, format!("-c 1 -W 1 {target}"));
            let Path::Direct(address) = self.path_to(other) else { return false };
            at = Some(address);
            true
        });
        at.expect("it is direct")
    }

    /// Waits until it sends to another by a node that relays at this address, with some traffic that
    /// makes it look for a way.
    ///
    /// # Panics
    /// When it does not.
    pub fn becomes_relayed(&self, other: &Member, relay: &str) {
        let target = other.addresses.of(Family::V4);
        let what = format!("{} to {} by {relay}", self.host.name(), other.host.name());
        eventually(&what, PATIENCE, || {
            ping(&self.host, format!("-c 1 -W 1 {target}"));
            matches!(self.path_to(other), Path::PeerRelay(at) if at.starts_with(relay))
        });
    }

    /// Has it relay for others at this UDP port; empty for not any more.
    ///
    /// # Panics
    /// When it refuses.
    pub fn relays_at(&self, port: &str) {
        let interface = if self.kind() == MemberKind::Linerate { INTERFACE } else { "" };
        let set = self.attempt(&format!("set {interface} --relay-server-port={port}"));
        assert!(set.ok, "{}: {set:?}", self.host.name());
    }

    /// Sends tailscaled a signal, by name: `STOP`, `CONT`, ...
    ///
    /// # Panics
    /// When it does not run it.
    pub fn signal(&self, signal: &str) {
        self.daemon.as_ref().expect("tailscaled runs").signal(signal);
    }

    /// The pid inside the host of the process that serves its interface.
    ///
    /// # Panics
    /// When none does.
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
    Service::start(host, "tailscaled", words.split_whitespace()).until(|| host.has(SOCKET))
}
