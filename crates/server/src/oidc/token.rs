//! Signed tokens of a provider (RFC 7515, RFC 7519). Only claims that decide something are read: a
//! claim that the network does not use cannot make a login fail, whatever its type.
//!
//! ```text
//!   HEADER.CLAIMS.SIGNATURE ── header, key ──► Members ── iss, aud, azp, exp, nonce, sub ──► accepted
//! ```

use std::fmt;

use base64ct::{Base64UrlUnpadded, Encoding};
use coordinator::{Time, is_same_issuer, secret::Hash};
use openidconnect::{
    JsonWebKey, JwsSigningAlgorithm, Nonce,
    core::{CoreJsonWebKey, CoreJsonWebKeySet, CoreJwsSigningAlgorithm},
};
use serde_json::Value;

use super::json_members::Members;

/// Types of tokens. A header may name them with or without `application/` (RFC 7515, section 4.1.9).
const TYPES: [&str; 2] = ["jwt", "jose"];

/// Why a token is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// It does not have the form of a signed token.
    Form,
    /// A parameter of its header is not supported.
    Header(&'static str),
    /// The provider does not use this algorithm, or it does not use a key of the provider.
    Algorithm(String),
    /// The provider does not have this key.
    NoKey,
    /// The signature is wrong.
    Signature,
    /// It was issued by another provider.
    Issuer(String),
    /// It is for another client.
    Audience,
    /// It was issued to another client.
    Party,
    /// Its expiry is missing.
    NoExpiry,
    /// It has expired.
    Expired,
    /// It belongs to another login.
    Nonce,
    /// It names no subject.
    NoSubject,
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => f.write_str("not a signed token"),
            Self::Header(name) => write!(f, "header parameter {name:?} is not supported"),
            Self::Algorithm(name) => write!(f, "algorithm {name:?} is not accepted"),
            Self::NoKey => f.write_str("the key is not one of the provider's"),
            Self::Signature => f.write_str("the signature is wrong"),
            Self::Issuer(issuer) => write!(f, "iss: it was issued by another provider, {issuer:?}"),
            Self::Audience => f.write_str("aud: it is for another client"),
            Self::Party => f.write_str("azp: it was issued to another client"),
            Self::NoExpiry => f.write_str("exp: it is missing"),
            Self::Expired => f.write_str("exp: it has expired"),
            Self::Nonce => f.write_str("nonce: it belongs to another login"),
            Self::NoSubject => f.write_str("sub: it is missing"),
        }
    }
}

impl std::error::Error for TokenError {}

/// The claims of a token that is signed by one of the keys.
///
/// # Errors
/// None of the keys signed it with one of these algorithms.
pub(super) fn signed(
    token: &str,
    keys: &CoreJsonWebKeySet,
    algorithms: &[CoreJwsSigningAlgorithm],
) -> Result<Members, TokenError> {
    let decoded = |text: &str| Base64UrlUnpadded::decode_vec(text).map_err(|_| TokenError::Form);
    let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Form)?;
    let (header, claims) = message.split_once('.').ok_or(TokenError::Form)?;
    let (header, signature) = (decoded(header)?, decoded(signature)?);
    let header = Members::read(&header).map_err(|_| TokenError::Form)?;
    let algorithm = algorithm_of(&header)?;
    if !algorithms.contains(&algorithm) || !is_asymmetric(&algorithm) {
        return Err(TokenError::Algorithm(header.text("alg").unwrap_or_default()));
    }
    let name = header.text("kid");
    let is_meant = |key: &&CoreJsonWebKey| {
        let own = key.key_id().map(|id| id.as_str());
        let is_named = name.is_none() || own == name.as_deref();
        is_named && algorithm.key_type().as_ref() == Some(key.key_type())
    };
    let mut keys = keys.keys().iter().filter(is_meant).peekable();
    if keys.peek().is_none() {
        return Err(TokenError::NoKey);
    }
    // The key itself refuses an algorithm or a use that does not match.
    if !keys.any(|key| key.verify_signature(&algorithm, message.as_bytes(), &signature).is_ok()) {
        return Err(TokenError::Signature);
    }
    Members::read(&decoded(claims)?).map_err(|_| TokenError::Form)
}

/// Whether an algorithm signs with a key that only the provider has. A client secret may have been
/// chosen by others, so it cannot prove the identity of users.
pub(super) fn is_asymmetric(algorithm: &CoreJwsSigningAlgorithm) -> bool {
    algorithm.key_type().is_some() && !algorithm.uses_shared_secret()
}

