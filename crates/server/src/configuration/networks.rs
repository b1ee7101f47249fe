//! Further networks of a server: each is a table `[networks.NAME]`, and has nothing of the network of the
//! top level but what the process has once: where it listens, its certificate, STUN, and its log.

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
use crate::{address, files, store::Database};

/// The name of a network, by which commands and counters know it. It is also a folder's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub struct NetworkName(String);

/// The longest, in letters.
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
                "{text:?} is no name of a network: up to {LONGEST} of a to z, 0 to 9 and -"
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
    /// The name as it is written.
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// The table of a network. What it leaves out has the default that the same key of the top level has.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkTable {
    /// Where its clients find the server. No other network of the server has the host's name.
    pub server_url: ServerUrl,
    /// Its database at PostgreSQL, as a URL.
    #[serde(default)]
    pub database: Option<String>,
    /// A file that has this URL.
    #[serde(default)]
    pub database_url_path: Option<PathBuf>,
    /// Whether each of its transactions may have another connection.
    #[serde(default)]
    pub database_pooled: Option<bool>,
    /// Its number there; without a database of its own, in that of the top level.
    #[serde(default)]
    pub database_network: Option<NonZeroU32>,
    /// The domain of its nodes' names.
    #[serde(default)]
    pub base_domain: Option<String>,
    /// The networks of its nodes' addresses.
    #[serde(default)]
    pub prefix_v4: Option<Ipv4Net>,
    /// The same of IPv6.
    #[serde(default)]
    pub prefix_v6: Option<Ipv6Net>,
    /// Which free address a new node is given.
    #[serde(default)]
    pub allocation: AddressAllocation,
    /// How many days a node key lives; 0 for without end.
    #[serde(default)]
    pub node_key_days: u64,
    /// After how many minutes without a connection an ephemeral node is forgotten.
    #[serde(default)]
    pub ephemeral_minutes: Option<u64>,
    /// Its relay.
    #[serde(default)]
    pub derp: OwnDerp,
    /// How its names are resolved.
    #[serde(default)]
    pub dns: DnsTable,
    /// The provider that vouches for its users.
    #[serde(default)]
    pub oidc: Option<OidcTable>,
}

/// What a network's relay has of its own: what [`Derp`] has by the same names, but for where it listens.
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
    /// The configuration of each network by itself: that of the top level, and those of the tables.
    pub fn each(&self) -> Vec<Self> {
        let first = Self { networks: BTreeMap::new(), ..self.clone() };
        let others = self.networks.iter().map(|(name, table)| self.of_table(name, table));
        [first].into_iter().chain(others).collect()
    }

    /// The configuration of one network: of that of the top level without a name.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn of_network(self, name: Option<&str>) -> anyhow::Result<Self> {
        let Some(name) = name else { return Ok(Self { networks: BTreeMap::new(), ..self }) };
        let found = self.networks.iter().find(|(own, _)| own.text() == name);
        let (name, table) = found.with_context(|| {
            format!("there is no network {name:?}: the configuration has no [networks.{name}]")
        })?;
        Ok(self.of_table(name, table))
    }

    /// Its name in a sentence.
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

    /// The relay of a network: all answer at the addresses that the server listens at.
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

    /// Checks that each network can be told from the others.
    pub(super) fn check_networks(&self) -> anyhow::Result<()> {
        if self.networks.is_empty() {
            return Ok(());
        }
        if !self.derp.listen.is_empty() {
            let why = "is for a server without another certificate, and with one network: relays of \
                       several answer at `listen`";
            bail!(self.source.fault(&["derp.listen"], why));
        }
        let all = self.each();
        for (own, table) in all[1..].iter().zip(self.networks.values()) {
            own.check()?;
            let has_own = table.database.is_some() || table.database_url_path.is_some();
            let has_ours = self.database.is_some() || self.database_url_path.is_some();
            if has_ours && !has_own && table.database_network.is_none() {
                let why = "is missing, and the server's database is PostgreSQL: set it to the number \
                           of this network there, from 2 on, or set a `database` of its own";
                bail!(own.source.fault(&["database_network", "server_url"], why));
            }
            if !has_ours && !has_own && table.database_network.is_some() {
                let why = "is a number in a database, and there is none";
                bail!(own.source.fault(&["database_network"], why));
            }
        }
        let marks: Vec<Marks<'_>> = all.iter().map(Marks::of).collect();
        for (at, one) in marks.iter().enumerate() {
            for other in &marks[..at] {
                one.check_beside(other)?;
            }
        }
        Ok(())
    }

    /// Where it stands in the file.
    fn key(&self) -> String {
        match &self.name {
            Some(name) => format!("[networks.{name}]"),
            None => "the top level".to_owned(),
        }
    }
}

/// What no two networks have in common.
struct Marks<'a> {
    network: &'a Configuration,
    host: Option<String>,
    /// One that cannot be read is told of when it is opened, and stops that network alone.
    database: Option<Database>,
}

impl<'a> Marks<'a> {
    fn of(network: &'a Configuration) -> Self {
        let host = network.server_url.as_ref().and_then(|url| address::host(url.host()));
        Self { network, host, database: network.database().ok() }
    }

    fn check_beside(&self, other: &Self) -> anyhow::Result<()> {
        let (source, others) = (&self.network.source, other.network.key());
        if let Some(host) = &self.host
            && self.host == other.host
        {
            let why = format!(
                "has the host {host}, as that of {others}: a request is given to a network by this name"
            );
            bail!(source.fault(&["server_url"], why));
        }
        if let (Some(own), Some(theirs)) = (&self.database, &other.database)
            && own.is_same_as(theirs)
        {
            let why = format!("is taken: the database is that of {others}. Set another number");
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
    fn a_network_has_its_own_table_and_nothing_of_the_top_levels() {
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
    fn the_manuals_example_is_a_server_with_two_networks() {
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
    fn networks_that_could_be_taken_for_each_other_are_refused() {
        let postgres = "postgres://u@db.test/net";
        let with = |name: &str, url: &str, more: &str| {
            format!("[networks.{name}]\nserver_url = \"{url}\"\n{more}\n")
        };
        for (text, words) in [
            (with("b", "https://A.test.:8443", ""), "a.test"),
            (with("b", "http://c.test", "") + &with("c", "http://C.test:1", ""), "[networks.b]"),
            (with("b", "http://b.test", "database_network = 2"), "there is none"),
            (
                format!("database = \"{postgres}\"\n") + &with("b", "http://b.test", ""),
                "database_network",
            ),
            (
                format!("database = \"{postgres}\"\n")
                    + &with("b", "http://b.test", "database_network = 1"),
                "the database is that of the top level",
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
                "the database is that of [networks.b]",
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
