//! Claims of a provider about a user, and whether the user is allowed.

use coordinator::{Profile, Time, object::Identity};

use super::{json_members::Members, login_error::LoginError, table::OidcTable};

/// Maximum size of `sub`, in bytes. Providers may use 255 characters (OpenID Connect Core, section
/// 2).
const LONGEST_SUBJECT: usize = 1 << 10;

/// Claims of a provider about a user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct UserClaims {
    pub issuer: String,
    pub subject: String,
    pub username: String,
    pub name: String,
    pub email: String,
    pub email_verified: bool,
    pub picture: String,
    pub groups: Vec<String>,
    /// When the ID token expires.
    pub expires: Time,
}

impl UserClaims {
    /// Combines the claims of the ID token and of the user info endpoint, which are newer.
    pub(super) fn of(
        claims: &Members,
        info: &Members,
        (subject, expires): (String, Time),
        groups_claim: &str,
    ) -> Self {
        let newest = |name| info.text(name).or_else(|| claims.text(name)).unwrap_or_default();
        let shown = |name| {
            let text = info.text_in_any_language(name);
            text.or_else(|| claims.text_in_any_language(name)).unwrap_or_default()
        };
        let email = info.text("email");
        // `email_verified` applies to the address in the same document.
        let email_verified = match &email {
            Some(_) => info.flag("email_verified"),
            None => claims.flag("email_verified"),
        };
        let email_verified = match email_verified {
            None if email.is_some() && email == claims.text("email") => {
                claims.flag("email_verified")
            }
            verified => verified,
        };
        Self {
            issuer: claims.text("iss").unwrap_or_default(),
            subject,
            username: newest("preferred_username"),
            name: shown("name"),
            email: newest("email"),
            email_verified: email_verified.unwrap_or_default(),
            picture: shown("picture"),
            groups: info
                .texts(groups_claim)
                .or_else(|| claims.texts(groups_claim))
                .unwrap_or_default(),
            expires,
        }
    }

    /// The user's profile for the network.
    ///
    /// # Errors
    /// The user is not allowed.
    pub(super) fn profile(self, table: &OidcTable) -> Result<Profile, LoginError> {
        let trusted_proxies = self.email_verified || !table.email_verified_required;
        let by_email = !table.allowed_domains.is_empty() || !table.allowed_users.is_empty();
        if by_email && !trusted_proxies {
            return Err(LoginError::Unverified);
        }
        let is_same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
        let domain = domain(&self.email);
        let is_of = |allowed: &String| domain.is_some_and(|domain| is_same(allowed, domain));
        let is_them = |allowed: &String| domain.is_some() && is_same(allowed, &self.email);
        let has_domain = table.allowed_domains.iter().any(is_of);
        let is_named = table.allowed_users.iter().any(is_them);
        let is_member = table.allowed_groups.iter().any(|group| self.groups.contains(group));
        if !(table.allowed_domains.is_empty() || has_domain)
            || !(table.allowed_users.is_empty() || is_named)
            || !(table.allowed_groups.is_empty() || is_member)
        {
            return Err(LoginError::NotAllowed);
        }
        if self.subject.len() > LONGEST_SUBJECT {
            return Err(LoginError::Broken("the user's `sub` is too long"));
        }
        let is_email = trusted_proxies && domain.is_some();
        let profile = Profile {
            identity: Identity { issuer: self.issuer, subject: self.subject },
            username: self.username,
            display_name: self.name,
            email: if is_email { self.email } else { String::new() },
            picture_url: Some(self.picture)
                .filter(|url| url.starts_with("https://"))
                .unwrap_or_default(),
            groups: self.groups,
        };
        Ok(profile.bounded())
    }
}

