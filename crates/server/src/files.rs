//! The folder of the server's state: what is kept there beside the store.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use anyhow::Context;
use tailnet::{derp::RelayKey, keys::MachineKey};
use zeroize::Zeroizing;

/// Makes a folder that only the server's user may enter, if there is none.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(|| format!("{}", folder.display()))
}

/// The key of a file, which is made if there is none.
///
/// # Errors
/// The file cannot be read or written, or has no key.
pub fn machine_key(file: &Path) -> anyhow::Result<MachineKey> {
    let name = || file.display().to_string();
    match fs::read_to_string(file) {
        Ok(text) => Zeroizing::new(text).trim().parse().with_context(name),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut bytes = Box::new(Zeroizing::new([0; 32]));
            getrandom::fill(&mut **bytes).context("randomness")?;
            let key = MachineKey::new(bytes);
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
            let mut made = made.with_context(name)?;
            made.write_all(key.text().as_bytes()).with_context(name)?;
            made.sync_all().with_context(name)?;
            Ok(key)
        }
        Err(error) => Err(error).with_context(name),
    }
}

/// The same of the relay.
///
/// # Errors
/// As [`machine_key`].
pub fn relay_key(file: &Path) -> anyhow::Result<RelayKey> {
    let key = machine_key(file)?;
    Ok(RelayKey::new(Box::new(Zeroizing::new(*key.bytes()))))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_stays_the_same_and_is_nobody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a/b");
        make_folder(&folder).unwrap();
        let file = folder.join("noise.key");
        let key = machine_key(&file).unwrap();
        assert_eq!(machine_key(&file).unwrap().public(), key.public());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(&file, "privkey:00").unwrap();
        assert!(machine_key(&file).is_err());
    }
}
