//! Reports that a file was written or replaced.
//!
//! A replacement is visible in the folder of the file, or in that of a link's target. A write into
//! a mounted file is visible only at the file itself. Therefore all three are watched.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs, io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

use nix::{
    errno::Errno,
    sys::inotify::{AddWatchFlags, InitFlags, Inotify},
};

/// Events of a folder after the contents of a file in it changed.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_CREATE)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO);

use crate::watch::unless_exhausted;

/// Monitors files and their folders.
#[derive(Debug)]
pub struct FileChanges {
    /// `None` if the user has reached a limit of inotify.
    inotify: Option<Inotify>,
    /// The file names, without their folders.
    names: BTreeSet<OsString>,
}

impl FileChanges {
    /// Watches these files if their folders exist.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn new(files: &[&Path]) -> io::Result<Self> {
        let mut names = BTreeSet::new();
        let inotify = unless_exhausted(Self::notifications(files, &mut names))?;
        Ok(Self { inotify, names })
    }

    fn notifications(files: &[&Path], names: &mut BTreeSet<OsString>) -> nix::Result<Inotify> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        for file in files {
            let real = fs::canonicalize(file).ok();
            for path in [Some(*file), real.as_deref()].into_iter().flatten() {
                names.extend(path.file_name().map(OsString::from));
                for watched in [path.parent(), Some(path)].into_iter().flatten() {
                    match inotify.add_watch(watched, EVENTS) {
                        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => {}
                        Err(errno) => return Err(errno),
                    }
                }
            }
        }
        Ok(inotify)
    }

    /// Readable when [`Self::has_changed`] has events to read. `None` if inotify is not available,
    /// so that the caller must poll the files.
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd)
    }

    /// Whether one of the files changed since the last call.
    ///
    /// # Errors
    /// The kernel is out of memory.
    pub fn has_changed(&mut self) -> io::Result<bool> {
        let mut any = false;
        let Some(inotify) = &self.inotify else { return Ok(any) };
        loop {
            match inotify.read_events() {
                Ok(events) => {
                    any |= events.iter().any(|event| {
                        event.name.as_ref().is_none_or(|name| self.names.contains(name))
                            || event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW)
                    });
                }
                Err(Errno::EAGAIN) => return Ok(any),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_changes_of_the_files_and_their_link_targets_are_reported() {
        let folder = std::env::temp_dir().join(format!("linerate-changes-{}", std::process::id()));
        fs::create_dir_all(folder.join("real")).unwrap();
        let (file, other) = (folder.join("real/file"), folder.join("real/file.new"));
        fs::write(&file, "").unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let missing = folder.join("missing/file");
        let mut changes = FileChanges::new(&[&missing, &link]).unwrap();
        assert!(!changes.has_changed().unwrap());
        fs::write(&file, "a").unwrap();
        assert!(changes.has_changed().unwrap());
        assert!(!changes.has_changed().unwrap(), "a change is reported once");
        fs::write(&other, "b").unwrap();
        assert!(!changes.has_changed().unwrap());
        fs::rename(&other, &file).unwrap();
        assert!(changes.has_changed().unwrap());
        fs::write(folder.join("link.new"), "c").unwrap();
        assert!(!changes.has_changed().unwrap());
        fs::rename(folder.join("link.new"), &link).unwrap();
        assert!(changes.has_changed().unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }
}
