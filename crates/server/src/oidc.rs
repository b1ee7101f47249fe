//! Machines that are let in by a login at a provider of identities (OpenID Connect Core 1.0, the
//! flow by authorisation code, with PKCE).
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
//! The page that asks is what a forwarded link ends at: who did not log in on that machine sees its
//! name there before it is theirs. What is under way belongs to the browser that began it, by a
//! cookie, and to one tab, by its state. A login by SSH that is checked is confirmed in the same way.

mod claims;
mod logins;
mod members;
mod metadata;
mod pages;
mod provider;
mod sealed;
mod ssh;
mod table;
mod token;
mod trouble;

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

pub use self::table::{OidcTable, Secret};
use self::{
    logins::Logins,
    pages::Page,
    provider::Provider,
    sealed::{Begun, Sealer},
    trouble::Trouble,
};
use crate::{
    address::ServerUrl,
    body::{self, Answer},
    clock::now,
    serve::Server,
};

const CALLBACK: &str = "/oidc/callback";
const CONFIRM: &str = "/oidc/confirm";
/// The longest form, in bytes: a token.
const LONGEST_FORM: usize = 4 << 10;
/// The longest code and state, in bytes: some providers put a whole token into the code.
const LONGEST_CODE: usize = 8 << 10;
/// The most of what a provider says of an error that is shown, in bytes.
const LONGEST_WORDS: usize = 256;

/// Logins by a provider.
pub struct Oidc {
    table: OidcTable,
    provider: Provider,
    sealer: Sealer,
    identified: Mutex<Logins<Identified>>,
}

/// What somebody logs in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// To let a machine in, whose registration waits.
    Machine,
    /// To have a login by SSH go on that waits.
    Ssh,
}

impl Purpose {
    /// Whether something waits under the number.
    fn check(self, server: &Server, number: &str) -> Result<(), Trouble> {
        server.network.read(|state| match self {
            Self::Machine => state.pending_registration(number).map(drop).ok_or(Trouble::NoMachine),
            Self::Ssh => state.pending_ssh_login(number, now()).map(drop).ok_or(Trouble::NoLogin),
        })
    }

    /// What waits, in a word.
    pub fn what(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Ssh => "login",
        }
    }

    /// What an administrator can do without the provider.
    pub fn command(self, number: &str) -> String {
        match self {
            Self::Machine => {
                format!("linerate-server nodes register --user USER --key {number}")
            }
            Self::Ssh => format!("linerate-server auth approve --auth-id {number}"),
        }
    }
}

/// The provider has said who it is.
struct Identified {
    purpose: Purpose,
    browser: String,
    cookie: String,
    profile: Profile,
    token_expires: Time,
}

impl Oidc {
    /// What the table says, at a server that is found there.
    ///
    /// # Errors
    /// The secret's file cannot be read.
    pub fn new(table: OidcTable, server: &ServerUrl) -> anyhow::Result<Self> {
        let redirect = RedirectUrl::new(format!("{server}{CALLBACK}"))?;
        let provider = Provider::new(table.clone(), redirect)?;
        let sealer = Sealer::new()?;
        Ok(Self { table, provider, sealer, identified: Mutex::default() })
    }
}

/// Leads a browser to the provider, for what waits under this number.
pub async fn begin(
    server: &Server,
    oidc: &Oidc,
    purpose: Purpose,
    number: &str,
) -> Response<Answer> {
    match try_begin(server, oidc, purpose, number).await {
        Ok(response) => response,
        Err(trouble @ (Trouble::NoMachine | Trouble::NoLogin)) => {
            told(trouble, StatusCode::NOT_FOUND).into()
        }
        Err(trouble) => told(trouble, StatusCode::SERVICE_UNAVAILABLE)
            .says("An administrator can do without it, on the server:")
            .shows(&purpose.command(number))
            .into(),
    }
}

async fn try_begin(
    server: &Server,
    oidc: &Oidc,
    purpose: Purpose,
    number: &str,
) -> Result<Response<Answer>, Trouble> {
    purpose.check(server, number)?;
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
        Trouble::Broken("the server could not begin a login")
    })?;
    let cookie = cookie(server, &state, &sealed, logins::LIFE.as_secs());
    let mut response = Response::new(Answer::Text(None));
    *response.status_mut() = StatusCode::FOUND;
    let location = HeaderValue::from_str(url.as_str());
    let location = location.map_err(|error| Trouble::broken("its address", error))?;
    response.headers_mut().insert(LOCATION, location);
    response.headers_mut().insert(SET_COOKIE, cookie);
    Ok(response)
}

