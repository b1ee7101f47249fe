//! The server's configuration: one file, and flags that override it.

mod contradictions;
mod dns;
pub mod duration;
pub(crate) mod networks;
mod source;

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use coordinator::{Allocation, Prefixes, Settings};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;
use serde_json::json;
use sys::atomic_file;

use self::source::Source;
use crate::{
    net::own_address,
    process::files,
    store::{DatabaseLocation, has_password},
    tls::{acme::Challenge, own_certificate::OwnCertificate},
};

pub use self::{
    dns::{DnsTable, ExtraRecord},
    networks::{NetworkName, NetworkTable, OwnDerp},
};
pub use crate::{
    net::{address::ServerUrl, remote_url::RemoteUrl, trusted_proxies::TrustedProxies},
    oidc::table::OidcTable,
    process::log::{LogFormat, LogLevel},
    tls::acme::AcmeTable,
};

/// Default path of the configuration file.
pub const FILE: &str = "/etc/linerate/server.toml";
/// Default path of the commands' socket.
pub const SOCKET: &str = "/run/linerate-server/socket";
/// Port of a server without a configuration.
const PORT: u16 = 8080;
/// Port of its relay.
const RELAY_PORT: u16 = 8443;
/// Port at which Tailscale's clients try TLS.
pub const TLS_PORT: u16 = 443;

/// The contents of the file. Every key is optional.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// URL under which clients reach the server.
    pub server_url: Option<ServerUrl>,
    /// Addresses to listen at with TLS.
    pub listen: Vec<SocketAddr>,
    /// Addresses to listen at without TLS, behind a proxy with the certificate.
    pub listen_plain: Vec<SocketAddr>,
    /// Addresses to listen at with TLS and the relay's self-signed certificate, if they are
    /// free. Tailscale's clients accept any certificate there, because Noise authenticates the
    /// server.
    #[serde(skip)]
    pub listen_if_possible: Vec<SocketAddr>,
    /// Certificate chain, in PEM.
    pub tls_certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    pub tls_key: Option<PathBuf>,
    /// ACME authority that issues the certificate instead.
    pub acme: Option<AcmeTable>,
    /// Proxies that are trusted to name their clients' addresses.
    pub trusted_proxies: TrustedProxies,
    /// Addresses to serve metrics at.
    pub metrics_listen: Vec<SocketAddr>,
    /// Format of the log.
    pub log_format: LogFormat,
    /// Level of the log.
    pub log_level: LogLevel,
    /// Folder of the state.
    pub state_dir: PathBuf,
    /// URL of a PostgreSQL database. By default, a file in the state folder is used.
    pub database: Option<String>,
    /// File that contains this URL.
    pub database_url_path: Option<PathBuf>,
    /// Whether each transaction may get another connection, as with PgBouncer.
    pub database_pooled: bool,
    /// Number of the network in the database.
    pub database_network: NonZeroU32,
    /// Path of the commands' socket.
    pub socket: PathBuf,
    /// Domain of the nodes' names.
    pub base_domain: String,
    /// IPv4 network of the nodes' addresses.
    pub prefix_v4: Ipv4Net,
    /// IPv6 network of the nodes' addresses.
    pub prefix_v6: Ipv6Net,
    /// How the address of a new node is selected.
    pub allocation: AddressAllocation,
    /// Lifetime of a node key, in days. 0: it never expires.
    pub node_key_days: u64,
    /// Time without a connection after which an ephemeral node is removed, in minutes.
    pub ephemeral_minutes: u64,
    /// The relay.
    pub derp: Derp,
    /// DNS settings of the network.
    pub dns: DnsTable,
    /// Login provider.
    pub oidc: Option<OidcTable>,
    /// Further networks.
    pub networks: BTreeMap<NetworkName, NetworkTable>,
    /// Name of the network that this configuration is for. `None` for the one of the top level.
    #[serde(skip)]
    pub name: Option<NetworkName>,
    /// Lines of the keys in the file.
    #[serde(skip)]
    pub source: Source,
}

/// Seed of random addresses in this process.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let mut bytes = [0; 8];
    // Without randomness, the addresses of nodes are predictable.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
});

