//! A certificate for addresses, with its own authority.

use std::ops::Range;
use std::rc::Rc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

use crate::pair::{Addresses, Family};

/// All in PEM.
pub struct Certificate {
    /// The authority that signed it.
    pub authority: String,
    /// The certificate.
    pub chain: String,
    /// Its private key.
    pub key: String,
    /// Addresses of its server.
    pub addresses: Addresses,
    issuer: Rc<CertifiedIssuer<'static, KeyPair>>,
}

impl Certificate {
    /// A certificate for a server with these addresses.
    ///
    /// # Panics
    /// If the system has no random numbers.
    pub fn new(addresses: Addresses) -> Self {
        let mut authority = params();
        // OpenSSL treats a certificate as self-signed if its issuer has the same name.
        authority.distinguished_name.push(DnType::CommonName, "The rig's authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let issuer = CertifiedIssuer::self_signed(authority, key());
        signed(addresses, Rc::new(issuer.expect("the parameters are valid")), params())
    }

    /// A certificate of the same authority for another server.
    ///
    /// # Panics
    /// As [`Certificate::new`].
    pub fn of(&self, addresses: Addresses) -> Self {
        signed(addresses, Rc::clone(&self.issuer), params())
    }

    /// A certificate of the same authority for a server that also has these names.
    ///
    /// # Panics
    /// As [`Certificate::new`], and if a name is invalid.
    pub fn of_names(&self, addresses: Addresses, names: &[&str]) -> Self {
        let mut server = params();
        let name = |name: &&str| (*name).try_into().expect("it is a name");
        server.subject_alt_names.extend(names.iter().map(name).map(SanType::DnsName));
        signed(addresses, Rc::clone(&self.issuer), server)
    }

    /// A certificate of the same authority with this validity, in days from now.
    ///
    /// # Panics
    /// As [`Certificate::new`].
    pub fn of_days(&self, days: Range<i64>) -> Self {
        let at = |days| time::OffsetDateTime::now_utc() + time::Duration::days(days);
        let mut server = params();
        (server.not_before, server.not_after) = (at(days.start), at(days.end));
        signed(self.addresses.clone(), Rc::clone(&self.issuer), server)
    }
}

fn params() -> CertificateParams {
    CertificateParams::new(Vec::new()).expect("without names nothing is invalid")
}

fn key() -> KeyPair {
    KeyPair::generate().expect("the system has random numbers")
}

fn signed(
    addresses: Addresses,
    issuer: Rc<CertifiedIssuer<'static, KeyPair>>,
    mut server: CertificateParams,
) -> Certificate {
    let parsed = Family::ALL.map(|family| addresses.of(family).parse());
    let parsed = parsed.map(|one| one.expect("the rig's addresses are addresses"));
    server.subject_alt_names.extend(parsed.map(SanType::IpAddress));
    server.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    let key = key();
    let chain = server.signed_by(&key, &*issuer).expect("the parameters are valid").pem();
    Certificate { authority: issuer.pem(), chain, key: key.serialize_pem(), addresses, issuer }
}
