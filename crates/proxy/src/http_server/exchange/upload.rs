//! The request on its way from the client.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Input;
use crate::{byte_relay::Half, http::Body, local::Stream};

/// Bytes after a request that are read before its answer has ended, to notice that the client is
/// gone.
const AHEAD: usize = 16 * 1024;

/// A head, a body, and the bytes after them.
pub(super) struct Upload {
    head: Input,
    body: Body,
    input: Input,
    /// Whether the body has ended.
    is_whole: bool,
    /// Whether the client ended its half before the end of the body.
    is_cut: bool,
}

impl Upload {
    pub(super) fn new(head: Vec<u8>, body: Body, input: Input) -> Self {
        let is_whole = body.is_empty();
        Self { head: head.into(), body, input, is_whole, is_cut: false }
    }

    /// Whether the origin's connection has taken the entire request. `going` writes to it.
    pub(super) fn is_sent(&self, going: &Half) -> bool {
        self.is_whole && self.head.is_empty() && going.is_empty()
    }

    /// The bytes that the client sent after the request.
    pub(super) fn into_input(self) -> Input {
        self.input
    }

    /// A reader of the bytes for the origin, until the client has ended its half.
    pub(super) fn reader<'a>(&'a mut self, here: &'a mut Stream) -> Reader<'a> {
        Reader { upload: self, here }
    }

    /// Ends the origin's input if the client ended its half before the end of the body.
    pub(super) fn poll_end(
        &self,
        cx: &mut Context<'_>,
        there: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<()> {
        if self.is_cut {
            // It fails if the origin is gone, which does not matter here.
            let _ = ready!(Pin::new(there).poll_shutdown(cx));
        }
        Poll::Ready(())
    }

    /// Writes the next stored bytes to the buffer, the head first.
    fn give(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<()> {
        if !self.head.is_empty() {
            self.head.put(buffer);
            return Ok(());
        }
        let len = self.input.len().min(buffer.remaining());
        let (taken, is_whole) = self.body.handle_input(&self.input[..len])?;
        buffer.put_slice(&self.input[..taken]);
        self.input.consume(taken);
        self.is_whole = is_whole;
        Ok(())
    }

    /// Processes the bytes that were read, from `from` in the buffer on.
    fn take(&mut self, buffer: &mut ReadBuf<'_>, from: usize) -> io::Result<()> {
        let read = &buffer.filled()[from..];
        self.is_cut = read.is_empty();
        let (taken, is_whole) = self.body.handle_input(read)?;
        self.input.tail().extend_from_slice(&read[taken..]);
        self.is_whole = is_whole;
        buffer.set_filled(from + taken);
        Ok(())
    }

    /// Reads on after the request, until the client has ended its half.
    fn poll_ahead(
        &mut self,
        cx: &mut Context<'_>,
        here: &mut Stream,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.input.len() < AHEAD {
            let mut room = buffer.take(AHEAD - self.input.len());
            ready!(Pin::new(&mut *here).poll_read(cx, &mut room))?;
            if room.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.input.tail().extend_from_slice(room.filled());
        }
        Poll::Pending
    }
}

pub(super) struct Reader<'a> {
    upload: &'a mut Upload,
    here: &'a mut Stream,
}

impl AsyncRead for Reader<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { upload, here } = self.get_mut();
        let from = buffer.filled().len();
        while buffer.filled().len() == from {
            if !upload.head.is_empty() || !upload.is_whole && !upload.input.is_empty() {
                upload.give(buffer)?;
            } else if upload.is_whole {
                return upload.poll_ahead(cx, here, buffer);
            } else {
                ready!(Pin::new(&mut **here).poll_read(cx, buffer))?;
                upload.take(buffer, from)?;
                if upload.is_cut {
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
