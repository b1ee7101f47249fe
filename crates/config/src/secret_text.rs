//! Texts that contain keys.

use std::fmt;

/// Appends the output of `write` to `out`, with room for `spare` more bytes.
///
/// `write` runs twice, first to measure the length: a `String` that grows leaves a copy of its secrets
/// in freed memory.
pub(crate) fn append(
    out: &mut String,
    spare: usize,
    write: impl Fn(&mut dyn fmt::Write) -> fmt::Result,
) {
    let mut length = Length(0);
    write(&mut length).expect("counting takes any text");
    out.reserve(length.0 + spare);
    write(out).expect("a String takes any text");
}

struct Length(usize);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}
