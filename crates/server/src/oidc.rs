//! Admission of machines by a login at an identity provider (OpenID Connect Core 1.0, authorization
//! code flow, with PKCE).
//!
//! ```text
//!   client ── register ──► waits, AuthURL        browser ── GET /register/NUMBER
//!     ▲                                            │  state, nonce, verifier, sealed in a cookie
//!     │                                            ▼
//!     │                                          provider
//!     │                                            │  GET /oidc/callback?code&state
//!     │                                            ▼
//!     │                                          code ──► tokens ──► claims ──► allowed?
//!     │                                            │  "this machine, this account?"
//!     │                                            ▼
//!     └── is a node ◄── State::sign_in, admit ◄── POST /oidc/confirm
//! ```
//!
//! The user of a forwarded link sees the name of the machine on the confirmation page before
//! admitting it. A login in progress is bound to the browser by a cookie, and to a tab by its state.
//! Checked SSH logins are confirmed in the same way.

mod claims;
mod json_members;
mod login_error;
mod logins;
mod metadata;
mod pages;
mod provider;
mod sealed;
mod ssh;
pub(crate) mod table;
mod token;

use std::sync::{Mutex, MutexGuard, PoisonError};

use coordinator::{
    Admission, Profile, Refusal, State, Time, is_same_issuer, object::RegisterMethod, secret::Hash,
};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{COOKIE, HeaderValue, LOCATION, SET_COOKIE},
};
use openidconnect::{
    CsrfToken, Nonce, PkceCodeChallenge, RedirectUrl, Scope, core::CoreAuthenticationFlow,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use self::{
    login_error::LoginError,
    logins::Logins,
    pages::Page,
    provider::Provider,
    sealed::{Begun, Sealer},
    table::OidcTable,
};
use crate::{
    clock::now,
    http::body::{self, Answer},
    net::address::ServerUrl,
    network::NetworkState,
};

const CALLBACK: &str = "/oidc/callback";
const CONFIRM: &str = "/oidc/confirm";
/// Maximum size of a form with a token, in bytes.
const LONGEST_FORM: usize = 4 << 10;
/// Maximum size of a code or state, in bytes. Some providers put a whole token into the code.
const LONGEST_CODE: usize = 8 << 10;
/// Maximum length of a provider's error that is shown.
const LONGEST_WORDS: usize = 256;

/// Logins at a provider.
pub struct Oidc {
    table: OidcTable,
    /// Whether browsers reach the server with TLS.
    is_https: bool,
    provider: Provider,
    sealer: Sealer,
    identified: Mutex<Logins<Identified>>,
}

/// Purpose of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// Admit a machine with a waiting registration.
    Machine,
    /// Approve an SSH login.
    Ssh,
}

impl Purpose {
    /// Checks that a registration or login with this ID waits.
    fn check(self, network: &NetworkState, number: &str) -> Result<(), LoginError> {
        network.read(|state| match self {
            Self::Machine => {
                state.pending_registration(number).map(drop).ok_or(LoginError::NoMachine)
            }
            Self::Ssh => {
                state.pending_ssh_login(number, now()).map(drop).ok_or(LoginError::NoLogin)
            }
        })
    }

    /// Name of the waiting object, for messages.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Ssh => "login",
        }
    }

    /// The command with which an administrator can approve it instead.
    pub(crate) fn command(self, number: &str) -> String {
        match self {
            Self::Machine => {
                format!("linerate-server nodes register --user USER --key {number}")
            }
            Self::Ssh => format!("linerate-server auth approve --auth-id {number}"),
        }
    }
}

/// A user after identification by the provider.
struct Identified {
    purpose: Purpose,
    browser: String,
    cookie: String,
    profile: Profile,
    token_expires: Time,
}

impl Oidc {
    /// Creates the logins of a server with this URL.
    ///
    /// # Errors
    /// The secret's file cannot be read.
    pub fn new(table: OidcTable, url: &ServerUrl) -> anyhow::Result<Self> {
        let redirect = RedirectUrl::new(format!("{url}{CALLBACK}"))?;
        let provider = Provider::new(table.clone(), redirect)?;
        let sealer = Sealer::new()?;
        let is_https = url.is_https();
        Ok(Self { table, is_https, provider, sealer, identified: Mutex::default() })
    }
}

