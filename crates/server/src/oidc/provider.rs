//! The identity provider. Its metadata is requested when a login needs it, not at the start of the
//! server, because joined machines do not depend on it.

use std::{fmt, sync::Arc, time::Duration};

use base64ct::{Base64, Encoding};
use form_urlencoded::{Serializer, byte_serialize};
use hyper::{
    Request, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use openidconnect::{
    ClientId, ClientSecret, EndpointSet, HttpRequest, IssuerUrl, Nonce, PkceCodeVerifier,
    RedirectUrl,
    core::{CoreClient, CoreJsonWebKeySet},
};
use tokio::{sync::Mutex, time::Instant};

use super::{
    claims::UserClaims,
    json_members::Members,
    login_error::LoginError,
    metadata::{Metadata, MetadataError},
    table::OidcTable,
    token::{self, Expected, TokenError},
};
use crate::{
    clock::now,
    net::fetch::{Fetch, FetchError},
};

/// Time after which the metadata is requested again for a login.
const FRESH: Duration = Duration::from_secs(3600);
/// Minimum time between two requests after a failure, or for unknown keys.
const PAUSE: Duration = Duration::from_secs(5);

/// Maximum length of a provider's error in the log, in characters.
const LONGEST_WORDS: usize = 256;

/// Metadata and keys of a provider.
pub(super) struct Client {
    metadata: Metadata,
    keys: CoreJsonWebKeySet,
    /// Builds the URL of a login.
    pub authorization: CoreClient<EndpointSet>,
}

/// Why an answer of a provider cannot be used.
#[derive(Debug)]
enum AnswerError {
    Fetch(FetchError),
    Status(StatusCode, String),
    Json(serde_json::Error),
    Metadata(MetadataError),
    Token(TokenError),
    /// It describes another user than the ID token.
    Subject,
}

impl fmt::Display for AnswerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fetch(error) => write!(f, "{error}"),
            Self::Status(status, words) => write!(f, "the answer is {status} {words}"),
            Self::Json(error) => write!(f, "it is not a JSON object: {error}"),
            Self::Metadata(error) => write!(f, "{error}"),
            Self::Token(error) => write!(f, "{error}"),
            Self::Subject => f.write_str("sub: it belongs to another user"),
        }
    }
}

impl std::error::Error for AnswerError {}

impl From<MetadataError> for AnswerError {
    fn from(error: MetadataError) -> Self {
        Self::Metadata(error)
    }
}

impl From<TokenError> for AnswerError {
    fn from(error: TokenError) -> Self {
        Self::Token(error)
    }
}

/// A provider.
pub(super) struct Provider {
    table: OidcTable,
    secret: Option<ClientSecret>,
    redirect: RedirectUrl,
    fetch: Fetch,
    cached: Mutex<Cached>,
}

#[derive(Default)]
struct Cached {
    client: Option<Arc<Client>>,
    read_at: Option<Instant>,
    failed_at: Option<Instant>,
    /// When its keys were last requested because of a token with an unknown key.
    suspected_at: Option<Instant>,
}

impl Cached {
    fn is_fresh(&self, age: Duration) -> bool {
        self.read_at.is_some_and(|at| at.elapsed() < age)
    }
}

impl Provider {
    /// Creates a provider that redirects users to this URL.
    ///
    /// # Errors
    /// The secret's file cannot be read.
    pub(super) fn new(table: OidcTable, redirect: RedirectUrl) -> anyhow::Result<Self> {
        let fetch = Fetch::new(table.issuer.url().scheme() == "http");
        let (secret, cached) = (table.secret.read()?, Mutex::default());
        Ok(Self { table, secret, redirect, fetch, cached })
    }

    /// The cached metadata. It is requested if it is absent or old.
    ///
    /// # Errors
    /// The provider does not answer, and never did.
    pub(super) async fn client(&self) -> Result<Arc<Client>, LoginError> {
        self.client_no_older_than(FRESH).await
    }

    async fn client_no_older_than(&self, age: Duration) -> Result<Arc<Client>, LoginError> {
        let mut cached = self.cached.lock().await;
        let has_failed = cached.failed_at.is_some_and(|at| at.elapsed() < PAUSE);
        if let Some(client) = &cached.client
            && (cached.is_fresh(age) || has_failed)
        {
            return Ok(Arc::clone(client));
        }
        if has_failed {
            return Err(LoginError::Unreachable);
        }
        match self.discover().await {
            Ok(client) => {
                let client = Arc::new(client);
                cached.client = Some(Arc::clone(&client));
                (cached.read_at, cached.failed_at) = (Some(Instant::now()), None);
                Ok(client)
            }
            Err(error) => {
                tracing::warn!(
                    "OIDC: the metadata of {} cannot be read: {error}",
                    *self.table.issuer
                );
                cached.failed_at = Some(Instant::now());
                cached.client.clone().ok_or(LoginError::Unreachable)
            }
        }
    }

    /// The metadata with new keys, for a token with an unknown key. Such requests are limited,
    /// because anyone can send a token with an invalid key.
    async fn client_with_fresh_keys(&self) -> Result<Arc<Client>, LoginError> {
        let mut cached = self.cached.lock().await;
        let was_suspected = cached.suspected_at.is_some_and(|at| at.elapsed() < PAUSE);
        if !was_suspected {
            cached.suspected_at = Some(Instant::now());
        }
        drop(cached);
        self.client_no_older_than(if was_suspected { FRESH } else { Duration::ZERO }).await
    }

