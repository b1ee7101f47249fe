//! The table `[oidc]` of the configuration, with headscale's names if they exist.

use std::{collections::BTreeMap, fmt, fs, net::IpAddr, path::PathBuf, time::Duration};

use anyhow::Context;
use openidconnect::{ClientSecret, IssuerUrl};
use serde::{Deserialize, Deserializer, de::Error};

use crate::configuration::duration::parse_duration;

/// Parameters that the login itself sets.
const OWN_PARAMETERS: [&str; 9] = [
    "client_id",
    "code_challenge",
    "code_challenge_method",
    "nonce",
    "redirect_uri",
    "request",
    "response_type",
    "scope",
    "state",
];

/// A login provider, and the users that are allowed.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "Read")]
pub struct OidcTable {
    /// The provider's issuer URL.
    pub issuer: IssuerUrl,
    /// Client ID of this server at the provider.
    pub client_id: String,
    /// Client secret of this server.
    pub secret: Secret,
    /// Scopes that are requested in addition to `openid`.
    pub scope: Vec<String>,
    /// Further parameters of the authorization request.
    pub extra_params: BTreeMap<String, String>,
    /// Allowed domains of mail addresses. If empty, all.
    pub allowed_domains: Vec<String>,
    /// Allowed mail addresses. If empty, all.
    pub allowed_users: Vec<String>,
    /// Allowed groups, of which the user must have one. If empty, no group is required.
    pub allowed_groups: Vec<String>,
    /// Claim that contains the user's groups.
    pub groups_claim: String,
    /// Whether a mail address counts only if the provider has verified it.
    pub email_verified_required: bool,
    /// Lifetime of a node's key, if it differs from that of other nodes.
    pub expiry: Option<Duration>,
    /// Whether the key expires with the provider's token.
    pub use_expiry_from_token: bool,
    /// Whether PKCE is used, which binds a code to its requester (RFC 7636).
    pub pkce: bool,
    /// Whether a policy may refer to users by their names at the provider.
    pub trust_usernames: bool,
}

/// Source of the client secret.
#[derive(Clone)]
pub enum Secret {
    /// The server is a public client.
    None,
    /// The secret is in the configuration.
    Text(ClientSecret),
    /// The secret is in this file.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Text(_) => f.write_str("Text"),
            Self::File(file) => f.debug_tuple("File").field(file).finish(),
        }
    }
}

impl Secret {
    /// Reads the secret.
    ///
    /// # Errors
    /// Its file cannot be read, or is empty.
    pub fn read(&self) -> anyhow::Result<Option<ClientSecret>> {
        match self {
            Self::None => Ok(None),
            Self::Text(text) => Ok(Some(text.clone())),
            Self::File(file) => {
                let name = || format!("oidc.client_secret_path: {}", file.display());
                let text = fs::read_to_string(file).with_context(name)?;
                let text = text.trim();
                anyhow::ensure!(!text.is_empty(), "{}: it is empty", name());
                Ok(Some(ClientSecret::new(text.to_owned())))
            }
        }
    }
}

impl OidcTable {
    /// Whether the secret is in the configuration.
    pub fn has_secret(&self) -> bool {
        matches!(self.secret, Secret::Text(_))
    }
}

/// The table as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read {
    #[serde(deserialize_with = "issuer")]
    issuer: IssuerUrl,
    client_id: String,
    client_secret: Option<ClientSecret>,
    #[serde(alias = "client_secret_file")]
    client_secret_path: Option<PathBuf>,
    #[serde(alias = "scopes", default = "usual_scope")]
    scope: Vec<String>,
    #[serde(default, deserialize_with = "parameters")]
    extra_params: BTreeMap<String, String>,
    #[serde(default)]
    allowed_domains: Vec<String>,
    #[serde(default)]
    allowed_users: Vec<String>,
    #[serde(default)]
    allowed_groups: Vec<String>,
    #[serde(default = "usual_claim")]
    groups_claim: String,
    #[serde(default = "yes")]
    email_verified_required: bool,
    #[serde(default, deserialize_with = "duration")]
    expiry: Option<Duration>,
    #[serde(default)]
    use_expiry_from_token: bool,
    #[serde(default)]
    pkce: Pkce,
    #[serde(default)]
    trust_usernames: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Pkce {
    enabled: bool,
}

impl Default for Pkce {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl TryFrom<Read> for OidcTable {
    type Error = &'static str;

