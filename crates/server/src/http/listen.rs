//! TCP listeners, with or without TLS. Each connection is a task.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use hyper::{
    Request,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::{Accepted, Acceptor};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle,
    time::{sleep, timeout},
};
use tokio_rustls::{StartHandshake, TlsAcceptor, server::TlsStream};

use super::{arrival::Arrival, router};
use crate::{
    net::connections::{Connection, Stage},
    tenants::Tenants,
};

/// Maximum time for the TLS handshake, and for the head of each request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a request's head, in bytes. It is the minimum of the library.
const LONGEST_HEAD: usize = 8 << 10;
/// Maximum size of a ClientHello, in bytes. With an ML-KEM key share it takes 2 KiB.
const LONGEST_HELLO: usize = 12 << 10;
/// Backlog of accepted connections. After a restart, all members reconnect within seconds. The
/// kernel has its own limit, 4096 by default.
const BACKLOG: u32 = 16 << 10;
/// Pause after an error for lack of file descriptors or memory.
const REST: Duration = Duration::from_millis(100);

/// Listens at an address.
///
/// # Errors
/// The address cannot be used.
pub(crate) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As in tokio: after a restart, connections of the previous process still use the
        // address.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().with_context(|| format!("listening at {address}"))
}

/// Accepts connections and serves them on the control plane's runtime.
pub(crate) async fn serve(
    tenants: Arc<Tenants>,
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    control_plane: Handle,
) {
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!("accepting a connection: {error}");
                sleep(REST).await;
                continue;
            }
        };
        // Records and relayed datagrams must not wait for more data.
        let _ = stream.set_nodelay(true);
        let connection = Arc::new(tenants.connections.accept(from.ip()));
        let (tenants, tls) = (Arc::clone(&tenants), tls.clone());
        control_plane.spawn(async move {
            tokio::select! {
                () = greet(tenants, stream, tls, (from, &connection)) => {}
                () = connection.evicted() => {}
            }
        });
    }
}

async fn greet(
    tenants: Arc<Tenants>,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    peer: (SocketAddr, &Arc<Connection>),
) {
    let Some(tls) = tls else { return Box::pin(converse(tenants, stream, None, peer)).await };
    // Boxed, so that a connection that sends nothing takes little memory.
    match Box::pin(shake_hands(&tls, stream, peer.1)).await {
        Ok(stream) => {
            let sni = stream.get_ref().1.server_name().map(str::to_owned);
            Box::pin(converse(tenants, stream, sni, peer)).await;
        }
        Err(error) => tracing::debug!("TLS: {error}"),
    }
}

/// Performs the TLS handshake. After the ClientHello, the key exchange and the signature wait for a
/// permit. Otherwise, a flood of handshakes would keep all cores busy, and nothing would be relayed.
async fn shake_hands(
    tls: &TlsAcceptor,
    mut stream: TcpStream,
    connection: &Connection,
) -> io::Result<TlsStream<TcpStream>> {
    let hello = timeout(PATIENCE, read_hello(&mut stream)).await??;
    let start = StartHandshake::from_parts(hello, stream);
    let rest = connection.in_turn(|| start.into_stream(Arc::clone(tls.config()))).await;
    timeout(PATIENCE, rest).await?
}

/// Reads a ClientHello of at most [`LONGEST_HELLO`] bytes, in any number of records.
async fn read_hello(stream: &mut TcpStream) -> io::Result<Accepted> {
    let (mut acceptor, mut read) = (Acceptor::default(), 0);
    while read <= LONGEST_HELLO {
        stream.readable().await?;
        match acceptor.read_tls(&mut Readable(stream)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            more => read += more?,
        }
        match acceptor.accept() {
            Ok(Some(hello)) => return Ok(hello),
            Ok(None) => {}
            Err((error, mut alert)) => {
                let mut text = Vec::new();
                alert.write_all(&mut text)?;
                stream.write_all(&text).await?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the ClientHello is too long"))
}

/// Reads the received bytes of a socket without waiting.
struct Readable<'a>(&'a TcpStream);

impl io::Read for Readable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

async fn converse(
    tenants: Arc<Tenants>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    sni: Option<String>,
    (from, connection): (SocketAddr, &Arc<Connection>),
) {
    connection.advance(Stage::Resting);
    let connection = Arc::clone(connection);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let client = tenants.trusted_proxies.client(from.ip(), request.headers());
        connection.set_source(client);
        if !request.body().is_end_stream() {
            connection.advance(Stage::Speaking);
        }
        request.extensions_mut().insert(Arrival::Remote(SocketAddr::new(client, from.port())));
        // An upgraded connection remains this client's.
        request.extensions_mut().insert(Arc::clone(&connection));
        router::answer(&tenants, sni.as_deref(), request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    if let Err(error) = connection.await {
        tracing::trace!("{}", io::Error::other(error));
    }
}
