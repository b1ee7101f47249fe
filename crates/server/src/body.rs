//! Bodies of HTTP: what is answered, and what is read of requests, which is bounded.

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

/// Within this a body has come, or its sender is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// What is answered.
pub enum Answer {
    /// All at once.
    Text(Option<Bytes>),
    /// As it comes.
    Pieces(Pieces),
    /// What a route of administrators answers.
    Routed(axum::body::Body),
}

/// What is sent together, in parts that others may be sent too.
pub type Parts = Vec<Bytes>;

/// What is sent next.
#[derive(Default)]
pub struct Next {
    /// It, in parts.
    pub parts: Parts,
    /// Dropped once all of it was written, or nothing more can be.
    pub taken: Option<oneshot::Sender<()>>,
}

/// The last part of what is sent together: what writes it drops it then.
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

/// What comes, and what of the last that came is still to be sent.
pub struct Pieces {
    from: mpsc::Receiver<Next>,
    parts: vec::IntoIter<Bytes>,
    taken: Option<oneshot::Sender<()>>,
}

impl Pieces {
    /// What comes from there.
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

/// Words for people.
pub fn text(status: StatusCode, words: &str) -> Response<Answer> {
    typed(status, "text/plain; charset=utf-8", words.to_owned())
}

/// JSON.
pub fn json(status: StatusCode, json: String) -> Response<Answer> {
    typed(status, "application/json", json)
}

fn typed(status: StatusCode, kind: &'static str, words: String) -> Response<Answer> {
    let words = Some(Bytes::from(words)).filter(|words| !words.is_empty());
    let mut response = Response::new(Answer::Text(words));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// All of a request's body, if it is not longer than this many bytes.
///
/// # Errors
/// It is longer, comes too slowly, or breaks off: what to answer.
pub async fn read(
    body: impl Body<Data = Bytes> + Unpin,
    most: usize,
) -> Result<Bytes, Response<Answer>> {
    read_while(body, most, |_| true).await
}

/// The same, while this takes the bytes of each piece. The pieces are put together as they come: a piece
/// of one byte would hold much more memory.
///
/// # Errors
/// As above, or a piece is not taken.
pub async fn read_while(
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
        Err(_) => Err(text(StatusCode::REQUEST_TIMEOUT, "the request did not come in time\n")),
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn that_all_of_a_map_was_taken_is_told_when_its_last_part_was_written_or_none_can_be() {
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
        // What writes asks for more before it has written what it has.
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