/// How the address of a new node is selected, in the values of headscale's `prefixes.allocation`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressAllocation {
    /// The first free address after the last assigned one.
    #[default]
    Sequential,
    /// A random free address.
    Random,
}

/// The relay of the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Derp {
    /// Whether the relay is enabled.
    pub enabled: bool,
    /// ID of its region.
    pub region_id: u16,
    /// Short name of its region.
    pub region_code: String,
    /// The name of its region.
    pub region_name: String,
    /// Addresses to listen at with TLS and a self-signed certificate. Its hash is sent to
    /// clients. For a server without another certificate.
    pub listen: Vec<SocketAddr>,
    /// Addresses to listen at for STUN.
    pub stun_listen: Vec<SocketAddr>,
    /// IPv4 address of the relay, if its name is not sufficient.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address of the relay, if its name is not sufficient.
    pub ipv6: Option<Ipv6Addr>,
    /// File of the key that all relays of the region share.
    pub mesh_key_path: Option<PathBuf>,
    /// The other relays of the region.
    pub mesh_with: Vec<RemoteUrl>,
    /// URL of the server that decides about clients that are not nodes of the network.
    pub verify_url: Option<RemoteUrl>,
    /// Files with further relays.
    pub map_paths: Vec<PathBuf>,
    /// URLs of further relays.
    pub map_urls: Vec<RemoteUrl>,
}

impl Default for Configuration {
    fn default() -> Self {
        let (prefixes, settings) = (Prefixes::default(), Settings::default());
        Self {
            server_url: None,
            listen: Vec::new(),
            listen_plain: Vec::new(),
            listen_if_possible: Vec::new(),
            tls_certificate: None,
            tls_key: None,
            acme: None,
            trusted_proxies: TrustedProxies::default(),
            metrics_listen: Vec::new(),
            log_format: LogFormat::default(),
            log_level: LogLevel::default(),
            state_dir: "/var/lib/linerate-server".into(),
            database: None,
            database_url_path: None,
            database_pooled: false,
            database_network: NonZeroU32::MIN,
            socket: SOCKET.into(),
            base_domain: settings.base_domain,
            prefix_v4: prefixes.v4,
            prefix_v6: prefixes.v6,
            allocation: AddressAllocation::default(),
            node_key_days: 0,
            ephemeral_minutes: settings.ephemeral_after.as_secs() / 60,
            derp: Derp::default(),
            dns: DnsTable::default(),
            oidc: None,
            networks: BTreeMap::new(),
            name: None,
            source: Source::default(),
        }
    }
}

impl Default for Derp {
    fn default() -> Self {
        Self {
            enabled: true,
            // IDs 900 to 999 are reserved for users (tailscale `tailcfg/derpmap.go`).
            region_id: 999,
            region_code: "linerate".into(),
            region_name: "linerate-server".into(),
            listen: Vec::new(),
            stun_listen: vec![SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 3478)],
            ipv4: None,
            ipv6: None,
            mesh_key_path: None,
            mesh_with: Vec::new(),
            verify_url: None,
            map_paths: Vec::new(),
            map_urls: Vec::new(),
        }
    }
}

/// Flags that override the file.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// URL under which clients reach the server, such as https://net.example.com.
    #[arg(long, value_name = "URL")]
    pub server_url: Option<ServerUrl>,
    /// Address to listen at with TLS, such as [::]:443.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<SocketAddr>,
    /// Address to listen at without TLS.
    #[arg(long, value_name = "ADDRESS")]
    pub listen_plain: Vec<SocketAddr>,
    /// Certificate chain, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Folder of the state.
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// Domain of the nodes' names.
    #[arg(long, value_name = "DOMAIN")]
    pub base_domain: Option<String>,
    /// Address to serve metrics for Prometheus at, such as 127.0.0.1:9587.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics_listen: Vec<SocketAddr>,
    /// Format of the log: text, or one JSON object per line.
    #[arg(long, value_name = "text|json", value_enum, hide_possible_values = true)]
    pub log_format: Option<LogFormat>,
    /// Log debug messages.
    #[arg(long)]
    pub debug: bool,
}

