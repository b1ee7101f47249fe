//! Forwards queries to all resolvers in parallel, by UDP and then by TCP. The first answer wins
//! (tailscale `net/dns/resolver/forwarder.go`).

use std::{
    fmt, io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    pin::pin,
    time::Duration,
};

use mesh::{
    magic_dns::{Forward, Reply, Resolver},
    permitted_addresses::NOT_ADMITTED,
};
use tokio::{
    io::AsyncReadExt,
    net::{TcpSocket, UdpSocket},
    task::JoinSet,
    time::timeout,
};

use super::{super::control::dial::SocketHook, serve};

/// The time limit of a query.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The delay after which TCP is tried as well.
const TCP_DELAY: Duration = Duration::from_secs(2);
/// The time limit of a query over TCP, as with dig.
const TCP_TIMEOUT: Duration = Duration::from_secs(5);
/// The most resolvers of one query. This limits the sockets of [`super::MAX_FORWARDED`] queries.
pub const MAX_RESOLVERS: usize = 8;
/// More than the advertised `mesh::magic_dns::UDP_LEN`, because some servers ignore it.
const MAX_DATAGRAM: usize = 4096;

/// The reason for a missing answer.
#[derive(Debug)]
pub enum ForwardError {
    /// A socket error.
    Io(io::Error),
    /// No answer in time.
    Timeout,
    /// The reply over TCP is not the answer.
    ReplyError(mesh::magic_dns::ReplyError),
    /// The resolver at this URL needs DNS over HTTPS, which is not supported.
    NoHttps(String),
    /// The address of the resolver is not allowed.
    Refused(SocketAddr),
    /// No resolver is configured.
    NoResolver,
}

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Timeout => f.write_str("no answer in time"),
            Self::ReplyError(error) => error.fmt(f),
            Self::NoHttps(url) => write!(f, "{url}: DNS over HTTPS is not supported"),
            Self::Refused(at) => write!(f, "{at}: {NOT_ADMITTED}"),
            Self::NoResolver => f.write_str("no resolver"),
        }
    }
}

impl std::error::Error for ForwardError {}

impl From<io::Error> for ForwardError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

#[derive(Clone)]
pub(super) struct Forwarder {
    hook: SocketHook,
}

impl Forwarder {
    pub(super) fn new(hook: SocketHook) -> Self {
        Self { hook }
    }

    /// Returns the reply for the client: the first answer, or a refusal if no resolver answers.
    pub(super) async fn forward(&self, forward: &Forward) -> Result<Vec<u8>, ForwardError> {
        let first =
            timeout(TIMEOUT, self.race(forward)).await.map_err(|_| ForwardError::Timeout)??;
        Ok(forward.reply(first))
    }

    async fn race(&self, forward: &Forward) -> Result<Reply, ForwardError> {
        let mut queries = JoinSet::new();
        for resolver in forward.resolvers().iter().take(MAX_RESOLVERS) {
            let (forwarder, forward) = (self.clone(), forward.clone());
            let resolver = resolver.clone();
            queries.spawn(async move { forwarder.query(&forward, &resolver).await });
        }
        let mut last = Err(ForwardError::NoResolver);
        while let Some(joined) = queries.join_next().await {
            match joined.map_err(|error| ForwardError::Io(io::Error::other(error)))? {
                Ok(reply) if !reply.is_refusal() => return Ok(reply),
                Ok(refusal) => last = Ok(refusal),
                Err(error) if last.is_err() => last = Err(error),
                Err(_) => {}
            }
        }
        last
    }

    async fn query(&self, forward: &Forward, resolver: &Resolver) -> Result<Reply, ForwardError> {
        let server = match resolver {
            Resolver::Plain(server) => *server,
            Resolver::Https { url, .. } => return Err(ForwardError::NoHttps(url.clone())),
            Resolver::Refused(at) => return Err(ForwardError::Refused(*at)),
        };
        let mut udp = pin!(self.query_udp(forward, server));
        match timeout(TCP_DELAY, &mut udp).await {
            Ok(Ok(reply)) if forward.should_retry_over_tcp(&reply) => {
                return self.query_tcp(forward, server).await.or(Ok(reply));
            }
            Ok(Ok(reply)) => return Ok(reply),
            Ok(Err(_)) => return self.query_tcp(forward, server).await,
            Err(_) => {}
        }
        let mut tcp = pin!(self.query_tcp(forward, server));
        tokio::select! {
            reply = &mut tcp => match reply {
                Ok(reply) => Ok(reply),
                Err(_) => udp.await,
            },
            Ok(reply) = &mut udp => match forward.should_retry_over_tcp(&reply) {
                true => tcp.await.or(Ok(reply)),
                false => Ok(reply),
            },
        }
    }

    /// Uses a random port and ID, which a forger would have to guess.
    async fn query_udp(
        &self,
        forward: &Forward,
        server: SocketAddr,
    ) -> Result<Reply, ForwardError> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).await?;
        (self.hook)(socket.as_fd())?;
        socket.connect(server).await?;
        let id = random_id()?;
        socket.send(&forward.query(id)).await?;
        let mut buffer = [0; MAX_DATAGRAM];
        loop {
            let len = socket.recv(&mut buffer).await?;
            // Ignores an invalid reply, because it may be forged and the answer may follow.
            if let Some(Ok(reply)) = buffer.get(..len).map(|reply| forward.read(id, reply)) {
                return Ok(reply);
            }
        }
    }

    async fn query_tcp(
        &self,
        forward: &Forward,
        server: SocketAddr,
    ) -> Result<Reply, ForwardError> {
        timeout(TCP_TIMEOUT, self.exchange_tcp(forward, server))
            .await
            .map_err(|_| ForwardError::Timeout)?
    }

    async fn exchange_tcp(
        &self,
        forward: &Forward,
        server: SocketAddr,
    ) -> Result<Reply, ForwardError> {
        let socket = if server.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        (self.hook)(socket.as_fd())?;
        let mut stream = socket.connect(server).await?;
        let id = random_id()?;
        serve::write(&mut stream, &forward.query(id)).await?;
        let len = stream.read_u16().await?;
        let mut reply = vec![0; usize::from(len)];
        stream.read_exact(&mut reply).await?;
        forward.read(id, &reply).map_err(ForwardError::ReplyError)
    }
}

fn random_id() -> io::Result<u16> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(u16::from_be_bytes(id))
}
