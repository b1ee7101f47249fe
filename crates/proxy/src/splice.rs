//! Relays bytes between two kernel sockets without copying them into this process. Like
//! [`super::relay`], but with a pipe instead of the shared buffer.

use std::{
    cell::RefCell,
    io,
    os::fd::AsFd,
    task::{Context, Poll, ready},
};

use sys::splice::{Pipe, shutdown_write};
use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
};

use super::{
    byte_relay::{Broken, Copied, Direction, OnMove, Progress, ROUNDS, State, carry_both},
    local::Stream,
};

/// The maximum number of empty pipes that a thread stores for reuse, of two descriptors each.
const MAX_IDLE_PIPES: usize = 16;

thread_local! {
    static PIPES: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// A kernel socket with readiness.
pub(super) trait Socket: AsFd {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    /// Makes a call. If it would block, clears the readiness of the socket.
    fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T>;
}

/// One direction between two sockets.
pub(super) struct Spliced<'a, R, W> {
    from: &'a R,
    to: &'a W,
    /// The pipe while it holds bytes. A connection that waits for input has returned it.
    pipe: Option<Pipe>,
    state: State,
}

impl<'a, R, W> Spliced<'a, R, W> {
    pub(crate) fn new(from: &'a R, to: &'a W) -> Self {
        Self { from, to, pipe: None, state: State::default() }
    }
}

impl<R: Socket, W: Socket> Direction for Spliced<'_, R, W> {
    fn poll(&mut self, cx: &mut Context<'_>, progress: &mut Progress) -> Poll<Result<(), Broken>> {
        for _ in 0..ROUNDS {
            if let Some(pipe) = &mut self.pipe {
                ready!(self.to.poll_write_ready(cx)).map_err(Broken::Writer)?;
                match self.to.try_io(Interest::WRITABLE, || pipe.drain(self.to)) {
                    Ok(_) => progress.has_moved = true,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Poll::Ready(Err(Broken::Writer(error))),
                }
                if pipe.buffered() == 0 {
                    give_back(self.pipe.take());
                }
                continue;
            }
            match self.state {
                State::Carrying => {
                    ready!(self.from.poll_read_ready(cx)).map_err(Broken::Reader)?;
                    let mut pipe = take_pipe().map_err(Broken::Reader)?;
                    match self.from.try_io(Interest::READABLE, || pipe.fill(self.from)) {
                        Ok(0) => {
                            give_back(Some(pipe));
                            progress.reader_end()?;
                            self.state = State::Ending;
                        }
                        Ok(_) => self.pipe = Some(pipe),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            give_back(Some(pipe));
                        }
                        Err(error) => return Poll::Ready(Err(Broken::Reader(error))),
                    }
                }
                State::Ending => {
                    shutdown_write(self.to).map_err(Broken::Writer)?;
                    self.state = State::Done;
                }
                State::Done => return Poll::Ready(Ok(())),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn take_pipe() -> io::Result<Pipe> {
    match PIPES.with_borrow_mut(Vec::pop) {
        Some(pipe) => Ok(pipe),
        None => Pipe::new(),
    }
}

/// Stores an empty pipe for reuse.
fn give_back(pipe: Option<Pipe>) {
    PIPES.with_borrow_mut(|pipes| {
        if pipes.len() < MAX_IDLE_PIPES {
            pipes.extend(pipe);
        }
    });
}

impl Socket for TcpStream {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }

    fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(interest, call)
    }
}

impl Socket for UnixStream {
    fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_read_ready(cx)
    }

    fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_write_ready(cx)
    }

    fn try_io<T>(&self, interest: Interest, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.try_io(interest, call)
    }
}

/// Relays bytes in both directions between a client or service on this side and a connection of the
/// kernel's stack. Uses splice(2) into the tunnel, which is 1.25 times as fast as copies (iperf3, 1
/// stream; 2 times with 64), and copies out of the tunnel, where splice(2) reached 0.85 times.
///
/// # Errors
/// As for [`super::byte_relay::relay`].
pub(super) async fn splice(
    here: &mut Stream,
    there: &mut TcpStream,
    moved: OnMove<'_>,
) -> io::Result<()> {
    let (from_there, to_there) = there.split();
    match here {
        Stream::Tcp(here) => {
            let (from_here, to_here) = here.split();
            let into = Spliced::new(from_here.as_ref(), to_there.as_ref());
            carry_both(into, Copied::new(from_there, to_here), moved).await
        }
        Stream::Unix(here) => {
            let (from_here, to_here) = here.split();
            let into = Spliced::new(from_here.as_ref(), to_there.as_ref());
            carry_both(into, Copied::new(from_there, to_here), moved).await
        }
    }
}
