//! Proxies before the server, which may say by `X-Forwarded-For` from where a request comes. What any
//! other client says of that is no more than words.

use std::net::{IpAddr, SocketAddr};

use hyper::header::{HeaderMap, HeaderName};
use ipnet::IpNet;
use serde::Deserialize;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The most proxies in a row that are looked behind.
const MOST: usize = 16;

/// The networks of proxies.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Trusted(Vec<Proxy>);

/// A network, or an address.
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

impl Trusted {
    /// From where a request comes that arrived from this address: the last address that a trusted
    /// proxy names and that is none's of them.
    pub fn client(&self, from: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = from.to_canonical();
        if !self.has(client) {
            return client;
        }
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        // Each proxy adds at the end what it hears from; what stands before is of those before it,
        // and may be any bytes.
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

/// An address, as some write it with a port.
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

    fn trusted() -> Trusted {
        serde_json::from_value(json!(["127.0.0.1", "10.0.0.0/8", "fd00::/8"])).unwrap()
    }

    fn client(from: &str, values: &[impl AsRef<[u8]>]) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FORWARDED_FOR, HeaderValue::from_bytes(value.as_ref()).unwrap());
        }
        trusted().client(from.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn a_trusted_proxy_is_believed_and_no_other_client() {
        for (from, values, wanted) in [
            ("127.0.0.1", &["192.0.2.7"][..], "192.0.2.7"),
            ("::ffff:127.0.0.1", &["192.0.2.7"], "192.0.2.7"),
            ("192.0.2.1", &["192.0.2.7"], "192.0.2.1"),
            ("127.0.0.1", &[], "127.0.0.1"),
            // What the client itself wrote stands before what the proxy added.
            ("127.0.0.1", &["198.51.100.1, 192.0.2.7"], "192.0.2.7"),
            ("127.0.0.1", &["198.51.100.1", "192.0.2.7"], "192.0.2.7"),
            // Two proxies, one behind the other.
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
    fn bytes_that_are_no_text_hide_nothing_that_a_proxy_added() {
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
    fn a_row_of_proxies_without_end_is_looked_behind_no_further() {
        let row = vec!["10.0.0.1"; 5000].join(",");
        assert_eq!(client("127.0.0.1", &["192.0.2.7", row.as_str()]), "10.0.0.1");
    }
}
