//! A certificate for addresses, by an authority of its own.

use std::ops::Range;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
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
}

impl Certificate {
    /// One for a server with these addresses.
    ///
    /// # Panics
    /// When the system has no random numbers.
    pub fn new(addresses: Addresses) -> Certificate {
        Certificate::make(addresses, None)
    }

    /// One that is valid from so many days before now, or after it, to so many.
    ///
    /// # Panics
    /// As [`Certificate::new`].
    pub fn of_days(addresses: Addresses, days: Range<i64>) -> Certificate {
        Certificate::make(addresses, Some(days))
    }

    fn make(addresses: Addresses, days: Option<Range<i64>>) -> Certificate {
        let params = || CertificateParams::new(Vec::new()).expect("there is no name to be wrong");
        let key = || KeyPair::generate().expect("the system has random numbers");
        let mut authority = params();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
        let authority = CertifiedIssuer::self_signed(authority, key());
        let authority = authority.expect("the parameters are sound");
        let mut server = params();
        let addresses = Family::ALL.map(|family| addresses.of(family).parse());
        let addresses = addresses.map(|one| one.expect("the rig's addresses are addresses"));
        server.subject_alt_names.extend(addresses.map(SanType::IpAddress));
        if let Some(days) = days {
            let at = |days| time::OffsetDateTime::now_utc() + time::Duration::days(days);
            (server.not_before, server.not_after) = (at(days.start), at(days.end));
        }
        server.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        let key = key();
        let server = server.signed_by(&key, &authority).expect("the parameters are sound");
        Certificate { authority: authority.pem(), chain: server.pem(), key: key.serialize_pem() }
    }
}
