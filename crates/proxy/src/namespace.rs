//! The kernel's TCP/IP stack, in a private network namespace.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket as StdUdpSocket},
    os::fd::{AsFd, OwnedFd},
};

use sys::{
    keepalive::{KEEPALIVE, set_keepalive},
    namespace::{Kind, Namespace},
};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};

use super::{
    byte_relay::OnMove,
    local::Stream,
    splice::splice,
    stack::{Accept, Stack},
};

/// The backlog of a listener.
const BACKLOG: u32 = 1024;
/// The length of an echo request's header: type, code, checksum, identifier, sequence number (RFC 792,
/// RFC 4443).
const ECHO_HEADER_LEN: usize = 8;
const ECHO_REQUEST: u8 = 8;
const ECHO_REQUEST_V6: u8 = 128;

/// The kernel's stack in a namespace.
#[derive(Debug)]
pub struct KernelStack {
    namespace: Namespace,
}

impl KernelStack {
    /// The stack of this namespace.
    pub fn new(namespace: Namespace) -> Self {
        Self { namespace }
    }

    fn tcp(&self, family: &SocketAddr) -> io::Result<TcpSocket> {
        let kind = if family.is_ipv4() { Kind::Tcp4 } else { Kind::Tcp6 };
        let socket = std::net::TcpStream::from(self.namespace.socket(kind)?);
        Ok(TcpSocket::from_std_stream(socket))
    }
}

impl Stack for KernelStack {
    type Stream = TcpStream;
    type Listener = TcpListener;
    type Datagrams = UdpSocket;

    /// A socket on each side, and a pipe while it holds bytes ([`super::splice`]).
    const CONNECTION: usize = 4;
    /// The connection that requested it, a UDP socket on this side, and one of each family in the
    /// tunnel.
    const ASSOCIATION: usize = 4;

    fn name(&self) -> &'static str {
        "namespace"
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = self.tcp(&to)?.connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn listen(&self, at: SocketAddr) -> io::Result<TcpListener> {
        let socket = self.tcp(&at)?;
        socket.set_reuseaddr(true)?;
        set_keepalive(&socket.as_fd(), KEEPALIVE)?;
        socket.bind(at)?;
        socket.listen(BACKLOG)
    }

    async fn bind(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        let kind = if at.is_ipv4() { Kind::Udp4 } else { Kind::Udp6 };
        let socket = self.namespace.socket(kind)?;
        sys::namespace::bind(&socket, at)?;
        UdpSocket::from_std(StdUdpSocket::from(socket))
    }

    async fn ping(&self, to: IpAddr, payload: &[u8]) -> io::Result<()> {
        let kind = if to.is_ipv4() { Kind::Ping4 } else { Kind::Ping6 };
        let socket = self.namespace.socket(kind).map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => io::Error::new(
                error.kind(),
                "the namespace's net.ipv4.ping_group_range could not be set",
            ),
            _ => error,
        })?;
        let socket = echo_socket(socket)?;
        socket.connect((to, 0)).await?;
        socket.send(&echo_request(to, payload)).await?;
        let mut answer = vec![0; ECHO_HEADER_LEN + payload.len()];
        loop {
            let len = socket.recv(&mut answer).await?;
            // The kernel delivers only replies with the identifier of this socket.
            if answer.get(ECHO_HEADER_LEN..len) == Some(payload) {
                return Ok(());
            }
        }
    }

    async fn carry(here: &mut Stream, there: &mut TcpStream, moved: OnMove<'_>) -> io::Result<()> {
        splice(here, there, moved).await
    }

    /// The namespace's sysctls set the times.
    fn enable_keepalive(stream: &TcpStream) {
        // If this fails, the idle time of the relay still ends the connection.
        let _ = sys::keepalive::enable(stream);
    }

    fn reset(stream: TcpStream) {
        // If this fails, the connection ends by FIN.
        let _ = stream.set_zero_linger();
    }
}

/// Wraps an ICMP echo socket. The calls that are used here are those of a UDP socket.
fn echo_socket(socket: OwnedFd) -> io::Result<UdpSocket> {
    UdpSocket::from_std(StdUdpSocket::from(socket))
}

/// An echo request. The kernel writes identifier and checksum.
fn echo_request(to: IpAddr, payload: &[u8]) -> Vec<u8> {
    let kind = if to.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_V6 };
    let mut request = vec![0; ECHO_HEADER_LEN];
    request[0] = kind;
    request.extend_from_slice(payload);
    request
}

/// The unspecified address of a family, with port 0.
pub(super) fn unspecified(is_ipv4: bool) -> SocketAddr {
    if is_ipv4 { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() }
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, from) = Self::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((stream, from))
    }
}
