//! Builds [`Names`] from a [`Config`].

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use super::{Config, ExtraRecord, Host, HostRecord, Names, Resolver, Skipped, fqdn::Fqdn, reverse};

/// The records during the build.
#[derive(Default)]
struct Records {
    hosts: HashMap<Fqdn, HostRecord>,
    reverse: HashMap<IpAddr, Fqdn>,
}

impl Names {
    /// Returns the names of a network, and the parts that are not used.
    pub fn new(config: &Config) -> (Self, Vec<Skipped>) {
        let mut skipped = Vec::new();
        let suffix = match Fqdn::parse(&config.suffix) {
            Some(suffix) => Some(suffix).filter(|suffix| *suffix != Fqdn::default()),
            None => {
                skipped.push(Skipped::Name(config.suffix.clone()));
                None
            }
        };
        let mut records = Records::default();
        // Extra records hide nodes of the same name or address.
        for record in &config.extra {
            if let Err(problem) = records.add_extra(record) {
                skipped.push(problem);
            }
        }
        let policy = AddressPolicy::new(config);
        for host in std::iter::once(&config.own).chain(&config.peers) {
            if let Err(problem) = records.add_host(host, policy) {
                skipped.push(problem);
            }
        }
        let mut names = Self {
            hosts: records.hosts.into(),
            reverse: records.reverse.into(),
            suffix: suffix.filter(|_| config.magic),
            ..Self::default()
        };
        if config.accept {
            names.route(config, &mut skipped);
        }
        (names, skipped)
    }

    fn route(&mut self, config: &Config, skipped: &mut Vec<Skipped>) {
        let nobody: Arc<[_]> = Arc::default();
        if let Some(suffix) = &self.suffix {
            let own = reverse::zones().chain([suffix.clone()]);
            self.routes = own.map(|zone| (zone, nobody.clone())).collect();
        }
        for (suffix, resolvers) in &config.routes {
            match Fqdn::parse(suffix) {
                Some(suffix) => {
                    self.routes.insert(suffix, resolvers.as_slice().into());
                }
                None => skipped.push(Skipped::Name(suffix.clone())),
            }
        }
        let lists = [
            Some(&config.defaults),
            Some(&config.fallback).filter(|_| config.exit_node),
            Some(&config.system),
        ];
        let first = lists.into_iter().flatten().find(|list| !list.is_empty());
        self.defaults = first.map_or(nobody, |list| list.as_slice().into());
        let all = self.routes.values().chain([&self.defaults]).flat_map(|list| list.iter());
        let mut https: Vec<_> = all.filter_map(Resolver::https).collect();
        https.sort_unstable();
        https.dedup();
        skipped.extend(https.into_iter().map(|url| Skipped::Https(url.to_owned())));
    }
}

impl Records {
    fn add_extra(&mut self, record: &ExtraRecord) -> Result<(), Skipped> {
        if !matches!(&*record.kind, "" | "A" | "AAAA") {
            return Err(Skipped::RecordType(record.name.clone()));
        }
        let name = named(&record.name)?;
        let address: IpAddr =
            record.value.parse().map_err(|_| Skipped::RecordValue(record.name.clone()))?;
        let known = self.hosts.entry(name.clone()).or_default();
        known.extra = true;
        if !known.addresses.contains(&address) {
            known.addresses = known.addresses.iter().copied().chain([address]).collect();
        }
        self.reverse.entry(address).or_insert(name);
        Ok(())
    }

    fn add_host(&mut self, host: &Host, policy: AddressPolicy) -> Result<(), Skipped> {
        // Nodes without a name or addresses are skipped. That is not an error.
        if host.name.is_empty() || host.addresses.is_empty() {
            return Ok(());
        }
        let name = named(&host.name)?;
        for address in &host.addresses {
            self.reverse.entry(*address).or_insert_with(|| name.clone());
        }
        if let Entry::Vacant(entry) = self.hosts.entry(name) {
            entry.insert(HostRecord {
                addresses: policy.answered(&host.addresses),
                extra: false,
                subdomains: host.subdomains,
            });
        }
        Ok(())
    }
}

impl Resolver {
    fn https(&self) -> Option<&str> {
        match self {
            Self::Plain(_) | Self::Refused(_) => None,
            Self::Https { url, .. } => Some(url),
        }
    }
}

fn named(text: &str) -> Result<Fqdn, Skipped> {
    let name = Fqdn::parse(text).filter(|name| *name != Fqdn::default());
    name.ok_or_else(|| Skipped::Name(text.to_owned()))
}

/// Selects the addresses in an answer. IPv6 addresses are included if the node lacks an IPv4
/// address, if the network enables them, or if this node lacks an IPv4 address.
#[derive(Clone, Copy)]
struct AddressPolicy {
    aaaa: bool,
    only_ipv6: bool,
}

impl AddressPolicy {
    fn new(config: &Config) -> Self {
        let own = &config.own.addresses;
        let only_ipv6 = own.iter().any(IpAddr::is_ipv6) && !own.iter().any(IpAddr::is_ipv4);
        Self { aaaa: config.aaaa, only_ipv6 }
    }

    fn answered(self, addresses: &[IpAddr]) -> Box<[IpAddr]> {
        let ipv4 = addresses.iter().any(IpAddr::is_ipv4);
        let wanted = |address: &&IpAddr| match (self.only_ipv6, address.is_ipv6()) {
            (true, ipv6) => ipv6,
            (false, false) => true,
            (false, true) => !ipv4 || self.aaaa,
        };
        addresses.iter().filter(wanted).copied().collect()
    }
}

impl Names {
    /// Returns the suffixes that this node's resolver answers. A host with split DNS sends them
    /// here.
    pub fn match_domains(&self) -> Vec<String> {
        let text = |zone: &Fqdn| format!("{zone:?}").trim_end_matches('.').to_owned();
        let mut domains: Vec<_> = self.routes.keys().map(text).collect();
        domains.sort();
        domains
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.hosts.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.hosts.len() == 0
    }
}
