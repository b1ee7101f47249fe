//! Reads a configuration file.

use std::{
    fs::File,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
};

use anyhow::Context;
use config::conf::{Access, Conf};
use sys::opened::{Opened, effective_user, open_in_folder};
use zeroize::Zeroizing;

/// Reads a file, whose path has no symbolic link at its end. A file with keys that any user
/// may read or write has a warning.
///
/// # Errors
/// It cannot be read, or has an error. No error text contains a key.
pub fn read_conf(path: &Path) -> anyhow::Result<Conf> {
    let name = path.display().to_string();
    let read = || -> io::Result<_> {
        let Opened { mut file, folder } = open_in_folder(path)?;
        let (of_file, of_folder) = (access(&file)?, access(&folder)?);
        // Allocated once: a vector that grows would leave keys behind.
        let len = file.metadata()?.len().try_into().unwrap_or(0);
        let mut text = Zeroizing::new(Vec::with_capacity(len + 1));
        file.read_to_end(&mut text)?;
        Ok((text, of_file, of_folder))
    };
    let (text, file, folder) = read().with_context(|| name.clone())?;
    let mut conf = Conf::parse_file(&name, &text, &host::names())?;
    conf.note_access(file, folder, effective_user());
    Ok(conf)
}

fn access(file: &File) -> io::Result<Access> {
    let metadata = file.metadata()?;
    Ok(Access { mode: metadata.mode() & 0o7777, owner: metadata.uid() })
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, chown},
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
            read_conf(&path).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn hooks_are_refused_by_their_first_line_and_a_file_without_them_is_warned_of() {
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
