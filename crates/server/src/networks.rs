//! The networks of this process. Each is a [`Server`] of its own, and what answers a request has that one
//! alone: no key, number or row of another network can be looked up in it.
//!
//! ```text
//!   connection ── name that TLS was asked for ──┬─ equal? ──► the network with that host in server_url
//!   request ──── host ──────────────────────────┘   no: 421        no such network: 404
//! ```
//!
//! Where there is one network all requests are its own, whatever host they name.

use std::sync::{Arc, OnceLock};

use hyper::{Request, Response, StatusCode, header::HOST};
use rustls_acme::ResolvesServerCertAcme;

use crate::{
    address,
    body::{Answer, text},
    configuration::{Configuration, NetworkName},
    serve::Server,
    trusted::Trusted,
    visitors::Visitors,
};

/// All of them, and what they share.
pub struct Networks {
    all: Vec<Arc<Place>>,
    /// Who is connected.
    pub visitors: Visitors,
    /// Proxies that may say from where a request comes.
    pub trusted: Trusted,
    /// What answers an authority that gives certificates, if one does.
    pub acme: Option<Arc<ResolvesServerCertAcme>>,
}

/// A network, from before it has begun on.
pub struct Place {
    /// Its name; none for that of the top level.
    pub name: Option<NetworkName>,
    host: Option<String>,
    server: OnceLock<Arc<Server>>,
}

/// Why a request is no network's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Astray {
    /// It names no host, or several.
    Nameless,
    /// It names another host than its connection did.
    Misdirected,
    /// No network has the host that it names.
    Unknown,
    /// The network that it is for has not begun.
    NotBegun,
}

impl Astray {
    /// The answer.
    pub fn response(self) -> Response<Answer> {
        let (status, words) = match self {
            Self::Nameless => (StatusCode::BAD_REQUEST, "the request names no host, or several\n"),
            Self::Misdirected => (
                StatusCode::MISDIRECTED_REQUEST,
                "the request names another host than TLS was asked for\n",
            ),
            Self::Unknown => (StatusCode::NOT_FOUND, "no network of this server has this name\n"),
            Self::NotBegun => (StatusCode::SERVICE_UNAVAILABLE, "this network has not begun yet\n"),
        };
        text(status, words)
    }
}

impl Place {
    fn new(configuration: &Configuration) -> Self {
        let url = configuration.server_url.as_ref();
        let host = url.and_then(|url| address::host(url.host()));
        Self { name: configuration.name.clone(), host, server: OnceLock::new() }
    }

    /// The network, once it has begun.
    pub fn server(&self) -> Option<&Arc<Server>> {
        self.server.get()
    }

    /// The network has begun.
    pub fn begun(&self, server: Arc<Server>) {
        // It was empty: a network begins once.
        let _ = self.server.set(server);
    }
}

impl Networks {
    /// Those with these configurations, of which none has begun.
    pub fn new(each: &[Configuration], acme: Option<Arc<ResolvesServerCertAcme>>) -> Self {
        let all: Vec<_> = each.iter().map(|own| Arc::new(Place::new(own))).collect();
        let trusted = each.first().map(|first| first.trusted_proxies.clone());
        Self { all, visitors: Visitors::default(), trusted: trusted.unwrap_or_default(), acme }
    }

    /// All of them, that of the top level first.
    pub fn all(&self) -> &[Arc<Place>] {
        &self.all
    }

    /// The network of a request, by the name that its connection's TLS was asked for, if it was.
    ///
    /// # Errors
    /// It is none's.
    pub fn of<B>(&self, sni: Option<&str>, request: &Request<B>) -> Result<&Arc<Server>, Astray> {
        let place = match &*self.all {
            [only] => only,
            _ => self.place(sni, request)?,
        };
        place.server().ok_or(Astray::NotBegun)
    }

