//! The certificate that a relay must have (tailscale `net/tlsdial/tlsdial.go`).
//!
//! | `CertName` | the relay's certificate |
//! |---|---|
//! | empty | is for its host name, from an issuer that this machine trusts |
//! | a name | is for that name; the host name is sent as SNI |
//! | `sha256-raw:` | has this hash and is for its host name; self-signed |

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use sha2::{Digest as _, Sha256};
use tailnet::map_messages::DerpNode;

/// The prefix of the relay's key in the name of its second certificate.
const META: &[u8] = b"derpkey";
const HASH: &str = "sha256-raw:";

/// The TLS configuration for a relay. `usual` is the default one, and `roots` its certificates.
pub(super) fn config(
    node: &DerpNode,
    usual: &Arc<ClientConfig>,
    roots: impl FnOnce() -> RootCertStore,
) -> anyhow::Result<Arc<ClientConfig>> {
    let provider = crypto::tls::provider();
    let check = if let Some(hash) = node.cert_name.strip_prefix(HASH) {
        Check::Hash(
            read_hash(hash).ok_or_else(|| anyhow::anyhow!("{HASH}{hash} is not a valid hash"))?,
        )
    } else if node.cert_name.is_empty() || node.cert_name == node.host_name {
        if !node.insecure_for_tests {
            return Ok(Arc::clone(usual));
        }
        Check::Nothing
    } else {
        let name = ServerName::try_from(node.cert_name.clone())?;
        let roots = Arc::new(roots());
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        Check::Name(name, verifier.build()?)
    };
    let verifier = Verifier { check, provider: Arc::clone(&provider) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The relay's key, if one of the certificates contains it: its name is `derpkey` and the key. A
/// TLS proxy in between removes it.
pub(super) fn meta_key(certificates: &[CertificateDer<'_>]) -> Option<[u8; 32]> {
    certificates.iter().skip(1).find_map(|certificate| read_meta(certificate))
}

fn read_meta(certificate: &[u8]) -> Option<[u8; 32]> {
    let at = certificate.windows(META.len()).position(|some| some == META)?;
    let hex = certificate.get(at + META.len()..)?.get(..64)?;
    read_hash(std::str::from_utf8(hex).ok()?)
}

fn read_hash(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[derive(Debug)]
struct Verifier {
    check: Check,
    provider: Arc<CryptoProvider>,
}

#[derive(Debug)]
enum Check {
    Name(ServerName<'static>, Arc<WebPkiServerVerifier>),
    Hash([u8; 32]),
    Nothing,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.check {
            Check::Name(name, verifier) => {
                verifier.verify_server_cert(leaf, others, name, ocsp, now)
            }
            Check::Hash(hash) => {
                let is_alone = others.iter().all(|other| read_meta(other).is_some());
                if !is_alone || Sha256::digest(leaf)[..] != hash[..] {
                    return Err(CertificateError::ApplicationVerificationFailure.into());
                }
                // A self-signed certificate: only its name and dates remain to be checked.
                let mut roots = RootCertStore::empty();
                roots.add(leaf.clone().into_owned())?;
                let provider = Arc::clone(&self.provider);
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| Error::General(error.to_string()))?
                    .verify_server_cert(leaf, &[], host, ocsp, now)
            }
            Check::Nothing => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, leaf, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, leaf, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
