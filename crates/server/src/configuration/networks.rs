//! Further networks of a server, each in a table `[networks.NAME]`. They share only the settings of
//! the process with the network of the top level: listeners, certificate, STUN and log.

use std::{
    collections::BTreeMap,
    fmt,
    net::{Ipv4Addr, Ipv6Addr},
    num::NonZeroU32,
    path::PathBuf,
};

use anyhow::{Context, bail};
use ipnet::{Ipv4Net, Ipv6Net};
use serde::Deserialize;

use super::{AddressAllocation, Configuration, Derp, DnsTable, OidcTable, RemoteUrl, ServerUrl};
use crate::{net::address, process::files, store::DatabaseLocation};

/// Name of a network, which commands and metrics use. It is also the name of its folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct NetworkName(String);

/// Maximum length, in letters.
const LONGEST: usize = 32;

impl TryFrom<String> for NetworkName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_letter =
            |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
        let is_name = (1..=LONGEST).contains(&text.len()) && text.bytes().all(is_letter);
        match is_name {
            true => Ok(Self(text)),
            false => Err(format!(
                "{text:?} is not a name of a network: use up to {LONGEST} of a to z, 0 to 9 and -"
            )),
        }
    }
}

impl fmt::Display for NetworkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl NetworkName {
    /// The name as a string.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// Table of a network. Keys that are absent have the same defaults as on the top level.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkTable {
    /// URL under which clients reach the network. Each network has its own host.
    pub server_url: ServerUrl,
    /// URL of a separate PostgreSQL database.
    #[serde(default)]
    pub database: Option<String>,
    /// File that contains this URL.
    #[serde(default)]
    pub database_url_path: Option<PathBuf>,
    /// Whether each transaction may get another connection.
    #[serde(default)]
    pub database_pooled: Option<bool>,
    /// Number of the network in its database or, without one, in the database of the top level.
    #[serde(default)]
    pub database_network: Option<NonZeroU32>,
    /// Domain of the nodes' names.
    #[serde(default)]
    pub base_domain: Option<String>,
    /// IPv4 network of the nodes' addresses.
    #[serde(default)]
    pub prefix_v4: Option<Ipv4Net>,
    /// IPv6 network of the nodes' addresses.
    #[serde(default)]
    pub prefix_v6: Option<Ipv6Net>,
    /// How the address of a new node is selected.
    #[serde(default)]
    pub allocation: AddressAllocation,
    /// Lifetime of a node key, in days. 0: it never expires.
    #[serde(default)]
    pub node_key_days: u64,
    /// Time without a connection after which an ephemeral node is removed, in minutes.
    #[serde(default)]
    pub ephemeral_minutes: Option<u64>,
    /// Relay of the network.
    #[serde(default)]
    pub derp: OwnDerp,
    /// DNS settings of the network.
    #[serde(default)]
    pub dns: DnsTable,
    /// Login provider of the network.
    #[serde(default)]
    pub oidc: Option<OidcTable>,
}

/// Relay settings of a network: the fields of [`Derp`] except the listeners.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnDerp {
    pub enabled: bool,
    pub region_id: u16,
    pub region_code: String,
    pub region_name: String,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    pub mesh_key_path: Option<PathBuf>,
    pub mesh_with: Vec<RemoteUrl>,
    pub verify_url: Option<RemoteUrl>,
    pub map_paths: Vec<PathBuf>,
    pub map_urls: Vec<RemoteUrl>,
}

