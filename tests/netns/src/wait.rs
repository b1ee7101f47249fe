//! Time as the tests see it: deadlines, never fixed sleeps.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// The first pause between two looks, which does not show in a test's time.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest: a look starts several processes, on the cores that the daemons of all tests share.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Time since it was started.
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// A watch that runs from now.
    #[expect(clippy::disallowed_methods, reason = "the rig watches real daemons on the real clock")]
    pub fn start() -> Stopwatch {
        Stopwatch(Instant::now())
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Looks again and again until `holds` is true.
///
/// # Panics
/// When it is still false after `within`.
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let watch = Stopwatch::start();
    while !holds() {
        let waited = watch.elapsed();
        assert!(waited < within, "not within {within:?}: {what}");
        thread::sleep((waited / 8).clamp(FIRST_PAUSE, LONGEST_PAUSE));
    }
}

/// Prints a line that is seen even when the test passes, as the test harness only holds back what
/// `println!` and `eprintln!` write.
pub fn announce(line: &str) {
    // A closed stderr loses the line and is no reason to fail.
    let _ = writeln!(std::io::stderr(), "{line}");
}
