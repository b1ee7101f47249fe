//! A certificate for addresses, by an authority of its own.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};

/// All in PEM.
pub(super) struct Certificate {
    pub authority: String,
    pub chain: String,
    pub key: String,
}

impl Certificate {
    /// One for a server with these addresses.
    pub fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Certificate {
        let params = || CertificateParams::new(Vec::new()).expect("there is no name to be wrong");
        let key = || KeyPair::generate().expect("the system has random numbers");
        let mut authority = params();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let authority = CertifiedIssuer::self_signed(authority, key());
        let authority = authority.expect("the parameters are sound");
        let mut server = params();
        server.subject_alt_names.extend(addresses.into_iter().map(SanType::IpAddress));
        server.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        let key = key();
        let server = server.signed_by(&key, &authority).expect("the parameters are sound");
        Certificate { authority: authority.pem(), chain: server.pem(), key: key.serialize_pem() }
    }
}
