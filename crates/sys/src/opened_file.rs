//! A file together with the folder in which it was opened, so that both are checked without races.

use std::{fs::File, io, path::Path};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
};

/// An open file and its folder.
#[derive(Debug)]
pub struct OpenedFile {
    /// Open for reading.
    pub file: File,
    /// Only for checks of its owner and mode (`O_PATH`). `None` for a pipe, which is outside all
    /// folders.
    pub folder: Option<File>,
}

/// Opens a file. Neither it nor its folder may be a symbolic link.
///
/// # Errors
/// The file does not exist, or this user may not read it.
pub fn open_in_folder(path: &Path) -> io::Result<OpenedFile> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_folder = OFlag::O_PATH | OFlag::O_DIRECTORY;
    let always = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let folder = open(parent.unwrap_or(Path::new(".")), is_folder | always, Mode::empty())?;
    let file = openat(&folder, name, OFlag::O_RDONLY | OFlag::O_NOCTTY | always, Mode::empty())?;
    Ok(OpenedFile { file: file.into(), folder: Some(folder.into()) })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Read as _,
        os::unix::fs::{MetadataExt as _, symlink},
    };

    use super::*;
    use crate::errno::{Errno, errno};

    #[test]
    fn folder_is_that_of_the_opened_file_even_if_it_was_moved() {
        let folder = std::env::temp_dir().join(format!("linerate-opened-{}", std::process::id()));
        let elsewhere = folder.with_extension("moved");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a"), "text").unwrap();
        let mut opened = open_in_folder(&folder.join("a")).unwrap();
        fs::rename(&folder, &elsewhere).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a"), "other").unwrap();

        let mut text = String::new();
        opened.file.read_to_string(&mut text).unwrap();
        let inode = opened.folder.unwrap().metadata().unwrap().ino();
        assert_eq!((text.as_str(), inode), ("text", fs::metadata(&elsewhere).unwrap().ino()));

        symlink("a", folder.join("b")).unwrap();
        let link = open_in_folder(&folder.join("b")).unwrap_err();
        assert_eq!(errno(&link), Some(Errno::ELOOP));
        fs::remove_dir_all(&folder).unwrap();
        fs::remove_dir_all(&elsewhere).unwrap();
    }
}