impl Default for OwnDerp {
    fn default() -> Self {
        let Derp { enabled, region_id, region_code, region_name, .. } = Derp::default();
        Self {
            enabled,
            region_id,
            region_code,
            region_name,
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

impl Configuration {
    /// The configuration of each network: the one of the top level first, then those of the
    /// tables.
    pub fn each(&self) -> Vec<Self> {
        let first = Self { networks: BTreeMap::new(), ..self.clone() };
        let others = self.networks.iter().map(|(name, table)| self.of_table(name, table));
        [first].into_iter().chain(others).collect()
    }

    /// The configuration of one network. Without a name, the one of the top level.
    ///
    /// # Errors
    /// There is no network with this name.
    pub fn of_network(self, name: Option<&str>) -> anyhow::Result<Self> {
        let Some(name) = name else { return Ok(Self { networks: BTreeMap::new(), ..self }) };
        let found = self.networks.iter().find(|(own, _)| own.text() == name);
        let (name, table) = found.with_context(|| {
            format!("unknown network {name:?}: the configuration lacks [networks.{name}]")
        })?;
        Ok(self.of_table(name, table))
    }

    /// Name of the network for messages.
    pub fn named(&self) -> String {
        match &self.name {
            Some(name) => format!("the network {name}"),
            None => "the network of the top level".to_owned(),
        }
    }

    fn of_table(&self, name: &NetworkName, table: &NetworkTable) -> Self {
        let default = Self::default();
        let NetworkTable { server_url, derp, dns, oidc, .. } = table.clone();
        let mut socket = self.socket.clone().into_os_string();
        socket.push(format!(".{name}"));
        let is_in_ours = table.database.is_none() && table.database_url_path.is_none();
        let is_in_ours = is_in_ours && table.database_network.is_some();
        let (database, database_url_path, pooled) = match is_in_ours {
            true => (&self.database, &self.database_url_path, self.database_pooled),
            false => (&table.database, &table.database_url_path, false),
        };
        Self {
            server_url: Some(server_url),
            state_dir: self.state_dir.join(files::NETWORKS).join(name.text()),
            database: database.clone(),
            database_url_path: database_url_path.clone(),
            database_pooled: table.database_pooled.unwrap_or(pooled),
            database_network: table.database_network.unwrap_or(NonZeroU32::MIN),
            socket: socket.into(),
            base_domain: table.base_domain.clone().unwrap_or(default.base_domain),
            prefix_v4: table.prefix_v4.unwrap_or(default.prefix_v4),
            prefix_v6: table.prefix_v6.unwrap_or(default.prefix_v6),
            allocation: table.allocation,
            node_key_days: table.node_key_days,
            ephemeral_minutes: table.ephemeral_minutes.unwrap_or(default.ephemeral_minutes),
            derp: self.derp_of(derp),
            dns,
            oidc,
            networks: BTreeMap::new(),
            name: Some(name.clone()),
            source: self.source.of_table(name),
            ..self.clone()
        }
    }

    /// The relay of a network. All relays are reached at the listeners of the server.
    fn derp_of(&self, own: OwnDerp) -> Derp {
        Derp {
            enabled: own.enabled,
            region_id: own.region_id,
            region_code: own.region_code,
            region_name: own.region_name,
            listen: Vec::new(),
            stun_listen: self.derp.stun_listen.clone(),
            ipv4: own.ipv4,
            ipv6: own.ipv6,
            mesh_key_path: own.mesh_key_path,
            mesh_with: own.mesh_with,
            verify_url: own.verify_url,
            map_paths: own.map_paths,
            map_urls: own.map_urls,
        }
    }

    /// Checks that the networks can be distinguished.
    pub(super) fn check_networks(&self) -> anyhow::Result<()> {
        if self.networks.is_empty() {
            return Ok(());
        }
        if !self.derp.listen.is_empty() {
            let why = "is for a server with one network and no other certificate: the relays of several networks \
                       use `listen`";
            bail!(self.source.fault(&["derp.listen"], why));
        }
        let all = self.each();
        for (own, table) in all[1..].iter().zip(self.networks.values()) {
            own.check()?;
            let has_own = table.database.is_some() || table.database_url_path.is_some();
            let has_ours = self.database.is_some() || self.database_url_path.is_some();
            if has_ours && !has_own && table.database_network.is_none() {
                let why = "is missing, and the server's database is PostgreSQL: set it to the number of this \
                           network in the database, 2 or higher, or set `database` for this network";
                bail!(own.source.fault(&["database_network", "server_url"], why));
            }
            if !has_ours && !has_own && table.database_network.is_some() {
                let why = "selects a network in a database, but no database is set";
                bail!(own.source.fault(&["database_network"], why));
            }
        }
        let all_settings: Vec<UniqueSettings<'_>> = all.iter().map(UniqueSettings::of).collect();
        for (at, one) in all_settings.iter().enumerate() {
            for other in &all_settings[..at] {
                one.check_distinct(other)?;
            }
        }
        Ok(())
    }

    /// Section of the network in the file.
    fn key(&self) -> String {
        match &self.name {
            Some(name) => format!("[networks.{name}]"),
            None => "the top level".to_owned(),
        }
    }
}

/// Settings that must differ between networks.
struct UniqueSettings<'a> {
    network: &'a Configuration,
    host: Option<String>,
    /// `None` if it cannot be read. The network reports this when it starts.
    database: Option<DatabaseLocation>,
}

impl<'a> UniqueSettings<'a> {
    fn of(network: &'a Configuration) -> Self {
        let host = network.server_url.as_ref().and_then(|url| address::host(url.host()));
        Self { network, host, database: network.database().ok() }
    }

    fn check_distinct(&self, other: &Self) -> anyhow::Result<()> {
        let (source, others) = (&self.network.source, other.network.key());
        if let Some(host) = &self.host
            && self.host == other.host
        {
            let why = format!(
                "has the host {host}, which {others} has as well: requests are routed by their host"
            );
            bail!(source.fault(&["server_url"], why));
        }
        if let (Some(own), Some(theirs)) = (&self.database, &other.database)
            && own.is_same_as(theirs)
        {
            let why = format!("is in use by {others}, in the same database. Set another number");
            bail!(source.fault(&["database_network", "database", "database_url_path"], why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: &str = "server_url = \"http://a.test\"\nlisten_plain = [\"[::]:80\"]\n";

    fn read(text: &str) -> Result<Configuration, toml::de::Error> {
        toml::from_str(&format!("{TOP}{text}"))
    }

    #[test]
    fn a_networks_table_inherits_nothing_from_the_top_level() {
        let text = "base_domain = \"a.internal\"\nprefix_v4 = \"100.99.0.0/16\"\nallocation = \"random\"\n\
                    state_dir = \"/s\"\nsocket = \"/r/socket\"\n\
                    [dns]\nnameservers = [\"10.0.0.1\"]\n[oidc]\nissuer = \"https://id.test\"\n\
                    client_id = \"a\"\n[derp]\nregion_code = \"a\"\nstun_listen = [\"[::]:9\"]\n\
                    [networks.b]\nserver_url = \"http://b.test\"\nnode_key_days = 7\n\
                    [networks.b.derp]\nregion_id = 950\n";
        let configuration = read(text).unwrap();
        configuration.check().unwrap();
        let own = configuration.clone().of_network(Some("b")).unwrap();
        assert_eq!(own.base_domain, Configuration::default().base_domain);
        assert_eq!(own.prefix_v4, Configuration::default().prefix_v4);
        assert_eq!(configuration.allocation, AddressAllocation::Random);
        assert_eq!(own.allocation, AddressAllocation::Sequential);
        assert!(own.oidc.is_none() && own.dns.nameservers.is_empty());
        assert_eq!(
            (own.node_key_days, own.derp.region_id, &*own.derp.region_code),
            (7, 950, "linerate")
        );
        assert_eq!(own.derp.stun_listen, configuration.derp.stun_listen);
        assert_eq!(own.state_dir, PathBuf::from("/s/networks/b"));
        assert_eq!(own.socket, PathBuf::from("/r/socket.b"));
        assert_eq!(configuration.each().len(), 2);
        assert!(configuration.of_network(Some("c")).is_err());
    }

    #[test]
    fn the_manuals_example_configures_two_networks() {
        let manual = include_str!("../../../../docs/server.md");
        let example = manual.split("```toml networks\n").nth(1).unwrap();
        let text = example.split("```").next().unwrap();
        let configuration: Configuration = toml::from_str(text).unwrap();
        configuration.check().unwrap();
        let own = configuration.of_network(Some("lab")).unwrap();
        assert_eq!(own.server_url.unwrap().host(), "lab.example.com");
        assert_eq!(own.dns.nameservers, ["10.0.0.1"]);
    }

    #[test]
    fn an_error_of_a_table_names_line_and_key() {
        for (text, line, words) in [
            ("[networks.b]\nbase_domain = \"b\"\n", "line 3", "server_url"),
            ("[networks.b]\nserver_url = \"http://b\"\nlisten = []\n", "line 5", "listen"),
            ("[networks.b]\nserver_url = \"b\"\n", "line 4", "server_url"),
            ("[networks.B]\nserver_url = \"http://b\"\n", "line 3", "name of a network"),
            (
                "[networks.b]\nserver_url = \"http://b\"\n[networks.b.derp]\nstun_listen = []\n",
                "line 6",
                "stun_listen",
            ),
            (
                "[networks.b]\nserver_url = \"http://b\"\n[networks.b]\nserver_url = \"http://c\"\n",
                "line 5",
                "duplicate",
            ),
            (
                "[networks.b]\nserver_url = \"http://b\"\ndatabase_network = 0\n",
                "line 5",
                "database_network",
            ),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn two_networks_with_the_same_host_or_database_are_refused() {
        let postgres = "postgres://u@db.test/net";
        let with = |name: &str, url: &str, more: &str| {
            format!("[networks.{name}]\nserver_url = \"{url}\"\n{more}\n")
        };
        for (text, words) in [
            (with("b", "https://A.test.:8443", ""), "a.test"),
            (with("b", "http://c.test", "") + &with("c", "http://C.test:1", ""), "[networks.b]"),
            (with("b", "http://b.test", "database_network = 2"), "set `database` as well"),
            (
                format!("database = \"{postgres}\"\n") + &with("b", "http://b.test", ""),
                "database_network",
            ),
            (
                format!("database = \"{postgres}\"\n")
                    + &with("b", "http://b.test", "database_network = 1"),
                "is in use by the top level",
            ),
            (
                format!("database = \"{postgres}\"\n")
                    + &with("b", "http://b.test", "database_network = 2")
                    + &with(
                        "c",
                        "http://c.test",
                        "database = \"postgresql://other@DB.test:5432/net?sslmode=require\"\n\
                         database_network = 2",
                    ),
                "is in use by [networks.b]",
            ),
            (
                format!("[derp]\nlisten = [\"[::]:1\"]\n{}", with("b", "http://b", "")),
                "derp.listen",
            ),
            (
                with("b", "http://b.test", "derp = { mesh_with = [\"https://o\"] }"),
                "`networks.b.derp.mesh_with`",
            ),
        ] {
            let error = read(&text).unwrap().check().map(drop).unwrap_err();
            assert!(format!("{error:#}").contains(words), "{text}: {error:#}");
        }
        let apart = format!("database = \"{postgres}\"\n")
            + &with("b", "http://b.test", "database_network = 2")
            + &with("c", "http://c.test", "database_network = 3");
        read(&apart).unwrap().check().unwrap();
    }
}
