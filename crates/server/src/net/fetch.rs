//! HTTP client for other servers, such as identity providers. Answers are limited in size and time.

use std::{fmt, future::pending, io, time::Duration};

use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response, Uri,
    body::Bytes,
    client::conn::http1,
    header::{CONNECTION, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use openidconnect::{HttpRequest, HttpResponse};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::net::roots;

/// Maximum time for an answer. A user may wait for it in a browser.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of an answer, in bytes. Keys of a large provider take about 20 KiB.
const LONGEST: usize = 512 << 10;
/// Maximum size of the head of an answer, in bytes.
const LONGEST_HEAD: usize = 32 << 10;

/// HTTP client.
pub(crate) struct Fetch {
    tls: TlsConnector,
    /// Whether requests without TLS are allowed. They are, to this machine only.
    plain: bool,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum FetchError {
    /// The URL is not usable.
    Address(String),
    /// The connection failed.
    Connection(io::Error),
    /// HTTP failed.
    Http(hyper::Error),
    /// The answer is too long or incomplete.
    Body(String),
    /// The answer took too long.
    Late,
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(uri) => write!(f, "{uri} is not a usable URL"),
            Self::Connection(error) => write!(f, "{error}"),
            Self::Http(error) => write!(f, "{error}"),
            Self::Body(error) => write!(f, "the answer: {error}"),
            Self::Late => write!(f, "no answer within {} s", PATIENCE.as_secs()),
        }
    }
}

impl std::error::Error for FetchError {}

impl From<io::Error> for FetchError {
    fn from(error: io::Error) -> Self {
        Self::Connection(error)
    }
}

impl From<hyper::Error> for FetchError {
    fn from(error: hyper::Error) -> Self {
        Self::Http(error)
    }
}

impl Fetch {
    /// Creates a client that trusts the authorities of this machine.
    pub(crate) fn new(plain: bool) -> Self {
        Self { tls: connector(), plain }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// There is no valid answer in time.
    pub(crate) async fn within_time(
        &self,
        request: HttpRequest,
    ) -> Result<HttpResponse, FetchError> {
        timeout(PATIENCE, self.send(request)).await.map_err(|_| FetchError::Late)?
    }

    async fn send(&self, request: HttpRequest) -> Result<HttpResponse, FetchError> {
        let uri = request.uri().clone();
        let bad = || FetchError::Address(uri.to_string());
        let host = uri.host().ok_or_else(bad)?.trim_matches(['[', ']']);
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") if self.plain => false,
            _ => return Err(bad()),
        };
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let stream = TcpStream::connect((host, port)).await?;
        if !is_https {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| bad())?;
        exchange(self.tls.connect(name, stream).await?, request).await
    }
}

/// TLS connector that trusts the authorities of this machine.
pub(crate) fn connector() -> TlsConnector {
    TlsConnector::from(roots::client())
}

/// Sends one request on its own connection, without following redirects.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: HttpRequest,
) -> Result<HttpResponse, FetchError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(LONGEST_HEAD);
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let answered = async {
        let answer = sender.send_request(on_the_wire(request)?).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, LONGEST).collect().await;
        let body = body.map_err(|error| FetchError::Body(error.to_string()))?;
        Ok(Response::from_parts(head, body.to_bytes().to_vec()))
    };
    // The cause of the connection's end is also returned by the request.
    let driven = async {
        let _ = connection.await;
        pending().await
    };
    tokio::select! {
        answer = answered => answer,
        never = driven => never,
    }
}

fn on_the_wire(request: HttpRequest) -> Result<Request<Full<Bytes>>, FetchError> {
    let (mut head, body) = request.into_parts();
    let bad = |uri: &Uri| FetchError::Address(uri.to_string());
    let authority = head.uri.authority().map(|authority| HeaderValue::from_str(authority.as_str()));
    let host = authority.and_then(Result::ok).ok_or_else(|| bad(&head.uri))?;
    head.headers.insert(HOST, host);
    head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
    head.uri = path.parse().map_err(|_| bad(&head.uri))?;
    Ok(Request::from_parts(head, Full::new(Bytes::from(body))))
}
