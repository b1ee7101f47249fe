//! A limit of the bytes that a client may send before its handshake is finished.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream with a limit of the bytes that can be read, which can be lifted.
pub struct FirstBytes<S> {
    stream: S,
    limit: Limit,
}

/// The bytes that can still be read.
#[derive(Clone)]
pub struct Limit(Arc<AtomicUsize>);

impl Limit {
    /// Lifts the limit.
    pub fn lift(&self) {
        self.0.store(usize::MAX, Relaxed);
    }
}

impl<S> FirstBytes<S> {
    /// Reads fail after `most` bytes. The last read that succeeds can exceed the limit.
    pub fn new(stream: S, most: usize) -> (Self, Limit) {
        let limit = Limit(Arc::new(AtomicUsize::new(most)));
        (Self { stream, limit: limit.clone() }, limit)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let left = self.limit.0.load(Relaxed);
        if left == 0 {
            return Poll::Ready(Err(io::Error::other("the handshake is too long")));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let read = buffer.filled().len() - before;
        if left < usize::MAX {
            self.limit.0.store(left.saturating_sub(read), Relaxed);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
