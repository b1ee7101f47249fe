//! DNS settings in the configuration.

use std::{collections::BTreeMap, net::IpAddr};

use coordinator::Dns;
use serde::Deserialize;

/// DNS settings of a network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DnsTable {
    /// Whether nodes resolve the names of nodes.
    pub magic_dns: bool,
    /// Servers for all other names.
    pub nameservers: Vec<String>,
    /// Whether these servers replace the host's own servers.
    pub override_local: bool,
    /// Servers for names with these suffixes.
    pub split: BTreeMap<String, Vec<String>>,
    /// Search domains.
    pub search: Vec<String>,
    /// Additional names with addresses.
    pub extra_records: Vec<ExtraRecord>,
}

/// An additional name with its address.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, try_from = "WrittenRecord")]
pub struct ExtraRecord {
    name: String,
    value: IpAddr,
}

/// A record as it is written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRecord {
    name: String,
    #[serde(rename = "type", default)]
    kind: Option<String>,
    value: IpAddr,
}

impl TryFrom<WrittenRecord> for ExtraRecord {
    type Error = String;

    fn try_from(WrittenRecord { name, kind, value }: WrittenRecord) -> Result<Self, String> {
        let own = if value.is_ipv4() { "A" } else { "AAAA" };
        if let Some(kind) = kind.filter(|kind| kind != own) {
            return Err(format!("{name} of type {kind}: {value} is for a record of type {own}"));
        }
        let name = name.trim_matches('.').to_ascii_lowercase();
        // RFC 1035, section 2.3.4.
        let is_label = |label: &str| !label.is_empty() && label.len() <= 63;
        if name.len() > 253 || !name.split('.').all(is_label) {
            return Err(format!("{name:?} is not a name"));
        }
        Ok(Self { name, value })
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
            extra_records: Vec::new(),
        }
    }
}

impl From<DnsTable> for Dns {
    fn from(table: DnsTable) -> Self {
        let DnsTable { magic_dns, nameservers, override_local, split, search, extra_records } =
            table;
        let record = |ExtraRecord { name, value }| (name, value);
        let extra = extra_records.into_iter().map(record).collect();
        Self { magic: magic_dns, nameservers, overrides: override_local, split, search, extra }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_record_has_an_address_of_its_type() {
        let record =
            |fields: &str| toml::from_str::<DnsTable>(&format!("[[extra_records]]\n{fields}\n"));
        let good = record("name = \"Printer.corp.example.\"\nvalue = \"10.0.0.9\"").unwrap();
        let dns = Dns::from(good);
        assert_eq!(dns.extra, [("printer.corp.example".to_owned(), "10.0.0.9".parse().unwrap())]);
        assert!(record("name = \"a.b\"\ntype = \"AAAA\"\nvalue = \"::1\"").is_ok());
        for wrong in [
            "name = \"a.b\"\ntype = \"AAAA\"\nvalue = \"10.0.0.9\"",
            "name = \"a.b\"\ntype = \"CNAME\"\nvalue = \"10.0.0.9\"",
            "name = \"a.b\"\nvalue = \"c.d\"",
            "name = \"a..b\"\nvalue = \"10.0.0.9\"",
            "name = \"a.b\"\nvalue = \"10.0.0.9\"\nttl = 5",
        ] {
            assert!(record(wrong).is_err(), "{wrong}");
        }
    }
}