/// Redirects a browser to the provider, for the registration or login with this ID.
pub(crate) async fn begin(
    network: &NetworkState,
    oidc: &Oidc,
    purpose: Purpose,
    number: &str,
) -> Response<Answer> {
    match try_begin(network, oidc, purpose, number).await {
        Ok(response) => response,
        Err(login_error @ (LoginError::NoMachine | LoginError::NoLogin)) => {
            error_page(login_error, StatusCode::NOT_FOUND).into()
        }
        Err(login_error) => error_page(login_error, StatusCode::SERVICE_UNAVAILABLE)
            .paragraph("An administrator can approve the request on the server:")
            .preformatted(&purpose.command(number))
            .into(),
    }
}

async fn try_begin(
    network: &NetworkState,
    oidc: &Oidc,
    purpose: Purpose,
    number: &str,
) -> Result<Response<Answer>, LoginError> {
    purpose.check(network, number)?;
    let client = oidc.provider.client().await?;
    let flow = CoreAuthenticationFlow::AuthorizationCode;
    let mut request =
        client.authorization.authorize_url(flow, CsrfToken::new_random, Nonce::new_random);
    for scope in oidc.table.scope.iter().filter(|scope| *scope != "openid") {
        request = request.add_scope(Scope::new(scope.clone()));
    }
    for (name, value) in &oidc.table.extra_params {
        request = request.add_extra_param(name.clone(), value.clone());
    }
    let mut verifier = None;
    if oidc.table.pkce {
        let (challenge, own) = PkceCodeChallenge::new_random_sha256();
        request = request.set_pkce_challenge(challenge);
        verifier = Some(own);
    }
    let (url, state, nonce) = request.url();
    let state = state.into_secret();
    let begun = Begun { purpose, number: number.to_owned(), nonce, verifier };
    let sealed = oidc.sealer.seal(&state, begun, now()).map_err(|error| {
        tracing::error!("OIDC: {error:#}");
        LoginError::Broken("the server could not start a login")
    })?;
    let cookie = cookie(oidc.is_https, &state, &sealed, logins::LIFE.as_secs());
    let mut response = Response::new(Answer::Text(None));
    *response.status_mut() = StatusCode::FOUND;
    let location = HeaderValue::from_str(url.as_str());
    let location = location.map_err(|error| LoginError::broken("its address", error))?;
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(SET_COOKIE, cookie);
    Ok(response)
}

/// Answers requests of browsers below /oidc/.
pub(crate) async fn answer(
    network: &NetworkState,
    oidc: &Oidc,
    request: Request<Incoming>,
) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let answered = match (&head.method, head.uri.path()) {
        (&Method::GET, CALLBACK) => {
            let query = head.uri.query().unwrap_or_default();
            identify(network, oidc, &head.headers, query).await
        }
        (&Method::POST, CONFIRM) => match body::read(body, LONGEST_FORM).await {
            Ok(form) => confirm(network, oidc, &head.headers, &form).await,
            Err(refusal) => return refusal,
        },
        _ => return Page::new(StatusCode::NOT_FOUND, "Not found").into(),
    };
    answered.unwrap_or_else(|login_error| {
        network.counters().refused.oidc.add(1);
        let status = match login_error {
            LoginError::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            LoginError::Broken(_) | LoginError::Untrusted(_) => StatusCode::BAD_GATEWAY,
            LoginError::Stale | LoginError::NoMachine | LoginError::NoLogin => StatusCode::GONE,
            LoginError::Unverified | LoginError::NotAllowed | LoginError::OtherUser => {
                StatusCode::FORBIDDEN
            }
        };
        error_page(login_error, status).into()
    })
}

