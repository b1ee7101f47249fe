//! Outgoing connections: to one address or to several of both families, through a proxy if one is
//! configured, and optionally with TLS.

use std::{
    collections::VecDeque,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    time::Duration,
};

use mesh::{
    http_proxy::{Proxies, Proxy},
    permitted_addresses::Scope,
};
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_rustls::TlsConnector;

use super::error::{ControlError, printable};
use crate::agent::{nat64_lookup::discover_prefix, roots::Roots};

/// A function that runs on each socket before it connects, for example to set a mark.
pub type SocketHook = Arc<dyn Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync>;

/// A byte stream.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The delay before the next address is tried in parallel (RFC 8305, section 5).
const ADDRESS_DELAY: Duration = Duration::from_millis(250);
/// The most addresses of a host that are tried.
const MAX_ADDRESSES: usize = 16;
/// The longest answer of a proxy, in bytes.
const MAX_PROXY_ANSWER: usize = 8 << 10;

/// The destination of a connection.
#[derive(Clone, Debug)]
pub struct Target {
    /// A name or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether to use TLS.
    pub tls: bool,
    /// An address to use instead of the host's addresses.
    pub address: Option<IpAddr>,
}

impl Target {
    /// The address, if it is known without a look-up.
    fn literal_address(&self) -> Option<IpAddr> {
        self.address.or_else(|| self.host.parse().ok())
    }
}

/// Opens connections.
#[derive(Clone)]
pub struct Dialer {
    hook: Option<SocketHook>,
    proxies: Arc<Proxies>,
    tls: Arc<ClientConfig>,
    roots: Roots,
    scope: Scope,
}

impl Dialer {
    /// A dialer with these proxies, this TLS configuration, and a hook for each socket.
    pub fn new(proxies: Proxies, tls: Arc<ClientConfig>, hook: Option<SocketHook>) -> Self {
        let (roots, scope) = (Roots::default(), Scope::default());
        Self { hook, proxies: Arc::new(proxies), tls, roots, scope }
    }

    /// A dialer with these certificates and the proxies of this process's environment.
    pub fn from_environment(hook: Option<SocketHook>, roots: &Roots) -> Self {
        let proxies = Proxies::new(|name| std::env::var(name).ok());
        Self { roots: roots.clone(), ..Self::new(proxies, tls(roots.store()), hook) }
    }

    /// Restricts addresses to a scope. The user's proxies may have any address.
    pub fn within(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// Adds a hook that runs after the present one.
    pub(in crate::agent) fn with_hook(&self, more: SocketHook) -> Self {
        let hook: SocketHook = match self.hook.clone() {
            Some(hook) => Arc::new(move |socket| hook(socket).and_then(|()| more(socket))),
            None => more,
        };
        Self { hook: Some(hook), ..self.clone() }
    }

    /// The hook of each socket.
    pub(in crate::agent) fn hook(&self) -> Option<SocketHook> {
        self.hook.clone()
    }

    /// The TLS configuration.
    pub(in crate::agent) fn tls(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.tls)
    }

    /// The certificate authorities that TLS trusts.
    pub(in crate::agent) fn roots(&self) -> &Roots {
        &self.roots
    }

    /// The proxy for a host, if it needs one.
    ///
    /// # Errors
    /// The proxy cannot be used.
    pub(in crate::agent) fn proxy(&self, target: &Target) -> Result<Option<&Proxy>, ControlError> {
        Ok(self.proxies.for_host(target.tls, &target.host, target.port)?)
    }

    /// Connects to a target.
    ///
    /// # Errors
    /// The error of the first address that failed.
    pub async fn dial(&self, target: &Target) -> Result<Box<dyn Stream>, ControlError> {
        let proxy = self.proxy(target)?;
        let stream: Box<dyn Stream> = match proxy {
            Some(proxy) => self.connect_through(proxy, target).await?,
            None => {
                let addresses = match target.address {
                    Some(address) => vec![SocketAddr::new(address, target.port)],
                    None => resolve(&target.host, target.port).await?,
                };
                Box::new(self.connect(self.admit(&target.host, addresses)?).await?)
            }
        };
        if target.tls { self.secure(&target.host, stream).await } else { Ok(stream) }
    }

