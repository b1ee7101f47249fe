//! A byte stream over Noise, below HTTP/2. It reads and writes the caller's stream.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{
    early_payload::EarlyPayload,
    record::{Opener, RECORD, Sealer},
};

/// The amount of data that is sealed before it is written, in bytes: four records.
const AHEAD: usize = 4 * RECORD;

/// Seals written data and opens received data.
pub struct NoiseStream<S> {
    inner: S,
    sealer: Sealer,
    opener: Opener,
    /// The parser of the early payload, at a member's end until the payload is complete.
    early: Option<EarlyPayload>,
    /// The opened text, and the number of its bytes that were returned.
    plain: Vec<u8>,
    given: usize,
    /// The sealed records, and the number of their bytes that were written.
    sealed: Vec<u8>,
    written: usize,
}

impl<S> NoiseStream<S> {
    /// Creates a member's end, which removes the early payload.
    pub fn of_member(inner: S, sealer: Sealer, opener: Opener) -> Self {
        Self { early: Some(EarlyPayload::default()), ..Self::of_coordinator(inner, sealer, opener) }
    }

    /// A coordinator's end.
    pub fn of_coordinator(inner: S, sealer: Sealer, opener: Opener) -> Self {
        Self {
            inner,
            sealer,
            opener,
            early: None,
            plain: Vec::new(),
            given: 0,
            sealed: Vec::new(),
            written: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> NoiseStream<S> {
    /// Reads once. Returns false at the end of the stream.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut sealed = [0; RECORD];
        let mut buffer = ReadBuf::new(&mut sealed);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut buffer))?;
        let sealed = buffer.filled();
        if sealed.is_empty() {
            return Poll::Ready(if self.opener.is_within_record() {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(false)
            });
        }
        self.plain.clear();
        self.given = 0;
        self.opener.handle_bytes(sealed, &mut self.plain).map_err(bad_data)?;
        if let Some(early) = &mut self.early {
            let plain = std::mem::take(&mut self.plain);
            // No client answers its challenge.
            let (rest, _) = early.handle_plain(plain).map_err(bad_data)?;
            self.plain = rest;
            if early.is_over() {
                self.early = None;
            }
        }
        Poll::Ready(Ok(true))
    }
}

impl<S: AsyncWrite + Unpin> NoiseStream<S> {
    /// Writes the sealed records.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.sealed.len() {
            let rest = &self.sealed[self.written..];
            match ready!(Pin::new(&mut self.inner).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        // Most connections are idle. Idle connections do not own buffers.
        (self.sealed, self.written) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for NoiseStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.given == this.plain.len() {
            if !ready!(this.poll_fill(cx))? {
                return Poll::Ready(Ok(()));
            }
        }
        let rest = &this.plain[this.given..];
        let taken = rest.len().min(to.remaining());
        to.put_slice(&rest[..taken]);
        this.given += taken;
        if this.given == this.plain.len() {
            (this.plain, this.given) = (Vec::new(), 0);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for NoiseStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        plain: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.sealed.len() >= AHEAD {
            ready!(this.poll_drain(cx))?;
        }
        let mut taken = 0;
        while taken < plain.len() && this.sealed.len() < AHEAD {
            taken += this.sealer.seal(&plain[taken..], &mut this.sealed).map_err(bad_data)?;
        }
        // The sealed data is written now, or by the next write or flush.
        match this.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(taken)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.inner).poll_shutdown(cx)
    }
}

/// Converts an error of the protocol to an I/O error.
fn bad_data(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
