//! Reads a configuration file.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::Context;
use config::conf::{Access, Conf};
use sys::{
    opened_file::{OpenedFile, open_in_folder},
    process::effective_user,
};
use zeroize::Zeroizing;

/// Bytes of the first read from a file of unknown length, such as a pipe.
const CHUNK: usize = 16 * 1024;
/// Access to the folder of a pipe, which only root can replace.
const ROOT_ONLY: Access = Access { mode: 0o700, owner: 0 };

/// Reads a file, and returns its absolute path without symbolic links. The path of a pipe, such as
/// `/dev/fd/63`, is returned unchanged. A file with keys that all users may read or write gets a
/// warning.
///
/// # Errors
/// The file cannot be read or is invalid. Error messages never contain a key.
pub fn read_conf(given: &Path) -> anyhow::Result<(PathBuf, Conf)> {
    let read = || -> io::Result<_> {
        let (path, opened) = open(given)?;
        let of_file = access(&opened.file)?;
        let of_folder = opened.folder.as_ref().map_or(Ok(ROOT_ONLY), access)?;
        Ok((path, read_whole(opened.file)?, of_file, of_folder))
    };
    let (path, text, file, folder) = read().with_context(|| given.display().to_string())?;
    let name = path.display().to_string();
    let mut conf = Conf::parse_file(&name, &text, &host::read_names())?;
    conf.note_access(file, folder, effective_user());
    Ok((path, conf))
}

/// Opens a file, and follows symbolic links.
fn open(given: &Path) -> io::Result<(PathBuf, OpenedFile)> {
    match fs::canonicalize(given) {
        Ok(path) => open_in_folder(&path).map(|opened| (path, opened)),
        // The path of a descriptor cannot be resolved if it is a pipe or if its file was deleted.
        Err(error) if error.kind() == io::ErrorKind::NotFound && given.exists() => {
            let file = File::open(given)?;
            Ok((std::path::absolute(given)?, OpenedFile { file, folder: None }))
        }
        Err(error) => Err(error),
    }
}

/// Reads to the end. The buffer contains keys, so a buffer that is too short is wiped after the
/// copy.
fn read_whole(mut file: File) -> io::Result<Zeroizing<Vec<u8>>> {
    let len: usize = file.metadata()?.len().try_into().unwrap_or(0);
    let mut text = Zeroizing::new(vec![0; len.max(CHUNK) + 1]);
    let mut end = 0;
    loop {
        match file.read(&mut text[end..]) {
            Ok(0) => break,
            Ok(more) => end += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if end == text.len() {
            let mut longer = Zeroizing::new(vec![0; 2 * end]);
            longer[..end].copy_from_slice(&text);
            text = longer;
        }
    }
    text.truncate(end);
    Ok(text)
}

fn access(file: &File) -> io::Result<Access> {
    let metadata = file.metadata()?;
    Ok(Access { mode: metadata.mode() & 0o7777, owner: metadata.uid() })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write as _,
        os::{
            fd::AsRawFd as _,
            unix::fs::{PermissionsExt as _, chown, symlink},
        },
        path::PathBuf,
    };

    use config::conf::{Reason, Writable};

    use super::*;

    const KEY: &str = "PrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";

    struct Folder(PathBuf);

    impl Folder {
        fn read(&self, text: &str, mode: u32) -> Conf {
            let path = self.0.join("wg0.conf");
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let (read, conf) = read_conf(&path).unwrap();
            assert_eq!(read, path);
            conf
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn link_is_resolved_and_the_path_of_a_pipe_is_returned_unchanged() {
        let folder = std::env::temp_dir().join(format!("linerate-links-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let folder = Folder(folder.canonicalize().unwrap());
        folder.read(&format!("[Interface]\n{KEY}\n"), 0o600);
        let (file, link) = (folder.0.join("wg0.conf"), folder.0.join("wg1.conf"));
        symlink("wg0.conf", &link).unwrap();
        assert_eq!(read_conf(&link).unwrap().0, file);

        let (reader, mut writer) = io::pipe().unwrap();
        // Longer than a first chunk.
        let text = format!("[Interface]\n{KEY}\n{}MTU = 1400\n", "#\n".repeat(20_000));
        let pipe = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        let link = folder.0.join("wg2.conf");
        symlink(&pipe, &link).unwrap();
        let (path, conf) = std::thread::scope(|scope| {
            scope.spawn(move || writer.write_all(text.as_bytes()).unwrap());
            read_conf(&link).unwrap()
        });
        assert_eq!((path, conf.interface.mtu), (link, Some(1400)));

        let unknown = read_conf(&folder.0.join("none.conf")).unwrap_err();
        assert!(format!("{unknown:#}").contains("none.conf: No such file"), "{unknown:#}");
    }

    #[test]
    fn writable_file_with_hooks_is_refused_and_without_hooks_gets_a_warning() {
        let folder =
            Folder(std::env::temp_dir().join(format!("linerate-conf-{}", std::process::id())));
        fs::create_dir(&folder.0).unwrap();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        let hooks = format!("[Interface]\n{KEY}\nMTU = 1400\npostdown = true\nPreUp = true\n");
        folder.read(&hooks, 0o644).without_writable_hooks().unwrap();
        let conf = folder.read(&hooks, 0o664);
        let path = folder.0.join("wg0.conf").display().to_string();
        assert_eq!(
            conf.without_writable_hooks().unwrap_err().to_string(),
            format!(
                "{path}:4: PostDown: no command is run from a file that other users may write to \
                 (mode 664); allow it by `chmod go-w`"
            )
        );
        let conf = folder.read(&format!("[Interface]\n{KEY}\nPostUp =\n"), 0o666);
        conf.without_writable_hooks().unwrap();
        let warning = format!("{path}: any user may access this file and its keys (mode 666)");
        assert_eq!(conf.warnings, [warning]);
        assert!(folder.read(&hooks, 0o640).warnings.is_empty());

        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let error = folder.read(&hooks, 0o600).without_writable_hooks().unwrap_err();
        assert_eq!(*error.reason(), Reason::Writable(Writable::FolderMode(0o777)));
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
        if chown(&path, Some(12_345), None).is_ok() {
            let error = folder.read(&hooks, 0o600).without_writable_hooks().unwrap_err();
            assert_eq!(*error.reason(), Reason::Writable(Writable::FileOwner(12_345)));
        } else {
            skips::skip("root");
        }
    }
}
