//! WebSocket as a byte stream, for browsers (RFC 6455).

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures_util::{Sink, Stream};
use hyper::{
    Request, Response,
    body::Incoming,
    header::{
        HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
        UPGRADE,
    },
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        handshake::derive_accept_key,
        protocol::{Role, WebSocketConfig},
    },
};

use super::{body::Answer, upgrade::switching};

/// Maximum size of a sent message, in bytes.
const WRITTEN: usize = 64 << 10;
const BUFFER: usize = 4 << 10;

/// The answer to a request for a WebSocket with this protocol. `None` if it is not such a request.
pub(crate) fn accept(
    request: &Request<Incoming>,
    protocol: &'static str,
) -> Option<Response<Answer>> {
    let header = |name: HeaderName| request.headers().get(name)?.to_str().ok();
    let is_upgrade = header(UPGRADE)?.eq_ignore_ascii_case("websocket");
    let offers = header(SEC_WEBSOCKET_PROTOCOL)?.split(',').any(|one| one.trim() == protocol);
    let key = header(SEC_WEBSOCKET_KEY).filter(|_| is_upgrade && offers)?;
    let accepted = HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok()?;
    let mut response = switching(HeaderValue::from_static("websocket"));
    response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accepted);
    let protocol = HeaderValue::from_static(protocol);
    response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    Some(response)
}

/// Server side of a WebSocket.
pub(crate) struct WebSocket<S> {
    inner: WebSocketStream<S>,
    rest: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    /// Wraps an upgraded connection. A message longer than `longest` bytes ends it, because a
    /// whole message is read before any of it is used.
    pub(crate) async fn new(stream: S, longest: usize) -> Self {
        let limits = WebSocketConfig::default()
            .read_buffer_size(BUFFER)
            .write_buffer_size(BUFFER)
            .max_message_size(Some(longest))
            .max_frame_size(Some(longest))
            .max_write_buffer_size(4 * WRITTEN);
        let inner = WebSocketStream::from_raw_socket(stream, Role::Server, Some(limits)).await;
        Self { inner, rest: Bytes::new() }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for WebSocket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.rest.is_empty() {
            match ready!(Pin::new(&mut this.inner).poll_next(cx)) {
                Some(Ok(Message::Binary(bytes))) => this.rest = bytes,
                Some(Ok(Message::Close(_))) | None => return Poll::Ready(Ok(())),
                // The library answers pings.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(as_io(error))),
            }
        }
        let taken = this.rest.len().min(to.remaining());
        to.put_slice(&this.rest[..taken]);
        this.rest.advance(taken);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WebSocket<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let inner = &mut self.get_mut().inner;
        ready!(Pin::new(&mut *inner).poll_ready(cx)).map_err(as_io)?;
        let taken = &bytes[..bytes.len().min(WRITTEN)];
        let message = Message::Binary(Bytes::copy_from_slice(taken));
        Pin::new(inner).start_send(message).map_err(as_io)?;
        Poll::Ready(Ok(taken.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx).map_err(as_io)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_close(cx).map_err(as_io)
    }
}

fn as_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::other(error),
    }
}
