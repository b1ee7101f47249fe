//! The interface of a TCP/IP stack for the proxies: sockets on the tunnel's side.

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
    byte_relay::{OnMove, relay},
    local::Stream,
};

/// A TCP/IP stack that sends its packets through the tunnel.
pub trait Stack: Send + Sync + 'static {
    /// A TCP connection.
    type Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin + 'static;
    /// A TCP listener.
    type Listener: Accept<Stream = Self::Stream>;
    /// A UDP socket.
    type Datagrams: Datagrams;

    /// The maximum number of file descriptors of a connection from this side to the stack.
    const CONNECTION: usize;
    /// The same for a UDP association of SOCKS5.
    const ASSOCIATION: usize;

    /// The name of the stack in `linerate show`.
    fn name(&self) -> &'static str;

    /// The numbers of dropped packets, if the stack counts them.
    fn dropped(&self) -> StackDrops {
        StackDrops::default()
    }

    /// Applies a change of the offloads.
    fn offloads_changed(&self) {}

    /// Connects. Dropping the future cancels it.
    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<Self::Stream>> + Send;

    /// Listens. An unspecified address means all addresses.
    fn listen(&self, at: SocketAddr) -> impl Future<Output = io::Result<Self::Listener>> + Send;

    /// Binds a UDP socket. Port 0 means any port.
    fn bind(&self, at: SocketAddr) -> impl Future<Output = io::Result<Self::Datagrams>> + Send;

    /// Sends one ICMP echo request with these bytes and waits for its answer.
    fn ping(&self, to: IpAddr, payload: &[u8]) -> impl Future<Output = io::Result<()>> + Send;

    /// Relays bytes in both directions between a connection on this side and one of the stack. Calls
    /// `moved` when bytes moved.
    fn carry(
        here: &mut Stream,
        there: &mut Self::Stream,
        moved: OnMove<'_>,
    ) -> impl Future<Output = io::Result<()>> + Send {
        relay(here, there, moved)
    }

    /// Enables TCP keepalive on a dialled connection. Accepted connections already have it.
    fn enable_keepalive(stream: &Self::Stream);

    /// Ends a connection by RST.
    fn reset(stream: Self::Stream);
}

/// Accepts connections.
pub trait Accept: Send + Sync + 'static {
    /// A connection.
    type Stream;

    /// Accepts the next connection. Returns it with the client's address.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, SocketAddr)>> + Send;
}

/// Sends and receives datagrams.
pub trait Datagrams: Send + Sync + 'static {
    /// Connects the socket: it exchanges datagrams only with this address, and reports ICMP errors.
    fn connect(&self, to: SocketAddr) -> impl Future<Output = io::Result<()>> + Send;

    /// Sends a datagram.
    fn send_to(
        &self,
        datagram: &[u8],
        to: SocketAddr,
    ) -> impl Future<Output = io::Result<()>> + Send;

    /// Receives a datagram, truncated to the buffer. Returns its length and sender.
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
