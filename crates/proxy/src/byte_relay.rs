//! Relays bytes between two connections, until both directions have ended.
//!
//! A connection that waits holds no memory: bytes are read into a buffer that all connections of a
//! thread share. Only bytes that the other side does not accept at once are stored. Until they are
//! written, nothing more is read.

mod directions;

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use directions::drive;
pub(super) use directions::{Broken, Progress};

/// The length of the shared buffer, in bytes: the maximum of one read. 256 KiB was not faster, and
/// stored more with 64 streams.
const SHARED_BUFFER_LEN: usize = 64 * 1024;
/// Reads of one direction before other tasks have their turn.
pub(super) const ROUNDS: usize = 4;
/// How long a connection may be idle: RFC 5382 (REQ-5) requires this of NATs.
const IDLE: Duration = Duration::from_mins(124);
/// How long it may be idle after one direction has ended.
const IDLE_HALF_CLOSED: Duration = Duration::from_mins(15);

thread_local! {
    static SHARED_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A function that is called when bytes moved.
pub(super) type OnMove<'a> = &'a (dyn Fn() + Sync);

/// Relays bytes in both directions, and the end of each direction.
///
/// # Errors
/// The error of a connection, or `TimedOut` if both were idle for too long.
pub(super) async fn relay<A, B>(a: &mut A, b: &mut B, moved: OnMove<'_>) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    relay_within(a, b, (moved, [IDLE, IDLE_HALF_CLOSED])).await
}

/// Runs steps of two directions until the second has ended, whatever the first does.
///
/// # Errors
/// As for [`relay`].
pub(super) async fn relay_answer(
    step: impl FnMut(usize, &mut Context<'_>, &mut Progress) -> Poll<Result<(), Broken>>,
    moved: OnMove<'_>,
) -> io::Result<()> {
    drive(step, (moved, [IDLE, IDLE_HALF_CLOSED]), |[_, back]| back).await
}

async fn relay_within<A, B>(
    a: &mut A,
    b: &mut B,
    watched: (OnMove<'_>, [Duration; 2]),
) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut there, mut back) = (Half::default(), Half::default());
    let step = |way: usize, cx: &mut Context<'_>, progress: &mut Progress| {
        let (a, b) = (Pin::new(&mut *a), Pin::new(&mut *b));
        if way == 0 { there.poll(cx, a, b, progress) } else { back.poll(cx, b, a, progress) }
    };
    drive(step, watched, |[there, back]| there && back).await
}

/// One direction, with its reader and writer.
pub(super) trait Direction {
    /// Moves the bytes that can be moved. It is ready once the direction has ended.
    fn poll(&mut self, cx: &mut Context<'_>, progress: &mut Progress) -> Poll<Result<(), Broken>>;
}

/// Runs two directions until both have ended.
///
/// # Errors
/// As for [`relay`].
pub(super) async fn carry_both(
    mut there: impl Direction,
    mut back: impl Direction,
    moved: OnMove<'_>,
) -> io::Result<()> {
    let step = |way: usize, cx: &mut Context<'_>, progress: &mut Progress| {
        if way == 0 { there.poll(cx, progress) } else { back.poll(cx, progress) }
    };
    drive(step, (moved, [IDLE, IDLE_HALF_CLOSED]), |[there, back]| there && back).await
}

/// The state of one direction.
#[derive(Default)]
pub(super) struct Half {
    /// Bytes that were read. Those from `at` on are not written yet.
    pending: Vec<u8>,
    at: usize,
    state: State,
}

/// The state of the end of a direction.
#[derive(Clone, Copy, Default, PartialEq)]
pub(super) enum State {
    /// More bytes may follow.
    #[default]
    Carrying,
    /// The reader has ended: the writer must be shut down.
    Ending,
    Done,
}

