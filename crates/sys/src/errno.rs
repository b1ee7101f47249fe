//! Error numbers used by the crates above.

use std::io;

pub use nix::errno::Errno;

/// The errno of an error; `None` if it is not from the kernel.
pub fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw)
}