/// Answers what browsers ask below /oidc/.
pub async fn answer(server: &Server, oidc: &Oidc, request: Request<Incoming>) -> Response<Answer> {
    let (head, body) = request.into_parts();
    let answered = match (&head.method, head.uri.path()) {
        (&Method::GET, CALLBACK) => {
            let query = head.uri.query().unwrap_or_default();
            identify(server, oidc, &head.headers, query).await
        }
        (&Method::POST, CONFIRM) => match body::read(body, LONGEST_FORM).await {
            Ok(form) => confirm(server, oidc, &head.headers, &form).await,
            Err(refusal) => return refusal,
        },
        _ => return Page::new(StatusCode::NOT_FOUND, "Nothing here").into(),
    };
    answered.unwrap_or_else(|trouble| {
        server.network.counted().refused.oidc.add(1);
        let status = match trouble {
            Trouble::Unreachable => StatusCode::SERVICE_UNAVAILABLE,
            Trouble::Broken(_) | Trouble::Untrue(_) => StatusCode::BAD_GATEWAY,
            Trouble::Stale | Trouble::NoMachine | Trouble::NoLogin => StatusCode::GONE,
            Trouble::Unverified | Trouble::NotAllowed | Trouble::OtherUser => StatusCode::FORBIDDEN,
        };
        told(trouble, status).into()
    })
}

/// A browser is back from the provider.
async fn identify(
    server: &Server,
    oidc: &Oidc,
    headers: &HeaderMap,
    query: &str,
) -> Result<Response<Answer>, Trouble> {
    let state = parameter(query, "state").ok_or(Trouble::Stale)?;
    let opened = cookies(headers, &state)
        .find_map(|sealed| Some((sealed, oidc.sealer.open(&state, sealed, now())?)));
    let (sealed, begun) = opened.ok_or(Trouble::Stale)?;
    let Begun { purpose, number, nonce, verifier } = begun;
    if let Some(error) = parameter(query, "error") {
        return Ok(refused(&error, parameter(query, "error_description").as_deref()).into());
    }
    // A provider that says who it is is the one that was asked (RFC 9207).
    let is_other = |issuer: String| !is_same_issuer(&issuer, &oidc.table.issuer);
    if parameter(query, "iss").is_some_and(is_other) {
        return Err(Trouble::Untrue("it comes from another provider"));
    }
    let code = parameter(query, "code").ok_or(Trouble::Untrue("there is no code"))?;
    let said = oidc.provider.identify(code, verifier, &nonce).await?;
    let token_expires = said.expires;
    let subject = said.subject.clone();
    let profile = said.profile(&oidc.table).inspect_err(|trouble| {
        tracing::info!("OIDC: {subject:?} does not come in: {trouble}");
    })?;
    let (page, yes) = match purpose {
        Purpose::Machine => {
            let page = question(server, &number, &profile).ok_or(Trouble::NoMachine)?;
            (page, "Yes, this is my machine")
        }
        Purpose::Ssh => (ssh::question(server, &number, &profile)?, "Yes, I log in"),
    };
    let token = CsrfToken::new_random().into_secret();
    let browser = sealed.to_owned();
    let identified = Identified { purpose, browser, cookie: state, profile, token_expires };
    let page = page.asks(yes, CONFIRM, &token);
    locked(&oidc.identified).begin(token, number, identified, Instant::now());
    Ok(page.into())
}

/// Which machine, and as whose.
fn question(server: &Server, number: &str, profile: &Profile) -> Option<Page> {
    server.network.read(|state| {
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
                .says("A machine asks to join the network as yours:")
                .lists(&[
                    ("Machine", host.hostname.as_str()),
                    ("System", &host.os),
                    ("Client", &host.program),
                    ("Machine key", &machine),
                    ("Becomes", &becomes),
                    ("Account", username),
                    ("Name", display_name),
                    ("E-mail", email),
                ])
                .says(
                    "Go on only if you began this yourself, on that machine. If somebody sent you \
                     the link, close this page: their machine would act as you.",
                ),
        )
    })
}