    fn place<B>(&self, sni: Option<&str>, request: &Request<B>) -> Result<&Arc<Place>, Astray> {
        let host = host(request).ok_or(Astray::Nameless)?;
        if sni.is_some_and(|sni| address::host(sni).as_ref() != Some(&host)) {
            return Err(Astray::Misdirected);
        }
        let found = self.all.iter().find(|place| place.host.as_ref() == Some(&host));
        found.ok_or(Astray::Unknown)
    }
}

/// The one host that a request names, by its target, by `Host`, or alike by both.
fn host<B>(request: &Request<B>) -> Option<String> {
    let named = request.headers().get_all(HOST).iter();
    let named = named.map(|host| host.to_str().ok().and_then(address::host));
    let target = request.uri().authority().map(|target| address::host(target.as_str()));
    let mut all = target.into_iter().chain(named);
    let first = all.next()??;
    all.all(|other| other.as_ref() == Some(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks() -> Networks {
        let text = "server_url = \"https://a.test\"\n[networks.b]\nserver_url = \"https://b.test\"\n\
                    [networks.c]\nserver_url = \"http://[fd00::1]:8080\"\n";
        let configuration: Configuration = toml::from_str(text).unwrap();
        Networks::new(&configuration.each(), None)
    }

    /// Which network a request goes to: its number.
    fn found(sni: Option<&str>, target: &str, hosts: &[&[u8]]) -> Result<usize, Astray> {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (networks, request) = (networks(), request.body(()).unwrap());
        let place = networks.place(sni, &request)?;
        Ok(networks.all().iter().position(|own| Arc::ptr_eq(own, place)).unwrap())
    }

    #[test]
    fn a_request_is_given_to_the_network_of_the_host_that_it_and_tls_name() {
        for (sni, target, hosts, wanted) in [
            (None, "/", &[&b"a.test"[..]][..], Ok(0)),
            (Some("a.test"), "/", &[b"A.test.:443"], Ok(0)),
            (Some("b.test"), "/", &[b"b.test"], Ok(1)),
            (None, "http://b.test/key", &[b"b.test"], Ok(1)),
            (None, "http://b.test/key", &[], Ok(1)),
            (None, "/", &[b"[fd00:0::1]:8080"], Ok(2)),
            (Some("a.test"), "/", &[b"b.test"], Err(Astray::Misdirected)),
            (Some("other.test"), "/", &[b"b.test"], Err(Astray::Misdirected)),
            (None, "http://a.test/", &[b"b.test"], Err(Astray::Nameless)),
            (None, "/", &[b"a.test", b"b.test"], Err(Astray::Nameless)),
            (None, "/", &[b"a.test", b"\xff"], Err(Astray::Nameless)),
            (None, "/", &[b"a.test", b"a.test"], Ok(0)),
            (None, "/", &[], Err(Astray::Nameless)),
            (None, "/", &[b""], Err(Astray::Nameless)),
            (None, "/", &[b"a.test:"], Ok(0)),
            (None, "/", &[b"a.test:x"], Err(Astray::Nameless)),
            (None, "/", &[b"a.test:65536"], Err(Astray::Nameless)),
            (None, "/", &[b"c.test"], Err(Astray::Unknown)),
            (None, "/", &[b"10.0.0.1"], Err(Astray::Unknown)),
            (None, "/", &[b"a.test.evil.test"], Err(Astray::Unknown)),
            (None, "/", &[b"xa.test"], Err(Astray::Unknown)),
        ] {
            assert_eq!(found(sni, target, hosts), wanted, "{sni:?} {target} {hosts:?}");
        }
    }

    #[test]
    fn until_a_network_has_begun_its_requests_are_no_other_networks() {
        let request = Request::get("/").header(HOST, "b.test").body(()).unwrap();
        assert_eq!(networks().of(None, &request).err(), Some(Astray::NotBegun));
        let one: Configuration = toml::from_str("server_url = \"https://a.test\"").unwrap();
        let one = Networks::new(&one.each(), None);
        assert_eq!(one.of(Some("x"), &request).err(), Some(Astray::NotBegun), "it is the only one");
    }
}
