//! Replaces files atomically, so that they are complete after a crash of the process or the
//! machine. Other users cannot read them.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

use nix::{
    libc::{O_NOFOLLOW, O_NONBLOCK},
    sys::stat::{Mode, umask},
};

/// The mode bits of users other than a file's owner and group.
const WORLD: u32 = 0o007;
/// The mode bits of all users except a file's owner.
const ALL_BUT_OWNER: u32 = 0o077;

/// Replaces or creates a file that only its owner may read and write. The text is written to
/// `PATH.new`, synced to the disk, and renamed.
///
/// # Errors
/// The file is unchanged. A `PATH.new` may be left, which the next call removes.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = OsString::from(path);
    new.push(".new");
    // The mode of an existing file, or a symbolic link, must not reveal the text to other users.
    remove(Path::new(&new))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Removes a file if it exists.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes all files and folders that the process creates later private to its user.
pub fn set_private_umask() {
    umask(Mode::from_bits_truncate(ALL_BUT_OWNER));
}

/// Makes a file private to its owner if every user may access it, and returns its previous mode.
/// Files for a group, links and folders are not changed.
///
/// # Errors
/// The file is unchanged.
pub fn make_private(path: &Path) -> io::Result<Option<u32>> {
    let is_open = |file: &fs::Metadata| file.is_file() && file.mode() & WORLD != 0;
    if !is_open(&fs::symlink_metadata(path)?) {
        return Ok(None);
    }
    // `O_NOFOLLOW` prevents a race with a replacement by a link.
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path)?;
    let found = file.metadata()?;
    if !is_open(&found) {
        return Ok(None);
    }
    let mode = found.mode() & 0o7777;
    file.set_permissions(fs::Permissions::from_mode(mode & !ALL_BUT_OWNER))?;
    Ok(Some(mode))
}

/// The mode of a file that every user may access, according to the modes of the file and its
/// parent folders. `None` otherwise.
///
/// # Errors
/// The modes cannot be read.
pub fn world_access_mode(path: &Path) -> io::Result<Option<u32>> {
    let path = path.canonicalize()?;
    let mode = fs::metadata(&path)?.mode() & 0o7777;
    let may_enter = |folder: &Path| Ok(fs::metadata(folder)?.mode() & 0o001 != 0);
    let mut folders = path.ancestors().skip(1).map(may_enter);
    let leads_there =
        folders.try_fold(true, |all, one: io::Result<bool>| Ok::<_, io::Error>(all & one?))?;
    Ok((mode & WORLD != 0 && leads_there).then_some(mode))
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::fs::symlink};

    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn world_accessible_file_becomes_private_but_a_group_file_is_unchanged() {
        let folder = folder("private");
        let (file, link) = (folder.join("store"), folder.join("link"));
        fs::write(&file, "secret").unwrap();
        symlink(&file, &link).unwrap();
        for (before, made, after) in
            [(0o644, Some(0o644), 0o600), (0o666, Some(0o666), 0o600), (0o640, None, 0o640)]
        {
            set_mode(&file, before);
            assert_eq!(make_private(&link).unwrap(), None, "links are not changed");
            assert_eq!(make_private(&file).unwrap(), made);
            assert_eq!(mode(&file), after);
        }
        assert_eq!(make_private(&folder).unwrap(), None);
        assert_eq!(make_private(&folder.join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn file_is_world_accessible_if_its_mode_and_its_folders_permit_it() {
        let folder = folder("for-all");
        let file = folder.join("server.toml");
        fs::write(&file, "").unwrap();
        for (of_folder, of_file, expected) in [
            (0o755, 0o644, Some(0o644)),
            (0o711, 0o604, Some(0o604)),
            (0o755, 0o640, None),
            (0o750, 0o644, None),
        ] {
            set_mode(&folder, of_folder);
            set_mode(&file, of_file);
            assert_eq!(world_access_mode(&file).unwrap(), expected, "{of_folder:o} {of_file:o}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn replaced_file_is_new_and_private() {
        let folder = folder("whole-file");
        let (path, new) = (folder.join("wg0.conf"), folder.join("wg0.conf.new"));
        fs::write(&path, "previous, and longer").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let previous = fs::File::open(&path).unwrap();

        fs::create_dir(&new).unwrap();
        replace(&path, "text").unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "previous, and longer");
        fs::remove_dir(&new).unwrap();
        fs::write(&new, "left").unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();

        replace(&path, "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!new.exists());
        // The contents of the old file, which is still open, are unchanged.
        assert_eq!(io::read_to_string(previous).unwrap(), "previous, and longer");

        remove(&path).unwrap();
        assert!(!path.exists());
        remove(&path).unwrap();
        remove(&folder).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }
}
