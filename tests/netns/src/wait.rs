//! Time as the tests see it: deadlines, never fixed sleeps.

use std::env;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// The first pause between two checks, short compared with a test.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause. A check starts several processes, and all tests share the cores.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Factor of all deadlines if other tests share the machine.
const SHARED: u32 = 4;

/// The deadline of an event, which is longer if other tests share the machine (`LINERATE_NETNS_SHARED=1`, set
/// by `make test`).
pub fn deadline(within: Duration) -> Duration {
    let is_shared = env::var_os("LINERATE_NETNS_SHARED").is_some_and(|value| value == "1");
    if is_shared { SHARED * within } else { within }
}

/// Time since it was started.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// A watch that runs from now.
    #[expect(clippy::disallowed_methods, reason = "the rig watches real daemons on the real clock")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Polls until `holds` is true.
///
/// # Panics
/// If it is still false after the [`deadline`] of `within`.
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let within = deadline(within);
    let watch = Stopwatch::start();
    while !holds() {
        let waited = watch.elapsed();
        assert!(waited < within, "not within {within:?}: {what}");
        thread::sleep((waited / 8).clamp(FIRST_PAUSE, LONGEST_PAUSE));
    }
}

/// Prints a line that is visible even when the test passes: the test harness only captures `println!`
/// and `eprintln!`.
pub fn announce(line: &str) {
    // If stderr is closed, the line is lost, which is not a failure.
    let _ = writeln!(std::io::stderr(), "{line}");
}
