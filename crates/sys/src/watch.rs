//! Waits until a file is deleted or replaced. Deleting the UAPI socket shuts the interface down.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::AsFd,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent},
};
use packet::Waker;

use crate::wake::{Waited, Wake};

/// Events of a directory after a file in it was removed or replaced.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR);

/// The last event of a directory, which was removed or moved.
const ENDED: AddWatchFlags = AddWatchFlags::IN_IGNORED
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_UNMOUNT);

/// Interval of the checks if inotify is not available. By default, a user may have 128 instances,
/// and the containers of a machine may share one user.
const POLL: Duration = Duration::from_secs(1);

/// Watches a file through its directory. An open socket keeps its inode, so a watch on the file
/// itself would not report the deletion.
#[derive(Debug)]
pub struct Watch {
    /// `None` if the user has reached a limit of inotify. Then the file is polled.
    inotify: Option<Inotify>,
    /// The file if it is polled, which works without access to its directory.
    file: Option<fs::File>,
    path: PathBuf,
    name: OsString,
    /// The file's device and inode.
    identity: (u64, u64),
    is_gone: bool,
    wake: Wake,
}

/// The result of [`Watch::wait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchOutcome {
    /// The file was deleted, renamed or replaced.
    Gone,
    /// The waker was called.
    Woken,
}

impl Watch {
    /// Watches an existing file.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn new(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let inotify = unless_exhausted(notifications(directory))?;
        Self::with(inotify, path, name)
    }

    fn with(inotify: Option<Inotify>, path: &Path, name: OsString) -> io::Result<Self> {
        // This follows adding the watch, so that changes are not missed.
        let identity = identity(path)?;
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let open = || fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = inotify.is_none().then(open).transpose()?;
        let wake = Wake::new()?;
        Ok(Self { inotify, file, path: path.to_owned(), name, identity, is_gone: false, wake })
    }

    /// Waits until the file is deleted, renamed or replaced.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn wait(&mut self) -> io::Result<WatchOutcome> {
        while !self.is_gone()? {
            let inotify = self.inotify.as_ref().map(AsFd::as_fd);
            let at_most = inotify.is_none().then_some(POLL);
            if self.wake.wait(inotify, at_most)? == Waited::Woken {
                return Ok(WatchOutcome::Woken);
            }
        }
        Ok(WatchOutcome::Gone)
    }

    /// Whether the file was deleted, renamed or replaced. Reads all pending events.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn is_gone(&mut self) -> io::Result<bool> {
        let Some(inotify) = &self.inotify else {
            let is_renamed = match identity(&self.path) {
                Ok(identity) => identity != self.identity,
                Err(error) => {
                    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
                }
            };
            let metadata = self.file.as_ref().map(fs::File::metadata).transpose()?;
            self.is_gone |= is_renamed || metadata.is_some_and(|metadata| metadata.nlink() == 0);
            return Ok(self.is_gone);
        };
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    self.is_gone |= events.iter().any(|event| self.ends(event));
                }
                Err(Errno::EAGAIN) => return Ok(self.is_gone),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Ends [`Watch::wait`].
    pub fn waker(&self) -> Waker {
        self.wake.waker()
    }

    fn ends(&self, event: &InotifyEvent) -> bool {
        let concerns_us = event.name.as_deref() == Some(OsStr::new(&self.name));
        let lost = event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW);
        event.mask.intersects(ENDED)
            || (concerns_us && event.mask.intersects(REMOVAL))
            || ((concerns_us || lost) && identity(&self.path).ok() != Some(self.identity))
    }
}

/// Events of the file's name when it is removed.
const REMOVAL: AddWatchFlags = AddWatchFlags::IN_DELETE.union(AddWatchFlags::IN_MOVED_FROM);

fn notifications(directory: &Path) -> nix::Result<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
    inotify.add_watch(directory, EVENTS)?;
    Ok(inotify)
}

/// `None` if the user has reached the limit of instances (EMFILE) or watches (ENOSPC), see inotify(7).
pub(crate) fn unless_exhausted<T>(made: nix::Result<T>) -> io::Result<Option<T>> {
    match made {
        Ok(made) => Ok(Some(made)),
        Err(Errno::EMFILE | Errno::ENOSPC) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let name = format!("linerate-watch-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn deletion_of_a_listening_socket_is_detected() {
        let directory = Directory::new("delete");
        let path = directory.join("wg0.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut watch = Watch::new(&path).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| watch.wait().unwrap());
            fs::remove_file(&path).unwrap();
            assert_eq!(waiting.join().unwrap(), WatchOutcome::Gone);
        });
        assert!(watch.is_gone().unwrap(), "the result stays the same");
    }

    #[test]
    fn deletion_is_detected_without_inotify() {
        let directory = Directory::new("poll");
        let path = directory.join("wg0.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let none = unless_exhausted::<Inotify>(Err(Errno::EMFILE)).unwrap();
        let mut watch = Watch::with(none, &path, "wg0.sock".into()).unwrap();
        assert!(!watch.is_gone().unwrap());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| watch.wait().unwrap());
            fs::remove_file(&path).unwrap();
            assert_eq!(waiting.join().unwrap(), WatchOutcome::Gone);
        });
    }

    #[test]
    fn replacement_by_a_rename_is_detected() {
        let directory = Directory::new("replace");
        let (path, other) = (directory.join("a"), directory.join("b"));
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(&path).unwrap();
        fs::write(&other, "b").unwrap();
        assert!(!watch.is_gone().unwrap(), "another file was changed");
        fs::rename(&other, &path).unwrap();
        assert!(watch.is_gone().unwrap());
    }

    #[test]
    fn removal_of_the_directory_is_detected() {
        let directory = Directory::new("directory");
        fs::create_dir(directory.join("d")).unwrap();
        let path = directory.join("d/a");
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(&path).unwrap();
        fs::rename(directory.join("d"), directory.join("e")).unwrap();
        assert!(watch.is_gone().unwrap());
    }

    #[test]
    fn missing_file_is_an_error_and_a_waker_ends_the_wait() {
        let directory = Directory::new("missing");
        let path = directory.join("a");
        assert_eq!(Watch::new(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, "a").unwrap();
        let mut watch = Watch::new(&path).unwrap();
        watch.waker()();
        assert_eq!(watch.wait().unwrap(), WatchOutcome::Woken);
    }
}
