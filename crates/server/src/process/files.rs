//! Files in the server's state folder, except the store.

use std::{fs, io::ErrorKind, os::unix::fs::DirBuilderExt, path::Path};

use anyhow::Context;
use sys::atomic_file;
use tailnet::{
    derp::{RelayKey, relay_mesh::MeshKey},
    keys::MachineKey,
};
use zeroize::Zeroizing;

/// The store.
pub(crate) const STORE: &str = "store.sqlite";
/// The Noise key, by which clients identify the server.
pub(crate) const NOISE: &str = "noise.key";
/// Folder of the further networks.
pub(crate) const NETWORKS: &str = "networks";
/// The relay's key.
pub(crate) const RELAY: &str = "derp.key";

/// Prefixes of files with secrets: the store, the keys, and an ACME account with its certificate.
const SECRETS: [&str; 4] = [STORE, NOISE, "derp", "cached_"];

/// Creates a folder that only the server's user can enter. If it exists, its files with secrets are
/// made private.
///
/// # Errors
/// It cannot be created.
pub(crate) fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let name = || folder.display().to_string();
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(name)?;
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!("{}: the modes of its files cannot be checked: {error}", name());
            return Ok(());
        }
    };
    let is_secret = |file: &fs::DirEntry| {
        let name = file.file_name();
        SECRETS.iter().any(|begin| name.as_encoded_bytes().starts_with(begin.as_bytes()))
    };
    for file in files.flatten().filter(is_secret) {
        let file = file.path();
        let name = file.display();
        match atomic_file::make_private(&file) {
            Ok(None) => {}
            Ok(Some(mode)) => tracing::warn!(
                "{name}: every user could read it (mode {mode:03o}); now only its owner can"
            ),
            // It was removed in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                "{name}: every user can read it, and its mode cannot be changed: {error}"
            ),
        }
    }
    Ok(())
}

/// Reads a key from a file, or creates the file with a new key.
///
/// # Errors
/// The file cannot be read or written, or contains no key.
pub(crate) fn machine_key(file: &Path) -> anyhow::Result<MachineKey> {
    if let Some(key) = read_key(file)? {
        return Ok(key);
    }
    let mut bytes = Box::new(Zeroizing::new([0; 32]));
    getrandom::fill(&mut **bytes).context("randomness")?;
    let key = MachineKey::new(bytes);
    atomic_file::replace(file, &key.text()).with_context(|| file.display().to_string())?;
    Ok(key)
}

/// Reads a key from a file. `None` if the file does not exist.
///
/// # Errors
/// The file cannot be read, or contains no key.
pub(crate) fn read_key(file: &Path) -> anyhow::Result<Option<MachineKey>> {
    let name = || file.display().to_string();
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(Zeroizing::new(text).trim().parse().with_context(name)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(name),
    }
}

/// The same for the relay's key.
///
/// # Errors
/// As [`machine_key`].
pub(crate) fn relay_key(file: &Path) -> anyhow::Result<RelayKey> {
    let key = machine_key(file)?;
    Ok(RelayKey::new(Box::new(Zeroizing::new(*key.bytes()))))
}

/// Reads the key of a mesh, which the administrator creates.
///
/// # Errors
/// The file cannot be read, or contains no key.
pub(crate) fn mesh_key(file: &Path) -> anyhow::Result<MeshKey> {
    let name = || format!("derp.mesh_key_path: {}", file.display());
    let text = Zeroizing::new(fs::read_to_string(file).with_context(name)?);
    text.parse().with_context(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_is_stable_and_readable_only_by_its_owner() {
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

    #[test]
    fn make_folder_makes_world_readable_secrets_private() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let set = |file: &Path, mode| fs::set_permissions(file, fs::Permissions::from_mode(mode));
        set(folder.path(), 0o755).unwrap();
        for name in [STORE, "store.sqlite-wal", NOISE, "derp-a.test.pem", "cached_account"] {
            fs::write(file(name), "").unwrap();
            set(&file(name), 0o644).unwrap();
        }
        fs::write(file("notes"), "").unwrap();
        set(&file("notes"), 0o644).unwrap();
        make_folder(folder.path()).unwrap();
        let notes = fs::metadata(file("notes")).unwrap().permissions().mode();
        assert_eq!(notes & 0o777, 0o644, "another file is not changed");
        for name in [STORE, "store.sqlite-wal", NOISE, "derp-a.test.pem", "cached_account"] {
            let mode = fs::metadata(file(name)).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{name}");
        }
    }
}
