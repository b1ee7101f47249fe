//! Names of routing tables and UDP services, which a file may contain instead of numbers. The caller
//! reads the machine's files; this crate parses their text.

use std::collections::HashMap;

use super::Table;
use crate::value::{self, ValueError, Wanted};

/// The routing tables and services of a machine.
#[derive(Clone, Debug)]
pub struct Names {
    tables: HashMap<String, u32>,
    /// UDP ports.
    services: HashMap<String, u16>,
}

impl Default for Names {
    /// The built-in names of iproute2.
    fn default() -> Self {
        let tables = [("default", 253), ("main", 254), ("local", 255)];
        let tables = tables.map(|(name, id)| (name.to_owned(), id)).into();
        Self { tables, services: HashMap::new() }
    }
}

impl Names {
    /// Adds the tables of a text in the format of `/etc/iproute2/rt_tables`: a number and a name in each line.
    /// Other lines are skipped.
    pub fn add_tables(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let id = words.next().and_then(value::u32_of_either_base);
            if let (Some(id), Some(name)) = (id, words.next()) {
                self.tables.insert(name.to_owned(), id);
            }
        }
    }

    /// Adds the UDP services of a text in the format of services(5).
    pub fn add_services(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let (Some(name), Some(port)) = (words.next(), words.next()) else { continue };
            let port = port.strip_suffix("/udp").and_then(value::decimal::<u16>);
            let Some(port) = port else { continue };
            for name in std::iter::once(name).chain(words) {
                // The first line has priority, as in getservbyname(3).
                self.services.entry(name.to_owned()).or_insert(port);
            }
        }
    }

    /// Parses a table like `ip route add ... table`. Number 0 is the main table.
    pub(super) fn table(&self, text: &str) -> Result<Table, ValueError> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Table::Off);
        }
        if text.is_empty() || text.eq_ignore_ascii_case("auto") {
            return Ok(Table::Auto);
        }
        let id = self.tables.get(text).copied().or_else(|| value::u32_of_any_base(text));
        match id.ok_or_else(|| ValueError::new(Wanted::Table, text))? {
            0 => Ok(Table::MAIN),
            id => Ok(Table::Id(id)),
        }
    }

    /// Parses a port like getaddrinfo(3): a number or the name of a service.
    pub(super) fn port(&self, text: &str) -> Result<u16, ValueError> {
        let port = self.services.get(text).copied().or_else(|| value::decimal(text));
        port.ok_or_else(|| ValueError::new(Wanted::PortOrService, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_names_and_numbers_of_any_base() {
        let mut names = Names::default();
        names.add_tables(
            "#\n# reserved\n255\tlocal\n0\tunspec\n\n 100 vpn # mine\n0x65 other\nx y\n7\n",
        );
        for (text, table) in [
            ("", Table::Auto),
            ("auto", Table::Auto),
            ("Off", Table::Off),
            ("main", Table::MAIN),
            ("local", Table::Id(255)),
            ("default", Table::Id(253)),
            ("unspec", Table::MAIN),
            ("0", Table::MAIN),
            ("vpn", Table::Id(100)),
            ("other", Table::Id(101)),
            ("0x10", Table::Id(16)),
            ("0144", Table::Id(100)),
            ("4294967295", Table::Id(u32::MAX)),
        ] {
            assert_eq!(names.table(text), Ok(table), "{text}");
        }
        for text in ["MAIN", "VPN", "y", "4294967296", "-1", "all", "08"] {
            assert!(names.table(text).is_err(), "{text}");
        }
        assert!(Names::default().table("vpn").is_err());
    }

    #[test]
    fn udp_services_and_their_aliases_have_ports() {
        let mut names = Names::default();
        names.add_services("# comment\nhttp 80/tcp www\nhttps\t443/tcp\nhttps 443/udp # HTTP/3\ndomain 53/udp dns ns\nns 9/udp\nbroken\n");
        for (text, port) in [("https", 443), ("domain", 53), ("dns", 53), ("ns", 53), ("070", 70)] {
            assert_eq!(names.port(text), Ok(port), "{text}");
        }
        for text in ["http", "www", "HTTPS", "broken", "", "65536", "-1"] {
            assert!(names.port(text).is_err(), "{text}");
        }
    }
}