    pub(in crate::agent) async fn connect_through(
        &self,
        proxy: &Proxy,
        target: &Target,
    ) -> Result<Box<dyn Stream>, ControlError> {
        // The proxy resolves names.
        if let Some(address) = target.literal_address() {
            self.admit(&target.host, vec![(address, target.port).into()])?;
        }
        let tcp = self.connect(resolve(&proxy.host, proxy.port).await?).await?;
        let mut stream: Box<dyn Stream> =
            if proxy.tls { self.secure(&proxy.host, Box::new(tcp)).await? } else { Box::new(tcp) };
        let host = target.address.map_or_else(|| target.host.clone(), |at| at.to_string());
        open_tunnel(&mut stream, proxy, &host, target.port).await?;
        Ok(stream)
    }

    async fn secure(
        &self,
        host: &str,
        stream: Box<dyn Stream>,
    ) -> Result<Box<dyn Stream>, ControlError> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| ControlError::NoSuchHost(host.to_owned()))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        match connector.connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(ControlError::of_tls(host, error, self.roots.source())),
        }
    }

    /// The addresses of a host that are within the scope.
    ///
    /// # Errors
    /// All are out of scope.
    pub(in crate::agent) fn admit(
        &self,
        host: &str,
        addresses: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, ControlError> {
        let (admitted, refused): (Vec<_>, Vec<_>) =
            addresses.into_iter().partition(|at| self.scope.admits(at.ip()));
        match refused.first() {
            Some(refused) if admitted.is_empty() => {
                Err(ControlError::OutOfScope(host.to_owned(), refused.ip()))
            }
            _ => Ok(admitted),
        }
    }

    async fn connect(&self, addresses: Vec<SocketAddr>) -> Result<TcpStream, ControlError> {
        let attempts = addresses.into_iter().zip(0u32..).map(|(to, number)| {
            let hook = self.hook.clone();
            (ADDRESS_DELAY * number, connect_to(to, hook))
        });
        race(attempts).await
    }
}

/// A TLS configuration with these certificates. Without any, each certificate has an unknown
/// issuer.
pub fn tls(roots: RootCertStore) -> Arc<ClientConfig> {
    let provider = crypto::tls::provider();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has what TLS 1.2 and 1.3 need")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Arc::new(config)
}

/// The addresses of a host, given as a name or an address.
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, ControlError> {
    match host.parse() {
        Ok(address) => Ok(vec![SocketAddr::new(address, port)]),
        Err(_) => look_up(host, port).await,
    }
}

