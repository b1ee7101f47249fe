//! Checks for settings that contradict each other although each is valid by itself.

use std::net::{IpAddr, SocketAddr};

use anyhow::bail;
use coordinator::is_label;

use super::{Configuration, ServerUrl};
use crate::{net::address, tls::acme::Domain};

/// Maximum length of the domain, in bytes. A node's label and a dot are prepended (RFC 1035, section
/// 2.3.4).
const LONGEST: usize = 253 - 64;
/// Top-level domains without host names in DNS (RFC 6761, 6762, 7686).
const NOT_IN_DNS: [&str; 4] = ["local", "localhost", "invalid", "onion"];
/// Reverse domains of addresses (RFC 1035, section 3.5, and RFC 3596).
const REVERSE: [&str; 2] = ["in-addr", "ip6"];

impl Configuration {
    /// Checks the settings of one network and of the process.
    ///
    /// # Errors
    /// Two settings contradict each other.
    pub(super) fn check_contradictions(&self, url: &ServerUrl) -> anyhow::Result<()> {
        self.check_base_domain(url)?;
        self.check_listeners(url)?;
        self.check_dns()?;
        self.check_database()?;
        if self.derp.enabled && self.derp.region_id == 0 {
            bail!(self.source.fault(&["derp.region_id"], "is 0: region IDs start at 1"));
        }
        let host = Domain::try_from(url.host().trim_end_matches('.').to_owned());
        if let (Some(acme), Ok(host)) = (&self.acme, host)
            && url.is_https()
            && !acme.domains.is_empty()
            && !acme.domains.contains(&host)
        {
            let why = format!(
                "lacks {}, the host of `server_url`: clients would reject the certificate",
                url.host()
            );
            bail!(self.source.fault(&["acme.domains", "server_url"], why));
        }
        Ok(())
    }

    /// Checks the base domain. Nodes resolve all names below it themselves.
    fn check_base_domain(&self, url: &ServerUrl) -> anyhow::Result<()> {
        let fault = |why: String| Err(self.source.fault(&["base_domain"], why));
        let domain = self.base_domain.strip_suffix('.').unwrap_or(&self.base_domain);
        let domain = domain.to_ascii_lowercase();
        let example = "set a domain of two labels or more, such as tailnet.internal";
        if domain.is_empty() {
            return fault(format!("is empty: {example}"));
        }
        if domain.len() > LONGEST {
            return fault(format!(
                "has {} letters, more than the maximum of {LONGEST}",
                domain.len()
            ));
        }
        let labels: Vec<&str> = domain.split('.').collect();
        if let Some(label) = labels.iter().find(|label| !is_label(label)) {
            return fault(format!(
                "is {domain:?}: the label {label:?} may contain only letters, digits and hyphens"
            ));
        }
        let [.., next, top] = *labels else {
            return fault(format!("is {domain:?}, a top-level domain: {example}"));
        };
        if top == "arpa" && REVERSE.contains(&next) {
            return fault(format!("is {domain:?}, a domain for reverse lookups: {example}"));
        }
        if NOT_IN_DNS.contains(&top) || top.bytes().all(|byte| byte.is_ascii_digit()) {
            return fault(format!(
                "is {domain:?}: DNS does not contain names below {top:?}: {example}"
            ));
        }
        let host = address::host(url.host()).unwrap_or_default();
        let is_below = host.strip_suffix(&domain).is_some_and(|rest| rest.ends_with('.'));
        if host == domain || is_below {
            let why = format!(
                "is {domain:?}, which contains the host of `server_url`, {host}: nodes resolve names of \
                 this domain themselves, and could not find the server"
            );
            bail!(self.source.fault(&["base_domain", "server_url"], why));
        }
        Ok(())
    }

    /// Warnings about settings that do not always work, or not for every client.
    pub fn warnings(&self, url: &ServerUrl) -> Vec<String> {
        let own = self.dns.nameservers.iter().map(|server| ("dns.nameservers", server));
        let split = self.dns.split.values().flatten().map(|server| ("dns.split", server));
        let unasked = own.chain(split).filter(|(_, server)| server.starts_with("https://"));
        let why = "which linerate's nodes do not use: they query the other servers, or those of their machine";
        let unasked = unasked.map(|(key, server)| {
            self.source.fault(&[key], format!("has {server}, {why}")).to_string()
        });
        self.addresses_of_nodes(url).into_iter().chain(unasked).collect()
    }