/// Handles a browser that returns from the provider.
async fn identify(
    network: &NetworkState,
    oidc: &Oidc,
    headers: &HeaderMap,
    query: &str,
) -> Result<Response<Answer>, LoginError> {
    let state = parameter(query, "state").ok_or(LoginError::Stale)?;
    let opened = cookies(headers, &state)
        .find_map(|sealed| Some((sealed, oidc.sealer.open(&state, sealed, now())?)));
    let (sealed, begun) = opened.ok_or(LoginError::Stale)?;
    let Begun { purpose, number, nonce, verifier } = begun;
    if let Some(error) = parameter(query, "error") {
        return Ok(refused(&error, parameter(query, "error_description").as_deref()).into());
    }
    // If the answer names its provider, it must be the right one (RFC 9207).
    let is_other = |issuer: String| !is_same_issuer(&issuer, &oidc.table.issuer);
    if parameter(query, "iss").is_some_and(is_other) {
        return Err(LoginError::Untrusted("it comes from another provider"));
    }
    let code = parameter(query, "code").ok_or(LoginError::Untrusted("the code is missing"))?;
    let claims = oidc.provider.identify(code, verifier, &nonce).await?;
    let token_expires = claims.expires;
    let subject = claims.subject.clone();
    let profile = claims.profile(&oidc.table).inspect_err(|login_error| {
        tracing::info!("OIDC: {subject:?} is not admitted: {login_error}");
    })?;
    let (page, yes) = match purpose {
        Purpose::Machine => {
            let page =
                confirmation_page(network, &number, &profile).ok_or(LoginError::NoMachine)?;
            (page, "Yes, this is my machine")
        }
        Purpose::Ssh => (ssh::confirmation_page(network, &number, &profile)?, "Yes, I log in"),
    };
    let token = CsrfToken::new_random().into_secret();
    let browser = sealed.to_owned();
    let identified = Identified { purpose, browser, cookie: state, profile, token_expires };
    let page = page.confirm_button(yes, CONFIRM, &token);
    locked(&oidc.identified).begin(token, number, identified, Instant::now());
    Ok(page.into())
}

/// The confirmation page of a machine.
fn confirmation_page(network: &NetworkState, number: &str, profile: &Profile) -> Option<Page> {
    network.read(|state| {
        let waiting = state.pending_registration(number)?;
        let machine = waiting.machine.to_string();
        let user = state.user_of_identity(&profile.identity).map(|user| user.id);
        let node = user.and_then(|user| state.existing_node_for(number, user));
        let becomes = match node {
            Some(node) => format!("the node {} again", node.name),
            None => "a new node".to_owned(),
        };
        let Profile { display_name, username, email, .. } = profile;
        let host = waiting.hostinfo;
        Some(
            Page::new(StatusCode::OK, "Is this your machine?")
                .paragraph("A machine wants to join the network with your account:")
                .table_of(&[
                    ("Machine", host.hostname.as_str()),
                    ("System", &host.os),
                    ("Client", &host.program),
                    ("Machine key", &machine),
                    ("Becomes", &becomes),
                    ("Account", username),
                    ("Name", display_name),
                    ("E-mail", email),
                ])
                .paragraph(
                    "Continue only if you started this yourself, on that machine. If someone sent you \
                     the link, close this page: their machine would act as you.",
                ),
        )
    })
}

/// Handles the user's confirmation.
async fn confirm(
    network: &NetworkState,
    oidc: &Oidc,
    headers: &HeaderMap,
    form: &[u8],
) -> Result<Response<Answer>, LoginError> {
    let form = str::from_utf8(form).map_err(|_| LoginError::Stale)?;
    let token = parameter(form, "token").ok_or(LoginError::Stale)?;
    let identified = locked(&oidc.identified).take(&token, Instant::now());
    let (number, identified) = identified.ok_or(LoginError::Stale)?;
    let Identified { purpose, browser, cookie: state_of, profile, token_expires } = identified;
    if !is_browser(headers, &state_of, &browser) {
        return Err(LoginError::Stale);
    }
    let page = match purpose {
        Purpose::Machine => admit_machine(network, oidc, number, profile, token_expires).await?,
        Purpose::Ssh => ssh::confirm(network, number, profile).await?,
    };
    let mut response = Response::from(page);
    response.headers_mut().insert(SET_COOKIE, cookie(oidc.is_https, &state_of, "", 0));
    Ok(response)
}