    fn try_from(read: Read) -> Result<Self, &'static str> {
        let secret = match (read.client_secret, read.client_secret_path) {
            (None, None) => Secret::None,
            (Some(text), None) => Secret::Text(text),
            (None, Some(file)) => Secret::File(file),
            (Some(_), Some(_)) => {
                return Err("`client_secret` and `client_secret_path` are both set: set only one");
            }
        };
        if read.expiry.is_some() && read.use_expiry_from_token {
            return Err("`expiry` and `use_expiry_from_token` are both set: set only one");
        }
        if matches!(secret, Secret::None) && !read.pkce.enabled {
            return Err("without `client_secret`, `pkce` is required");
        }
        Ok(Self {
            issuer: read.issuer,
            client_id: read.client_id,
            secret,
            scope: read.scope,
            extra_params: read.extra_params,
            allowed_domains: read.allowed_domains,
            allowed_users: read.allowed_users,
            allowed_groups: read.allowed_groups,
            groups_claim: read.groups_claim,
            email_verified_required: read.email_verified_required,
            expiry: read.expiry,
            use_expiry_from_token: read.use_expiry_from_token,
            pkce: read.pkce.enabled,
            trust_usernames: read.trust_usernames,
        })
    }
}

fn usual_scope() -> Vec<String> {
    ["openid", "profile", "email"].map(str::to_owned).into()
}

fn usual_claim() -> String {
    "groups".into()
}

fn yes() -> bool {
    true
}

/// TLS authenticates the provider. TLS is optional for a provider on this machine.
fn issuer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<IssuerUrl, D::Error> {
    let issuer = IssuerUrl::deserialize(deserializer)?;
    let url = issuer.url();
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = host == "localhost" || host.parse().is_ok_and(|host: IpAddr| host.is_loopback());
    match url.scheme() {
        "https" => Ok(issuer),
        "http" if is_here => Ok(issuer),
        _ => Err(D::Error::custom(
            "`issuer` must begin with https://, or with http:// for this machine",
        )),
    }
}

fn parameters<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let parameters = BTreeMap::<String, String>::deserialize(deserializer)?;
    match OWN_PARAMETERS.into_iter().find(|name| parameters.contains_key(*name)) {
        Some(name) => Err(D::Error::custom(format!("`{name}` is set by the login itself"))),
        None => Ok(parameters),
    }
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match parse_duration(&text).map_err(D::Error::custom)? {
        Duration::ZERO => Err(D::Error::custom("the lifetime of a key must not be zero")),
        lifetime => Ok(Some(lifetime)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Configuration;

    const LEAST: &str = "[oidc]\nissuer = \"https://id.test\"\nclient_id = \"net\"\n";

    fn read(more: &str) -> Result<OidcTable, String> {
        let read = toml::from_str(&format!("{LEAST}{more}"));
        read.map(|read: Configuration| read.oidc.unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_minimal_table_has_safe_defaults() {
        let table = read("").unwrap();
        assert!(table.pkce && table.email_verified_required && !table.use_expiry_from_token);
        assert_eq!(table.scope, ["openid", "profile", "email"]);
        assert!(matches!(table.secret, Secret::None));
    }

    #[test]
    fn headscales_names_are_accepted() {
        let table = read(
            "client_secret_path = \"/run/secret\"\nscope = [\"openid\", \"groups\"]\n\
             allowed_domains = [\"a.test\"]\nallowed_users = [\"b@c.test\"]\n\
             allowed_groups = [\"/net\"]\nexpiry = \"180d\"\npkce.enabled = false\n\
             extra_params = { domain_hint = \"a.test\" }\n",
        );
        let table = table.unwrap();
        assert!(!table.pkce && matches!(table.secret, Secret::File(_)));
        assert_eq!(table.expiry, Some(Duration::from_secs(180 * 24 * 3600)));
    }

    #[test]
    fn an_error_names_line_and_key() {
        for (more, line, key) in [
            ("issuer_url = \"\"\n", 4, "`issuer_url`"),
            ("expiry = \"soon\"\n", 4, "expiry"),
            ("\nextra_params = { state = \"x\" }\n", 5, "`state`"),
            ("client_secret = \"a\"\nclient_secret_file = \"b\"\n", 1, "`client_secret_path`"),
            ("use_expiry_from_token = true\nexpiry = \"1d\"\n", 1, "`expiry`"),
            ("pkce.enabled = false\n", 1, "`pkce`"),
        ] {
            let error = read(more).unwrap_err();
            assert!(error.contains(&format!("line {line}")) && error.contains(key), "{error}");
        }
        for issuer in ["http://id.test", "ftp://id.test", "id.test", "http://127.0.0.1.test"] {
            let text = LEAST.replace("https://id.test", issuer);
            let error = toml::from_str::<Configuration>(&text).unwrap_err().to_string();
            assert!(error.contains("line 2"), "{issuer}: {error}");
        }
        let text = LEAST.replace("https://id.test", "http://127.0.0.1:4000");
        assert!(toml::from_str::<Configuration>(&text).is_ok());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let table = read("client_secret = \"hush\"\n").unwrap();
        assert!(!format!("{table:?}").contains("hush"));
    }
}