/// The addresses of a host, alternating between the families, with IPv6 first (RFC 8305, section
/// 4).
pub(in crate::agent) async fn look_up(
    host: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, ControlError> {
    let found = match tokio::net::lookup_host((host, port)).await {
        Ok(found) => found,
        Err(error) => {
            // The standard library does not expose the error codes of getaddrinfo. The messages are
            // the same on every Linux.
            let is_unknown = ["Name or service not known", "No address associated"]
                .iter()
                .any(|words| error.to_string().contains(words));
            return Err(if is_unknown {
                ControlError::NoSuchHost(host.to_owned())
            } else {
                ControlError::Lookup(host.to_owned(), error)
            });
        }
    };
    let (v6, v4) = found.partition(SocketAddr::is_ipv6);
    let addresses = interleave(v6, v4);
    if addresses.is_empty() {
        Err(ControlError::NoSuchHost(host.to_owned()))
    } else {
        Ok(addresses)
    }
}

fn interleave(mut v6: VecDeque<SocketAddr>, mut v4: VecDeque<SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    while addresses.len() < MAX_ADDRESSES && !(v6.is_empty() && v4.is_empty()) {
        addresses.extend(v6.pop_front());
        addresses.extend(v4.pop_front());
    }
    addresses
}

/// Connects, if necessary through NAT64.
pub(in crate::agent) async fn connect_to(
    to: SocketAddr,
    hook: Option<SocketHook>,
) -> Result<TcpStream, ControlError> {
    let first = connect_at(to, hook.clone()).await;
    if to.is_ipv4()
        && let Err(ControlError::Connect(_, error)) = &first
        && error.kind() == io::ErrorKind::NetworkUnreachable
        && let Ok(Some(prefix)) = discover_prefix().await
    {
        return connect_at(prefix.outward(to), hook).await;
    }
    first
}

async fn connect_at(to: SocketAddr, hook: Option<SocketHook>) -> Result<TcpStream, ControlError> {
    let connect = async {
        let socket = if to.is_ipv6() { TcpSocket::new_v6() } else { TcpSocket::new_v4() }?;
        if let Some(hook) = hook {
            hook(socket.as_fd())?;
        }
        let stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    };
    connect.await.map_err(|error: io::Error| ControlError::Connect(to.to_string(), error))
}

/// Requests a tunnel from a proxy (RFC 9110, section 9.3.6).
async fn open_tunnel(
    stream: &mut Box<dyn Stream>,
    proxy: &Proxy,
    host: &str,
    port: u16,
) -> Result<(), ControlError> {
    let to = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = zeroize::Zeroizing::new(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n"));
    if let Some(authorization) = &proxy.authorization {
        request.push_str("Proxy-Authorization: ");
        request.push_str(authorization);
        request.push_str("\r\n");
    }
    request.push_str("\r\n");
    let name = proxy.to_string();
    let lost = |error| ControlError::Connect(name.clone(), error);
    stream.write_all(request.as_bytes()).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut answer = Vec::new();
    // Reads single bytes, because the data after the answer belongs to the tunnel.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == MAX_PROXY_ANSWER {
            return Err(ControlError::ProxyRefused(name, "its answer is too long".into()));
        }
        answer.push(stream.read_u8().await.map_err(lost)?);
    }
    let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let is_http = words.next().is_some_and(|version| version.starts_with(b"HTTP/1."));
    match words.next() {
        Some([b'2', _, _]) if is_http => Ok(()),
        _ => Err(ControlError::ProxyRefused(name, printable(line))),
    }
}

/// Runs attempts in parallel. Each starts at its time, or when all before it have failed. The first
/// success ends the others.
///
/// # Errors
/// The error of the first attempt that failed. A key mismatch takes precedence.
pub(in crate::agent) async fn race<T, F>(
    attempts: impl IntoIterator<Item = (Duration, F)>,
) -> Result<T, ControlError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, ControlError>> + Send + 'static,
{
    let begun = Instant::now();
    let mut attempts = attempts.into_iter().peekable();
    let mut running = JoinSet::new();
    let mut failure = None::<ControlError>;
    loop {
        let due = attempts.peek().map(|(after, _)| begun + *after);
        if running.is_empty() {
            match attempts.next() {
                Some((_, attempt)) => {
                    running.spawn(attempt);
                    continue;
                }
                None => break,
            }
        }
        tokio::select! {
            Some(ended) = running.join_next() => match ended {
                Ok(Ok(stream)) => return Ok(stream),
                failed => {
                    let error = failed.unwrap_or_else(|error| Err(ControlError::connection_ended(error))).err();
                    failure = match failure {
                        Some(first) => Some(first.or(error)),
                        None => error,
                    };
                }
            },
            () = sleep_until(due.unwrap_or(begun)), if due.is_some() => {
                if let Some((_, attempt)) = attempts.next() {
                    running.spawn(attempt);
                }
            }
        }
    }
    Err(failure.unwrap_or_else(|| ControlError::ConnectionEnded("no addresses to try".into())))
}
