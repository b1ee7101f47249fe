//! The answer on its way from the origin.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

use super::{End, Input};
use crate::{
    byte_relay::ROUNDS,
    http::{Answer, Body, Chunks, Follows, HEAD_MAX, RequestInfo},
    serve::REQUEST_TIMEOUT,
};

/// The state of an answer: heads, and then a body.
pub(super) struct Download {
    info: RequestInfo,
    /// Bytes that were read and not parsed yet.
    input: Input,
    /// A head for the client.
    head: Input,
    phase: Phase,
    /// Bytes of the interim heads.
    interim: usize,
    /// Whether the origin has sent anything.
    has_received: bool,
    /// The deadline for a head that has begun: the same time as for a client's head.
    until: Option<Pin<Box<Sleep>>>,
    /// The error that prevented an answer.
    failed: Option<io::Error>,
    client_stays: bool,
    origin_stays: bool,
}

enum Phase {
    Head,
    Body(Body),
    /// Chunks. The client receives their contents without the coding.
    Contents(Chunks),
    UntilClose,
    Upgraded,
    Over,
    /// After a body that ended with the connection.
    Closed,
}

impl Download {
    pub(super) fn new(info: RequestInfo) -> Self {
        Self {
            info,
            input: Input::default(),
            head: Input::default(),
            phase: Phase::Head,
            interim: 0,
            has_received: false,
            until: None,
            failed: None,
            client_stays: false,
            origin_stays: false,
        }
    }

    /// A reader of the bytes for the client, up to the end of the answer. `whole` is true if the
    /// entire request was sent to the origin.
    pub(super) fn reader<'a, T>(&'a mut self, there: &'a mut T, whole: bool) -> Reader<'a, T> {
        Reader { download: self, there, whole }
    }

    /// How the exchange ended. `done` is true if all bytes that were read were sent to the client.
    pub(super) fn end(self, done: bool, carried: io::Result<()>, whole: bool) -> End {
        let silent = !self.has_received;
        match (self.failed, self.phase, carried) {
            (Some(error), ..) if done => End::Unanswered { error, silent },
            (None, Phase::Upgraded, _) if done => End::Upgraded(self.input.to_vec()),
            (None, Phase::Over, carried) if done => End::Answered {
                client_stays: self.client_stays,
                origin_stays: self.origin_stays && whole && carried.is_ok(),
            },
            // A reset would look like the end of the body.
            (None, Phase::Closed, Ok(())) if done => {
                End::Answered { client_stays: false, origin_stays: false }
            }
            (_, Phase::Head, Err(error)) if error.kind() == io::ErrorKind::TimedOut => {
                End::Unanswered { error, silent }
            }
            (.., carried) => {
                let gone = || io::ErrorKind::BrokenPipe.into();
                End::Broken(carried.err().unwrap_or_else(gone))
            }
        }
    }

    /// Parses a head if it is complete. Returns whether it was.
    fn take_head(&mut self, whole: bool) -> io::Result<bool> {
        let parsed = Answer::parse(&self.input, &self.info, whole);
        let bad = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let not_one = |_| bad("the answer is not HTTP");
        let Some((answer, len)) = parsed.map_err(not_one)? else { return Ok(false) };
        self.input.consume(len);
        (self.head, self.until) = (answer.head.into(), None);
        if answer.follows == Follows::Head {
            self.interim += len;
            if self.interim > HEAD_MAX {
                return Err(bad("its interim answers are too long"));
            }
        }
        self.client_stays = answer.client_stays;
        self.origin_stays = answer.origin_stays;
        self.phase = match answer.follows {
            Follows::Head => Phase::Head,
            Follows::Upgrade => Phase::Upgraded,
            Follows::Body(body) if body.is_empty() => Phase::Over,
            Follows::Body(body) => Phase::Body(body),
            Follows::Contents(chunks) => Phase::Contents(chunks),
            Follows::UntilClose => Phase::UntilClose,
        };
        Ok(true)
    }

