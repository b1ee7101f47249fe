//! The certificate that TLS is spoken with. Its files are read again when they change, while
//! connections that are open stay as they are:
//!
//! ```text
//!   other files? ── as they were a moment ago? ── read ── sound, a pair? ──► new connections have it
//!                      no: still being written             no: the old one stays, and the log says so
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

/// How often the files are looked at.
const LOOK: Duration = Duration::from_secs(2);

/// A certificate of files.
#[derive(Debug)]
pub struct Certificates {
    files: [PathBuf; 2],
    current: RwLock<Arc<CertifiedKey>>,
    asked: Notify,
}

/// What tells that a file is another than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    modified: (i64, i64),
    len: u64,
}

type Stamps = [Option<Stamp>; 2];

/// What was seen of the files.
struct Seen {
    /// When they were read last.
    read: Stamps,
    /// The last time.
    last: Stamps,
}

impl Certificates {
    /// The pair that these files have.
    ///
    /// # Errors
    /// They cannot be read, or do not go together.
    pub fn read(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let files = [certificate.to_owned(), key.to_owned()];
        let current = RwLock::new(Arc::new(pair(&files)?));
        Ok(Self { files, current, asked: Notify::new() })
    }

    /// Has the files looked at now.
    pub fn look_again(&self) {
        self.asked.notify_one();
    }

    /// Looks at the files from time to time, for as long as the server runs.
    pub async fn follow(&self) {
        let now = self.stamps();
        let mut seen = Seen { read: now, last: now };
        loop {
            // Whoever asks has finished writing.
            let is_asked = timeout(LOOK, self.asked.notified()).await.is_ok();
            self.look(&mut seen, is_asked);
            if is_asked {
                sleep(LOOK).await;
            }
        }
    }

    fn look(&self, seen: &mut Seen, is_asked: bool) {
        let now = self.stamps();
        let is_settled = now == seen.last || is_asked;
        seen.last = now;
        if now == seen.read || !is_settled {
            return;
        }
        seen.read = now;
        let [certificate, _] = &self.files;
        match pair(&self.files) {
            Ok(pair) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pair);
                tracing::info!("{}: the new certificate is in force", certificate.display());
            }
            Err(error) => tracing::error!(
                "{}: the new certificate is refused, and the old one stays: {error:#}",
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
    anyhow::ensure!(!chain.is_empty(), "{}: there is no certificate in it", certificate.display());
    let text = zeroize::Zeroizing::new(read(key)?);
    let key = PrivateKeyDer::from_pem_slice(&text).with_context(|| key.display().to_string());
    let provider: CryptoProvider = rustls::crypto::ring::default_provider();
    let pair = CertifiedKey::from_der(chain, key?, &provider);
    pair.context("certificate and key do not go together")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(files: &[PathBuf; 2], [certificate, key]: [&str; 2]) {
        for (file, text) in files.iter().zip([certificate, key]) {
            // As programs that renew certificates do: the file is another, whatever its time.
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
    fn a_new_pair_is_taken_when_it_is_whole_and_a_bad_one_is_not() {
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
