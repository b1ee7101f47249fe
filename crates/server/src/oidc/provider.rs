//! The provider, as it describes itself. It is asked when the first login needs it, and never at the
//! start: who is in the network already has nothing to do with it.

use std::{sync::Arc, time::Duration};

use openidconnect::{
    AdditionalClaims, AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret,
    EmptyExtraTokenFields, EndpointMaybeSet, EndpointNotSet, EndpointSet, IdTokenClaims,
    IdTokenFields, IdTokenVerifier, Nonce, OAuth2TokenResponse, PkceCodeVerifier, RedirectUrl,
    SignatureVerificationError, StandardErrorResponse, StandardTokenResponse, TokenResponse,
    UserInfoClaims,
    core::{
        CoreAuthDisplay, CoreAuthPrompt, CoreClientAuthMethod, CoreErrorResponseType,
        CoreGenderClaim, CoreJsonWebKey, CoreJweContentEncryptionAlgorithm,
        CoreJwsSigningAlgorithm, CoreProviderMetadata, CoreRevocableToken,
        CoreRevocationErrorResponse, CoreTokenIntrospectionResponse, CoreTokenType,
    },
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::{sync::Mutex, time::Instant};

use super::{claims::Said, table::OidcTable, trouble::Trouble};
use crate::fetch::Fetch;

/// After this it is asked anew what it is, when the next login needs it.
const FRESH: Duration = Duration::from_secs(3600);
/// A provider that did not answer, or was asked for other keys, is left alone for so long.
const PAUSE: Duration = Duration::from_secs(5);

/// All claims that the standard has not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Others(pub Map<String, Value>);

impl AdditionalClaims for Others {}

type IdToken = IdTokenFields<
    Others,
    EmptyExtraTokenFields,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJwsSigningAlgorithm,
>;

/// What is known of a provider.
pub type Client = openidconnect::Client<
    Others,
    CoreAuthDisplay,
    CoreGenderClaim,
    CoreJweContentEncryptionAlgorithm,
    CoreJsonWebKey,
    CoreAuthPrompt,
    StandardErrorResponse<CoreErrorResponseType>,
    StandardTokenResponse<IdToken, CoreTokenType>,
    CoreTokenIntrospectionResponse,
    CoreRevocableToken,
    CoreRevocationErrorResponse,
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

type Claims = IdTokenClaims<Others, CoreGenderClaim>;

/// A provider.
pub struct Provider {
    table: OidcTable,
    secret: Option<ClientSecret>,
    redirect: RedirectUrl,
    fetch: Fetch,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    client: Option<Arc<Client>>,
    read_at: Option<Instant>,
    failed_at: Option<Instant>,
    /// When it was asked because somebody's token was signed by a key that is not known.
    suspected_at: Option<Instant>,
}

impl Known {
    fn is_fresh(&self, age: Duration) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < age)
    }
}

impl Provider {
    /// One that sends users back to this URL.
    ///
    /// # Errors
    /// The secret's file cannot be read.
    pub fn new(table: OidcTable, redirect: RedirectUrl) -> anyhow::Result<Self> {
        let fetch = Fetch::new(table.issuer.url().scheme() == "http");
        let (secret, known) = (table.secret.read()?, Mutex::default());
        Ok(Self { table, secret, redirect, fetch, known })
    }

    /// What is known of it; it is asked if that is nothing, or old.
    ///
    /// # Errors
    /// It does not answer, and never did.
    pub async fn client(&self) -> Result<Arc<Client>, Trouble> {
        self.client_no_older_than(FRESH).await
    }

    async fn client_no_older_than(&self, age: Duration) -> Result<Arc<Client>, Trouble> {
        let mut known = self.known.lock().await;
        let has_failed = known.failed_at.is_some_and(|at| at.elapsed() < PAUSE);
        if let Some(client) = &known.client
            && (known.is_fresh(age) || has_failed)
        {
            return Ok(Arc::clone(client));
        }
        if has_failed {
            return Err(Trouble::Unreachable);
        }
        match CoreProviderMetadata::discover_async(self.table.issuer.clone(), &self.fetch).await {
            Ok(metadata) => {
                let client = Arc::new(self.client_of(metadata));
                known.client = Some(Arc::clone(&client));
                (known.read_at, known.failed_at) = (Some(Instant::now()), None);
                Ok(client)
            }
            Err(error) => {
                let error = anyhow::Error::new(error);
                tracing::warn!("OIDC: {} does not say what it is: {error:#}", *self.table.issuer);
                known.failed_at = Some(Instant::now());
                known.client.clone().ok_or(Trouble::Unreachable)
            }
        }
    }

