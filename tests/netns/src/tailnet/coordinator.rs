//! The coordinator of a tailnet on its own host: headscale, or ours.

mod headscale;
mod linerate;

use std::env;
use std::path::PathBuf;

use super::certificate::Certificate;
use super::switch::Switch;
use crate::host::{Host, Outcome};
use crate::pair::Family;
use crate::service::Service;

/// Its files, which are removed with the host.
const FOLDER: &str = "/run/rig/coordinator";

/// The owner of members.
const USER: &str = "rig";

/// The program that coordinates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoordinatorKind {
    /// headscale.
    Headscale,
    /// linerate-server.
    Linerate,
}

use CoordinatorKind::{Headscale, Linerate};

impl CoordinatorKind {
    /// The one named by `LINERATE_NETNS_COORDINATOR`; headscale by default.
    ///
    /// # Panics
    /// If it is an unknown name.
    pub fn wanted() -> Self {
        match env::var("LINERATE_NETNS_COORDINATOR").as_deref() {
            Ok("linerate") => Linerate,
            Ok("headscale") | Err(_) => Headscale,
            Ok(other) => panic!("LINERATE_NETNS_COORDINATOR={other}: headscale or linerate"),
        }
    }

    /// Its program, if it is installed.
    pub fn program(self) -> Option<PathBuf> {
        match self {
            Headscale => crate::peer("headscale"),
            Linerate => linerate::program(),
        }
    }
}

/// A coordinator with TLS and its own relay and STUN. It contacts no other server.
pub struct Coordinator {
    /// Its host.
    pub host: Host,
    kind: CoordinatorKind,
    program: String,
    service: Option<Service>,
    url: String,
    auth_key: String,
}

