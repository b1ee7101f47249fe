//! Messages of UPnP (UPnP Device Architecture 1.1; WANIPConnection:1, WANPPPConnection:1): a search
//! over UDP, a description in XML, and requests in SOAP. All are sent only to the gateway, whatever
//! its answers contain.

use std::{fmt, net::Ipv4Addr};

use roxmltree::{Document, Node, ParsingOptions};

/// The port of a searched device.
pub const PORT: u16 = 1900;
/// The multicast address of searches.
pub const MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);
/// The longest answer to a search, in bytes.
pub const LONGEST_ANSWER: usize = 2048;
/// The longest description, and the longest answer to a request, in bytes.
pub const LONGEST_TEXT: usize = 64 << 10;

/// The most elements and attributes in an XML text. A router's description has a few hundred.
const MAX_NODES: u32 = 10_000;
/// The longest path of a URL, in bytes.
const LONGEST_PATH: usize = 512;

/// Returns a search for gateways. Those of version 2 also answer for version 1 (section 1.3.2).
pub fn search() -> String {
    format!(
        "M-SEARCH * HTTP/1.1\r\nHOST: {MULTICAST}:{PORT}\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\n\
         ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n\r\n"
    )
}

/// The location of a resource of the gateway over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpLocation {
    /// The port.
    pub port: u16,
    /// The path with its leading `/`.
    pub path: String,
}

/// An answer to a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchResponse {
    /// The location of the description.
    pub description: HttpLocation,
    /// A number that changes with each start of the gateway; absent in version 1.0.
    pub boot: Option<String>,
}

impl HttpLocation {
    /// Reads a URL; `None` if it is not on this gateway.
    fn read(url: &str, gateway: Ipv4Addr) -> Option<Self> {
        let rest = url.strip_prefix("http://")?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let (host, port) = authority.split_once(':').unwrap_or((authority, "80"));
        let is_its = host.parse() == Ok(gateway);
        Self { port: port.parse().ok()?, path: path.to_owned() }.checked().filter(|_| is_its)
    }

    /// Reads a URL that may be relative to this one.
    fn join(&self, url: &str, gateway: Ipv4Addr) -> Option<Self> {
        if url.contains("://") {
            return Self::read(url, gateway);
        }
        let folder = self.path.rfind('/').map_or("/", |at| &self.path[..=at]);
        let path = if url.starts_with('/') { url.to_owned() } else { format!("{folder}{url}") };
        Self { port: self.port, path }.checked()
    }

    /// Checks that it is valid in a request.
    fn checked(self) -> Option<Self> {
        let is_short = self.path.len() <= LONGEST_PATH && self.port != 0;
        (is_short && self.path.bytes().all(|byte| byte.is_ascii_graphic())).then_some(self)
    }
}

impl SearchResponse {
    /// Reads a datagram of the gateway.
    pub fn read(datagram: &[u8], gateway: Ipv4Addr) -> Option<Self> {
        let text = std::str::from_utf8(datagram.get(..LONGEST_ANSWER).unwrap_or(datagram)).ok()?;
        let mut lines = text.lines();
        lines.next()?.strip_prefix("HTTP/1.1 200")?;
        let (mut description, mut boot) = (None, None);
        for line in lines {
            let Some((name, value)) = line.split_once(':') else { continue };
            let value = value.trim();
            if name.eq_ignore_ascii_case("location") {
                description = HttpLocation::read(value, gateway);
            } else if name.eq_ignore_ascii_case("bootid.upnp.org") {
                boot = Some(value.to_owned());
            }
        }
        Some(Self { description: description?, boot })
    }
}

/// The services that map ports, in the order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ip2,
    Ip1,
    Ppp1,
}

const KINDS: [Kind; 3] = [Kind::Ip2, Kind::Ip1, Kind::Ppp1];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Ip2 => "urn:schemas-upnp-org:service:WANIPConnection:2",
            Self::Ip1 => "urn:schemas-upnp-org:service:WANIPConnection:1",
            Self::Ppp1 => "urn:schemas-upnp-org:service:WANPPPConnection:1",
        }
    }
}

/// A service of a gateway that maps ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    kind: Kind,
    /// The location for requests.
    pub place: HttpLocation,
}

/// A request to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Requests the public address.
    Address,
    /// Maps a UDP port.
    Map {
        /// The public port.
        external: u16,
        /// This machine.
        own: Ipv4Addr,
        /// The local port.
        internal: u16,
        /// The lifetime in seconds; 0 for a permanent mapping.
        lifetime: u32,
    },
    /// Deletes a mapping.
    Delete {
        /// The public port.
        external: u16,
    },
}

