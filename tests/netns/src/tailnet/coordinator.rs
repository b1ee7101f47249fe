//! headscale on a host of its own.

use super::certificate::Certificate;
use super::switch::Switch;
use crate::host::Host;
use crate::pair::Family;
use crate::service::Service;

/// Its files; they are gone with the host.
const FOLDER: &str = "/run/rig/headscale";
const CONFIG: &str = "/run/rig/headscale.yaml";

/// The user that members are of.
const USER: &str = "rig";

/// A headscale with TLS, the relay and STUN that are part of it, and no words to anybody else.
pub struct Coordinator {
    /// Its host.
    pub host: Host,
    service: Service,
    url: String,
    auth_key: String,
}

impl Coordinator {
    /// Starts it in a wired host.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub(super) fn start(host: Host, certificate: &Certificate) -> Coordinator {
        let addresses = Switch::coordinator();
        let [v4, v6] = Family::ALL.map(|family| addresses.of(family));
        host.run(format!("mkdir {FOLDER}"));
        let chain = host.write("tls.pem", &certificate.chain);
        let key = host.write_secret("tls.key", &certificate.key);
        let url = format!("https://{v4}");
        host.write("headscale.yaml", &config(&url, [v4, v6], [&chain, &key]));
        let service = serve(&host);
        let mut coordinator = Coordinator { host, service, url, auth_key: String::new() };
        coordinator.headscale(&format!("users create {USER}"));
        coordinator.auth_key = coordinator.new_auth_key("--reusable");
        coordinator
    }

    /// Runs headscale(1); what it printed.
    ///
    /// # Panics
    /// When it fails.
    pub fn headscale(&self, arguments: &str) -> String {
        self.host.run(format!("{} --config {CONFIG} {arguments}", program()))
    }

    /// Where members find it.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A key by which any number of members join.
    pub fn auth_key(&self) -> &str {
        &self.auth_key
    }

    /// A further one, for one member, with these options of `headscale preauthkeys create`.
    pub fn new_auth_key(&self, options: &str) -> String {
        let made = self.headscale(&format!(
            "preauthkeys create --user 1 --expiration 24h --output json {options}"
        ));
        let made: serde_json::Value = serde_json::from_str(&made).unwrap_or_default();
        made["key"].as_str().expect("headscale made a key").to_owned()
    }

    /// Allows all members to be relayed by the one with this address, and everything else.
    pub fn allow_relay(&self, relay: &str) {
        let policy = format!(
            r#"{{"acls": [{{"action": "accept", "src": ["*"], "dst": ["*:*"]}}],
                "grants": [{{"src": ["*"], "dst": ["{relay}"],
                             "app": {{"tailscale.com/cap/relay": [{{}}]}}}}]}}"#
        );
        let file = self.host.write("policy.json", &policy);
        self.headscale(&format!("policy set -f {file}"));
    }

    /// Starts it again, with what it knew, after it was killed.
    ///
    /// # Panics
    /// When it does not start; its log is in the message.
    pub fn start_again(&mut self) {
        self.host.run(format!("rm -f {FOLDER}/socket"));
        self.service = serve(&self.host);
    }

    /// Ends it as a crash does, or starts it again with what it knew.
    pub fn signal(&self, signal: &str) {
        self.host.run(format!("kill -{signal} {}", self.service.pid()));
    }
}

fn serve(host: &Host) -> Service {
    let words = [program(), "--config".to_owned(), CONFIG.to_owned(), "serve".to_owned()];
    Service::start(host, "headscale", words)
        .until(|| host.has(&format!("{FOLDER}/socket")) && host.listens(443))
}

fn program() -> String {
    crate::peer("headscale").expect("it was there at the start").display().to_string()
}

fn config(url: &str, [v4, v6]: [&str; 2], [chain, key]: [&str; 2]) -> String {
    format!(
        r#"server_url: {url}
listen_addr: "[::]:443"
metrics_listen_addr: 127.0.0.1:9090
grpc_listen_addr: 127.0.0.1:50443
tls_cert_path: {chain}
tls_key_path: {key}
noise: {{ private_key_path: {FOLDER}/noise.key }}
prefixes: {{ v4: 100.64.0.0/10, v6: "fd7a:115c:a1e0::/48", allocation: sequential }}
derp:
  server:
    enabled: true
    region_id: 999
    region_code: rig
    region_name: Rig
    verify_clients: true
    stun_listen_addr: "[::]:3478"
    private_key_path: {FOLDER}/derp.key
    automatically_add_embedded_derp_region: true
    ipv4: {v4}
    ipv6: "{v6}"
  urls: []
  paths: []
  auto_update_enabled: false
disable_check_updates: true
database: {{ type: sqlite, sqlite: {{ path: {FOLDER}/db.sqlite, write_ahead_log: true }} }}
log: {{ level: info, format: text }}
policy: {{ mode: database }}
dns: {{ magic_dns: true, base_domain: rig.test, override_local_dns: false, nameservers: {{ global: [] }} }}
unix_socket: {FOLDER}/socket
unix_socket_permission: "0700"
logtail: {{ enabled: false }}
taildrop: {{ enabled: false }}
"#
    )
}
