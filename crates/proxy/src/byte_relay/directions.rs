//! Runs two directions until both have ended, and handles the failure of one.
//!
//! ```text
//!   the reader ended                 the writer is shut down; the other direction continues
//!   the writer accepts nothing (FIN) the other direction continues: an answer may follow
//!   the writer was reset             bytes that it sent before are still relayed, then a reset
//!   the reader was reset             the last bytes have a second to arrive, then a reset
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

/// The time for the last bytes to arrive before a reset, which would discard them.
const SETTLING: Duration = Duration::from_secs(1);

/// The side that failed in a direction.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The reader.
    Reader(io::Error),
    /// The writer.
    Writer(io::Error),
}

/// The progress of a direction during one poll.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Output: whether bytes moved.
    pub has_moved: bool,
    /// Input: whether its reader was reset. The kernel reports a reset once, here to the writes of the
    /// other direction, and reads then see the end of the stream.
    pub was_reset: bool,
}

impl Progress {
    /// The meaning of the end of the reader: an error if it was reset.
    pub(crate) fn reader_end(&self) -> Result<(), Broken> {
        let reset = || Broken::Reader(io::ErrorKind::ConnectionReset.into());
        if self.was_reset { Err(reset()) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum DirectionState {
    Open,
    Ended,
    /// The writer accepts nothing more.
    Cut,
    /// The writer was reset.
    Reset,
}

/// Runs `step` for both directions until `is_over`, or until nothing has moved for `idle[0]`, or for
/// `idle[1]` once one direction has ended. Calls `moved` when bytes moved.
///
/// # Errors
/// A side was reset, or both were idle for too long. The caller must reset both then.
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
        // The timer is checked once in a period instead of being reset with every byte.
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

/// If the writer had already sent FIN, a reset only means that it is closed. The kernel reports
/// `BrokenPipe` in this case.
fn state_after(error: &io::Error) -> DirectionState {
    if error.kind() == io::ErrorKind::BrokenPipe {
        DirectionState::Cut
    } else {
        DirectionState::Reset
    }
}
