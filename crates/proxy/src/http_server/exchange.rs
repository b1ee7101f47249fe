//! One request and its answer, over the connections of client and origin.
//!
//! ```text
//!   client ─► Upload: head, body ─► origin        both at once: an answer may begin before the
//!   client ◄─ Download: heads, body ◄─ origin     request has ended
//! ```
//!
//! A waiting exchange holds memory only for an incomplete head, and for the bytes that the client
//! sent after its request.

mod download;
mod upload;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::AsyncWrite;

use super::input::Input;
use crate::{
    byte_relay::{Half, Progress, relay_answer},
    connections::Connection,
    http::{Body, RequestInfo},
    local::Stream,
    serve::unless_evicted,
    stack::Stack,
};
use download::Download;
use upload::Upload;

/// A request for the origin.
pub(super) struct Request {
    pub head: Vec<u8>,
    pub body: Body,
    /// Bytes that were already read from the client: the body, and those after it.
    pub input: Input,
    pub info: RequestInfo,
}

/// How an exchange ended.
pub(super) enum End {
    /// The client has received its answer.
    Answered { client_stays: bool, origin_stays: bool },
    /// The client has received its answer, and both sides speak another protocol. The origin has
    /// sent these bytes of it.
    Upgraded(Vec<u8>),
    /// The client has received no part of an answer. If `silent`, the origin has sent nothing.
    Unanswered { error: io::Error, silent: bool },
    /// The client has received a part of the answer, or is gone.
    Broken(io::Error),
}

/// Both connections after an exchange.
pub(super) struct Exchanged<T> {
    pub here: Stream,
    pub there: T,
    pub end: End,
    /// Bytes that the client sent after its request.
    pub input: Input,
}

/// Sends a request to the origin, and its answer to the client.
pub(super) async fn exchange<S: Stack>(
    mut here: Stream,
    mut there: S::Stream,
    request: Request,
    connection: &Connection,
) -> Exchanged<S::Stream> {
    let mut up = Upload::new(request.head, request.body, request.input);
    let mut down = Download::new(request.info);
    let (mut going, mut coming) = (Half::default(), Half::default());
    let step = |way: usize, cx: &mut Context<'_>, progress: &mut Progress| {
        if way == 0 {
            let mut reader = up.reader(&mut here);
            let mut writer = Open(&mut there);
            let polled = going.poll(cx, Pin::new(&mut reader), Pin::new(&mut writer), progress);
            return match polled {
                Poll::Ready(Ok(())) => up.poll_end(cx, &mut there).map(Ok),
                other => other,
            };
        }
        let mut reader = down.reader(&mut there, up.is_sent(&going));
        let mut writer = Open(&mut here);
        // The answer itself shows whether it is complete, even if the origin was reset.
        let mut own = Progress::default();
        let polled = coming.poll(cx, Pin::new(&mut reader), Pin::new(&mut writer), &mut own);
        progress.has_moved |= own.has_moved;
        polled
    };
    let moved = || connection.touch();
    let carried = unless_evicted(connection, relay_answer(step, &moved)).await;
    let end = down.end(coming.is_done(), carried, up.is_sent(&going));
    Exchanged { here, there, end, input: up.into_input() }
}

/// A writer that leaves the connection open at the end.
struct Open<'a, W>(&'a mut W);

impl<W: AsyncWrite + Unpin> AsyncWrite for Open<'_, W> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
