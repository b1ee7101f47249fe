//! The interface lock: a process that brings an interface up or down holds it until it ends, and
//! others wait.
//!
//! ```text
//!   up ---- exclusive ---- shared with the guardian ------- end
//!   guardian               shared, until its hooks are done ------ end
//!   the next up or down                                     waits  | exclusive
//! ```

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read as _, Seek as _, Write as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    thread,
    time::Duration,
};

use anyhow::{Context, bail};
use sys::{netlink::Netlink, process};

use super::records;
use crate::sockets::socket_path;

/// The interval at which a waiting process tries again.
const STEP: Duration = Duration::from_millis(100);
/// The pause for a process that only checks who holds the lock, and holds it for microseconds.
const CHECK_PAUSE: Duration = Duration::from_millis(2);
/// How many such pauses there may be in a row.
const CHECKS: u32 = 5;
/// How long a process waits before it logs that it does; also how long a shell may take to exit
/// after it put a command into the background.
const SILENCE: Duration = Duration::from_secs(1);
/// How long a process waits at most. Less than a service manager does (systemd: 90 s).
const PATIENCE: Duration = Duration::from_secs(60);
/// The suffix of a lock's file, which is never removed: another process may be waiting for it.
const EXTENSION: &str = "lock";

/// The lock, held until it is dropped.
#[derive(Debug)]
pub struct InterfaceLock {
    /// Locked. It contains the ID of the last process that held it, and of one that runs a hook for
    /// it.
    file: File,
    waited: bool,
}

impl InterfaceLock {
    /// Waits for the lock. `None` if its holder has the interface up: that may take forever.
    ///
    /// # Errors
    /// It takes too long, or the holder waits for this process.
    pub fn wait(interface: &str) -> anyhow::Result<Option<Self>> {
        let netlink = Netlink::open()?;
        let file = open(interface)?;
        let mut waited = Duration::ZERO;
        loop {
            if try_lock(&file).context("interface lock")? {
                write_pids(&file, None).context("interface lock")?;
                return Ok(Some(Self { file, waited: !waited.is_zero() }));
            }
            let is_first = waited.is_zero();
            if is_first {
                ensure_outside_hooks(interface)?;
            }
            if netlink.link_by_name(interface)?.is_some() || is_first && is_elsewhere(interface) {
                return Ok(None);
            }
            if waited == SILENCE {
                tracing::warn!("{interface}: {}: waiting for that", busy_message(&file));
            } else if waited >= PATIENCE {
                bail!("{interface}: {}, for {} s now", busy_message(&file), PATIENCE.as_secs());
            }
            thread::sleep(STEP);
            waited += STEP;
        }
    }

    /// Makes the lock a shared one, which [`InterfaceLock::join`] can hold, too.
    pub fn share(&self) -> io::Result<()> {
        self.file.lock_shared()
    }

    /// Takes a lock that its holder shares.
    pub fn join(interface: &str) -> anyhow::Result<Self> {
        let file = open(interface)?;
        file.lock_shared().and_then(|()| write_pids(&file, None)).context("interface lock")?;
        Ok(Self { file, waited: false })
    }

    /// Records that `process` runs a hook for the holder, until the result is dropped:
    /// [`ensure_outside_hooks`] refuses its children, too. 0 is a process in another pid namespace.
    pub fn record_hook_runner(&self, process: u32) -> HookRunner<'_> {
        // If that fails, a hook that would wait for itself is not refused.
        let _ = write_pids(&self.file, Some(process));
        HookRunner(&self.file)
    }

    /// Whether another process held it at first.
    pub fn was_contended(&self) -> bool {
        self.waited
    }

    /// Whether anybody ever held it, as far as this user may see.
    pub fn has_lock_file(interface: &str) -> bool {
        path(interface).exists()
    }
}

/// While it exists, another process runs a hook for the holder of the lock.
#[derive(Debug)]
pub struct HookRunner<'a>(&'a File);

