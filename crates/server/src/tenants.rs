//! The networks of this process, as tenants. Each [`Tenant`] is separate: a request is answered by
//! one tenant, which cannot access keys, IDs or rows of another.
//!
//! ```text
//!   connection ── SNI ──┬─ equal? ──► the tenant with this host in server_url
//!   request ──── host ──┘   no: 421   no such tenant: 404
//! ```
//!
//! A single tenant answers all requests, whatever host they name.

pub(crate) mod tenant;

use std::sync::{Arc, OnceLock};

use hyper::{Request, Response, StatusCode, header::HOST};
use rustls_acme::ResolvesServerCertAcme;

use self::tenant::Tenant;
use crate::{
    configuration::{Configuration, NetworkName},
    http::body::{Answer, text},
    net::{address, connections::Connections, trusted_proxies::TrustedProxies},
};

/// All tenants, with their shared parts.
pub struct Tenants {
    all: Vec<Arc<TenantSlot>>,
    /// Open connections.
    pub connections: Connections,
    /// Trusted proxies.
    pub trusted_proxies: TrustedProxies,
    /// Resolver for ACME challenges, if ACME is used.
    pub acme: Option<Arc<ResolvesServerCertAcme>>,
}

/// A tenant before and after its start.
pub struct TenantSlot {
    /// Name of its network. `None` for the one of the top level.
    pub name: Option<NetworkName>,
    host: Option<String>,
    tenant: OnceLock<Arc<Tenant>>,
}

/// Why a request cannot be routed to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutingError {
    /// The request names no host, or several.
    NoHost,
    /// The request names another host than TLS did.
    Misdirected,
    /// No tenant has this host.
    UnknownHost,
    /// The tenant has not started.
    NotStarted,
}

impl RoutingError {
    /// The answer to the client.
    pub fn response(self) -> Response<Answer> {
        let (status, words) = match self {
            Self::NoHost => (StatusCode::BAD_REQUEST, "the request names no host, or several\n"),
            Self::Misdirected => (
                StatusCode::MISDIRECTED_REQUEST,
                "the request names another host than the TLS handshake\n",
            ),
            Self::UnknownHost => {
                (StatusCode::NOT_FOUND, "no network of this server has this host\n")
            }
            Self::NotStarted => {
                (StatusCode::SERVICE_UNAVAILABLE, "this network has not started yet\n")
            }
        };
        text(status, words)
    }
}

impl TenantSlot {
    fn new(configuration: &Configuration) -> Self {
        let url = configuration.server_url.as_ref();
        let host = url.and_then(|url| address::host(url.host()));
        Self { name: configuration.name.clone(), host, tenant: OnceLock::new() }
    }

    /// The tenant, if it has started.
    pub fn tenant(&self) -> Option<&Arc<Tenant>> {
        self.tenant.get()
    }

    /// Sets the tenant after its start.
    pub fn set_started(&self, tenant: Arc<Tenant>) {
        // It was empty, because a tenant starts once.
        let _ = self.tenant.set(tenant);
    }
}

impl Tenants {
    /// Creates slots for these configurations.
    pub fn new(each: &[Configuration], acme: Option<Arc<ResolvesServerCertAcme>>) -> Self {
        let all: Vec<_> = each.iter().map(|own| Arc::new(TenantSlot::new(own))).collect();
        let trusted_proxies = each.first().map(|first| first.trusted_proxies.clone());
        Self {
            all,
            connections: Connections::default(),
            trusted_proxies: trusted_proxies.unwrap_or_default(),
            acme,
        }
    }

    /// All slots, the one of the top level first.
    pub fn all(&self) -> &[Arc<TenantSlot>] {
        &self.all
    }

    /// The tenant of a request, by its host and the SNI of its connection.
    ///
    /// # Errors
    /// The request cannot be routed.
    pub fn of<B>(
        &self,
        sni: Option<&str>,
        request: &Request<B>,
    ) -> Result<&Arc<Tenant>, RoutingError> {
        let slot = match &*self.all {
            [only] => only,
            _ => self.slot(sni, request)?,
        };
        slot.tenant().ok_or(RoutingError::NotStarted)
    }

