//! What a TCP/IP stack is to the proxies: sockets on the tunnel's side.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::UdpSocket,
};

use config::uapi::StackDrops;

use super::{
    local::Stream,
    relay::{OnMove, relay},
};

/// A stack whose packets go through the tunnel.
pub trait Stack: Send + Sync + 'static {
    /// A TCP connection.
    type Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static;
    /// A TCP listener.
    type Listener: Accept<Stream = Self::Stream>;
    /// A UDP socket.
    type Datagrams: Datagrams;

    /// File descriptors that a connection from here to the stack takes at most.
    const CONNECTION: usize;
    /// The same of an association of UDP.
    const ASSOCIATION: usize;

    /// What `linerate show` calls it.
    fn name(&self) -> &'static str;

    /// The packets that the stack dropped, if it counts them itself.
    fn dropped(&self) -> StackDrops {
        StackDrops::default()
    }

    /// Heeds that offloads were switched on or off.
    fn offloads_changed(&self) {}

    /// Connects; dropping the future gives it up.
    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Listens, on all addresses for an unspecified one.
    fn listen(&self, at: SocketAddr) -> impl Future<Output = io::Result<Self::Listener>> + Send;

    /// Binds, to any port for 0.
    fn bind(&self, at: SocketAddr) -> impl Future<Output = io::Result<Self::Datagrams>> + Send;

    /// Sends one ICMP echo request with these bytes and waits for its answer.
    fn ping(&self, to: IpAddr, payload: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Carries bytes between a connection here and one of the stack, both ways. `moved` is
    /// called when some were.
    fn carry(
        here: &mut Stream,
        there: &mut Self::Stream,
        moved: OnMove<'_>,
    ) -> impl Future<Output = io::Result<()>> + Send {
        relay(here, there, moved)
    }

    /// Has the peer of a connection that was dialled asked, when it is silent, whether it
    /// is there. Those that are accepted have it so.
    fn keep_alive(stream: &Self::Stream);

    /// Ends a connection by RST.
    fn reset(stream: Self::Stream);
}

/// Takes connections.
pub trait Accept: Send + Sync + 'static {
    /// A connection.
    type Stream;

    /// The next connection and the client's address.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

/// Sends and receives datagrams.
pub trait Datagrams: Send + Sync + 'static {
    /// Speaks with one peer only from now on, and hears of it where nobody is there.
    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<()>> + Send;

    /// Sends one.
    fn send_to(
        &self,
        datagram: &[u8],
        to: SocketAddr,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Receives one, cut to the buffer, and its sender.
    fn recv_from(
        &self,
        buffer: &mut [u8],
    ) -> impl Future<Output = io::Result<(usize, SocketAddr)>> + Send;
}

impl Datagrams for UdpSocket {
    async fn connect(&self, to: SocketAddr) -> io::Result<()> {
        Self::connect(self, to).await
    }

    async fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        Self::send_to(self, datagram, to).await.map(drop)
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Self::recv_from(self, buffer).await
    }
}
