//! The interface lock. A process that brings an interface up or down holds it until it exits.
//! Other processes wait.
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

/// The pause between attempts of a waiting process.
const STEP: Duration = Duration::from_millis(100);
/// The pause for a process that only reads the holder and has the lock for microseconds.
const CHECK_PAUSE: Duration = Duration::from_millis(2);
/// The number of attempts with that pause.
const CHECKS: u32 = 5;
/// The time after which a waiting process logs a warning. It is also the time that a shell may
/// take to exit after it started a background command.
const SILENCE: Duration = Duration::from_secs(1);
/// The longest wait. It is shorter than the timeout of a service manager (systemd: 90 s).
const PATIENCE: Duration = Duration::from_secs(60);
/// The suffix of the lock file. The file is never removed, because another process may wait for
/// it.
const EXTENSION: &str = "lock";

/// The acquired lock. It is released when this is dropped.
#[derive(Debug)]
pub struct InterfaceLock {
    /// The locked file. It contains the ID of the last holder, and that of a process that runs a
    /// hook for the holder.
    file: File,
    waited: bool,
}

impl InterfaceLock {
    /// Waits for the lock. Returns `None` if the interface of the holder is up, because the wait
    /// could take forever.
    ///
    /// # Errors
    /// The wait takes too long, or the holder waits for this process.
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
                tracing::warn!("{interface}: {}: waiting", busy_message(&file));
            } else if waited >= PATIENCE {
                bail!("{interface}: {} since {} s", busy_message(&file), PATIENCE.as_secs());
            }
            thread::sleep(STEP);
            waited += STEP;
        }
    }

    /// Converts the lock into a shared one, so that [`InterfaceLock::join`] succeeds.
    pub fn share(&self) -> io::Result<()> {
        self.file.lock_shared()
    }

    /// Acquires a shared lock.
    pub fn join(interface: &str) -> anyhow::Result<Self> {
        let file = open(interface)?;
        file.lock_shared().and_then(|()| write_pids(&file, None)).context("interface lock")?;
        Ok(Self { file, waited: false })
    }

    /// Records that `process` runs a hook for the holder until the result is dropped, so that
    /// [`ensure_outside_hooks`] refuses its children. 0 stands for a process in another pid
    /// namespace.
    pub fn record_hook_runner(&self, process: u32) -> HookRunner<'_> {
        // After a failure, a hook that would wait for itself is not refused.
        let _ = write_pids(&self.file, Some(process));
        HookRunner(&self.file)
    }

    /// Whether another process had the lock at first.
    pub fn was_contended(&self) -> bool {
        self.waited
    }

    /// Whether the interface has a lock file that this user can see.
    pub fn has_lock_file(interface: &str) -> bool {
        path(interface).exists()
    }
}

/// The record of a process that runs a hook for the holder of the lock.
#[derive(Debug)]
pub struct HookRunner<'a>(&'a File);

impl Drop for HookRunner<'_> {
    fn drop(&mut self) {
        let _ = write_pids(self.0, None);
    }
}

/// Returns an error if this process was started by a hook of the interface.
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
            bail!(
                "{interface}: a hook of {interface} started this command and would wait for itself"
            );
        }
        thread::sleep(STEP);
        waited += STEP;
    }
    Ok(())
}

/// Whether the process that listens on its socket has the interface under another name or in
/// another network namespace.
fn is_elsewhere(interface: &str) -> bool {
    UnixStream::connect(socket_path(interface))
        .and_then(|stream| process::listener_pid(&stream))
        .is_ok_and(has_interface)
}

/// Whether a process has an open TUN descriptor with an interface. The kernel shows the
/// interface's name in the fdinfo (`tun_chr_show_fdinfo`); it is empty after the interface was
/// deleted.
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

/// Writes the ID of this process and of a process that runs a hook for it.
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

/// Locks the file, unless another process has the lock for longer than a check takes.
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

/// The IDs of the holder and of the process that runs a hook for it; empty if the lock is free.
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
    fn ids_of_the_holder_and_of_the_hook_runner_are_read_back() {
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
