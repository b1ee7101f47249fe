//! Two directions until both are over, and what becomes of one when the other breaks.
//!
//! ```text
//!   the reader ended                 the writer is told, the other direction goes on
//!   the writer takes no more (FIN)   the other direction goes on: an answer may come yet
//!   the writer was reset             what it had said before is still brought, then a reset
//!   the reader was reset             what was written has a moment to arrive, then a reset
//! ```

use std::{
    future::poll_fn,
    io,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until};

use super::OnMove;

/// How long what was written last has to arrive, before a reset takes it back.
const SETTLING: Duration = Duration::from_secs(1);

/// Which side broke a direction.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The one that is read.
    Reader(io::Error),
    /// The one that is written to.
    Writer(io::Error),
}

/// What a direction tells when it is polled, and is told.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether bytes moved.
    pub has_moved: bool,
    /// Whether its reader was reset: the kernel reports that to the writer alone, and the reader
    /// would take it for the end of the stream.
    pub was_reset: bool,
}

impl Progress {
    /// What to make of a reader's end.
    pub fn reader_end(&self) -> Result<(), Broken> {
        let reset = || Broken::Reader(io::ErrorKind::ConnectionReset.into());
        if self.was_reset { Err(reset()) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum DirectionState {
    Open,
    Ended,
    /// The writer takes no more.
    Cut,
    /// The same, as it was reset.
    Reset,
}

/// Does steps of a direction and the other until it is over or nothing has moved for too
/// long: the second of `idle` counts where one of both has ended. `moved` is called when
/// bytes moved.
///
/// # Errors
/// A side was reset, or both were silent for too long. Both are to be reset then.
pub(super) async fn drive(
    mut step: impl FnMut(usize, &mut Context<'_>, &mut Progress) -> Poll<Result<(), Broken>>,
    (moved, idle): (OnMove<'_>, [Duration; 2]),
    is_over: impl Fn([bool; 2]) -> bool,
) -> io::Result<()> {
    let mut states = [DirectionState::Open; 2];
    let mut last_move = None;
    let mut has_moved = false;
    let mut timer = pin!(sleep(idle[0]));
    let carried = poll_fn(|cx| {
        for way in [0, 1] {
            if states[way] != DirectionState::Open {
                continue;
            }
            let mut progress =
                Progress { has_moved: false, was_reset: states[1 - way] == DirectionState::Reset };
            let polled = step(way, cx, &mut progress);
            if progress.has_moved {
                (has_moved, last_move) = (true, Some(Instant::now()));
                moved();
            }
            match polled {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => states[way] = DirectionState::Ended,
                Poll::Ready(Err(Broken::Reader(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(Err(Broken::Writer(error))) => states[way] = state_after(&error),
            }
        }
        let over = states.map(|way| way != DirectionState::Open);
        if is_over(over) {
            let reset = states.contains(&DirectionState::Reset);
            let error = || io::ErrorKind::ConnectionReset.into();
            return Poll::Ready(if reset { Err(error()) } else { Ok(()) });
        }
        // It is looked at once in a period only, not set anew with every byte.
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut has_moved) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(Instant::now() + idle[usize::from(over[0] || over[1])]);
        }
        Poll::Pending
    })
    .await;
    if carried.is_err()
        && let Some(at) = last_move
    {
        sleep_until(at + SETTLING).await;
    }
    carried
}

/// Where the writer had ended its half, a reset says no more than that it is gone: the
/// kernel has `BrokenPipe` for that.
fn state_after(error: &io::Error) -> DirectionState {
    if error.kind() == io::ErrorKind::BrokenPipe {
        DirectionState::Cut
    } else {
        DirectionState::Reset
    }
}