    /// Warnings about addresses of the server and its relay that a node could get. Such a server
    /// works, for example in a carrier's network of 100.64.0.0/10, until a node has its address.
    fn addresses_of_nodes(&self, url: &ServerUrl) -> Vec<String> {
        let has = |address: &IpAddr| match address {
            IpAddr::V4(address) => self.prefix_v4.contains(address),
            IpAddr::V6(address) => self.prefix_v6.contains(address),
        };
        let host = url.host().parse().ok();
        let relays = [self.derp.ipv4.map(IpAddr::V4), self.derp.ipv6.map(IpAddr::V6)];
        let [v4, v6] = relays.map(|relay| relay.filter(|_| self.derp.enabled));
        let named = [("server_url", host), ("derp.ipv4", v4), ("derp.ipv6", v6)];
        let fault = |(key, address): (&str, Option<IpAddr>)| {
            let address = address.filter(has)?;
            let prefix = if address.is_ipv4() { "prefix_v4" } else { "prefix_v6" };
            let why = format!(
                "has the address {address}, which is in `{prefix}`: a node may get it. Set another prefix, or \
                 `allocation = \"random\"`"
            );
            Some(self.source.fault(&[key, prefix], why).to_string())
        };
        named.into_iter().filter_map(fault).collect()
    }

    fn check_listeners(&self, url: &ServerUrl) -> anyhow::Result<()> {
        if !url.is_https() && self.listen_plain.is_empty() {
            let why = "begins with http://, but the server has only `listen`, which is for TLS";
            bail!(self.source.fault(&["server_url", "listen"], why));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            let why = "requires the other one: set both `tls_certificate` and `tls_key`";
            let keys = ["tls_certificate", "tls_key"];
            let set = if self.tls_key.is_some() { &keys[1..] } else { &keys[..1] };
            bail!(self.source.fault(set, why));
        }
        let relay = if self.derp.enabled { &*self.derp.listen } else { &[] };
        let lists: [(&str, &[SocketAddr]); 4] = [
            ("listen", &self.listen),
            ("listen_plain", &self.listen_plain),
            ("metrics_listen", &self.metrics_listen),
            ("derp.listen", relay),
        ];
        let all = || lists.iter().flat_map(|(key, list)| list.iter().map(move |at| (*key, at)));
        for (number, (key, address)) in all().enumerate() {
            let before = all().take(number).find(|(_, other)| *other == address);
            if let Some((other, _)) = before.filter(|_| address.port() != 0) {
                let why = format!(
                    "has {address}, which `{other}` has as well: only one of them can listen there"
                );
                bail!(self.source.fault(&[key], why));
            }
        }
        Ok(())
    }

    fn check_dns(&self) -> anyhow::Result<()> {
        if self.dns.override_local && self.dns.nameservers.is_empty() {
            let why = "is set, but `dns.nameservers` is empty";
            bail!(self.source.fault(&["dns.override_local"], why));
        }
        let base = self.base_domain.trim_end_matches('.');
        let is_base = |name: &&String| name.trim_matches('.').eq_ignore_ascii_case(base);
        if let Some(name) = self.dns.split.keys().find(is_base).filter(|_| self.dns.magic_dns) {
            let why =
                format!("contains {name}, the `base_domain`: nodes resolve its names themselves");
            bail!(self.source.fault(&["dns.split"], why));
        }
        Ok(())
    }

