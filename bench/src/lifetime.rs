//! A generator ends with its stdin, which the bench keeps open.

use std::io::{self, Read, stdin};
use std::process;
use std::thread;

/// Ends this process when its stdin ends, which happens however the bench ends.
pub fn end_with_stdin() -> io::Result<()> {
    end_with_stdin_after(|| ())
}

/// The same, after running `last_words`.
pub fn end_with_stdin_after(last_words: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name("lifetime".to_owned()).spawn(|| {
        // Any error ends the process as well.
        let _ = stdin().read_to_end(&mut Vec::new());
        last_words();
        process::exit(0);
    })?;
    Ok(())
}
