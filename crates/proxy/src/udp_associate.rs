//! UDP ASSOCIATE of SOCKS5: a UDP socket for the client on this side, and one of each family in the
//! tunnel, until the client closes its TCP connection.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UdpSocket,
    sync::OnceCell,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{
    connections::Connection,
    half_open::Client,
    local::Stream,
    namespace::unspecified,
    serve::{ProxyContext, refuse},
    socks::{Reply, datagram},
    stack::{Datagrams, Stack},
};
use config::target::{Host, Target};

/// How long an association may be idle (RFC 4787, REQ-5, recommends 5 minutes).
pub(super) const UDP_IDLE: Duration = Duration::from_mins(5);
/// The maximum length of a datagram.
pub(super) const DATAGRAM: usize = 65_535;

/// The maximum number of datagrams that wait for a name to be resolved: 1 MiB in total.
const MAX_LOOKUPS: usize = 16;

/// Serves an association until the connection ends.
pub(super) async fn associate<S: Stack>(
    context: Arc<ProxyContext<S>>,
    mut stream: Stream,
    from: &Target,
    connection: &Connection,
) -> io::Result<()> {
    let Stream::Tcp(tcp) = &stream else {
        // The access rights of a Unix socket do not extend to a UDP socket.
        return refuse(stream, &Reply::CommandNotSupported.encode(unspecified(true))).await;
    };
    let (client, local) = (tcp.peer_addr()?.ip(), tcp.local_addr()?.ip());
    let socket = UdpSocket::bind((local, 0)).await?;
    let bound = SocketAddr::new(local.to_canonical(), socket.local_addr()?.port());
    stream.write_all(&Reply::Succeeded.encode(bound)).await?;
    let association = Association {
        context,
        here: socket,
        client,
        peer: OnceCell::new(),
        v4: OnceCell::new(),
        v6: OnceCell::new(),
    };
    if let Host::Ip(ip) = from.host
        && !ip.is_unspecified()
        && from.port != 0
        && ip == client.to_canonical()
    {
        let _ = association.peer.set(SocketAddr::new(client, from.port));
    }
    let mut byte = [0; 64];
    let until_client_closes =
        async { while stream.read(&mut byte).await.is_ok_and(|len| len > 0) {} };
    tokio::select! {
        served = association.serve(connection) => served,
        () = until_client_closes => Ok(()),
    }
}

/// The result of resolving a target: the target, its address, and the payload that waits for it.
type Lookup = (Target, io::Result<SocketAddr>, Vec<u8>);

struct Association<S: Stack> {
    context: Arc<ProxyContext<S>>,
    here: UdpSocket,
    client: IpAddr,
    /// The client's UDP address. If the request did not contain it, the sender of the first datagram.
    peer: OnceCell<SocketAddr>,
    v4: OnceCell<S::Datagrams>,
    v6: OnceCell<S::Datagrams>,
}

impl<S: Stack> Association<S> {
    async fn serve(&self, connection: &Connection) -> io::Result<()> {
        let mut from_client = vec![0; DATAGRAM];
        let (mut from_v4, mut from_v6) = (Vec::new(), Vec::new());
        let mut deadline = Instant::now() + UDP_IDLE;
        let mut lookups = JoinSet::new();
        loop {
            tokio::select! {
                received = self.here.recv_from(&mut from_client) => {
                    let (len, from) = received?;
                    if self.is_client(from) {
                        self.handle_datagram(&from_client[..len], &mut lookups).await;
                    }
                }
                Some(Ok((target, to, payload))) = lookups.join_next() => {
                    self.send_out(&target, to, &payload).await;
                }
                (len, from) = receive(&self.v4, &mut from_v4) => {
                    self.send_back(from, &from_v4[..len]).await;
                }
                (len, from) = receive(&self.v6, &mut from_v6) => {
                    self.send_back(from, &from_v6[..len]).await;
                }
                () = sleep_until(deadline) => return Err(io::ErrorKind::TimedOut.into()),
            }
            connection.touch();
            deadline = Instant::now() + UDP_IDLE;
        }
    }

    fn is_client(&self, from: SocketAddr) -> bool {
        if from.ip() != self.client {
            return false;
        }
        let _ = self.peer.set(from);
        self.peer.get() == Some(&from)
    }

    /// Handles a datagram of the client. A name is resolved in a separate task.
    async fn handle_datagram(&self, datagram: &[u8], lookups: &mut JoinSet<Lookup>) {
        let Some((target, payload)) = datagram::parse(datagram) else { return };
        if let Host::Ip(_) = target.host {
            let to = self.context.dialer.address(&target).await;
            self.send_out(&target, to, payload).await;
        } else if lookups.len() < MAX_LOOKUPS {
            let (context, payload) = (self.context.clone(), payload.to_vec());
            let client = Client::Ip(self.client);
            lookups.spawn(async move {
                let to = context.dialer.address_in_turn(client, &target).await;
                (target, to, payload)
            });
        } else {
            tracing::debug!(%target, "a SOCKS5 client has too many pending name lookups");
        }
    }

    /// Sends a payload into the tunnel. A failure is only logged, because datagrams may be lost.
    async fn send_out(&self, target: &Target, to: io::Result<SocketAddr>, payload: &[u8]) {
        let sent = async {
            let to = to?;
            let socket = if to.is_ipv4() { &self.v4 } else { &self.v6 };
            let bind = || self.context.dialer.stack.bind(unspecified(to.is_ipv4()));
            socket.get_or_try_init(bind).await?.send_to(payload, to).await
        };
        if let Err(error) = sent.await {
            tracing::debug!(%error, %target, "a datagram of a SOCKS5 client was dropped");
        }
    }

    async fn send_back(&self, from: SocketAddr, payload: &[u8]) {
        let Some(peer) = self.peer.get() else { return };
        if let Err(error) = self.here.send_to(&datagram::encode(from, payload), peer).await {
            tracing::debug!(%error, "a datagram for a SOCKS5 client was dropped");
        }
    }
}

/// Receives on a socket once it exists. `ConnectionRefused` concerns a datagram that was sent.
async fn receive<D: Datagrams>(socket: &OnceCell<D>, buffer: &mut Vec<u8>) -> (usize, SocketAddr) {
    let Some(socket) = socket.get() else { return std::future::pending().await };
    buffer.resize(DATAGRAM, 0);
    loop {
        match socket.recv_from(buffer).await {
            Ok((len, from)) => return (len, from),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(_) => return std::future::pending().await,
        }
    }
}