async fn admit_machine(
    network: &NetworkState,
    oidc: &Oidc,
    number: String,
    profile: Profile,
    token_expires: Time,
) -> Result<Page, LoginError> {
    let (expiry, by_token) = (oidc.table.expiry, oidc.table.use_expiry_from_token);
    let admitted = network.run(move |state, now| {
        let expires = by_token.then_some(token_expires).or(expiry.map(|life| now.after(life)));
        admit(state, &number, &profile, expires, now)
    });
    let admitted = admitted.await.map_err(|error| {
        tracing::error!("OIDC: {error:#}");
        LoginError::Broken("the server could not save it")
    })?;
    let admitted = admitted.map_err(|refusal| match refusal {
        Refusal::NoRegistration => LoginError::NoMachine,
        other => LoginError::broken("the network refused the machine", other),
    })?;
    tracing::info!("OIDC: {} admitted the node {}", admitted.user, admitted.node);
    network.warn_of_names();
    let words = format!("{} has joined the network. You can close this page.", admitted.node);
    Ok(Page::new(StatusCode::OK, "Done").paragraph(&words))
}

struct Admitted {
    user: String,
    node: String,
}

/// Updates the user from the profile and admits the machine: both, or neither.
fn admit(
    state: &mut State,
    number: &str,
    profile: &Profile,
    expires: Option<Time>,
    now: Time,
) -> Result<Admitted, Refusal> {
    if state.pending_registration(number).is_none() {
        return Err(Refusal::NoRegistration);
    }
    let user = state.sign_in(profile, now)?;
    let admission = Admission { user, method: RegisterMethod::Oidc, expires };
    let id = state.admit(number, admission, now)?;
    let name_of = |id| state.node(id).map(|view| view.node.name.clone()).unwrap_or_default();
    let user = state.user_of_identity(&profile.identity).map(|user| user.name.clone());
    Ok(Admitted { user: user.unwrap_or_default(), node: name_of(id) })
}

fn error_page(login_error: LoginError, status: StatusCode) -> Page {
    Page::new(status, "Not logged in").paragraph(&login_error.to_string())
}

fn refused(error: &str, description: Option<&str>) -> Page {
    let cut = |words: &str| words.chars().take(LONGEST_WORDS).collect::<String>();
    let page = Page::new(StatusCode::FORBIDDEN, "Not logged in");
    let page = page.paragraph(&format!("The login provider reported an error: {}", cut(error)));
    match description {
        Some(description) => page.paragraph(&cut(description)),
        None => page,
    }
}

/// The value of a parameter, unless it is too long.
fn parameter(pairs: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(pairs.as_bytes());
    let (_, value) = pairs.find(|(own, _)| own == name)?;
    Some(value.into_owned()).filter(|value| !value.is_empty() && value.len() <= LONGEST_CODE)
}

/// The cookie of a browser that started a login. Each tab has its own.
fn cookie(is_https: bool, state: &str, value: &str, seconds: u64) -> HeaderValue {
    let secure = if is_https { "; Secure" } else { "" };
    // Lax, because with Strict the redirect from the provider would lack the cookie.
    let text = format!(
        "{}={value}; Path=/oidc; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}",
        cookie_name(state)
    );
    HeaderValue::from_str(&text).expect("states and values are base64url")
}

fn cookie_name(state: &str) -> String {
    format!("linerate-login-{}", state.get(..8).unwrap_or_default())
}

/// Whether a request comes from the browser that started the login.
fn is_browser(headers: &HeaderMap, state: &str, browser: &str) -> bool {
    // Comparing hashes does not reveal how much of a wrong value is right.
    cookies(headers, state).any(|value| Hash::of(value) == Hash::of(browser))
}

/// Values of the cookies of a login.
fn cookies<'a>(headers: &'a HeaderMap, state: &str) -> impl Iterator<Item = &'a str> {
    let name = cookie_name(state);
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split("; ")).filter_map(|pair| pair.split_once('='));
    pairs.filter(move |(own, _)| *own == name).map(|(_, value)| value)
}

fn locked<T>(logins: &Mutex<Logins<T>>) -> MutexGuard<'_, Logins<T>> {
    logins.lock().unwrap_or_else(PoisonError::into_inner)
}