fn algorithm_of(header: &Members) -> Result<CoreJwsSigningAlgorithm, TokenError> {
    if let Some(kind) = header.value("typ") {
        let kind = kind.as_str().unwrap_or_default().to_ascii_lowercase();
        if !TYPES.contains(&kind.strip_prefix("application/").unwrap_or(&kind)) {
            return Err(TokenError::Header("typ"));
        }
    }
    // Nested tokens, and parameters that must be understood.
    for name in ["cty", "crit"] {
        if header.value(name).is_some() {
            return Err(TokenError::Header(name));
        }
    }
    let name = header.value("alg").ok_or(TokenError::Header("alg"))?;
    serde_json::from_value(name.clone()).map_err(|_| TokenError::Algorithm(name.to_string()))
}

/// The issuer and audience that a token must have.
pub(super) struct Expected<'a> {
    /// Issuer of the configured provider.
    pub issuer: &'a str,
    /// Client ID of this server.
    pub client: &'a str,
}

impl Expected<'_> {
    /// Checks the issuer, the audience and the authorized party.
    ///
    /// # Errors
    /// Another provider or another client.
    pub(super) fn check(&self, claims: &Members) -> Result<(), TokenError> {
        let issuer = claims.value("iss").and_then(Value::as_str).unwrap_or_default();
        if !is_same_issuer(issuer, self.issuer) {
            return Err(TokenError::Issuer(issuer.to_owned()));
        }
        let audiences = match claims.value("aud") {
            Some(one @ Value::String(_)) => std::slice::from_ref(one),
            Some(Value::Array(several)) if several.iter().all(Value::is_string) => several,
            _ => return Err(TokenError::Audience),
        };
        if !audiences.iter().any(|audience| audience == self.client) {
            return Err(TokenError::Audience);
        }
        // A token for several audiences names the client that it was issued to (OpenID
        // Connect Core 1.0, section 3.1.3.7).
        let is_ours = match claims.value("azp") {
            Some(party) => party == self.client,
            None => audiences.len() == 1,
        };
        if is_ours { Ok(()) } else { Err(TokenError::Party) }
    }

    /// Checks the claims of an ID token. Returns the subject, and when the token expires.
    ///
    /// # Errors
    /// It does not belong to this login.
    pub(super) fn check_login(
        &self,
        claims: &Members,
        nonce: &Nonce,
        now: Time,
    ) -> Result<(String, Time), TokenError> {
        self.check(claims)?;
        let expires = claims.number("exp").ok_or(TokenError::NoExpiry)?;
        // Casting a number out of range gives zero or the maximum.
        let expires = Time((expires * 1000.0) as u64);
        if expires <= now {
            return Err(TokenError::Expired);
        }
        let own = claims.value("nonce").and_then(Value::as_str).ok_or(TokenError::Nonce)?;
        // Comparing hashes does not reveal how much of a wrong value is right.
        if Hash::of(own) != Hash::of(nonce.secret()) {
            return Err(TokenError::Nonce);
        }
        Ok((subject_of(claims).ok_or(TokenError::NoSubject)?, expires))
    }
}