    fn slot<B>(
        &self,
        sni: Option<&str>,
        request: &Request<B>,
    ) -> Result<&Arc<TenantSlot>, RoutingError> {
        let host = host(request).ok_or(RoutingError::NoHost)?;
        if sni.is_some_and(|sni| address::host(sni).as_ref() != Some(&host)) {
            return Err(RoutingError::Misdirected);
        }
        let found = self.all.iter().find(|slot| slot.host.as_ref() == Some(&host));
        found.ok_or(RoutingError::UnknownHost)
    }
}

/// The host that a request names in its target, in `Host`, or equally in both.
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

    fn tenants() -> Tenants {
        let text = "server_url = \"https://a.test\"\n[networks.b]\nserver_url = \"https://b.test\"\n\
                    [networks.c]\nserver_url = \"http://[fd00::1]:8080\"\n";
        let configuration: Configuration = toml::from_str(text).unwrap();
        Tenants::new(&configuration.each(), None)
    }

    /// The index of the slot that a request is routed to.
    fn found(sni: Option<&str>, target: &str, hosts: &[&[u8]]) -> Result<usize, RoutingError> {
        let mut request = Request::get(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let (tenants, request) = (tenants(), request.body(()).unwrap());
        let slot = tenants.slot(sni, &request)?;
        Ok(tenants.all().iter().position(|own| Arc::ptr_eq(own, slot)).unwrap())
    }

    #[test]
    fn a_request_is_routed_by_its_host_which_must_match_sni() {
        for (sni, target, hosts, wanted) in [
            (None, "/", &[&b"a.test"[..]][..], Ok(0)),
            (Some("a.test"), "/", &[b"A.test.:443"], Ok(0)),
            (Some("b.test"), "/", &[b"b.test"], Ok(1)),
            (None, "http://b.test/key", &[b"b.test"], Ok(1)),
            (None, "http://b.test/key", &[], Ok(1)),
            (None, "/", &[b"[fd00:0::1]:8080"], Ok(2)),
            (Some("a.test"), "/", &[b"b.test"], Err(RoutingError::Misdirected)),
            (Some("other.test"), "/", &[b"b.test"], Err(RoutingError::Misdirected)),
            (None, "http://a.test/", &[b"b.test"], Err(RoutingError::NoHost)),
            (None, "/", &[b"a.test", b"b.test"], Err(RoutingError::NoHost)),
            (None, "/", &[b"a.test", b"\xff"], Err(RoutingError::NoHost)),
            (None, "/", &[b"a.test", b"a.test"], Ok(0)),
            (None, "/", &[], Err(RoutingError::NoHost)),
            (None, "/", &[b""], Err(RoutingError::NoHost)),
            (None, "/", &[b"a.test:"], Ok(0)),
            (None, "/", &[b"a.test:x"], Err(RoutingError::NoHost)),
            (None, "/", &[b"a.test:65536"], Err(RoutingError::NoHost)),
            (None, "/", &[b"c.test"], Err(RoutingError::UnknownHost)),
            (None, "/", &[b"10.0.0.1"], Err(RoutingError::UnknownHost)),
            (None, "/", &[b"a.test.evil.test"], Err(RoutingError::UnknownHost)),
            (None, "/", &[b"xa.test"], Err(RoutingError::UnknownHost)),
        ] {
            assert_eq!(found(sni, target, hosts), wanted, "{sni:?} {target} {hosts:?}");
        }
    }

    #[test]
    fn requests_for_a_network_that_has_not_started_are_refused() {
        let request = Request::get("/").header(HOST, "b.test").body(()).unwrap();
        assert_eq!(tenants().of(None, &request).err(), Some(RoutingError::NotStarted));
        let one: Configuration = toml::from_str("server_url = \"https://a.test\"").unwrap();
        let one = Tenants::new(&one.each(), None);
        assert_eq!(
            one.of(Some("x"), &request).err(),
            Some(RoutingError::NotStarted),
            "it is the only one"
        );
    }
}
