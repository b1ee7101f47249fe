//! Server side of ts2021: an upgrade by POST or a WebSocket by GET, then Noise and HTTP/2.

use std::{sync::Arc, time::Duration};

use base64ct::{Base64, Encoding};
use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{HeaderValue, UPGRADE},
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tailnet::ts2021::{
    HANDSHAKE_HEADER, UPGRADE_PROTOCOL,
    noise_handshake::{LONGEST_INITIATION, Response as Handshake, refusal},
    noise_stream::NoiseStream,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    time::timeout,
};
use zeroize::Zeroizing;

use crate::{
    clients::machine::{self, Client, ControlPlane},
    http::{
        body::{Answer, text},
        upgrade::{connection_of, switching},
        web_socket::{self, WebSocket},
    },
    net::connections::{Connection, Stage},
};

/// Interval of HTTP/2 pings, in addition to the map's keepalives.
const PING: Duration = Duration::from_secs(45);
/// Maximum time for the answer to a ping.
const PONG: Duration = Duration::from_secs(20);
/// Maximum number of concurrent requests of a client: its map, and a few others.
const STREAMS: u32 = 8;
/// Maximum size of a request's headers, in bytes, uncompressed.
const HEADERS: u32 = 8 << 10;
/// Maximum number of streams that the server resets for a client's errors before it closes the
/// connection.
const RESET: usize = 128;
/// Maximum time for an upgrade after the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum size of a map that is buffered for its client, in bytes.
const AHEAD: usize = 64 << 10;
/// Maximum size of unread request data, in bytes. It is the minimum of HTTP/2.
const WINDOW: u32 = (64 << 10) - 1;
/// Maximum size of a WebSocket message, in bytes: some Noise records.
const MESSAGE: usize = 16 << 10;

/// Answers a request for ts2021, and serves the connection.
pub(crate) fn upgrade(control: &Arc<ControlPlane>, request: Request<Incoming>) -> Response<Answer> {
    if *request.method() == Method::POST {
        return by_post(control, request);
    }
    by_web_socket(control, request)
}

fn by_post(control: &Arc<ControlPlane>, request: Request<Incoming>) -> Response<Answer> {
    let upgrade = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    if upgrade != Some(UPGRADE_PROTOCOL.as_bytes()) {
        return text(
            StatusCode::BAD_REQUEST,
            "the request does not ask for an upgrade to ts2021\n",
        );
    }
    let message = request.headers().get(HANDSHAKE_HEADER).map(HeaderValue::as_bytes);
    let Some(message) = message.and_then(decode) else {
        return text(StatusCode::BAD_REQUEST, "the request lacks a Noise handshake message\n");
    };
    let (control, connection) = (Arc::clone(control), connection_of(&request));
    tokio::spawn(async move {
        let upgraded = timeout(PATIENCE, hyper::upgrade::on(request)).await;
        let Ok(Ok(upgraded)) = upgraded else { return };
        tokio::select! {
            () = speak(&control, TokioIo::new(upgraded), &message, &connection) => {}
            () = connection.evicted() => {}
        }
    });
    switching(HeaderValue::from_static(UPGRADE_PROTOCOL))
}

fn by_web_socket(control: &Arc<ControlPlane>, request: Request<Incoming>) -> Response<Answer> {
    let query = request.uri().query().unwrap_or_default().as_bytes();
    let mut pairs = form_urlencoded::parse(query);
    let message = pairs.find(|(name, _)| name.eq_ignore_ascii_case(HANDSHAKE_HEADER));
    let Some(message) = message.and_then(|(_, message)| decode(message.as_bytes())) else {
        return text(StatusCode::BAD_REQUEST, "the request lacks a Noise handshake message\n");
    };
    let Some(response) = web_socket::accept(&request, UPGRADE_PROTOCOL) else {
        return text(StatusCode::UPGRADE_REQUIRED, "this is ts2021: use POST or a WebSocket\n");
    };
    let (control, connection) = (Arc::clone(control), connection_of(&request));
    tokio::spawn(async move {
        let upgraded = timeout(PATIENCE, hyper::upgrade::on(request)).await;
        let Ok(Ok(upgraded)) = upgraded else { return };
        let stream = WebSocket::new(TokioIo::new(upgraded), MESSAGE).await;
        tokio::select! {
            () = speak(&control, stream, &message, &connection) => {}
            () = connection.evicted() => {}
        }
    });
    response
}

fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let longest = LONGEST_INITIATION.div_ceil(3) * 4;
    let text = str::from_utf8(text).ok().filter(|text| text.len() <= longest)?;
    Base64::decode_vec(text).ok()
}

/// Performs the Noise handshake, then serves HTTP/2 until either side ends the connection.
async fn speak(
    control: &Arc<ControlPlane>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    message: &[u8],
    connection: &Arc<Connection>,
) {
    let mut ephemeral = Zeroizing::new([0; 32]);
    if getrandom::fill(&mut *ephemeral).is_err() {
        return;
    }
    let handshake =
        connection.in_turn(|| Handshake::new(control.noise(), message, ephemeral)).await;
    let handshake = match handshake {
        Ok(handshake) => handshake,
        Err(error) => {
            tracing::debug!("{error}");
            // The client may be gone.
            let _ = stream.write_all(&refusal(&error.to_string())).await;
            return;
        }
    };
    connection.advance(Stage::Speaking);
    let Handshake { reply, machine, version, sealer, opener } = handshake;
    if timeout(PATIENCE, stream.write_all(&reply)).await.is_err() {
        return;
    }
    let stream = NoiseStream::of_coordinator(stream, sealer, opener);
    let client = Client { machine, version, from: connection.source() };
    let (control, of_client) = (Arc::clone(control), Arc::clone(connection));
    let service = service_fn(move |request: Request<Incoming>| {
        let connection = Arc::clone(&of_client);
        if connection.is_stranger() && control.has_machine(&machine) {
            connection.set_machine(machine);
        }
        // The headers are dropped here. The path is copied, because it shares memory with
        // them.
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        let (method, uri) = (head.method, Uri::try_from(path.to_owned()).unwrap_or_default());
        machine::answer(Arc::clone(&control), client, connection, (method, uri), body)
    });
    let served = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADERS)
        .max_local_error_reset_streams(RESET)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(AHEAD)
        .serve_connection(TokioIo::new(stream), service);
    connection.start_idle_timer();
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!("{machine}: {error}");
            }
        }
        () = connection.idle() => tracing::debug!("{machine}: a stranger without a request"),
    }
}