/// The subject, a string or an integer. Larger numbers lose digits, so that two users could get the
/// same subject.
pub(super) fn subject_of(claims: &Members) -> Option<String> {
    let is_whole = |value: &&Value| value.is_string() || value.is_u64() || value.is_i64();
    claims.value("sub").filter(is_whole).and_then(|_| claims.text("sub"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: Time = Time(1_000_000);

    fn checked(change: Value) -> Result<(String, Time), TokenError> {
        let mut claims = json!({
            "iss": "https://id.test", "aud": "net", "exp": 2000, "nonce": "n", "sub": "1",
        });
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let expected = Expected { issuer: "https://id.test", client: "net" };
        let claims = Members::read(claims.to_string().as_bytes()).unwrap();
        expected.check_login(&claims, &Nonce::new("n".into()), NOW)
    }

    #[test]
    fn a_token_of_this_login_is_accepted_whatever_else_it_claims() {
        for (change, expires) in [
            (json!({}), 2000.0),
            (json!({ "iss": "https://id.test/" }), 2000.0),
            (json!({ "aud": ["net"] }), 2000.0),
            (json!({ "aud": ["net", "other"], "azp": "net" }), 2000.0),
            (json!({ "exp": 2000.5 }), 2000.5),
            (json!({ "exp": "2000" }), 2000.0),
            (json!({ "azp": null, "amr": "pwd", "auth_time": "x", "iat": [], "acr": 1 }), 2000.0),
            (json!({ "address": "x", "updated_at": "x", "gender": 1, "at_hash": {} }), 2000.0),
        ] {
            let expires = Time((expires * 1000.0) as u64);
            assert_eq!(checked(change.clone()), Ok(("1".into(), expires)), "{change}");
        }
        assert_eq!(checked(json!({ "sub": 12 })).unwrap().0, "12");
    }

    #[test]
    fn a_token_of_another_login_client_time_or_provider_is_refused() {
        let issuer = |text: &str| TokenError::Issuer(text.into());
        for (change, error) in [
            (json!({ "iss": "https://id.test//" }), issuer("https://id.test//")),
            (json!({ "iss": "https://ID.test" }), issuer("https://ID.test")),
            (json!({ "iss": ["https://id.test"] }), issuer("")),
            (json!({ "iss": null }), issuer("")),
            (json!({ "aud": "other" }), TokenError::Audience),
            (json!({ "aud": null }), TokenError::Audience),
            (json!({ "aud": ["net", 7] }), TokenError::Audience),
            (json!({ "aud": [] }), TokenError::Audience),
            (json!({ "aud": ["net", "other"] }), TokenError::Party),
            (json!({ "aud": ["net", "other"], "azp": "other" }), TokenError::Party),
            (json!({ "azp": "" }), TokenError::Party),
            (json!({ "azp": ["net"] }), TokenError::Party),
            (json!({ "exp": 1000 }), TokenError::Expired),
            (json!({ "exp": -1 }), TokenError::Expired),
            (json!({ "exp": "NaN" }), TokenError::NoExpiry),
            (json!({ "exp": null }), TokenError::NoExpiry),
            (json!({ "exp": true }), TokenError::NoExpiry),
            (json!({ "nonce": "m" }), TokenError::Nonce),
            (json!({ "nonce": null }), TokenError::Nonce),
            (json!({ "nonce": ["n"] }), TokenError::Nonce),
            (json!({ "sub": null }), TokenError::NoSubject),
            (json!({ "sub": "" }), TokenError::NoSubject),
            (json!({ "sub": ["1"] }), TokenError::NoSubject),
            (json!({ "sub": 1.2345678901234568e20 }), TokenError::NoSubject),
        ] {
            assert_eq!(checked(change.clone()), Err(error), "{change}");
        }
    }

    #[test]
    fn unknown_header_parameters_and_symmetric_algorithms_are_refused() {
        let keys = CoreJsonWebKeySet::new(Vec::new());
        let every = [CoreJwsSigningAlgorithm::None, CoreJwsSigningAlgorithm::HmacSha256];
        let every = [&every[..], &[CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256]].concat();
        let refused = |header: Value| {
            let part =
                |value: &Value| Base64UrlUnpadded::encode_string(value.to_string().as_bytes());
            let token = format!("{}.{}.", part(&header), part(&json!({})));
            signed(&token, &keys, &every).unwrap_err()
        };
        let algorithm = |name: &str| TokenError::Algorithm(name.into());
        assert_eq!(refused(json!({ "alg": "none" })), algorithm("none"));
        assert_eq!(refused(json!({ "alg": "HS256" })), algorithm("HS256"));
        assert_eq!(refused(json!({ "alg": "PS256" })), algorithm("PS256"));
        assert_eq!(refused(json!({ "alg": "RS256", "crit": ["b64"] })), TokenError::Header("crit"));
        assert_eq!(refused(json!({ "alg": "RS256", "cty": "JWT" })), TokenError::Header("cty"));
        assert_eq!(refused(json!({ "alg": "RS256", "typ": "at+jwt" })), TokenError::Header("typ"));
        assert_eq!(refused(json!({})), TokenError::Header("alg"));
        for typ in ["JWT", "application/jwt", "JOSE"] {
            assert_eq!(refused(json!({ "alg": "RS256", "typ": typ })), TokenError::NoKey);
        }
        for token in ["", "a.b", "....", "!.e30.e30", "e30.e30"] {
            assert_eq!(signed(token, &keys, &every).unwrap_err(), TokenError::Form, "{token}");
        }
    }
}