/// The domain of a mail address. A text with two `@` is not an address, because programs split it
/// differently.
fn domain(address: &str) -> Option<&str> {
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
    let (local, domain) = address.split_once('@')?;
    let is_address = !local.is_empty() && !domain.is_empty() && !domain.contains('@');
    (is_address && !address.contains(is_odd)).then_some(domain)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn table(more: &str) -> OidcTable {
        let text = format!("issuer = \"https://id.test\"\nclient_id = \"net\"\n{more}");
        toml::from_str(&text).unwrap()
    }

    fn user_claims() -> UserClaims {
        UserClaims {
            issuer: "https://id.test".into(),
            subject: "1".into(),
            username: "anna".into(),
            email: "Anna@Net.test".into(),
            email_verified: true,
            groups: vec!["staff".into()],
            ..UserClaims::default()
        }
    }

    #[test]
    fn email_verified_applies_to_the_email_of_the_same_document() {
        let token = json!({
            "iss": "https://id.test", "sub": "1", "aud": ["net"], "exp": 1, "iat": 0,
            "email": "anna@net.test", "email_verified": true,
        });
        let read = |value: &Value| Members::read(value.to_string().as_bytes()).unwrap();
        for (email, verified, is_verified) in [
            ("boss@net.test", json!(null), false),
            ("boss@net.test", json!(true), true),
            ("boss@net.test", json!("true"), true),
            ("anna@net.test", json!(null), true),
            ("anna@net.test", json!(false), false),
            ("anna@net.test", json!("perhaps"), false),
            ("anna@net.test", json!({}), false),
        ] {
            let info = json!({ "sub": "1", "email": email, "email_verified": verified });
            let login = ("1".into(), Time(1));
            let user_claims = UserClaims::of(&read(&token), &read(&info), login, "groups");
            assert_eq!((&*user_claims.email, user_claims.email_verified), (email, is_verified));
        }
    }

    #[test]
    fn a_user_must_meet_every_configured_restriction() {
        for (more, allowed) in [
            ("", true),
            ("allowed_domains = [\"net.test\"]", true),
            ("allowed_domains = [\"et.test\", \"x.net.test\"]", false),
            ("allowed_users = [\"anna@net.test\"]", true),
            ("allowed_users = [\"ben@net.test\"]", false),
            ("allowed_groups = [\"staff\", \"x\"]", true),
            ("allowed_groups = [\"Staff\"]", false),
            ("allowed_domains = [\"net.test\"]\nallowed_groups = [\"x\"]", false),
        ] {
            assert_eq!(user_claims().profile(&table(more)).is_ok(), allowed, "{more}");
        }
    }

    #[test]
    fn an_unverified_email_grants_nothing_and_is_not_stored() {
        let unverified = || UserClaims { email_verified: false, ..user_claims() };
        let strict = table("allowed_domains = [\"net.test\"]");
        assert_eq!(unverified().profile(&strict), Err(LoginError::Unverified));
        assert_eq!(unverified().profile(&table("")).unwrap().email, "");
        let lax = "email_verified_required = false\nallowed_domains = [\"net.test\"]";
        assert_eq!(unverified().profile(&table(lax)).unwrap().email, "Anna@Net.test");
    }

    #[test]
    fn a_malformed_email_matches_no_domain_and_no_user() {
        for email in
            ["eve@evil.test@net.test", "eve\n@net.test", "eve @net.test", "@net.test", "net.test"]
        {
            let user_claims = || UserClaims { email: email.into(), ..user_claims() };
            for more in
                ["allowed_domains = [\"net.test\"]".into(), format!("allowed_users = [{email:?}]")]
            {
                assert_eq!(
                    user_claims().profile(&table(&more)),
                    Err(LoginError::NotAllowed),
                    "{more}"
                );
            }
            assert_eq!(user_claims().profile(&table("")).unwrap().email, "");
        }
    }

    #[test]
    fn the_claims_of_a_login_are_bounded() {
        let text = || "x".repeat(64 << 10);
        let groups = (0..2000).map(|number| format!("{number}")).chain([text()]);
        let user_claims = UserClaims {
            username: text(),
            name: text(),
            email: format!("{}@net.test", text()),
            picture: format!("https://net.test/{}", text()),
            groups: groups.collect(),
            ..user_claims()
        };
        let profile = user_claims.clone().profile(&table("")).unwrap();
        assert_eq!((profile.groups.len(), &*profile.username, &*profile.email), (1000, "", ""));
        assert_eq!((&*profile.display_name, &*profile.picture_url), ("", ""));
        assert!(UserClaims { subject: text(), ..user_claims }.profile(&table("")).is_err());
    }
}
