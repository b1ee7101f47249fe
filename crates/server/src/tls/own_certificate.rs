//! A self-signed certificate for a relay. Clients receive its hash (`sha256-raw:` in `CertName`,
//! tailscale `tailcfg/derpmap.go`).

use std::{fs, io::ErrorKind, path::Path};

use anyhow::Context;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use sha2::{Digest, Sha256};
use sys::atomic_file;
use tokio_rustls::TlsAcceptor;
use zeroize::Zeroizing;

use super::acceptor;

/// A certificate and its private key.
pub struct OwnCertificate {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl OwnCertificate {
    /// Loads the certificate of a host from this folder, or creates it.
    ///
    /// # Errors
    /// It cannot be read, written or created.
    pub fn of(folder: &Path, host: &str) -> anyhow::Result<Self> {
        // The host of a URL contains no slash.
        let file = folder.join(format!("derp-{host}.pem"));
        let name = || file.display().to_string();
        let text = match fs::read_to_string(&file) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let made = make(host).with_context(name)?;
                atomic_file::replace(&file, &made).with_context(name)?;
                made
            }
            Err(error) => return Err(error).with_context(name),
        };
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).with_context(name)?;
        let key = PrivateKeyDer::from_pem_slice(text.as_bytes()).with_context(name)?;
        Ok(Self { certificate, key })
    }

    /// SHA-256 of the certificate, in hexadecimal digits.
    pub fn hash(&self) -> String {
        base16ct::lower::encode_string(&Sha256::digest(&self.certificate))
    }

    /// The same in the form that browsers show.
    pub fn fingerprint(&self) -> String {
        let hash = Sha256::digest(&self.certificate);
        let pairs: Vec<String> = hash.iter().map(|byte| format!("{byte:02X}")).collect();
        pairs.join(":")
    }

    /// TLS acceptor with this certificate.
    ///
    /// # Errors
    /// The certificate and the key do not match.
    pub fn tls(&self) -> anyhow::Result<TlsAcceptor> {
        acceptor::with_certificate(vec![self.certificate.clone()], self.key.clone_key())
    }
}

/// What to compare before trusting a self-signed certificate.
pub(crate) fn certificate_hint(fingerprint: &str) -> String {
    format!(
        "The browser warns about this page's self-signed certificate. Continue only if the SHA-256 \
         fingerprint of the certificate is\n\n    {fingerprint}"
    )
}

fn make(host: &str) -> anyhow::Result<Zeroizing<String>> {
    let made = rcgen::generate_simple_self_signed([host.to_owned()])?;
    let key = Zeroizing::new(made.signing_key.serialize_pem());
    Ok(Zeroizing::new(format!("{}{}", made.cert.pem(), *key)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_stable_for_each_host() {
        let folder = tempfile::tempdir().unwrap();
        let one = OwnCertificate::of(folder.path(), "192.0.2.1").unwrap();
        let again = OwnCertificate::of(folder.path(), "192.0.2.1").unwrap();
        let other = OwnCertificate::of(folder.path(), "a.example").unwrap();
        assert!(one.hash() == again.hash() && one.hash() != other.hash());
        assert!(one.hash().len() == 64 && one.tls().is_ok());
        assert_eq!(one.fingerprint().replace(':', "").to_lowercase(), one.hash());
        fs::write(folder.path().join("derp-b.pem"), "none").unwrap();
        assert!(OwnCertificate::of(folder.path(), "b").is_err());
    }
}
