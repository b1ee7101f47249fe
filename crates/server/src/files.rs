//! The folder of the server's state: what is kept there beside the store.

use std::{fs, io::ErrorKind, os::unix::fs::DirBuilderExt, path::Path};

use anyhow::Context;
use sys::atomic_file;
use tailnet::{
    derp::{RelayKey, mesh::MeshKey},
    keys::MachineKey,
};
use zeroize::Zeroizing;

/// What is kept, by name.
pub const STORE: &str = "store.sqlite";
/// The key of Noise, by which clients know the server.
pub const NOISE: &str = "noise.key";
/// The folders of further networks, by name.
pub const NETWORKS: &str = "networks";
/// The key of the relay.
pub const RELAY: &str = "derp.key";

/// Files with secrets begin so: the store, the keys, and an authority's account and certificate.
const SECRETS: [&str; 4] = [STORE, NOISE, "derp", "cached_"];

/// Makes a folder that only the server's user may enter, if it does not exist. If it exists, its files with
/// secrets become private if any user could access them.
///
/// # Errors
/// It cannot be made.
pub fn make_folder(folder: &Path) -> anyhow::Result<()> {
    let name = || folder.display().to_string();
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.with_context(name)?;
    let files = match fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!("{}: its files cannot be checked: {error}", name());
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
                "{name}: any user could access it (mode {mode:03o}); now its owner alone can"
            ),
            // It was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                "{name}: any user may access it, and that cannot be changed: {error}"
            ),
        }
    }
    Ok(())
}

/// The key of a file, which is made if there is none.
///
/// # Errors
/// The file cannot be read or written, or has no key.
pub fn machine_key(file: &Path) -> anyhow::Result<MachineKey> {
    if let Some(key) = known_key(file)? {
        return Ok(key);
    }
    let mut bytes = Box::new(Zeroizing::new([0; 32]));
    getrandom::fill(&mut **bytes).context("randomness")?;
    let key = MachineKey::new(bytes);
    atomic_file::replace(file, &key.text()).with_context(|| file.display().to_string())?;
    Ok(key)
}

/// The key of a file; none if there is no file.
///
/// # Errors
/// The file cannot be read, or has no key.
pub fn known_key(file: &Path) -> anyhow::Result<Option<MachineKey>> {
    let name = || file.display().to_string();
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(Zeroizing::new(text).trim().parse().with_context(name)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
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

/// The key of a mesh, which is made by nobody but whoever sets the mesh up.
///
/// # Errors
/// The file cannot be read, or has no key.
pub fn mesh_key(file: &Path) -> anyhow::Result<MeshKey> {
    let name = || format!("derp.mesh_key_path: {}", file.display());
    let text = Zeroizing::new(fs::read_to_string(file).with_context(name)?);
    text.parse().with_context(name)
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

    #[test]
    fn what_a_folder_for_all_has_for_all_is_its_owners_afterwards() {
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
        assert_eq!(notes & 0o777, 0o644, "another file stays as it is");
        for name in [STORE, "store.sqlite-wal", NOISE, "derp-a.test.pem", "cached_account"] {
            let mode = fs::metadata(file(name)).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{name}");
        }
    }
}