impl Request {
    fn name(&self) -> &'static str {
        match self {
            Self::Address => "GetExternalIPAddress",
            Self::Map { .. } => "AddPortMapping",
            Self::Delete { .. } => "DeletePortMapping",
        }
    }
}

impl fmt::Display for Request {
    /// Writes the arguments in the order of the service's description, because some routers depend
    /// on it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = |f: &mut fmt::Formatter<'_>, external: u16| {
            write!(
                f,
                "<NewRemoteHost></NewRemoteHost><NewExternalPort>{external}</NewExternalPort>\
                 <NewProtocol>UDP</NewProtocol>"
            )
        };
        match self {
            Self::Address => Ok(()),
            Self::Delete { external } => port(f, *external),
            Self::Map { external, own, internal, lifetime } => {
                port(f, *external)?;
                write!(
                    f,
                    "<NewInternalPort>{internal}</NewInternalPort>\
                     <NewInternalClient>{own}</NewInternalClient><NewEnabled>1</NewEnabled>\
                     <NewPortMappingDescription>linerate</NewPortMappingDescription>\
                     <NewLeaseDuration>{lifetime}</NewLeaseDuration>"
                )
            }
        }
    }
}

impl Service {
    /// Reads a description from this location of the gateway.
    pub fn read(description: &str, at: &HttpLocation, gateway: Ipv4Addr) -> Option<Self> {
        let document = parse(description)?;
        let text = |of: Node<'_, '_>, name: &str| {
            let child = of.children().find(|child| is(child, name))?;
            Some(child.text()?.trim().to_owned())
        };
        let base = text(document.root_element(), "URLBase");
        let base = base.and_then(|base| HttpLocation::read(&base, gateway));
        let base = base.as_ref().unwrap_or(at);
        let services = || document.descendants().filter(|node| is(node, "service"));
        KINDS.into_iter().find_map(|kind| {
            let is_it = |node: &Node<'_, '_>| {
                text(*node, "serviceType").is_some_and(|named| named == kind.name())
            };
            let place = base.join(&text(services().find(is_it)?, "controlURL")?, gateway)?;
            Some(Self { kind, place })
        })
    }

    /// Returns the header `SOAPAction` and the body.
    pub fn encode(&self, request: &Request) -> (String, String) {
        let (kind, action) = (self.kind.name(), request.name());
        let body = format!(
            "<?xml version=\"1.0\"?>\r\n\
             <s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\" \
             s:encodingStyle=\"http://schemas.xmlsoap.org/soap/encoding/\"><s:Body>\
             <u:{action} xmlns:u=\"{kind}\">{request}</u:{action}></s:Body></s:Envelope>\r\n"
        );
        (format!("\"{kind}#{action}\""), body)
    }
}

/// Returns the address in an answer to [`Request::Address`], if others may reach it.
pub fn read_address(answer: &str) -> Option<Ipv4Addr> {
    let address = named(&parse(answer)?, "NewExternalIPAddress")?.parse().ok()?;
    super::is_usable(address).then_some(address)
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The public port is in use.
    Taken,
    /// The gateway only supports permanent mappings.
    OnlyPermanent,
    /// Another code.
    Other(u16),
}

/// Returns the refusal in an answer, if there is one (WANIPConnection:1, section 2.4.16).
pub fn read_refusal(answer: &str) -> Option<Refusal> {
    match named(&parse(answer)?, "errorCode")?.parse().ok()? {
        718 => Some(Refusal::Taken),
        725 => Some(Refusal::OnlyPermanent),
        code => Some(Refusal::Other(code)),
    }
}

fn parse(text: &str) -> Option<Document<'_>> {
    let options = ParsingOptions { nodes_limit: MAX_NODES, ..ParsingOptions::default() };
    let text = text.trim_start().trim_end_matches('\0');
    if text.len() > LONGEST_TEXT {
        return None;
    }
    Document::parse_with_options(text, options).ok()
}

fn named<'a>(document: &'a Document<'_>, name: &str) -> Option<&'a str> {
    let found = document.descendants().find(|node| is(node, name))?;
    Some(found.text()?.trim())
}

/// Returns whether a node is an element with this name. Namespaces are ignored, because routers use
/// them inconsistently.
fn is(node: &Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().name() == name
}

#[cfg(test)]
mod tests;
