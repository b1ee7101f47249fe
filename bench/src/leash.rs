//! The end of a generator: that of its stdin, which the bench holds.

use std::io::{self, Read, stdin};
use std::process;
use std::thread;

/// Has this process end when its stdin does, which it does whatever becomes of the bench.
pub fn end_with_stdin() -> io::Result<()> {
    end_with_stdin_after(|| ())
}

/// The same, after some last words.
pub fn end_with_stdin_after(last_words: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("leash".to_owned()).spawn(|| {
        // However it ends.
        let _ = stdin().read_to_end(&mut Vec::new());
        last_words();
        process::exit(0);
    })?;
    Ok(())
}