    fn check_database(&self) -> anyhow::Result<()> {
        if self.database.is_some() && self.database_url_path.is_some() {
            bail!(
                self.source
                    .fault(&["database_url_path"], "and `database` are both set: set only one")
            );
        }
        let has_one = self.database.is_some() || self.database_url_path.is_some();
        if !has_one && self.database_network.get() > 1 {
            let why = "selects a network in a database: set `database` as well";
            bail!(self.source.fault(&["database_network"], why));
        }
        if !has_one && self.database_pooled {
            let why = "is for a PostgreSQL database: set `database` as well";
            bail!(self.source.fault(&["database_pooled"], why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The error about a file with this text, without the file's name.
    fn fault(text: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.toml");
        fs::write(&file, text).unwrap();
        let configuration = Configuration::read(Some(&file)).unwrap();
        let error = configuration.check().unwrap_err().to_string();
        let error = error.strip_prefix(&*file.display().to_string());
        error.unwrap_or("no file is named").to_owned()
    }

    #[test]
    fn an_unusable_base_domain_is_refused_with_its_line() {
        for (host, domain) in [
            ("lab.internal:8080", "lab.internal"),
            ("hs.lab.internal", "lab.internal"),
            ("HS.Lab.Internal.", "lab.internal."),
            ("a.b.lab.internal", "LAB.internal"),
            ("net.example.com", ""),
            ("net.example.com", "com"),
            ("net.example.com", "local"),
            ("net.example.com", "office.local"),
            ("net.example.com", "foo_bar.example"),
            ("net.example.com", "-a.example"),
            ("net.example.com", "a..example"),
            ("net.example.com", ".example.org"),
            ("net.example.com", "10.0.0.1"),
            ("net.example.com", &format!("{}.example", "a.".repeat(95))),
        ] {
            let message = fault(&format!(
                "server_url = \"http://{host}\"\nlisten_plain = [\"[::]:80\"]\n\
                 base_domain = \"{domain}\"\n"
            ));
            assert!(message.starts_with(", line 3: `base_domain` "), "{host} {domain}: {message}");
        }
        for (host, domain) in [
            ("lab.internal", "nodes.lab.internal"),
            ("hslab.internal", "lab.internal"),
            ("203.0.113.1", "lab.internal"),
            ("net.example.com", "Net2.example.com."),
            ("net.example.com", "xn--bcher-kva.example"),
        ] {
            let text = format!(
                "server_url = \"http://{host}\"\nlisten_plain = [\"[::]:80\"]\n\
                 base_domain = \"{domain}\"\n"
            );
            let configuration: Configuration = toml::from_str(&text).unwrap();
            configuration.check().unwrap();
        }
        // `base_domain` has its default, so the error names the line of the other key.
        let url = "listen_plain = [\"[::]:80\"]\nserver_url = \"http://a.tailnet.internal\"\n";
        let message = fault(url);
        assert!(message.starts_with(", line 2: `base_domain` "), "{message}");
    }

    #[test]
    fn settings_that_contradict_each_other_are_refused_with_line_and_key() {
        let top = "server_url = \"https://net.test\"\nlisten_plain = [\"[::]:80\"]\n";
        for (text, line, key) in [
            ("listen = [\"[::]:80\"]\n[acme]\n", 2, "listen_plain"),
            ("metrics_listen = [\"[::]:80\"]", 3, "metrics_listen"),
            ("[derp]\nlisten = [\"[::]:80\"]", 4, "derp.listen"),
            ("tls_key = \"/k.pem\"", 3, "tls_key"),
            ("listen = [\"[::]:443\"]", 3, "listen"),
            ("[acme]", 3, "acme"),
            ("listen = [\"[::]:443\"]\n[acme]\ndomains = [\"other.test\"]", 5, "acme.domains"),
            ("[dns]\noverride_local = true", 4, "dns.override_local"),
            ("base_domain = \"a.test\"\n[dns.split]\n\"a.test\" = [\"10.0.0.1\"]", 4, "dns.split"),
            ("[derp]\nregion_id = 0", 4, "derp.region_id"),
            ("database_network = 2", 3, "database_network"),
            ("database_pooled = true", 3, "database_pooled"),
            ("database = \"postgres://a/b\"\ndatabase_url_path = \"/c\"", 4, "database_url_path"),
            (
                "[networks.b]\nserver_url = \"http://b.lab.test\"\nbase_domain = \"lab.test\"",
                5,
                "networks.b.base_domain",
            ),
            (
                "[networks.b]\nserver_url = \"http://b.test\"\n[networks.b.dns]\n\
                 override_local = true",
                6,
                "networks.b.dns.override_local",
            ),
        ] {
            let message = fault(&format!("{top}{text}\n"));
            let expected = format!(", line {line}: `{key}` ");
            assert!(message.contains(&expected), "{text}: {message}");
        }
        let message = fault("server_url = \"http://a.test\"\nlisten = [\"[::]:443\"]\n[acme]\n");
        assert!(message.starts_with(", line 1: `server_url` "), "{message}");
    }

    #[test]
    fn questionable_settings_give_a_warning_and_no_error() {
        for (text, expected) in [
            (
                "server_url = \"http://100.99.0.1:8080\"\n",
                Some("`server_url` has the address 100.99.0.1"),
            ),
            (
                "server_url = \"http://a.test\"\n[derp]\nipv4 = \"100.64.0.1\"\n",
                Some("`derp.ipv4` has the address 100.64.0.1"),
            ),
            (
                "server_url = \"http://a.test\"\n[dns]\nnameservers = [\"9.9.9.9\", \"https://dns.test\"]\n",
                Some("`dns.nameservers` has https://dns.test, which"),
            ),
            ("server_url = \"http://100.99.0.1:8080\"\nprefix_v4 = \"100.64.0.0/16\"\n", None),
        ] {
            let configuration = toml::from_str::<Configuration>(text).unwrap().complete();
            let url = configuration.check().unwrap();
            let message = configuration.warnings(url);
            let is_as_expected = match (&*message, expected) {
                ([], None) => true,
                ([warning], Some(expected)) => warning.starts_with(expected),
                _ => false,
            };
            assert!(is_as_expected, "{text}: {message:?}");
        }
    }

    #[test]
    fn an_error_about_a_flag_names_no_line_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("server.toml");
        fs::write(&file, "base_domain = \"a.test\"\nlisten_plain = [\"[::]:80\"]\n").unwrap();
        let flags = super::super::Flags {
            server_url: Some("http://b.test".parse().unwrap()),
            base_domain: Some("b.test".into()),
            ..Default::default()
        };
        let configuration = Configuration::read(Some(&file)).unwrap().with(flags);
        let message = configuration.check().unwrap_err().to_string();
        assert!(message.starts_with("`base_domain` is \"b.test\""), "{message}");
        let text = "server_url = \"http://a.test\"\nlisten_plain = [\"[::]:80\"]\n";
        fs::write(&file, text).unwrap();
        let flags = super::super::Flags { base_domain: Some("local".into()), ..Default::default() };
        let configuration = Configuration::read(Some(&file)).unwrap().with(flags);
        let message = configuration.check().unwrap_err().to_string();
        assert!(message.starts_with("`base_domain` is \"local\""), "{message}");
    }
}