/// A user says that it is theirs.
async fn confirm(
    server: &Server,
    oidc: &Oidc,
    headers: &HeaderMap,
    form: &[u8],
) -> Result<Response<Answer>, Trouble> {
    let form = str::from_utf8(form).map_err(|_| Trouble::Stale)?;
    let token = parameter(form, "token").ok_or(Trouble::Stale)?;
    let identified = locked(&oidc.identified).take(&token, Instant::now());
    let (number, identified) = identified.ok_or(Trouble::Stale)?;
    let Identified { purpose, browser, cookie: state_of, profile, token_expires } = identified;
    if !is_browser(headers, &state_of, &browser) {
        return Err(Trouble::Stale);
    }
    let page = match purpose {
        Purpose::Machine => let_in(server, oidc, number, profile, token_expires).await?,
        Purpose::Ssh => ssh::confirm(server, number, profile).await?,
    };
    let mut response = Response::from(page);
    response.headers_mut().insert(SET_COOKIE, cookie(server, &state_of, "", 0));
    Ok(response)
}

async fn let_in(
    server: &Server,
    oidc: &Oidc,
    number: String,
    profile: Profile,
    token_expires: Time,
) -> Result<Page, Trouble> {
    let (expiry, by_token) = (oidc.table.expiry, oidc.table.use_expiry_from_token);
    let admitted = server.network.run(move |state, now| {
        let expires = by_token.then_some(token_expires).or(expiry.map(|life| now.after(life)));
        admit(state, &number, &profile, expires, now)
    });
    let admitted = admitted.await.map_err(|error| {
        tracing::error!("OIDC: {error:#}");
        Trouble::Broken("the server could not keep it")
    })?;
    let admitted = admitted.map_err(|refusal| match refusal {
        Refusal::NoRegistration => Trouble::NoMachine,
        other => Trouble::broken("the network refuses", other),
    })?;
    tracing::info!("OIDC: {} let the node {} in", admitted.user, admitted.node);
    server.network.warn_of_names();
    let words = format!("{} is in the network now. You can close this page.", admitted.node);
    Ok(Page::new(StatusCode::OK, "Done").says(&words))
}

struct Admitted {
    user: String,
    node: String,
}

/// The user is as the provider says, and the machine theirs: both, or neither.
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

fn told(trouble: Trouble, status: StatusCode) -> Page {
    Page::new(status, "Not logged in").says(&trouble.to_string())
}

fn refused(error: &str, description: Option<&str>) -> Page {
    let cut = |words: &str| words.chars().take(LONGEST_WORDS).collect::<String>();
    let page = Page::new(StatusCode::FORBIDDEN, "Not logged in");
    let page = page.says(&format!("The login provider says: {}", cut(error)));
    match description {
        Some(description) => page.says(&cut(description)),
        None => page,
    }
}

/// The value of a parameter, if it is not too long to be one.
fn parameter(pairs: &str, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(pairs.as_bytes());
    let (_, value) = pairs.find(|(own, _)| own == name)?;
    Some(value.into_owned()).filter(|value| !value.is_empty() && value.len() <= LONGEST_CODE)
}

/// What a browser shows that it began a login by. Each tab has its own.
fn cookie(server: &Server, state: &str, value: &str, seconds: u64) -> HeaderValue {
    let secure = if server.url.is_https() { "; Secure" } else { "" };
    // Lax: the provider's page leads back here, which Strict would take for a stranger's request.
    let text = format!(
        "{}={value}; Path=/oidc; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}",
        cookie_name(state)
    );
    HeaderValue::from_str(&text).expect("states and values are base64url")
}

fn cookie_name(state: &str) -> String {
    format!("linerate-login-{}", state.get(..8).unwrap_or_default())
}

/// Whether a request comes from the browser that began the login.
fn is_browser(headers: &HeaderMap, state: &str, browser: &str) -> bool {
    // The hashes say nothing of how much of a wrong value is right.
    cookies(headers, state).any(|value| Hash::of(value) == Hash::of(browser))
}

/// The values of the cookies of a login.
fn cookies<'a>(headers: &'a HeaderMap, state: &str) -> impl Iterator<Item = &'a str> {
    let name = cookie_name(state);
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split("; ")).filter_map(|pair| pair.split_once('='));
    pairs.filter(move |(own, _)| *own == name).map(|(_, value)| value)
}

fn locked<T>(logins: &Mutex<Logins<T>>) -> MutexGuard<'_, Logins<T>> {
    logins.lock().unwrap_or_else(PoisonError::into_inner)
}
