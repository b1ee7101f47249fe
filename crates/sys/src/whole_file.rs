//! Files that are whole at every moment, whenever the process or the machine ends.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Replaces a file, or makes it, for its owner alone to read and write: the text goes into
/// `PATH.new` beside it, to the disk, and takes its name.
///
/// # Errors
/// The file is as it was; a `PATH.new` may be left, which the next time removes.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = OsString::from(path);
    new.push(".new");
    // Whoever may read a former one, or had it lead elsewhere, does not get this one.
    remove(Path::new(&new))?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// Removes a file, which may not be there.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::fs::{MetadataExt, PermissionsExt},
    };

    use super::*;

    #[test]
    fn a_file_is_replaced_by_another_that_only_its_owner_reads() {
        let folder = env::temp_dir().join(format!("linerate-whole-file-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (path, new) = (folder.join("wg0.conf"), folder.join("wg0.conf.new"));
        fs::write(&path, "former, and longer").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let former = fs::File::open(&path).unwrap();

        fs::create_dir(&new).unwrap();
        replace(&path, "text").unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "former, and longer");
        fs::remove_dir(&new).unwrap();
        fs::write(&new, "left").unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();

        replace(&path, "text").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!new.exists());
        // Who reads the former one goes on reading it: nothing was written into it.
        assert_eq!(io::read_to_string(former).unwrap(), "former, and longer");

        remove(&path).unwrap();
        assert!(!path.exists());
        remove(&path).unwrap();
        remove(&folder).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }
}