impl Half {
    /// Whether all bytes and the end were written.
    pub(crate) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether all bytes that were read were written.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Moves the bytes that can be moved. It is ready once the direction has ended.
    pub(crate) fn poll<R: AsyncRead, W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut from: Pin<&mut R>,
        mut to: Pin<&mut W>,
        progress: &mut Progress,
    ) -> Poll<Result<(), Broken>> {
        for _ in 0..ROUNDS {
            ready!(self.write_pending(cx, to.as_mut(), progress)).map_err(Broken::Writer)?;
            match self.state {
                State::Carrying => {
                    ready!(self.carry(cx, from.as_mut(), to.as_mut(), progress))?;
                }
                State::Ending => {
                    let ended = ready!(to.as_mut().poll_shutdown(cx));
                    ended.or_else(ignore_not_connected).map_err(Broken::Writer)?;
                    self.state = State::Done;
                }
                State::Done => return Poll::Ready(Ok(())),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads once, and writes the bytes.
    fn carry<R: AsyncRead, W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        from: Pin<&mut R>,
        to: Pin<&mut W>,
        progress: &mut Progress,
    ) -> Poll<Result<(), Broken>> {
        SHARED_BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(SHARED_BUFFER_LEN, 0);
            let mut read = ReadBuf::new(buffer);
            ready!(from.poll_read(cx, &mut read)).map_err(Broken::Reader)?;
            let bytes = read.filled();
            if bytes.is_empty() {
                progress.reader_end()?;
                self.state = State::Ending;
                return Poll::Ready(Ok(()));
            }
            progress.has_moved = true;
            let (written, result) = match to.poll_write(cx, bytes) {
                Poll::Ready(Ok(0)) => (0, Err(write_zero())),
                Poll::Ready(Ok(written)) => (written, Ok(())),
                Poll::Ready(Err(error)) => (0, Err(error)),
                Poll::Pending => (0, Ok(())),
            };
            self.pending = bytes[written..].to_vec();
            self.at = 0;
            Poll::Ready(result.map_err(Broken::Writer))
        })
    }

    fn write_pending<W: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut to: Pin<&mut W>,
        progress: &mut Progress,
    ) -> Poll<io::Result<()>> {
        while self.at < self.pending.len() {
            match ready!(to.as_mut().poll_write(cx, &self.pending[self.at..]))? {
                0 => return Poll::Ready(Err(write_zero())),
                written => self.at += written,
            }
            progress.has_moved = true;
        }
        self.pending = Vec::new();
        self.at = 0;
        Poll::Ready(Ok(()))
    }
}

/// One direction that copies bytes, with its reader and writer.
pub(super) struct Copied<R, W> {
    half: Half,
    from: R,
    to: W,
}

impl<R, W> Copied<R, W> {
    pub(crate) fn new(from: R, to: W) -> Self {
        Self { half: Half::default(), from, to }
    }
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin> Direction for Copied<R, W> {
    fn poll(&mut self, cx: &mut Context<'_>, progress: &mut Progress) -> Poll<Result<(), Broken>> {
        self.half.poll(cx, Pin::new(&mut self.from), Pin::new(&mut self.to), progress)
    }
}

fn write_zero() -> io::Error {
    io::ErrorKind::WriteZero.into()
}

/// Ignores the error of a connection that is already closed.
fn ignore_not_connected(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotConnected { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        runtime::Builder,
        time::sleep,
    };

    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(work)
    }

    #[test]
    fn both_directions_arrive_whole_through_a_small_buffer() {
        run(async {
            let (mut near, mut a) = duplex(1 << 20);
            let (mut b, far) = duplex(7);
            let relay = tokio::spawn(async move { relay(&mut a, &mut b, &|| {}).await });
            let sent: Vec<u8> = (0..SHARED_BUFFER_LEN * 2 + 5).map(|i| (i % 251) as u8).collect();
            let (mut far_read, mut far_write) = tokio::io::split(far);
            let answer = sent[..70_000].to_vec();
            let expected = answer.clone();
            tokio::spawn(async move {
                far_write.write_all(&answer).await.unwrap();
                far_write.shutdown().await.unwrap();
            });
            let to_send = sent.clone();
            let reading = tokio::spawn(async move {
                let mut got = Vec::new();
                far_read.read_to_end(&mut got).await.unwrap();
                got
            });
            near.write_all(&to_send).await.unwrap();
            let mut back = vec![0; expected.len()];
            near.read_exact(&mut back).await.unwrap();
            assert!(back == expected);
            near.shutdown().await.unwrap();
            assert!(reading.await.unwrap() == sent);
            relay.await.unwrap().unwrap();
        });
    }

    #[test]
    fn one_direction_continues_after_the_other_ended() {
        run(async {
            let (mut near, mut a) = duplex(64);
            let (mut b, mut far) = duplex(64);
            let relay = tokio::spawn(async move { relay(&mut a, &mut b, &|| {}).await });
            near.shutdown().await.unwrap();
            assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0);
            far.write_all(b"late").await.unwrap();
            drop(far);
            let mut got = Vec::new();
            near.read_to_end(&mut got).await.unwrap();
            assert_eq!(got, b"late");
            relay.await.unwrap().unwrap();
        });
    }

    #[test]
    fn relay_times_out_only_if_no_byte_moves() {
        run(async {
            let (mut near, mut a) = duplex(64);
            let (mut b, mut far) = duplex(64);
            let minute = Duration::from_mins(1);
            let moves = Arc::new(AtomicUsize::new(0));
            let count = moves.clone();
            let relay = tokio::spawn(async move {
                let moved = move || {
                    count.fetch_add(1, Ordering::Relaxed);
                };
                relay_within(&mut a, &mut b, (&moved, [minute; 2])).await
            });
            for _ in 0..5 {
                sleep(minute * 3 / 4).await;
                near.write_all(b"x").await.unwrap();
                far.read_exact(&mut [0]).await.unwrap();
                assert!(!relay.is_finished());
            }
            let error = relay.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert_eq!(moves.load(Ordering::Relaxed), 5, "each move is reported");
        });
    }
}