    /// The same, where a key is missed: anybody can show a token of a key that nobody has, so it is
    /// not asked for each.
    async fn client_with_other_keys(&self) -> Result<Arc<Client>, Trouble> {
        let mut known = self.known.lock().await;
        let is_asked = known.suspected_at.is_some_and(|at| at.elapsed() < PAUSE);
        if !is_asked {
            known.suspected_at = Some(Instant::now());
        }
        drop(known);
        self.client_no_older_than(if is_asked { FRESH } else { Duration::ZERO }).await
    }

    fn client_of(&self, metadata: CoreProviderMetadata) -> Client {
        // The server's own secret, which others may have chosen, is no key to sign users with.
        let algorithms = metadata.id_token_signing_alg_values_supported();
        let is_asymmetric = |algorithm: &&CoreJwsSigningAlgorithm| {
            use CoreJwsSigningAlgorithm::{HmacSha256, HmacSha384, HmacSha512, None as Unsigned};
            !matches!(algorithm, HmacSha256 | HmacSha384 | HmacSha512 | Unsigned)
        };
        let algorithms = algorithms.iter().filter(is_asymmetric).cloned().collect();
        let methods = metadata.token_endpoint_auth_methods_supported();
        let has = |method| methods.is_some_and(|methods| methods.contains(&method));
        let by_post = has(CoreClientAuthMethod::ClientSecretPost)
            && !has(CoreClientAuthMethod::ClientSecretBasic);
        let metadata = metadata.set_id_token_signing_alg_values_supported(algorithms);
        let id = ClientId::new(self.table.client_id.clone());
        Client::from_provider_metadata(metadata, id, self.secret.clone())
            .set_redirect_uri(self.redirect.clone())
            .set_auth_type(if by_post { AuthType::RequestBody } else { AuthType::BasicAuth })
    }

    /// Has the provider say who came back with a code.
    ///
    /// # Errors
    /// It does not answer, or what it says is not to be believed.
    pub async fn identify(
        &self,
        code: String,
        verifier: Option<PkceCodeVerifier>,
        nonce: &Nonce,
    ) -> Result<Said, Trouble> {
        let client = self.client().await?;
        let mut request = client
            .exchange_code(AuthorizationCode::new(code))
            .map_err(|error| Trouble::broken("it has no end-point for tokens", error))?;
        if let Some(verifier) = verifier {
            request = request.set_pkce_verifier(verifier);
        }
        let tokens = request.request_async(&self.fetch).await;
        let tokens = tokens.map_err(|error| Trouble::broken("it takes no code", error))?;
        let token = tokens.id_token().ok_or(Trouble::Untrue("there is no ID token"))?;
        let claims = match token.claims(&verifier_of(&client), nonce) {
            Err(ClaimsVerificationError::SignatureVerification(
                SignatureVerificationError::NoMatchingKey,
            )) => {
                let client = self.client_with_other_keys().await?;
                token.claims(&verifier_of(&client), nonce).cloned()
            }
            claims => claims.cloned(),
        };
        let claims = claims.map_err(|error| Trouble::broken("its ID token is refused", error))?;
        let party = claims.authorized_party().map(|party| party.as_str());
        if !is_issued_to(&self.table.client_id, party, claims.audiences().len()) {
            return Err(Trouble::Untrue("its ID token was issued to another program (azp)"));
        }
        let info = self.user_info(&client, tokens.access_token(), &claims).await;
        Ok(Said::of(&claims, info.as_ref(), &self.table.groups_claim))
    }

    /// What its end-point says of a user; a login needs none.
    async fn user_info(
        &self,
        client: &Client,
        token: &openidconnect::AccessToken,
        claims: &Claims,
    ) -> Option<UserInfoClaims<Others, CoreGenderClaim>> {
        let subject = Some(claims.subject().clone());
        let request = client.user_info(token.clone(), subject).ok()?;
        let asked = request.request_async(&self.fetch).await;
        let told = |error| {
            tracing::warn!("OIDC: nothing of a user's info: {:#}", anyhow::Error::new(error));
        };
        asked.map_err(told).ok()
    }
}

/// Whether a token is this client's: one that several may read names the one that it was issued to
/// (OpenID Connect Core 1.0, section 3.1.3.7).
fn is_issued_to(client: &str, party: Option<&str>, audiences: usize) -> bool {
    party.map_or(audiences <= 1, |party| party == client)
}

/// Accepts further audiences. [`is_issued_to`] checks the client.
fn verifier_of(client: &Client) -> IdTokenVerifier<'_, CoreJsonWebKey> {
    client.id_token_verifier().set_other_audience_verifier_fn(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_several_may_read_names_the_client_that_it_was_issued_to() {
        assert!(is_issued_to("net", None, 1));
        assert!(is_issued_to("net", Some("net"), 1) && is_issued_to("net", Some("net"), 2));
        assert!(!is_issued_to("net", None, 2));
        assert!(!is_issued_to("net", Some("other"), 1) && !is_issued_to("net", Some("other"), 2));
    }
}