impl Coordinator {
    /// Starts it on a connected host.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub(super) fn start(kind: CoordinatorKind, host: Host, certificate: &Certificate) -> Self {
        let addresses = Switch::coordinator();
        let own = Family::ALL.map(|family| addresses.of(family));
        host.run(format!("mkdir {FOLDER}"));
        let chain = host.write("tls.pem", &certificate.chain);
        let key = host.write_secret("tls.key", &certificate.key);
        host.write("ca.pem", &certificate.authority);
        let url = format!("https://{}", own[0]);
        let config = match kind {
            Headscale => headscale::config(&url, own, [&chain, &key]),
            Linerate => linerate::config(&url, own, [&chain, &key]),
        };
        host.write(kind.config_name(), &config);
        let program = kind.program().expect("it was found at the start").display().to_string();
        let auth_key = String::new();
        let mut coordinator = Self { host, kind, program, service: None, url, auth_key };
        coordinator.restart();
        coordinator.populate();
        coordinator
    }

    /// Starts another server of ours with the same key, on a host of the network with files `tls.pem` and
    /// `tls.key`, with this configuration.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn start_replica(&self, host: Host, url: &str, configuration: &str) -> Self {
        host.run(format!("mkdir {FOLDER}"));
        host.write_secret("coordinator/noise.key", &self.host.read(&format!("{FOLDER}/noise.key")));
        host.write(self.kind.config_name(), configuration);
        let mut other = Self {
            host,
            kind: self.kind,
            program: self.program.clone(),
            service: None,
            url: url.to_owned(),
            auth_key: String::new(),
        };
        other.restart();
        other
    }

    /// Creates a user, and a reusable key for members.
    pub fn populate(&mut self) {
        self.command(&format!("users create {USER}"));
        self.auth_key = self.new_auth_key("--reusable");
    }

    /// Kills it if it runs, and starts it with its stored state.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn restart(&mut self) {
        self.service = None;
        let socket = format!("{FOLDER}/socket");
        // The socket of an earlier process.
        self.host.run(format!("rm -f {socket}"));
        let trust = "SSL_CERT_FILE=/run/rig/ca.pem".to_owned();
        let program = ["env".into(), trust, self.program.clone()];
        let words = program.into_iter().chain(["--config".into(), self.config(), "serve".into()]);
        let service = Service::start(&self.host, "coordinator", words);
        let host = &self.host;
        self.service = Some(service.wait_until(|| host.has(&socket) && host.listens(443)));
    }

    /// Appends lines to its configuration and restarts it.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn configure(&mut self, more: &str) {
        let text = self.host.read(&self.config());
        self.host.write(self.kind.config_name(), &format!("{text}\n{more}"));
        self.restart();
    }

    /// Adds these keys before all tables of its configuration and restarts it.
    ///
    /// # Panics
    /// If it does not start; its log is in the message.
    pub fn set(&mut self, keys: &str) {
        self.change("", &format!("{keys}\n"));
        self.restart();
    }

    /// Replaces text in its configuration and restarts it.
    ///
    /// # Panics
    /// If the text is absent, or it does not start; its log is in the message.
    pub fn replace(&mut self, words: &str, by: &str) {
        self.change(words, by);
        self.restart();
    }

    /// Replaces text in its configuration, for its next start.
    ///
    /// # Panics
    /// If the text is absent.
    pub fn change(&self, words: &str, by: &str) {
        let text = self.host.read(&self.config());
        assert!(text.contains(words), "no {words} in {text}");
        self.host.write(self.kind.config_name(), &text.replacen(words, by, 1));
    }

    /// Kills it, as a power cut does.
    pub fn kill(&mut self) {
        self.signal("KILL");
        self.service = None;
    }

    /// Runs one of its commands, which are headscale's, and returns the output.
    ///
    /// # Panics
    /// If it fails.
    pub fn command(&self, arguments: &str) -> String {
        self.host.run(format!("{} --config {} {arguments}", self.program, self.config()))
    }

    /// The same for a command that may fail.
    pub fn attempt(&self, arguments: &str) -> Outcome {
        self.host.attempt(format!("{} --config {} {arguments}", self.program, self.config()))
    }

    /// Its pid inside its host.
    ///
    /// # Panics
    /// If it does not run.
    pub fn pid(&self) -> u32 {
        self.running().pid()
    }

    fn running(&self) -> &Service {
        self.service.as_ref().expect("it runs")
    }

    /// The program.
    pub fn kind(&self) -> CoordinatorKind {
        self.kind
    }

    /// Its URL for members.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same with its IPv6 address.
    pub fn url_of_ipv6(&self) -> String {
        format!("https://[{}]", Switch::coordinator().of(Family::V6))
    }

    /// A reusable key for members.
    pub fn auth_key(&self) -> &str {
        &self.auth_key
    }

    /// A new key for one member, with these options of `preauthkeys create`.
    pub fn new_auth_key(&self, options: &str) -> String {
        self.auth_key_of("--user 1", options)
    }

    /// The same for another owner, which is an option of `preauthkeys create` as well.
    pub fn auth_key_of(&self, owner: &str, options: &str) -> String {
        let made = self.command(&format!(
            "preauthkeys create {owner} --expiration 24h --output json {options}"
        ));
        let made: serde_json::Value = serde_json::from_str(&made).unwrap_or_default();
        made["key"].as_str().expect("the coordinator made a key").to_owned()
    }

    /// The list of all nodes.
    ///
    /// # Panics
    /// If the command fails.
    pub fn nodes(&self) -> Vec<serde_json::Value> {
        let nodes = self.command("nodes list --output json");
        serde_json::from_str(&nodes).expect("a list of nodes")
    }

    /// Sets a policy that allows all traffic, and allows the member with this address to relay for
    /// all.
    pub fn allow_relay(&self, relay: &str) {
        let policy = format!(
            r#"{{"acls": [{{"action": "accept", "src": ["*"], "dst": ["*:*"]}}],
                "grants": [{{"src": ["*"], "dst": ["{relay}"],
                             "app": {{"tailscale.com/cap/relay": [{{}}]}}}}]}}"#
        );
        let file = self.host.write("policy.json", &policy);
        self.command(&format!("policy set -f {file}"));
    }

    /// Its output since the last start.
    pub fn log(&self) -> String {
        self.host.read("/run/rig/coordinator.log")
    }

    /// Sends a signal by name: `STOP`, `CONT`, ...
    pub fn signal(&self, signal: &str) {
        self.running().signal(signal);
    }

    fn config(&self) -> String {
        format!("/run/rig/{}", self.kind.config_name())
    }
}

impl CoordinatorKind {
    fn config_name(self) -> &'static str {
        match self {
            Headscale => "headscale.yaml",
            Linerate => "server.toml",
        }
    }
}
