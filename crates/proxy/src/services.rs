//! All services of a process: binds and starts them.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context, bail};
use tokio::net::UdpSocket;
use zeroize::Zeroizing;

use super::{
    connections::{Group, Source},
    half_open::Client,
    http_server,
    local::Listener,
    namespace::unspecified,
    serve::{ExposedService, ListenerRole, ProxyContext, expose, forward, serve_each},
    socks_server,
    stack::Stack,
    udp_relay::relay_datagrams,
    users::Users,
};
use config::conf::{self, Expose, Forward, SocketAddress, Transport, WithOrigin};

/// Reads the users' passwords.
///
/// # Errors
/// A file cannot be read, or holds no valid password.
pub fn read_users(users: &[WithOrigin<conf::ProxyUser>]) -> anyhow::Result<Users> {
    let mut known = Users::default();
    for WithOrigin { origin, value } in users {
        let text = fs::read_to_string(&value.password_file).map(Zeroizing::new);
        let what = || format!("{origin}: {}", value.password_file.display());
        let text = text.with_context(what)?;
        match text.lines().next().filter(|line| (1..=255).contains(&line.len())) {
            Some(line) => known.add(value.name.clone(), Zeroizing::new(line.to_owned())),
            None => bail!("{}: the first line must be a password of 1 to 255 bytes", what()),
        }
    }
    Ok(known)
}

/// Services that are bound but not served yet.
pub(super) struct BoundServices<S: Stack> {
    socks: Vec<(String, Listener)>,
    http: Vec<(String, Listener)>,
    forwards: Vec<(String, Listener, Forward)>,
    datagram_forwards: Vec<(String, UdpSocket, Forward)>,
    exposed: Vec<(String, S::Listener, Expose)>,
    exposed_datagrams: Vec<(String, S::Datagrams, Expose)>,
}

/// The limits of services.
pub(super) struct ServiceLimits {
    /// The maximum number of clients of each UDP service.
    pub datagrams: usize,
    /// Maps an address in the tunnel to its source.
    pub source: Arc<dyn Fn(IpAddr) -> Source + Send + Sync>,
}

impl<S: Stack> BoundServices<S> {
    /// The number of UDP services.
    pub(crate) fn datagram_services(&self) -> usize {
        self.datagram_forwards.len() + self.exposed_datagrams.len()
    }

    /// Binds all services of a file.
    ///
    /// # Errors
    /// An address is not available.
    pub(crate) async fn new(stack: &S, conf: &conf::Proxy) -> anyhow::Result<Self> {
        let mut bound = Self {
            socks: Vec::new(),
            http: Vec::new(),
            forwards: Vec::new(),
            datagram_forwards: Vec::new(),
            exposed: Vec::new(),
            exposed_datagrams: Vec::new(),
        };
        for (key, addresses, listeners) in
            [("socks5", &conf.socks, &mut bound.socks), ("http", &conf.http, &mut bound.http)]
        {
            for WithOrigin { origin, value } in addresses {
                let listener = at(origin, value, Listener::bind(value).await)?;
                listeners.push((format!("{key} {value}"), listener));
            }
        }
        for WithOrigin { origin, value } in &conf.forwards {
            let (name, to) = (format!("forward {value}"), value.clone());
            match (value.transport, &value.from) {
                (Transport::Udp, SocketAddress::Ip(from)) => {
                    let socket = at(origin, from, UdpSocket::bind(from).await)?;
                    bound.datagram_forwards.push((name, socket, to));
                }
                (_, from) => {
                    let listener = at(origin, from, Listener::bind(from).await)?;
                    bound.forwards.push((name, listener, to));
                }
            }
        }
        for WithOrigin { origin, value } in &conf.exposed {
            let (name, from) = (format!("exposed {value}"), value.from);
            match value.transport {
                Transport::Tcp => {
                    let listener = at(origin, from, stack.listen(from).await)?;
                    bound.exposed.push((name, listener, value.clone()));
                }
                Transport::Udp => {
                    let socket = at(origin, from, stack.bind(from).await)?;
                    bound.exposed_datagrams.push((name, socket, value.clone()));
                }
            }
        }
        Ok(bound)
    }

    /// Starts all services and returns their names. Must be called within a runtime.
    pub(crate) fn serve(
        self,
        context: &Arc<ProxyContext<S>>,
        rules: &ServiceLimits,
    ) -> Vec<String> {
        let mut names = Vec::new();
        for (name, listener) in self.socks {
            let (all, context) = (context.clone(), context.clone());
            names.push(name.clone());
            let serve = move |stream, client, connection| {
                socks_server::serve(context.clone(), stream, client, connection)
            };
            tokio::spawn(serve_each(
                all,
                listener,
                ListenerRole { name, group: Group::BeforeRequest },
                serve,
            ));
        }
        for (name, listener) in self.http {
            let (all, context) = (context.clone(), context.clone());
            names.push(name.clone());
            let serve = move |stream, client, connection| {
                http_server::serve(context.clone(), stream, client, connection)
            };
            tokio::spawn(serve_each(
                all,
                listener,
                ListenerRole { name, group: Group::BeforeRequest },
                serve,
            ));
        }
        for (name, listener, rule) in self.forwards {
            let (all, context, to) = (context.clone(), context.clone(), Arc::new(rule.to));
            names.push(name.clone());
            let serve = move |stream, client, connection| {
                forward(context.clone(), to.clone(), stream, client, connection)
            };
            tokio::spawn(serve_each(
                all,
                listener,
                ListenerRole { name, group: Group::Clients },
                serve,
            ));
        }
        for (name, socket, rule) in self.datagram_forwards {
            let (context, to) = (context.clone(), Arc::new(rule.to));
            names.push(name.clone());
            let open = move |client: SocketAddr| {
                let (context, to) = (context.clone(), to.clone());
                async move { context.dialer.dial_datagrams(Client::Ip(client.ip()), &to).await }
            };
            tokio::spawn(relay_datagrams(name, rules.datagrams, socket, open));
        }
        for (number, (name, listener, rule)) in self.exposed.into_iter().enumerate() {
            names.push(name.clone());
            let (to, source) = (Arc::new(rule.to), rules.source.clone());
            let exposed = ExposedService { number, what: name, to, source };
            tokio::spawn(expose::<S>(context.clone(), listener, exposed));
        }
        for (name, socket, rule) in self.exposed_datagrams {
            let SocketAddress::Ip(to) = rule.to else { continue };
            names.push(name.clone());
            let open = move |_| to_service(to);
            tokio::spawn(relay_datagrams(name, rules.datagrams, socket, open));
        }
        names
    }
}

/// Opens a socket on this side for one client of an exposed service.
async fn to_service(to: SocketAddr) -> io::Result<(UdpSocket, SocketAddr)> {
    let socket = UdpSocket::bind(unspecified(to.is_ipv4())).await?;
    socket.connect(to).await?;
    Ok((socket, to))
}

fn at<T>(origin: &str, address: impl std::fmt::Display, bound: io::Result<T>) -> anyhow::Result<T> {
    bound.with_context(|| format!("{origin}: {address}"))
}
