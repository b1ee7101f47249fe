//! Error numbers: the one definition for the crates above.

use std::io;

pub use nix::errno::Errno;

/// The errno of an error, if it came from the kernel.
pub fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}