    /// Requests the metadata and the keys.
    async fn discover(&self) -> Result<Client, AnswerError> {
        let issuer: &IssuerUrl = &self.table.issuer;
        let url = Metadata::url(issuer);
        let url = url.parse().map_err(|_| FetchError::Address(url));
        let url: Uri = url.map_err(AnswerError::Fetch)?;
        let described = Members::read(&self.get(&url, None).await?).map_err(AnswerError::Json)?;
        let metadata = Metadata::of(&described, issuer)?;
        let keys = self.get(&metadata.keys, None).await?;
        // Keys of unknown types are ignored.
        let keys: CoreJsonWebKeySet = serde_json::from_slice(&keys).map_err(AnswerError::Json)?;
        let id = ClientId::new(self.table.client_id.clone());
        let authorization = CoreClient::new(id, issuer.clone(), keys.clone())
            .set_auth_uri(metadata.authorization.clone())
            .set_redirect_uri(self.redirect.clone());
        Ok(Client { metadata, keys, authorization })
    }

    /// Exchanges a code for the user's claims.
    ///
    /// # Errors
    /// The provider does not answer, or its answer cannot be trusted.
    pub(super) async fn identify(
        &self,
        code: String,
        verifier: Option<PkceCodeVerifier>,
        nonce: &Nonce,
    ) -> Result<UserClaims, LoginError> {
        let client = self.client().await?;
        let request = self.request_of_code(&client.metadata, &code, verifier);
        let answer = self
            .send(request)
            .await
            .and_then(|answer| Members::read(&answer).map_err(AnswerError::Json));
        let tokens = answer.map_err(|error| LoginError::broken("it refused the code", error))?;
        let id_token =
            tokens.text("id_token").ok_or(LoginError::Untrusted("the ID token is missing"))?;
        let claims = match signed(&id_token, &client) {
            Err(TokenError::NoKey) => signed(&id_token, &*self.client_with_fresh_keys().await?),
            claims => claims,
        };
        let believed = claims.and_then(|claims| {
            let (subject, expires) = self.expected().check_login(&claims, nonce, now())?;
            Ok((claims, subject, expires))
        });
        let (claims, subject, expires) =
            believed.map_err(|error| LoginError::broken("its ID token is refused", error))?;
        let info = match (&client.metadata.user_info, tokens.text("access_token")) {
            (Some(url), Some(token)) => {
                let info = self.user_info(&client, url, &token, &subject).await;
                let warn = |error| tracing::warn!("OIDC: the user info cannot be read: {error}");
                info.map_err(warn).ok()
            }
            _ => None,
        };
        let info = info.unwrap_or_default();
        Ok(UserClaims::of(&claims, &info, (subject, expires), &self.table.groups_claim))
    }

    fn expected(&self) -> Expected<'_> {
        Expected { issuer: &self.table.issuer, client: &self.table.client_id }
    }

    /// The request that exchanges a code for tokens (RFC 6749, sections 2.3.1 and 4.1.3; RFC
    /// 7636).
    fn request_of_code(
        &self,
        metadata: &Metadata,
        code: &str,
        verifier: Option<PkceCodeVerifier>,
    ) -> HttpRequest {
        let id = &self.table.client_id;
        let mut form = Serializer::new(String::new());
        form.append_pair("grant_type", "authorization_code");
        form.append_pair("code", code);
        form.append_pair("redirect_uri", self.redirect.as_str());
        if let Some(verifier) = &verifier {
            form.append_pair("code_verifier", verifier.secret());
        }
        let mut request = Request::post(metadata.token.clone())
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        match &self.secret {
            Some(secret) if !metadata.secret_in_body => {
                let encoded = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let pair = format!("{}:{}", encoded(id), encoded(secret.secret()));
                let pair = Base64::encode_string(pair.as_bytes());
                request = request.header(AUTHORIZATION, format!("Basic {pair}"));
            }
            secret => {
                form.append_pair("client_id", id);
                if let Some(secret) = secret {
                    form.append_pair("client_secret", secret.secret());
                }
            }
        }
        request.body(form.finish().into_bytes()).expect("an URI, and headers of ASCII")
    }

    /// Requests the user info. A login does not require it.
    async fn user_info(
        &self,
        client: &Client,
        url: &Uri,
        token: &str,
        subject: &str,
    ) -> Result<Members, AnswerError> {
        let answer = self.get(url, Some(token)).await?;
        let info = match std::str::from_utf8(&answer) {
            // Some providers sign it (OpenID Connect Core 1.0, section 5.3.2).
            Ok(text) if !text.trim_start().starts_with('{') => {
                let info = signed(text.trim(), client)?;
                self.expected().check(&info)?;
                info
            }
            _ => Members::read(&answer).map_err(AnswerError::Json)?,
        };
        let own = token::subject_of(&info);
        if own.as_deref() == Some(subject) { Ok(info) } else { Err(AnswerError::Subject) }
    }

    async fn get(&self, from: &Uri, token: Option<&str>) -> Result<Vec<u8>, AnswerError> {
        let mut request = Request::get(from.clone()).header(ACCEPT, "application/json");
        if let Some(token) = token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(Vec::new());
        let bad = |_| AnswerError::Fetch(FetchError::Address(from.to_string()));
        self.send(request.map_err(bad)?).await
    }

    async fn send(&self, request: HttpRequest) -> Result<Vec<u8>, AnswerError> {
        let answer = self.fetch.within_time(request).await.map_err(AnswerError::Fetch)?;
        if answer.status().is_success() {
            return Ok(answer.into_body());
        }
        let words = Members::read(answer.body()).unwrap_or_default();
        let words = ["error", "error_description"].map(|name| words.text(name).unwrap_or_default());
        let words: String = words.join(" ").chars().take(LONGEST_WORDS).collect();
        Err(AnswerError::Status(answer.status(), words.trim().to_owned()))
    }
}

fn signed(token: &str, client: &Client) -> Result<Members, TokenError> {
    token::signed(token, &client.keys, &client.metadata.algorithms)
}
