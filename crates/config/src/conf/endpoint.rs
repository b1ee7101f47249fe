//! The value of `Endpoint`, with the syntax of wg(8).

use super::Names;
use crate::{
    EndpointName,
    value::{self, ValueError, Wanted},
};

/// Parses `HOST:PORT`. The last colon ends the host. Any host may have brackets.
pub(super) fn parse(text: &str, names: &Names) -> Result<EndpointName, ValueError> {
    let malformed = || ValueError::new(Wanted::Endpoint, text);
    let (host, port) = text.rsplit_once(':').ok_or_else(malformed)?;
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or_else(malformed)?,
        None => host,
    };
    if !value::is_ipv6(host) && (host.is_empty() || !value::is_ipv4_or_name(host)) {
        return Err(malformed());
    }
    Ok(EndpointName { host: host.to_owned(), port: names.port(port)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_with_and_without_brackets_parse_as_in_wg() {
        let mut names = Names::default();
        names.add_services("https 443/udp\n");
        for (text, host, port) in [
            ("192.0.2.1:51820", "192.0.2.1", 51820),
            ("[192.0.2.1]:51820", "192.0.2.1", 51820),
            ("[2001:db8::1]:1", "2001:db8::1", 1),
            ("2001:db8:1::2:51820", "2001:db8:1::2", 51820),
            ("::1:51820", "::1", 51820),
            ("2001:db8:::51820", "2001:db8::", 51820),
            ("1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:8", 9),
            ("fe80::1%eth0:51820", "fe80::1%eth0", 51820),
            ("[fe80::1%eth0]:51820", "fe80::1%eth0", 51820),
            ("vpn.example:https", "vpn.example", 443),
            ("[vpn.example]:https", "vpn.example", 443),
            ("2001:db8::1:https", "2001:db8::1", 443),
        ] {
            let expected = EndpointName { host: host.to_owned(), port };
            assert_eq!(parse(text, &names), Ok(expected), "{text}");
        }
        for text in [
            "",
            ":",
            ":51820",
            "[]:51820",
            "192.0.2.1",
            "2001:db8::1",
            "[2001:db8::1]",
            "[2001:db8::1:51820",
            "2001:db8::1]:51820",
            "[2001:db8::1]51820",
            "fe80::1%:51820",
            "vpn.example:",
            "vpn.example:nosuch",
            "vpn.example:65536",
            "192.0.2.400:1",
            "a:b:1",
            "http://vpn.example:80",
        ] {
            assert!(parse(text, &names).is_err(), "{text}");
        }
    }
}
