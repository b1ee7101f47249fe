//! The TLS certificate. Its files are read again when they change. Open connections are not
//! affected:
//!
//! ```text
//!   files changed? ── unchanged since the last check? ── read ── valid pair? ──► used for new connections
//!                      no: still being written              no: the old one stays, with an error in the log
//! ```

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context;
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

/// Interval between two checks of the files.
const LOOK: Duration = Duration::from_secs(2);

/// A certificate and its key, from files.
#[derive(Debug)]
pub struct Certificates {
    files: [PathBuf; 2],
    current: RwLock<Arc<CertifiedKey>>,
    reload: Notify,
}

/// Metadata by which a change of a file is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    modified: (i64, i64),
    len: u64,
}

type Stamps = [Option<Stamp>; 2];

/// Metadata of the files.
struct Seen {
    /// When they were last read.
    read: Stamps,
    /// At the last check.
    last: Stamps,
}

impl Certificates {
    /// Reads a certificate and its key.
    ///
    /// # Errors
    /// The files cannot be read, or do not match.
    pub fn read(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let files = [certificate.to_owned(), key.to_owned()];
        let current = RwLock::new(Arc::new(pair(&files)?));
        Ok(Self { files, current, reload: Notify::new() })
    }

    /// Requests a check of the files now.
    pub fn look_again(&self) {
        self.reload.notify_one();
    }

    /// Checks the files periodically while the server runs.
    pub async fn follow(&self) {
        let now = self.stamps();
        let mut seen = Seen { read: now, last: now };
        loop {
            // On SIGHUP, the files are complete.
            let is_requested = timeout(LOOK, self.reload.notified()).await.is_ok();
            self.look(&mut seen, is_requested);
            if is_requested {
                sleep(LOOK).await;
            }
        }
    }

    fn look(&self, seen: &mut Seen, is_requested: bool) {
        let now = self.stamps();
        let is_settled = now == seen.last || is_requested;
        seen.last = now;
        if now == seen.read || !is_settled {
            return;
        }
        seen.read = now;
        let [certificate, _] = &self.files;
        match pair(&self.files) {
            Ok(pair) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pair);
                tracing::info!("{}: the new certificate is in use", certificate.display());
            }
            Err(error) => tracing::error!(
                "{}: the new certificate is invalid, the old one stays in use: {error:#}",
                certificate.display()
            ),
        }
    }

    fn stamps(&self) -> Stamps {
        self.files.each_ref().map(|file| {
            let file = fs::metadata(file).ok()?;
            let modified = (file.mtime(), file.mtime_nsec());
            Some(Stamp { file: (file.dev(), file.ino()), modified, len: file.len() })
        })
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

fn pair([certificate, key]: &[PathBuf; 2]) -> anyhow::Result<CertifiedKey> {
    let read = |file: &Path| fs::read(file).with_context(|| file.display().to_string());
    let chain = CertificateDer::pem_slice_iter(&read(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain.with_context(|| certificate.display().to_string())?;
    anyhow::ensure!(!chain.is_empty(), "{}: it contains no certificate", certificate.display());
    let text = zeroize::Zeroizing::new(read(key)?);
    let key = PrivateKeyDer::from_pem_slice(&text).with_context(|| key.display().to_string());
    let provider: CryptoProvider = rustls::crypto::ring::default_provider();
    let pair = CertifiedKey::from_der(chain, key?, &provider);
    pair.context("the certificate and the key do not match")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(files: &[PathBuf; 2], [certificate, key]: [&str; 2]) {
        for (file, text) in files.iter().zip([certificate, key]) {
            // Programs that renew certificates replace the file, whatever its time.
            fs::write(file.with_extension("new"), text).unwrap();
            fs::rename(file.with_extension("new"), file).unwrap();
        }
    }

    fn made() -> [String; 2] {
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        [made.cert.pem(), made.signing_key.serialize_pem()]
    }

    fn now(certificates: &Certificates) -> Vec<u8> {
        certificates.current.read().unwrap().cert[0].to_vec()
    }

    #[test]
    fn a_complete_new_pair_is_loaded_and_a_broken_one_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let files = ["tls.pem", "tls.key"].map(|name| folder.path().join(name));
        let [first, second, third] = [made(), made(), made()];
        write(&files, first.each_ref().map(String::as_str));
        let certificates = Certificates::read(&files[0], &files[1]).unwrap();
        let stamps = certificates.stamps();
        let mut seen = Seen { read: stamps, last: stamps };
        let old = now(&certificates);
        certificates.look(&mut seen, false);
        assert_eq!(now(&certificates), old);

        write(&files, second.each_ref().map(String::as_str));
        certificates.look(&mut seen, false);
        assert_eq!(now(&certificates), old, "it may still be written");
        certificates.look(&mut seen, false);
        let new = now(&certificates);
        assert_ne!(new, old);

        for bad in [[&*third[0], &*second[1]], ["", ""], ["-----BEGIN", &*third[1]]] {
            write(&files, bad);
            certificates.look(&mut seen, true);
            assert_eq!(now(&certificates), new, "{bad:?}");
        }
        fs::remove_file(&files[1]).unwrap();
        certificates.look(&mut seen, true);
        assert_eq!(now(&certificates), new);
        write(&files, third.each_ref().map(String::as_str));
        certificates.look(&mut seen, true);
        assert!(now(&certificates) != new && now(&certificates) != old);
        write(&files, ["", ""]);
        assert!(Certificates::read(&files[0], &files[1]).is_err());
    }
}
