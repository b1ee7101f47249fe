//! Listeners: connections of TCP, with TLS or without, each a task.

use std::{fs, io, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use crate::{api::Arrival, http, serve::Server, visitors::Visitor};

/// Within this a client has finished TLS, and each time the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest head of a request, in bytes.
const LONGEST_HEAD: usize = 16 << 10;
/// Without file descriptors or memory, that long until the next try.
const REST: Duration = Duration::from_millis(100);

/// What TLS is spoken with.
///
/// # Errors
/// The files cannot be read, or do not go together.
pub fn tls(certificate: &Path, key: &Path) -> anyhow::Result<TlsAcceptor> {
    let read = |file: &Path| fs::read(file).with_context(|| file.display().to_string());
    let chain = CertificateDer::pem_slice_iter(&read(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.with_context(|| certificate.display().to_string())?;
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).with_context(|| key.display().to_string());
    acceptor(chain, key?)
}

/// The same of what the files have.
///
/// # Errors
/// They do not go together.
pub fn acceptor(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> anyhow::Result<TlsAcceptor> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("certificate and key do not go together")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Listens at an address.
///
/// # Errors
/// It cannot be had.
pub async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("listening at {address}"))
}

/// Serves who connects, for as long as the server runs.
pub async fn serve(server: Arc<Server>, listener: TcpListener, tls: Option<TlsAcceptor>) {
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
        let visitor = Arc::new(server.visitors.arrive(from.ip()));
        let (server, tls) = (Arc::clone(&server), tls.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = greet(server, stream, tls, (from, &visitor)) => {}
                () = visitor.must_leave() => {}
            }
        });
    }
}

async fn greet(
    server: Arc<Server>,
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    who: (SocketAddr, &Arc<Visitor>),
) {
    let Some(tls) = tls else { return converse(server, stream, who).await };
    match timeout(PATIENCE, tls.accept(stream)).await {
        Ok(Ok(stream)) => converse(server, stream, who).await,
        Ok(Err(error)) => tracing::debug!("TLS: {error}"),
        Err(_) => {}
    }
}

async fn converse(
    server: Arc<Server>,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    (from, visitor): (SocketAddr, &Arc<Visitor>),
) {
    let visitor = Arc::clone(visitor);
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arrival::Network(from));
        // What the connection becomes by an upgrade is this visitor's still.
        request.extensions_mut().insert(Arc::clone(&visitor));
        http::answer(Arc::clone(&server), request)
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
