//! Trusted proxies, which name the client of a request in `X-Forwarded-For`. The header is ignored
//! from all other clients.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{HeaderMap, HeaderName};
use ipnet::IpNet;
use serde::Deserialize;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Maximum number of proxies in a row.
const MOST: usize = 16;

/// Networks of trusted proxies.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct TrustedProxies(Vec<Proxy>);

/// A network or an address.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
struct Proxy(IpNet);

impl TryFrom<String> for Proxy {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.map(Self).ok_or_else(|| {
            format!("{text:?} is neither an address nor a network, such as 127.0.0.1 or 10.0.0.0/8")
        })
    }
}

impl TrustedProxies {
    /// The client of a request that arrived from this address: the last address in the header
    /// that is not a trusted proxy.
    pub fn client(&self, from: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = from.to_canonical();
        if !self.has(client) {
            return client;
        }
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        // Each proxy appends the address that it received the request from. Earlier entries
        // come from clients, and may be any bytes.
        let entries = values.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        for entry in entries.take(MOST) {
            let Some(address) = address(String::from_utf8_lossy(entry).trim()) else { break };
            client = address;
            if !self.has(client) {
                break;
            }
        }
        client
    }

    fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|Proxy(network)| network.contains(&address))
    }
}

/// Parses an address, with an optional port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use serde_json::json;

    use super::*;

    fn trusted_proxies() -> TrustedProxies {
        serde_json::from_value(json!(["127.0.0.1", "10.0.0.0/8", "fd00::/8"])).unwrap()
    }

    fn client(from: &str, values: &[impl AsRef<[u8]>]) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FORWARDED_FOR, HeaderValue::from_bytes(value.as_ref()).unwrap());
        }
        trusted_proxies().client(from.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_a_trusted_proxy_sets_the_client_address() {
        for (from, values, wanted) in [
            ("127.0.0.1", &["192.0.2.7"][..], "192.0.2.7"),
            ("::ffff:127.0.0.1", &["192.0.2.7"], "192.0.2.7"),
            ("192.0.2.1", &["192.0.2.7"], "192.0.2.1"),
            ("127.0.0.1", &[], "127.0.0.1"),
            // The client's own entry is before the one that the proxy appended.
            ("127.0.0.1", &["198.51.100.1, 192.0.2.7"], "192.0.2.7"),
            ("127.0.0.1", &["198.51.100.1", "192.0.2.7"], "192.0.2.7"),
            // Two proxies in a row.
            ("127.0.0.1", &["192.0.2.7, 10.1.1.1"], "192.0.2.7"),
            ("127.0.0.1", &["10.1.1.1"], "10.1.1.1"),
            ("127.0.0.1", &["192.0.2.7, nonsense"], "127.0.0.1"),
            ("127.0.0.1", &["192.0.2.7, nonsense, 10.1.1.1"], "10.1.1.1"),
            ("fd00::1", &["[2001:db8::7]:1234"], "2001:db8::7"),
            ("127.0.0.1", &["192.0.2.7:1234"], "192.0.2.7"),
            ("127.0.0.1", &["::ffff:192.0.2.7"], "192.0.2.7"),
        ] {
            assert_eq!(client(from, values), wanted, "{from} {values:?}");
        }
    }

    #[test]
    fn invalid_bytes_do_not_hide_the_proxys_entry() {
        for (values, wanted) in [
            (&[&b"\xff, 192.0.2.7"[..]][..], "192.0.2.7"),
            (&[b"\xff", b"192.0.2.7"], "192.0.2.7"),
            (&[b"192.0.2.7, \xff, 10.1.1.1"], "10.1.1.1"),
            (&[b"192.0.2.7\xff"], "127.0.0.1"),
        ] {
            assert_eq!(client("127.0.0.1", values), wanted, "{values:?}");
        }
    }

    #[test]
    fn the_number_of_proxies_in_a_row_is_limited() {
        let row = vec!["10.0.0.1"; 5000].join(",");
        assert_eq!(client("127.0.0.1", &["192.0.2.7", row.as_str()]), "10.0.0.1");
    }
}
