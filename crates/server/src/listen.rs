//! Listeners: connections of TCP, with TLS or without, each a task.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use hyper::{
    Request,
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    ConfigBuilder, ServerConfig, WantsVerifier,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::{Accepted, Acceptor, ResolvesServerCert},
};
use rustls_acme::acme::ACME_TLS_ALPN_NAME;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream},
    runtime::Handle,
    time::{sleep, timeout},
};
use tokio_rustls::{StartHandshake, TlsAcceptor, server::TlsStream};

use crate::{
    api::Arrival,
    http,
    networks::Networks,
    visitors::{Stage, Visitor},
};

/// What is spoken inside of TLS.
const HTTP: &[u8] = b"http/1.1";
/// Within this a client has finished TLS, and each time the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of a request, in bytes: the least that the library can read.
const LONGEST_HEAD: usize = 8 << 10;
/// The most bytes of a ClientHello. With a key share of ML-KEM it has 2 KiB.
const LONGEST_HELLO: usize = 12 << 10;
/// How many connections may wait to be accepted: behind a restart all members come within seconds. The
/// kernel has a limit of its own, 4096 by default.
const BACKLOG: u32 = 16 << 10;
/// Without file descriptors or memory, that long until the next try.
const REST: Duration = Duration::from_millis(100);

/// What TLS is spoken with, by whatever certificate there is when a client comes. With `acme` the
/// authority is answered as well.
///
/// # Errors
/// The library has no version of TLS.
pub fn tls(resolver: Arc<dyn ResolvesServerCert>, acme: bool) -> anyhow::Result<TlsAcceptor> {
    let mut config = builder()?.with_no_client_auth().with_cert_resolver(resolver);
    let authority = acme.then(|| ACME_TLS_ALPN_NAME.to_vec());
    config.alpn_protocols = [HTTP.to_vec()].into_iter().chain(authority).collect();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// The same by one certificate.
///
/// # Errors
/// Certificate and key do not go together.
pub fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<TlsAcceptor> {
    let mut config = builder()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("certificate and key do not go together")?;
    config.alpn_protocols = vec![HTTP.to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn builder() -> anyhow::Result<ConfigBuilder<ServerConfig, WantsVerifier>> {
    Ok(ServerConfig::builder_with_provider(kx::provider()).with_safe_default_protocol_versions()?)
}

/// Listens at an address.
///
/// # Errors
/// It cannot be had.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As tokio and others do: a server that starts again finds connections of the former one.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().with_context(|| format!("listening at {address}"))
}

/// Accepts connections and serves them on the threads of the control plane.
pub async fn serve(
    networks: Arc<Networks>,
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
        // A sealed record or a relayed datagram is not held back for the next.
        let _ = stream.set_nodelay(true);
        let visitor = Arc::new(networks.visitors.arrive(from.ip()));
        let (networks, tls) = (Arc::clone(&networks), tls.clone());
        control_plane.spawn(async move {
            tokio::select! {
                () = greet(networks, stream, tls, (from, &visitor)) => {}
                () = visitor.must_leave() => {}
            }
        });
    }
}

async fn greet(
    networks: Arc<Networks>,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    who: (SocketAddr, &Arc<Visitor>),
) {
    let Some(tls) = tls else { return Box::pin(converse(networks, stream, None, who)).await };
    // What comes later is in boxes: a connection that sends nothing takes little memory.
    match Box::pin(shake_hands(&tls, stream, who.1)).await {
        Ok(stream) => {
            let sni = stream.get_ref().1.server_name().map(str::to_owned);
            Box::pin(converse(networks, stream, sni, who)).await;
        }
        Err(error) => tracing::debug!("TLS: {error}"),
    }
}

/// Performs the TLS handshake. The key exchange and the signature follow the ClientHello and wait for a
/// turn. Otherwise the handshakes of a flood would be computed one after another, and nothing would be
/// relayed in that time.
async fn shake_hands(
    tls: &TlsAcceptor,
    mut stream: TcpStream,
    visitor: &Visitor,
) -> io::Result<TlsStream<TcpStream>> {
    let hello = timeout(PATIENCE, read_hello(&mut stream)).await??;
    let start = StartHandshake::from_parts(hello, stream);
    let rest = visitor.in_turn(|| start.into_stream(Arc::clone(tls.config()))).await;
    timeout(PATIENCE, rest).await?
}

/// Reads a ClientHello of at most [`LONGEST_HELLO`] bytes, in as many records as the client likes.
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

/// Reads the bytes that a socket has received, without waiting.
struct Readable<'a>(&'a TcpStream);

impl io::Read for Readable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

async fn converse(
    networks: Arc<Networks>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    sni: Option<String>,
    (from, visitor): (SocketAddr, &Arc<Visitor>),
) {
    visitor.reaches(Stage::Resting);
    let visitor = Arc::clone(visitor);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let client = networks.trusted.client(from.ip(), request.headers());
        visitor.comes_from(client);
        if !request.body().is_end_stream() {
            visitor.reaches(Stage::Speaking);
        }
        request.extensions_mut().insert(Arrival::Network(SocketAddr::new(client, from.port())));
        // What the connection becomes by an upgrade is this visitor's still.
        request.extensions_mut().insert(Arc::clone(&visitor));
        http::answer(&networks, sni.as_deref(), request)
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
