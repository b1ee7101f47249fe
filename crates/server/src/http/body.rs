//! HTTP bodies: answers of the server, and requests with a limited size.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
    vec,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Response, StatusCode,
    body::{Body, Frame, SizeHint},
    header::{CONTENT_TYPE, HeaderValue},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// Maximum time for a request's body to arrive.
const PATIENCE: Duration = Duration::from_secs(20);

/// The body of an answer.
pub enum Answer {
    /// A complete text.
    Text(Option<Bytes>),
    /// Pieces that become available over time.
    Pieces(Pieces),
    /// The answer of a route for administrators.
    Routed(axum::body::Body),
}

/// The parts of a piece. Several answers can share a part.
pub(crate) type Parts = Vec<Bytes>;

/// The next piece of an answer.
#[derive(Default)]
pub struct Next {
    /// The piece, in parts.
    pub parts: Parts,
    /// Dropped when all of the piece was written, or when the connection ended.
    pub taken: Option<oneshot::Sender<()>>,
}

/// The last part of a piece, which the connection drops after writing it.
struct Last {
    part: Bytes,
    _taken: oneshot::Sender<()>,
}

impl AsRef<[u8]> for Last {
    fn as_ref(&self) -> &[u8] {
        &self.part
    }
}

impl From<Parts> for Next {
    fn from(parts: Parts) -> Self {
        Self { parts, taken: None }
    }
}

/// A stream of pieces, with the unsent parts of the current one.
pub struct Pieces {
    from: mpsc::Receiver<Next>,
    parts: vec::IntoIter<Bytes>,
    taken: Option<oneshot::Sender<()>>,
}

impl Pieces {
    /// Pieces that are received from this channel.
    pub fn new(from: mpsc::Receiver<Next>) -> Self {
        Self { from, parts: Parts::new().into_iter(), taken: None }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(part) = self.parts.next() {
                let is_last = self.parts.as_slice().is_empty();
                return Poll::Ready(Some(match self.taken.take_if(|_| is_last) {
                    Some(_taken) => Bytes::from_owner(Last { part, _taken }),
                    None => part,
                }));
            }
            self.taken = None;
            match ready!(self.from.poll_recv(cx)) {
                Some(next) => (self.parts, self.taken) = (next.parts.into_iter(), next.taken),
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.get_mut() {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Pieces(pieces) => {
                pieces.poll_next(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
            }
            Self::Routed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Pieces(_) => false,
            Self::Routed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pieces(_) => SizeHint::default(),
            Self::Routed(body) => body.size_hint(),
        }
    }
}

/// A plain text.
pub(crate) fn text(status: StatusCode, words: &str) -> Response<Answer> {
    typed(status, "text/plain; charset=utf-8", words.to_owned())
}

/// JSON.
pub(crate) fn json(status: StatusCode, json: String) -> Response<Answer> {
    typed(status, "application/json", json)
}

fn typed(status: StatusCode, kind: &'static str, words: String) -> Response<Answer> {
    let words = Some(Bytes::from(words)).filter(|words| !words.is_empty());
    let mut response = Response::new(Answer::Text(words));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Reads a request's body of at most `most` bytes.
///
/// # Errors
/// The answer to a body that is longer, too slow, or incomplete.
pub(crate) async fn read(
    body: impl Body<Data = Bytes> + Unpin,
    most: usize,
) -> Result<Bytes, Response<Answer>> {
    read_while(body, most, |_| true).await
}

/// Reads a body like [`read`], while `takes` accepts the length of each frame. Frames are copied
/// together: a frame of one byte would hold much more memory.
///
/// # Errors
/// As [`read`], or `takes` does not accept a frame.
pub(crate) async fn read_while(
    mut body: impl Body<Data = Bytes> + Unpin,
    most: usize,
    mut takes: impl FnMut(usize) -> bool,
) -> Result<Bytes, Response<Answer>> {
    let whole = async {
        let mut read = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(piece) = frame.ok()?.into_data() else { continue };
            if piece.len() > most - read.len() || !takes(piece.len()) {
                return None;
            }
            read.extend_from_slice(&piece);
        }
        Some(read.into())
    };
    match timeout(PATIENCE, whole).await {
        Ok(Some(body)) => Ok(body),
        Ok(None) => Err(text(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long\n")),
        Err(_) => Err(text(StatusCode::REQUEST_TIMEOUT, "the request took too long to arrive\n")),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_frame_is_reported_as_taken_when_written_or_when_its_body_is_dropped() {
        let (to, from) = mpsc::channel(1);
        let mut answer = Answer::Pieces(Pieces::new(from));
        let (taken, mut was_taken) = oneshot::channel();
        let parts = vec![Bytes::from("a"), Bytes::from("b")];
        to.try_send(Next { parts: parts.clone(), taken: Some(taken) }).map_err(drop).unwrap();
        let mut written = Vec::new();
        for part in &parts {
            written.push(answer.frame().await.unwrap().unwrap().into_data().unwrap());
            assert_eq!(written.last(), Some(part));
        }
        // The connection polls for more before it has written the previous part.
        assert!(answer.frame().now_or_never().is_none());
        assert!((&mut was_taken).now_or_never().is_none());
        drop(written);
        assert!((&mut was_taken).now_or_never().is_some());
        let (taken, was_taken) = oneshot::channel();
        to.try_send(Next { parts, taken: Some(taken) }).map_err(drop).unwrap();
        drop(answer);
        assert!(was_taken.now_or_never().is_some());
    }
}
