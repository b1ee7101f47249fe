//! Removes files for a process that gave up the right to do it itself.
//!
//! ```text
//!   process -- fork --> janitor, which keeps its rights and only reads
//!     | ---- paths --->   |
//!     | drops privileges  |
//!     x  ends, somehow -> pipe ends -> the files are removed
//! ```
#![expect(unsafe_code, reason = "fork")]

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::Path,
};

use nix::{
    fcntl::OFlag,
    unistd::{ForkResult, dup2_stderr, dup2_stdin, dup2_stdout, fork, pipe2, setsid},
};

use super::background::only_thread;

/// Behind a path, which has none.
const END: u8 = 0;

/// The line to the janitor. It acts when the line is cut: when it is dropped, or
/// when the process ends in whatever way.
#[derive(Debug)]
pub struct Janitor {
    pipe: File,
}

impl Janitor {
    /// Starts the janitor, which has nothing to do yet. It inherits all that is
    /// open, so call it first of all, and behind [`super::Signals::block`], so
    /// that a signal to the whole group leaves it its work.
    ///
    /// # Errors
    /// Other threads run already, or the kernel said no.
    pub fn start() -> io::Result<Self> {
        only_thread()?;
        let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
        // SAFETY: this thread is the only one, so that the child has all there is
        // of the process and may do all that the parent may.
        match unsafe { fork() }? {
            ForkResult::Parent { .. } => Ok(Self { pipe: File::from(writer) }),
            ForkResult::Child => {
                drop(writer);
                let done = wait_and_clean(File::from(reader));
                std::process::exit(done.is_err().into())
            }
        }
    }

    /// Charges it with the file that is now at `path`, beside others. A file that somebody
    /// puts in its place is left alone.
    ///
    /// # Errors
    /// There is no such file, or the janitor is gone.
    pub fn charge(&self, path: &Path) -> io::Result<()> {
        let inode = fs::symlink_metadata(path)?.ino();
        let mut order = inode.to_ne_bytes().to_vec();
        order.extend_from_slice(path.as_os_str().as_bytes());
        order.push(END);
        (&self.pipe).write_all(&order)
    }
}

fn wait_and_clean(mut pipe: File) -> io::Result<()> {
    setsid()?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(&null)?;
    let mut orders = Vec::new();
    pipe.read_to_end(&mut orders)?;
    let mut rest = &orders[..];
    let mut done = Ok(());
    while let Some((inode, after)) = rest.split_first_chunk()
        && let Some(length) = after.iter().position(|byte| *byte == END)
    {
        done = done.and(remove(Path::new(OsStr::from_bytes(&after[..length])), *inode));
        rest = &after[length + 1..];
    }
    done
}

fn remove(path: &Path, inode: [u8; 8]) -> io::Result<()> {
    if fs::symlink_metadata(path)?.ino() == u64::from_ne_bytes(inode) {
        fs::remove_file(path)?;
    }
    Ok(())
}