    /// Waits for more of a head.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        there: Pin<&mut impl AsyncRead>,
        (buffer, whole): (&mut ReadBuf<'_>, bool),
    ) -> Poll<io::Result<()>> {
        if self.input.may_hold_head() && self.take_head(whole)? {
            return Poll::Ready(Ok(()));
        }
        let mut room = buffer.take(buffer.remaining());
        if there.poll_read(cx, &mut room)?.is_pending() {
            if self.input.is_empty() {
                return Poll::Pending;
            }
            let until = self.until.get_or_insert_with(|| Box::pin(sleep(REQUEST_TIMEOUT)));
            ready!(until.as_mut().poll(cx));
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        if room.filled().is_empty() {
            let why = "it ended the connection without an answer";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, why)));
        }
        self.has_received = true;
        self.input.tail().extend_from_slice(room.filled());
        Poll::Ready(Ok(()))
    }

    /// Processes the part of the body that begins at `from` in the buffer.
    fn take(&mut self, buffer: &mut ReadBuf<'_>, from: usize) -> io::Result<()> {
        let read = &mut buffer.filled_mut()[from..];
        let is_end = read.is_empty();
        let len = read.len();
        let (taken, contents, is_over) = match &mut self.phase {
            Phase::UntilClose if is_end => {
                self.phase = Phase::Closed;
                return Ok(());
            }
            Phase::UntilClose => (len, len, false),
            // The connection ended before the body.
            _ if is_end => return Err(io::ErrorKind::UnexpectedEof.into()),
            Phase::Body(body) => {
                let (taken, is_over) = body.handle_input(read)?;
                (taken, taken, is_over)
            }
            Phase::Contents(chunks) => {
                let decoded = chunks.decode(read)?;
                (decoded.taken, decoded.contents, decoded.is_over)
            }
            Phase::Head | Phase::Upgraded | Phase::Over | Phase::Closed => (0, 0, true),
        };
        buffer.set_filled(from + contents);
        if is_over {
            self.phase = Phase::Over;
            // Bytes after the answer are not the next answer, which was not requested yet.
            self.origin_stays &= taken == len && self.input.is_empty();
        }
        Ok(())
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        mut there: Pin<&mut impl AsyncRead>,
        (buffer, whole): (&mut ReadBuf<'_>, bool),
    ) -> Poll<io::Result<()>> {
        let from = buffer.filled().len();
        for _ in 0..ROUNDS {
            match self.phase {
                _ if !self.head.is_empty() => self.head.put(buffer),
                Phase::Head => ready!(self.poll_head(cx, there.as_mut(), (buffer, whole)))?,
                Phase::Upgraded | Phase::Closed => return Poll::Ready(Ok(())),
                Phase::Over => {
                    self.origin_stays &= self.input.is_empty();
                    return Poll::Ready(Ok(()));
                }
                Phase::Body(_) | Phase::Contents(_) | Phase::UntilClose => {
                    if self.input.is_empty() {
                        ready!(there.as_mut().poll_read(cx, buffer))?;
                    } else {
                        self.input.put(buffer);
                    }
                    self.take(buffer, from)?;
                }
            }
            if buffer.filled().len() > from {
                return Poll::Ready(Ok(()));
            }
        }
        // Heads and chunk sizes may come without end. Other connections have their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

pub(super) struct Reader<'a, T> {
    download: &'a mut Download,
    there: &'a mut T,
    whole: bool,
}

impl<T: AsyncRead + Unpin> AsyncRead for Reader<'_, T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { download, there, whole } = self.get_mut();
        let polled = download.poll_read(cx, Pin::new(&mut **there), (buffer, *whole));
        match polled {
            // The proxy can still answer the client: for the relay that is an end, not an error.
            Poll::Ready(Err(error)) if matches!(download.phase, Phase::Head) => {
                download.failed = Some(error);
                Poll::Ready(Ok(()))
            }
            polled => polled,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt, runtime::Builder};

    use super::*;

    /// The end of an answer that the client has received, if the origin was reset or not.
    fn end(answer: &str, is_reset: bool) -> End {
        let mut down = Download::new(RequestInfo { minor: 1, ..RequestInfo::default() });
        let mut there = answer.as_bytes();
        let mut reader = down.reader(&mut there, true);
        let mut got = Vec::new();
        let reading = reader.read_to_end(&mut got);
        Builder::new_current_thread().build().unwrap().block_on(reading).unwrap();
        assert!(got.ends_with(b"body"));
        let reset = || Err(io::ErrorKind::ConnectionReset.into());
        down.end(true, if is_reset { reset() } else { Ok(()) }, true)
    }

    #[test]
    fn answer_before_a_reset_is_complete_only_if_its_length_is_known() {
        let known = "HTTP/1.1 200 x\r\nContent-Length: 4\r\n\r\nbody";
        let until_close = "HTTP/1.1 200 x\r\n\r\nbody";
        for answer in [known, until_close] {
            assert!(matches!(end(answer, false), End::Answered { .. }));
        }
        assert!(matches!(end(known, true), End::Answered { origin_stays: false, .. }));
        assert!(matches!(end(until_close, true), End::Broken(_)));
    }
}
