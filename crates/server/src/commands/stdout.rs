//! Output of commands.

use std::io::{self, Write};

use anyhow::Context;

/// Writes to standard output.
///
/// # Errors
/// The write failed. A closed pipe, as after `head`, is not an error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_to(&mut io::stdout().lock(), text).context("standard output")
}

fn print_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_closed_pipe_is_not_an_error_and_a_full_disk_is_one() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let long = "line\n".repeat(100_000);
        print_to(&mut writer, &long).unwrap();
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let failed = print_to(&mut full, &long).unwrap_err();
        assert_eq!(failed.kind(), io::ErrorKind::StorageFull);
    }
}
