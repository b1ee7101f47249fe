//! Files of ended processes. The kernel closes the files of a process one after the other, so some of
//! them outlive its sockets for a moment: for seconds on a busy machine, if a TUN device is among them.

use std::{thread, time::Duration};

/// The first pause between two attempts. Each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(400);
/// The sum of all pauses.
const PATIENCE: Duration = Duration::from_secs(10);
/// The sum of pauses after which a warning is logged.
const SILENCE: Duration = Duration::from_secs(1);

/// Repeats `open` while it fails with an error that `is_ending` attributes to an ended process, for
/// up to 10 seconds. `name` is for a warning.
///
/// # Errors
/// The last error of `open`.
pub(crate) fn retry<T, E>(
    name: &str,
    is_ending: impl Fn(&E) -> bool,
    mut open: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let (mut pause, mut waited, mut is_silent) = (FIRST_PAUSE, Duration::ZERO, true);
    loop {
        match open() {
            Err(error) if waited < PATIENCE && is_ending(&error) => {}
            opened => return opened,
        }
        if is_silent && waited >= SILENCE {
            tracing::warn!("{name}: in use, possibly by a process that is ending: waiting for it");
            is_silent = false;
        }
        thread::sleep(pause);
        waited += pause;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}