impl Configuration {
    /// Reads a configuration file. Without a path, the default file is read if it exists.
    ///
    /// # Errors
    /// The file cannot be read. The error names line and key.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let path = file.unwrap_or(Path::new(FILE));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(_) if file.is_none() && !path.exists() => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let read: Self = toml::from_str(&text).with_context(|| path.display().to_string())?;
        Ok(Self { source: Source::of(path, &text), ..read })
    }

    /// A warning if the file of this configuration contains a secret and every user can read it.
    pub fn exposed_secret(&self, file: Option<&Path>) -> Option<String> {
        let (key, instead) = self.secret_key()?;
        let path = file.unwrap_or(Path::new(FILE));
        // Without a file, the defaults are used.
        let mode = atomic_file::world_access_mode(path).ok()??;
        Some(format!(
            "{}: every user can read this file and its secret, `{key}` (mode {mode:03o}): change the \
             mode, or set `{instead}`",
            path.display()
        ))
    }

    /// A key of the file that has a secret, and the key that can name a file with it instead.
    fn secret_key(&self) -> Option<(String, String)> {
        self.each().iter().find_map(|own| {
            let of_oidc = own.oidc.as_ref().is_some_and(OidcTable::has_secret);
            let of_database = own.database.as_deref().is_some_and(has_password);
            let (key, instead) = match (of_oidc, of_database) {
                (true, _) => ("oidc.client_secret", "oidc.client_secret_path"),
                (_, true) => ("database", "database_url_path"),
                _ => return None,
            };
            let table = own.name.as_ref().map(|name| format!("networks.{name}."));
            let table = table.unwrap_or_default();
            Some((format!("{table}{key}"), format!("{table}{instead}")))
        })
    }

    /// Overrides the file's settings by flags.
    #[must_use]
    pub fn with(mut self, flags: Flags) -> Self {
        let Flags { server_url, listen, listen_plain, state_dir, base_domain, .. } = flags;
        for (key, is_set) in [
            ("server_url", server_url.is_some()),
            ("listen", !listen.is_empty()),
            ("listen_plain", !listen_plain.is_empty()),
            ("base_domain", base_domain.is_some()),
            ("metrics_listen", !flags.metrics_listen.is_empty()),
        ] {
            if is_set {
                self.source.override_by_flag(key);
            }
        }
        if !flags.metrics_listen.is_empty() {
            self.metrics_listen = flags.metrics_listen;
        }
        self.log_format = flags.log_format.unwrap_or(self.log_format);
        if flags.debug {
            self.log_level = LogLevel::debug();
        }
        self.server_url = server_url.or(self.server_url);
        if !listen.is_empty() {
            self.listen = listen;
        }
        if !listen_plain.is_empty() {
            self.listen_plain = listen_plain;
        }
        self.tls_certificate = flags.tls_certificate.or(self.tls_certificate);
        self.tls_key = flags.tls_key.or(self.tls_key);
        self.state_dir = state_dir.unwrap_or(self.state_dir);
        self.base_domain = base_domain.unwrap_or(self.base_domain);
        self
    }

    /// Fills in what is not configured: HTTP without TLS, where Noise authenticates the server
    /// to joined clients, and a relay with a self-signed certificate, at this machine's address.
    #[must_use]
    pub fn complete(mut self) -> Self {
        let is_https = self.server_url.as_ref().is_some_and(ServerUrl::is_https);
        let has_listeners = is_https || !self.listen.is_empty() || !self.listen_plain.is_empty();
        if has_listeners || !self.networks.is_empty() {
            return self;
        }
        let url =
            self.server_url.get_or_insert_with(|| ServerUrl::plain(own_address::find(), PORT));
        self.listen_plain = vec![everywhere(url.port())];
        if self.derp.listen.is_empty() {
            self.derp.listen = vec![everywhere(RELAY_PORT)];
        }
        if url.may_be_replaced_by_tls() && self.derp.enabled && !self.listens_at(TLS_PORT) {
            self.listen_if_possible = vec![everywhere(TLS_PORT)];
        }
        self
    }

    /// Whether the server listens at this port.
    fn listens_at(&self, port: u16) -> bool {
        let relay = self.derp.listen.iter().filter(|_| self.derp.enabled);
        let mut all = self.listen.iter().chain(&self.listen_plain).chain(relay);
        all.any(|address| address.port() == port)
    }

    /// URLs to which Tailscale's clients do not reconnect after an interruption.
    pub fn urls_without_tls(&self) -> Vec<ServerUrl> {
        if self.listens_at(TLS_PORT) || !self.listen_if_possible.is_empty() {
            return Vec::new();
        }
        let urls = self.each().into_iter().filter_map(|own| own.server_url);
        urls.filter(ServerUrl::may_be_replaced_by_tls).collect()
    }

    /// Checks settings that depend on each other.
    ///
    /// # Errors
    /// A setting is missing or contradicts another one.
    pub fn check(&self) -> anyhow::Result<&ServerUrl> {
        if self.listen.is_empty() && self.listen_plain.is_empty() {
            bail!("no address to listen at: set `listen` and a certificate, or `listen_plain`");
        }
        let files = [&self.tls_certificate, &self.tls_key].map(Option::is_some);
        match (&self.acme, files) {
            (Some(_), [false, false]) if self.listen.is_empty() => {
                let why = "requires TLS: set `listen`, such as [\"[::]:443\"]";
                bail!(self.source.fault(&["acme"], why));
            }
            (Some(acme), [false, false]) => {
                if acme.challenge == Challenge::Http && self.listen_plain.is_empty() {
                    let why = "is \"http-01\", which requires HTTP without TLS: set `listen_plain`, such as \
                               [\"[::]:80\"]";
                    bail!(self.source.fault(&["acme.challenge"], why));
                }
            }
            (Some(_), _) => {
                let why = "and `tls_certificate` with `tls_key` are both set: set only one";
                bail!(self.source.fault(&["acme"], why));
            }
            (None, files) if !self.listen.is_empty() && files != [true, true] => {
                let why = "requires TLS: set `tls_certificate` and `tls_key` or [acme], or use \
                           `listen_plain`";
                bail!(self.source.fault(&["listen"], why));
            }
            (None, _) => {}
        }
        let derp = &self.derp;
        if !derp.mesh_with.is_empty() && derp.mesh_key_path.is_none() {
            let why = "requires `derp.mesh_key_path`, the key that its relays share";
            bail!(self.source.fault(&["derp.mesh_with"], why));
        }
        if derp.mesh_key_path.is_some() && !derp.enabled {
            let why = "requires a relay, and `derp.enabled` is false";
            bail!(self.source.fault(&["derp.mesh_key_path"], why));
        }
        self.check_networks()?;
        let url = self.server_url.as_ref();
        let url =
            url.context("set `server_url` to the URL under which clients reach this server")?;
        self.check_contradictions(url)?;
        Ok(url)
    }

    /// Location of the network's database.
    ///
    /// # Errors
    /// The URL cannot be read, or two are set.
    pub fn database(&self) -> anyhow::Result<DatabaseLocation> {
        match (&self.database, &self.database_url_path) {
            (None, None) => Ok(DatabaseLocation::File(self.state_dir.join(files::STORE))),
            (Some(url), None) => DatabaseLocation::of_url(url, self.database_pooled),
            (None, Some(file)) => DatabaseLocation::of_url_file(file, self.database_pooled),
            (Some(_), Some(_)) => {
                bail!("`database` and `database_url_path` are both set: set only one")
            }
        }
        .map(|database| database.numbered(self.database_network))
    }

    /// Settings of the network, with the relay's self-signed certificate, if it has one.
    ///
    /// # Errors
    /// As [`Configuration::check`].
    pub fn settings(&self, certificate: Option<&OwnCertificate>) -> anyhow::Result<Settings> {
        let url = self.check()?;
        Ok(Settings { relays: self.relays(url, certificate), ..self.network_settings() })
    }

    /// Settings of the network that do not depend on the server's URL.
    pub fn network_settings(&self) -> Settings {
        let days = |days: u64| Duration::from_secs(days.saturating_mul(24 * 3600));
        Settings {
            base_domain: self.base_domain.trim_matches('.').to_owned(),
            prefixes: Prefixes { v4: self.prefix_v4, v6: self.prefix_v6 },
            allocation: match self.allocation {
                AddressAllocation::Sequential => Allocation::Sequential,
                AddressAllocation::Random => Allocation::Random(*SEED),
            },
            dns: self.dns.clone().into(),
            ephemeral_after: Duration::from_secs(self.ephemeral_minutes.saturating_mul(60)),
            trusts_usernames: self.oidc.as_ref().is_some_and(|oidc| oidc.trust_usernames),
            key_lifetime: Some(self.node_key_days).filter(|days| *days > 0).map(days),
            ..Settings::default()
        }
    }

    /// The map of relays for nodes.
    fn relays(&self, url: &ServerUrl, certificate: Option<&OwnCertificate>) -> String {
        let derp = &self.derp;
        if !derp.enabled {
            return r#"{"Regions":{}}"#.into();
        }
        let stun = derp.stun_listen.first().map_or(-1, |at| i32::from(at.port()));
        let mut node = json!({
            "Name": format!("{}a", derp.region_id), "RegionID": derp.region_id,
            "HostName": url.host(), "STUNPort": stun, "DERPPort": url.port(),
        });
        if let (Some(certificate), Some(at)) = (certificate, derp.listen.first()) {
            node["CertName"] = json!(format!("sha256-raw:{}", certificate.hash()));
            node["DERPPort"] = json!(at.port());
        }
        // If the host is an address, clients cannot resolve it as a name.
        let host = url.host().parse::<IpAddr>().ok();
        let v4 = derp.ipv4.map(IpAddr::V4).or(host.filter(IpAddr::is_ipv4));
        let v6 = derp.ipv6.map(IpAddr::V6).or(host.filter(IpAddr::is_ipv6));
        for (name, address) in [("IPv4", v4), ("IPv6", v6)] {
            match address {
                Some(address) => node[name] = json!(address),
                None if host.is_some() => node[name] = json!("none"),
                None => {}
            }
        }
        json!({ "Regions": { derp.region_id.to_string(): {
            "RegionID": derp.region_id, "RegionCode": derp.region_code,
            "RegionName": derp.region_name, "Nodes": [node],
        }}})
        .to_string()
    }
}

fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn read(text: &str) -> Result<Configuration, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn an_error_names_line_and_key() {
        let error = read("base_domain = \"a\"\nlisten = [\"nowhere\"]\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("listen"), "{error}");
        let error = read("[derp]\nregion = 1\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("`region`"), "{error}");
        let text = "[derp]\nstun_listen = []\nmesh_with = [\"http://other\"]\n";
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains("line 3") && error.contains("mesh_with"), "{error}");
        assert!(error.contains("needs https"), "{error}");
    }

    #[test]
    fn only_a_world_readable_file_with_a_secret_gives_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let set = |file: &Path, mode| fs::set_permissions(file, fs::Permissions::from_mode(mode));
        set(folder.path(), 0o755).unwrap();
        let file = folder.path().join("server.toml");
        let oidc = "issuer = \"https://id.test\"\nclient_id = \"net\"\n";
        let network = "[networks.lab]\nserver_url = \"http://lab.test\"\n";
        for (text, key) in [
            (String::new(), None),
            (format!("[oidc]\n{oidc}client_secret_path = \"/run/secret\""), None),
            (format!("[oidc]\n{oidc}client_secret = \"x\""), Some("`oidc.client_secret`")),
            ("database = \"postgres://a@db.test/net\"".into(), None),
            ("database = \"postgres://a:b@db.test/net\"".into(), Some("`database`")),
            (
                format!("{network}database = \"postgres://a@db.test/net?password=b\""),
                Some("`networks.lab.database`"),
            ),
        ] {
            fs::write(&file, &text).unwrap();
            set(&file, 0o644).unwrap();
            let configuration = Configuration::read(Some(&file)).unwrap();
            let warning = configuration.exposed_secret(Some(&file));
            let has_key = |key| warning.as_ref().is_some_and(|warning| warning.contains(key));
            assert!(key.map_or(warning.is_none(), has_key), "{text}: {warning:?}");
            set(&file, 0o640).unwrap();
            assert_eq!(configuration.exposed_secret(Some(&file)), None, "{text}");
        }
    }

    #[test]
    fn the_relay_has_the_servers_host_and_port() {
        let text = "server_url = \"https://10.0.0.1:8443\"\nlisten_plain = [\"[::]:80\"]";
        let settings = read(text).unwrap().settings(None).unwrap();
        let relays: serde_json::Value = serde_json::from_str(&settings.relays).unwrap();
        let node = &relays["Regions"]["999"]["Nodes"][0];
        assert_eq!((&node["IPv4"], &node["IPv6"]), (&json!("10.0.0.1"), &json!("none")));
        assert_eq!((&node["DERPPort"], &node["STUNPort"]), (&json!(8443), &json!(3478)));
    }

    #[test]
    fn an_unconfigured_server_gets_a_url_and_a_self_signed_relay() {
        let configuration = read("").unwrap().complete();
        let url = configuration.check().unwrap();
        assert!(!url.is_https() && url.port() == 8080, "{url}");
        assert_eq!(configuration.listen_plain, ["[::]:8080".parse().unwrap()]);
        let folder = tempfile::tempdir().unwrap();
        let certificate = OwnCertificate::of(folder.path(), url.host()).unwrap();
        let settings = configuration.settings(Some(&certificate)).unwrap();
        let relays: serde_json::Value = serde_json::from_str(&settings.relays).unwrap();
        let node = &relays["Regions"]["999"]["Nodes"][0];
        assert_eq!(node["DERPPort"], 8443);
        assert_eq!(node["CertName"], format!("sha256-raw:{}", certificate.hash()));
        // A configured listener is not replaced, and an https URL requires a certificate.
        for (text, expected) in [
            ("server_url = \"https://a\"", "no address to listen at"),
            ("listen_plain = [\"[::]:80\"]", "set `server_url`"),
        ] {
            let error = read(text).unwrap().complete().check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_public_server_without_tls_also_listens_at_port_443() {
        for (url, is_public) in [
            ("http://203.0.113.1:8080", true),
            ("http://net.example", true),
            ("http://[2001:db8::1]", true),
            ("http://100.64.0.1:8080", true),
            ("http://10.0.0.1:8080", false),
            ("http://[fd00::1]:8080", false),
            ("http://127.0.0.1:8080", false),
            ("http://localhost:8080", false),
        ] {
            let text = format!("server_url = \"{url}\"\n");
            let picked = read(&text).unwrap().complete();
            let expected: Vec<SocketAddr> =
                is_public.then(|| everywhere(443)).into_iter().collect();
            assert_eq!(picked.listen_if_possible, expected, "{url}");
            assert_eq!(picked.urls_without_tls(), [], "{url}");
            let warning =
                read(&format!("{text}listen_plain = [\"[::]:8080\"]")).unwrap().complete();
            assert!(warning.listen_if_possible.is_empty());
            assert_eq!(warning.urls_without_tls().len(), usize::from(is_public), "{url}");
            let relay = read(&format!("{text}[derp]\nlisten = [\"[::]:443\"]")).unwrap().complete();
            assert!(relay.listen_if_possible.is_empty() && relay.urls_without_tls().is_empty());
        }
    }

    #[test]
    fn a_missing_setting_is_named() {
        let error = read("").unwrap().check().unwrap_err().to_string();
        assert!(error.contains("no address to listen at"), "{error}");
        let flags = Flags {
            server_url: Some("https://a".parse().unwrap()),
            listen: vec!["[::]:443".parse().unwrap()],
            ..Flags::default()
        };
        let error = read("").unwrap().with(flags).check().unwrap_err().to_string();
        assert!(error.contains("tls_certificate"), "{error}");
        for (derp, expected) in [
            ("mesh_with = [\"https://other\"]", "`derp.mesh_key_path`"),
            ("enabled = false\nmesh_key_path = \"mesh.key\"", "`derp.enabled`"),
        ] {
            let text =
                format!("server_url = \"https://a\"\nlisten_plain = [\"[::]:80\"]\n[derp]\n{derp}");
            let error = read(&text).unwrap().check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