impl Drop for HookRunner<'_> {
    fn drop(&mut self) {
        let _ = write_pids(self.0, None);
    }
}

/// Refuses to wait for a hook that this process was called by.
///
/// # Errors
/// The process that brings the interface up or down waits for this process.
pub fn ensure_outside_hooks(interface: &str) -> anyhow::Result<()> {
    let mut waited = Duration::ZERO;
    while holders(interface)
        .iter()
        .any(|pid| process::ancestor_pids().any(|process| process == *pid))
    {
        if waited >= SILENCE {
            bail!("{interface}: this is called by a hook of {interface}, which would wait for it");
        }
        thread::sleep(STEP);
        waited += STEP;
    }
    Ok(())
}

/// Whether the process at its socket has the interface under another name, or in another network
/// namespace.
fn is_elsewhere(interface: &str) -> bool {
    UnixStream::connect(socket_path(interface))
        .and_then(|stream| process::listener_pid(&stream))
        .is_ok_and(has_interface)
}

/// The kernel shows the interface of a TUN descriptor in its fdinfo (`tun_chr_show_fdinfo`), and an
/// empty name once the interface was deleted.
fn has_interface(pid: u32) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return false };
    let mut texts = files.flatten().filter_map(|file| fs::read_to_string(file.path()).ok());
    let is_attached = |line: &str| line.strip_prefix("iff:\t").is_some_and(|name| !name.is_empty());
    texts.any(|text| text.lines().any(is_attached))
}

fn path(interface: &str) -> PathBuf {
    records::path(interface, EXTENSION)
}

fn open(interface: &str) -> anyhow::Result<File> {
    let path = path(interface);
    records::make_folder(&path).with_context(|| path.display().to_string())?;
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(&path);
    file.with_context(|| path.display().to_string())
}

/// Writes the ID of this process, and of one that runs a hook for it.
fn write_pids(mut file: &File, runner: Option<u32>) -> io::Result<()> {
    let runner = runner.map_or_else(String::new, |runner| format!(" {runner}"));
    file.set_len(0)?;
    file.rewind()?;
    write!(file, "{}{runner}", std::process::id())
}

fn read_pids(mut file: &File) -> Vec<u32> {
    let mut text = String::new();
    match file.rewind().and_then(|()| file.read_to_string(&mut text)) {
        Ok(_) => text.split(' ').map_while(|pid| pid.parse().ok()).collect(),
        Err(_) => Vec::new(),
    }
}

fn busy_message(file: &File) -> String {
    let holder = read_pids(file).first().copied();
    let pid = holder.map_or_else(String::new, |pid| format!(" by process {pid}"));
    format!("it is being brought up or down{pid}")
}

/// Locks it, unless somebody holds it for longer than a check.
fn try_lock(file: &File) -> io::Result<bool> {
    for _ in 0..CHECKS {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(CHECK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

/// The process that holds it, and the one that runs a hook for it.
fn holders(interface: &str) -> Vec<u32> {
    let Ok(file) = File::open(path(interface)) else { return Vec::new() };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => read_pids(&file),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_the_holder_and_of_the_one_that_runs_a_hook_are_read_as_they_were_written() {
        let path = std::env::temp_dir().join(format!("linerate-lock-{}", std::process::id()));
        let mut options = File::options();
        let mut file =
            options.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        assert!(read_pids(&file).is_empty());
        file.write_all(b"4294967295, and longer").unwrap();
        let own = std::process::id();
        write_pids(&file, None).unwrap();
        assert_eq!(read_pids(&file), [own]);
        let lock = InterfaceLock { file, waited: false };
        let runner = lock.record_hook_runner(7);
        assert_eq!(read_pids(&lock.file), [own, 7]);
        assert!(busy_message(&lock.file).ends_with(&format!("by process {own}")));
        drop(runner);
        assert_eq!(read_pids(&lock.file), [own]);
        fs::remove_file(path).unwrap();
    }
}
