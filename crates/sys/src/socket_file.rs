//! The files of Unix sockets: what a process that is gone left behind makes room, and
//! ours go with us.
//!
//! ```text
//!   bind, listen at FOLDER/.linerate-PID-N -- link --> PATH -- unlink --> .linerate-PID-N is gone
//! ```
//!
//! wg(8) unlinks a socket that refuses a connection, as one does that is bound and does not listen
//! yet. So ours has its name only once it listens; until then its name does not end in `.sock`.

use std::{
    fs, io,
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use crate::{atomic_file, process::Helper, unix};

/// What the names of sockets begin with that have not got their own yet.
const PREFIX: &str = ".linerate-";
/// How often it is tried: a process of another pid namespace may have the same name, and another
/// start may take ours for a leftover.
const TRIES: u32 = 16;

/// The file of a socket, removed when it is dropped. It is known by its inode: a file
/// that somebody else put in its place is not ours to remove.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Who removes it where we gave up the right to.
    helper: Option<Arc<Helper>>,
}

impl SocketFile {
    /// Removes the file of a socket where no process listens.
    ///
    /// # Errors
    /// `AddrInUse` where one does, `AlreadyExists` where the file is no socket's.
    pub fn remove_stale(path: &Path) -> io::Result<()> {
        match fs::symlink_metadata(path) {
            Ok(old) if !old.file_type().is_socket() => {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        match UnixStream::connect(path).map_err(|error| (error.kind(), error)) {
            Ok(_) => Err(io::ErrorKind::AddrInUse.into()),
            Err((io::ErrorKind::ConnectionRefused, _)) => atomic_file::remove(path),
            Err((io::ErrorKind::NotFound, _)) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// Listens at `path`, which only this user may connect to. A file that is left of a process
    /// that is gone makes room.
    ///
    /// # Errors
    /// `AddrInUse` where another process listens there, `AlreadyExists` where the file is no
    /// socket.
    pub fn listen(path: &Path) -> io::Result<(UnixListener, Self)> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        remove_leftovers(folder);
        Self::remove_stale(path)?;
        let mut last = io::ErrorKind::AddrInUse.into();
        for _ in 0..TRIES {
            let new = folder.join(new_name());
            match unix::listen(&new).and_then(|listener| Ok((listener, give_name(&new, path)?))) {
                Ok((listener, inode)) => {
                    let file = Self { path: path.to_owned(), inode, helper: None };
                    return Ok((listener, file));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::AddrInUse | io::ErrorKind::NotFound => last = error,
                    // Another start was first.
                    io::ErrorKind::AlreadyExists => return Err(io::ErrorKind::AddrInUse.into()),
                    _ => return Err(error),
                },
            }
        }
        Err(last)
    }

    /// Leaves the removal to `helper`, which was told of this file at its start.
    pub fn delegate_removal(&mut self, helper: Arc<Helper>) {
        self.helper = Some(helper);
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = || fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        let removed = match &self.helper {
            Some(helper) => helper.remove_sockets(),
            None if ours() => fs::remove_file(&self.path),
            None => Ok(()),
        };
        if let Err(error) = removed {
            tracing::error!(%error, path = %self.path.display(), "the socket stays behind");
        }
    }
}

fn new_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Moves a socket to its path, where there is no file. Returns its inode.
fn give_name(new: &Path, path: &Path) -> io::Result<u64> {
    let linked =
        fs::symlink_metadata(new).and_then(|file| fs::hard_link(new, path).map(|()| file.ino()));
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %new.display(), "a second name of the socket stays");
        }
        _ => {}
    }
    linked
}

/// Removes what starts left behind that ended before their sockets had a name.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_one = entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        if is_one && let Err(error) = SocketFile::remove_stale(&entry.path()) {
            tracing::debug!(%error, path = %entry.path().display(), "a socket is left alone");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, sync::atomic::AtomicBool, thread};

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("linerate-socket-{}-{test}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn only_what_nobody_listens_at_makes_room_and_only_ours_is_removed() {
        let folder = Folder::new("room");
        let path = folder.0.join("a.sock");
        let room = || SocketFile::remove_stale(&path).map_err(|error| error.kind());

        assert_eq!(room(), Ok(()));
        let (listener, file) = SocketFile::listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(room(), Err(io::ErrorKind::AddrInUse));
        // The other is made first, since a freed inode may be had by the next file.
        let other = folder.0.join("other");
        fs::write(&other, "somebody else's").unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(room(), Err(io::ErrorKind::AlreadyExists));
        drop(file);
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
        drop(listener);

        let (listener, file) = SocketFile::listen(&path).unwrap();
        drop(listener);
        drop(file);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!((room(), path.exists()), (Ok(()), false));
    }

    /// Connects as wg(8) does to every file that ends in `.sock`; whether one refused.
    fn one_refuses(folder: &Path) -> bool {
        let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|end| end == "sock")).any(|path| {
            let refused = io::ErrorKind::ConnectionRefused;
            UnixStream::connect(&path).is_err_and(|error| error.kind() == refused) && path.exists()
        })
    }

    #[test]
    fn a_socket_has_its_name_only_while_it_listens() {
        let folder = Folder::new("name");
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let looks = scope.spawn(|| {
                let mut refused = false;
                while !done.load(Ordering::Relaxed) {
                    refused |= one_refuses(&folder.0);
                }
                refused
            });
            for start in 0..2000 {
                let name = format!("{start}.sock");
                let (listener, file) = SocketFile::listen(&folder.0.join(&name)).unwrap();
                assert_eq!(folder.names(), [name]);
                // The name goes first.
                drop(file);
                drop(listener);
            }
            done.store(true, Ordering::Relaxed);
            assert!(!looks.join().unwrap());
        });
    }

    #[test]
    fn what_a_crashed_start_left_is_removed_and_what_listens_is_not() {
        let folder = Folder::new("left");
        let path = folder.0.join("a.sock");
        let [dead, alive, file] =
            ["1-0", "2-0", "3-0"].map(|name| folder.0.join(format!("{PREFIX}{name}")));
        drop(UnixListener::bind(&dead).unwrap());
        let _alive = UnixListener::bind(&alive).unwrap();
        fs::write(&file, "no socket").unwrap();
        let _ours = SocketFile::listen(&path).unwrap();
        assert_eq!(folder.names(), [".linerate-2-0", ".linerate-3-0", "a.sock"]);
    }

    #[test]
    fn of_many_that_start_at_once_one_has_the_name() {
        let folder = Folder::new("many");
        let path = folder.0.join("a.sock");
        for _ in 0..50 {
            drop(UnixListener::bind(&path).unwrap());
            let started = thread::scope(|scope| {
                let start = || SocketFile::listen(&path).map_err(|error| error.kind());
                let starts = [(); 8].map(|()| scope.spawn(start));
                starts.map(|start| start.join().unwrap())
            });
            let (won, lost): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
            assert!(!won.is_empty());
            assert!(lost.iter().all(|lost| matches!(lost, Err(io::ErrorKind::AddrInUse))));
            drop(won);
            let _ = fs::remove_file(&path);
            assert_eq!(folder.names(), [""; 0]);
        }
    }
}
