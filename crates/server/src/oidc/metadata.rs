//! Metadata of a provider (OpenID Connect Discovery 1.0, section 3). Only members that a login needs
//! are read.

use std::{fmt, str::FromStr};

use coordinator::is_same_issuer;
use hyper::Uri;
use openidconnect::{AuthUrl, core::CoreJwsSigningAlgorithm};

use super::{json_members::Members, token::is_asymmetric};

/// Path of the metadata, below the issuer.
const PLACE: &str = ".well-known/openid-configuration";

/// Metadata of a provider.
#[derive(Debug)]
pub(super) struct Metadata {
    /// Endpoint for logins.
    pub authorization: AuthUrl,
    /// Endpoint for tokens.
    pub token: Uri,
    /// Endpoint for claims about a user.
    pub user_info: Option<Uri>,
    /// URL of its keys.
    pub keys: Uri,
    /// Algorithms of its tokens.
    pub algorithms: Vec<CoreJwsSigningAlgorithm>,
    /// Whether it accepts the client secret only in the body of a request.
    pub secret_in_body: bool,
}

/// Why metadata cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MetadataError {
    /// It belongs to another provider.
    Issuer(String),
    /// A required member is missing or not a URL.
    Url(&'static str),
}

impl fmt::Display for MetadataError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Issuer(issuer) => write!(f, "issuer: it is {issuer:?}"),
            Self::Url(name) => write!(f, "{name}: the URL is missing or invalid"),
        }
    }
}

impl std::error::Error for MetadataError {}

impl Metadata {
    /// URL of an issuer's metadata.
    pub(super) fn url(issuer: &str) -> String {
        format!("{}/{PLACE}", issuer.strip_suffix('/').unwrap_or(issuer))
    }

    /// Parses the metadata of this issuer.
    ///
    /// # Errors
    /// It belongs to another provider, or lacks a required member.
    pub(super) fn of(members: &Members, issuer: &str) -> Result<Self, MetadataError> {
        let own = members.text("issuer").unwrap_or_default();
        if !is_same_issuer(&own, issuer) {
            return Err(MetadataError::Issuer(own));
        }
        let algorithms = match members.texts("id_token_signing_alg_values_supported") {
            Some(names) => names.into_iter().filter_map(algorithm).filter(is_asymmetric).collect(),
            // The algorithm that every provider supports.
            None => vec![CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256],
        };
        let methods = members.texts("token_endpoint_auth_methods_supported").unwrap_or_default();
        let has = |method: &str| methods.iter().any(|own| own == method);
        let name = "authorization_endpoint";
        let authorization = members.text(name).and_then(|text| AuthUrl::new(text).ok());
        Ok(Self {
            authorization: authorization.ok_or(MetadataError::Url(name))?,
            token: url(members, "token_endpoint")?,
            user_info: url(members, "userinfo_endpoint").ok(),
            keys: url(members, "jwks_uri")?,
            algorithms,
            secret_in_body: has("client_secret_post") && !has("client_secret_basic"),
        })
    }
}

fn algorithm(name: String) -> Option<CoreJwsSigningAlgorithm> {
    serde_json::from_value(name.into()).ok()
}

fn url(members: &Members, name: &'static str) -> Result<Uri, MetadataError> {
    let uri = members.text(name).and_then(|text| Uri::from_str(&text).ok());
    uri.filter(|uri| uri.host().is_some()).ok_or(MetadataError::Url(name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(change: Value) -> Result<Metadata, MetadataError> {
        let mut members = json!({
            "issuer": "https://id.test", "authorization_endpoint": "https://id.test/login",
            "token_endpoint": "https://id.test/token", "jwks_uri": "https://id.test/keys",
            "id_token_signing_alg_values_supported": ["RS256"],
        });
        members.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        Metadata::of(&Members::read(members.to_string().as_bytes()).unwrap(), "https://id.test")
    }

    #[test]
    fn members_that_a_login_does_not_need_may_have_any_type() {
        for change in [
            json!({ "op_policy_uri": "", "op_tos_uri": 7, "service_documentation": {} }),
            json!({ "subject_types_supported": null, "response_types_supported": "code" }),
            json!({ "scopes_supported": {}, "claims_supported": "sub", "ui_locales_supported": "" }),
            json!({ "userinfo_endpoint": "", "registration_endpoint": "none" }),
            json!({ "issuer": "https://id.test/" }),
        ] {
            let read = read(change.clone()).unwrap_or_else(|error| panic!("{change}: {error}"));
            assert_eq!(read.user_info, None);
        }
    }

    #[test]
    fn a_description_that_lacks_a_needed_member_is_refused_by_its_name() {
        for (name, value) in [
            ("token_endpoint", json!(null)),
            ("token_endpoint", json!("/token")),
            ("jwks_uri", json!("")),
            ("authorization_endpoint", json!({})),
        ] {
            assert_eq!(read(json!({ name: value })).unwrap_err(), MetadataError::Url(name));
        }
        let other = read(json!({ "issuer": "https://other.test" })).unwrap_err();
        assert_eq!(other, MetadataError::Issuer("https://other.test".into()));
    }

    #[test]
    fn algorithms_without_a_key_of_the_provider_and_unknown_ones_are_not_accepted() {
        let algorithms = |value: Value| {
            read(json!({ "id_token_signing_alg_values_supported": value })).unwrap().algorithms
        };
        let rs256 = vec![CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256];
        assert_eq!(algorithms(json!(["none", "HS256", "RS256", "ML-DSA-44", 7])), rs256);
        assert_eq!(algorithms(json!("RS256")), rs256);
        assert_eq!(algorithms(json!(null)), rs256);
        assert_eq!(algorithms(json!(["HS256"])), vec![]);
    }

    #[test]
    fn a_final_slash_of_the_issuer_is_not_doubled() {
        let url = "https://id.test/a/.well-known/openid-configuration";
        assert_eq!(Metadata::url("https://id.test/a"), url);
        assert_eq!(Metadata::url("https://id.test/a/"), url);
    }
}
