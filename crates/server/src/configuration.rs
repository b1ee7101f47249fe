//! What the server is told: one file, and flags that say otherwise.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use coordinator::{Dns, Prefixes, Settings};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;
use serde_json::json;

use crate::{own_address, own_certificate::OwnCertificate};

pub use crate::{address::ServerUrl, oidc::OidcTable};

/// Where the file is, unless a flag says otherwise.
pub const FILE: &str = "/etc/linerate/server.toml";
/// Where commands reach a running server, unless the file says otherwise.
pub const SOCKET: &str = "/run/linerate-server/socket";
/// Where a server listens that nobody configured.
const PORT: u16 = 8080;
/// The same of its relay.
const RELAY_PORT: u16 = 8443;

/// The file's contents. Every key may be left out.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Configuration {
    /// Where clients find the server.
    pub server_url: Option<ServerUrl>,
    /// Where it listens for TLS.
    pub listen: Vec<SocketAddr>,
    /// Where it listens without, behind a proxy that has the certificate.
    pub listen_plain: Vec<SocketAddr>,
    /// The certificate, with those that it is signed by, in PEM.
    pub tls_certificate: Option<PathBuf>,
    /// Its private key, in PEM.
    pub tls_key: Option<PathBuf>,
    /// The folder of what is kept.
    pub state_dir: PathBuf,
    /// Where commands reach the server.
    pub socket: PathBuf,
    /// The domain of nodes' names.
    pub base_domain: String,
    /// The networks of nodes' addresses.
    pub prefix_v4: Ipv4Net,
    /// The same of IPv6.
    pub prefix_v6: Ipv6Net,
    /// How many days a node key lives; 0 for without end.
    pub node_key_days: u64,
    /// After how many minutes without a connection an ephemeral node is forgotten.
    pub ephemeral_minutes: u64,
    /// The relay.
    pub derp: Derp,
    /// How names are resolved.
    pub dns: DnsTable,
    /// Who vouches for users.
    pub oidc: Option<OidcTable>,
}

/// The relay that is part of the server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Derp {
    /// Whether there is one.
    pub enabled: bool,
    /// The number of its region.
    pub region_id: u16,
    /// The short name of its region.
    pub region_code: String,
    /// The name of its region.
    pub region_name: String,
    /// Where it listens for TLS by a certificate of its own, which clients are told by its hash: for
    /// a server that has no other.
    pub listen: Vec<SocketAddr>,
    /// Where it listens for STUN.
    pub stun_listen: Vec<SocketAddr>,
    /// Its address, where its name is not enough.
    pub ipv4: Option<Ipv4Addr>,
    /// The same of IPv6.
    pub ipv6: Option<Ipv6Addr>,
}

/// How names are resolved.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DnsTable {
    /// Whether nodes resolve names of nodes.
    pub magic_dns: bool,
    /// Who is asked for all other names.
    pub nameservers: Vec<String>,
    /// Whether those are asked instead of a host's own.
    pub override_local: bool,
    /// Who is asked for names that end so.
    pub split: BTreeMap<String, Vec<String>>,
    /// What else is tried behind a short name.
    pub search: Vec<String>,
}

impl Default for Configuration {
    fn default() -> Self {
        let (prefixes, settings) = (Prefixes::default(), Settings::default());
        Self {
            server_url: None,
            listen: Vec::new(),
            listen_plain: Vec::new(),
            tls_certificate: None,
            tls_key: None,
            state_dir: "/var/lib/linerate-server".into(),
            socket: SOCKET.into(),
            base_domain: settings.base_domain,
            prefix_v4: prefixes.v4,
            prefix_v6: prefixes.v6,
            node_key_days: 0,
            ephemeral_minutes: settings.ephemeral_after.as_secs() / 60,
            derp: Derp::default(),
            dns: DnsTable::default(),
            oidc: None,
        }
    }
}

impl Default for Derp {
    fn default() -> Self {
        Self {
            enabled: true,
            // 900 to 999 are the users' (tailscale `tailcfg/derpmap.go`).
            region_id: 999,
            region_code: "linerate".into(),
            region_name: "linerate-server".into(),
            listen: Vec::new(),
            stun_listen: vec![SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 3478)],
            ipv4: None,
            ipv6: None,
        }
    }
}

impl Default for DnsTable {
    fn default() -> Self {
        Self {
            magic_dns: true,
            nameservers: Vec::new(),
            override_local: false,
            split: BTreeMap::new(),
            search: Vec::new(),
        }
    }
}

/// Flags that say otherwise than the file.
#[derive(Args, Clone, Debug, Default)]
pub struct Flags {
    /// Where clients find the server, as https://net.example.com.
    #[arg(long, value_name = "URL")]
    pub server_url: Option<ServerUrl>,
    /// Where to listen for TLS, as [::]:443.
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<SocketAddr>,
    /// Where to listen without TLS.
    #[arg(long, value_name = "ADDRESS")]
    pub listen_plain: Vec<SocketAddr>,
    /// The certificate chain, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM.
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// The folder of what is kept.
    #[arg(long, value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,
    /// The domain of nodes' names.
    #[arg(long, value_name = "DOMAIN")]
    pub base_domain: Option<String>,
}

impl Configuration {
    /// Reads a file. Without one that was asked for, the usual one, if it is there.
    ///
    /// # Errors
    /// It cannot be read: line and key.
    pub fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let path = file.unwrap_or(Path::new(FILE));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(_) if file.is_none() && !path.exists() => return Ok(Self::default()),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// With what flags say.
    #[must_use]
    pub fn with(mut self, flags: Flags) -> Self {
        let Flags { server_url, listen, listen_plain, state_dir, base_domain, .. } = flags;
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

    /// What nobody configured is picked: HTTP without TLS, where Noise proves the server to those who
    /// have joined, and a relay with a certificate of its own, at this machine's address.
    #[must_use]
    pub fn complete(mut self) -> Self {
        let is_https = self.server_url.as_ref().is_some_and(ServerUrl::is_https);
        if is_https || !self.listen.is_empty() || !self.listen_plain.is_empty() {
            return self;
        }
        let url =
            self.server_url.get_or_insert_with(|| ServerUrl::plain(own_address::find(), PORT));
        self.listen_plain = vec![everywhere(url.port())];
        if self.derp.listen.is_empty() {
            self.derp.listen = vec![everywhere(RELAY_PORT)];
        }
        self
    }

    /// Checks what only all of it together shows.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(&self) -> anyhow::Result<&ServerUrl> {
        if self.listen.is_empty() && self.listen_plain.is_empty() {
            bail!("nowhere to listen: set `listen`, with a certificate, or `listen_plain`");
        }
        if !self.listen.is_empty() && (self.tls_certificate.is_none() || self.tls_key.is_none()) {
            bail!(
                "`listen` is for TLS: set `tls_certificate` and `tls_key`, or use `listen_plain`"
            );
        }
        self.server_url.as_ref().context("set `server_url`: where clients find this server")
    }

    /// What the network is set up with, with the relay's own certificate, if it has one.
    ///
    /// # Errors
    /// As [`Configuration::check`].
    pub fn settings(&self, certificate: Option<&OwnCertificate>) -> anyhow::Result<Settings> {
        let url = self.check()?;
        Ok(Settings { relays: self.relays(url, certificate), ..self.network_settings() })
    }

    /// The same without what depends on where the server is.
    pub fn network_settings(&self) -> Settings {
        let days = |days: u64| Duration::from_secs(days.saturating_mul(24 * 3600));
        Settings {
            base_domain: self.base_domain.trim_matches('.').to_owned(),
            prefixes: Prefixes { v4: self.prefix_v4, v6: self.prefix_v6 },
            dns: self.dns.clone().into(),
            ephemeral_after: Duration::from_secs(self.ephemeral_minutes.saturating_mul(60)),
            key_lifetime: Some(self.node_key_days).filter(|days| *days > 0).map(days),
            ..Settings::default()
        }
    }

    /// The relays that nodes are told of.
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
        // A host that is an address has no name to be asked for.
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

impl From<DnsTable> for Dns {
    fn from(table: DnsTable) -> Self {
        let DnsTable { magic_dns, nameservers, override_local, split, search } = table;
        Self { magic: magic_dns, nameservers, overrides: override_local, split, search }
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn the_relay_is_where_the_server_is() {
        let text = "server_url = \"https://10.0.0.1:8443\"\nlisten_plain = [\"[::]:80\"]";
        let settings = read(text).unwrap().settings(None).unwrap();
        let relays: serde_json::Value = serde_json::from_str(&settings.relays).unwrap();
        let node = &relays["Regions"]["999"]["Nodes"][0];
        assert_eq!((&node["IPv4"], &node["IPv6"]), (&json!("10.0.0.1"), &json!("none")));
        assert_eq!((&node["DERPPort"], &node["STUNPort"]), (&json!(8443), &json!(3478)));
    }

    #[test]
    fn a_server_that_nobody_configured_has_a_url_and_a_relay_with_its_own_certificate() {
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
        // What is configured is left alone, and so is a URL that needs a certificate.
        let text = "server_url = \"https://a\"";
        assert!(read(text).unwrap().complete().check().is_err());
        let text = "listen_plain = [\"[::]:80\"]";
        assert!(read(text).unwrap().complete().check().is_err());
    }

    #[test]
    fn what_is_missing_is_told() {
        assert!(read("").unwrap().check().is_err());
        let flags = Flags {
            server_url: Some("https://a".parse().unwrap()),
            listen: vec!["[::]:443".parse().unwrap()],
            ..Flags::default()
        };
        let error = read("").unwrap().with(flags).check().unwrap_err().to_string();
        assert!(error.contains("tls_certificate"), "{error}");
    }
}
