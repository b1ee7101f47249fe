//! What a provider says of a user, and whether that user may come.

use coordinator::{Profile, Time, object::Identity};

use super::{members::Members, table::OidcTable, trouble::Trouble};

/// The longest `sub`, in bytes. Providers may have 255 letters (OpenID Connect Core, section 2).
const LONGEST_SUBJECT: usize = 1 << 10;

/// What a provider says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    pub issuer: String,
    pub subject: String,
    pub username: String,
    pub name: String,
    pub email: String,
    pub email_verified: bool,
    pub picture: String,
    pub groups: Vec<String>,
    /// When its token expires.
    pub expires: Time,
}

impl Said {
    /// By the claims of its token, and by what its end-point adds, which is newer.
    pub fn of(
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
        // Whether it is verified is said of the address that it is said with.
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

    /// Who it is for the network.
    ///
    /// # Errors
    /// They may not come.
    pub fn profile(self, table: &OidcTable) -> Result<Profile, Trouble> {
        let trusted = self.email_verified || !table.email_verified_required;
        let by_email = !table.allowed_domains.is_empty() || !table.allowed_users.is_empty();
        if by_email && !trusted {
            return Err(Trouble::Unverified);
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
            return Err(Trouble::NotAllowed);
        }
        if self.subject.len() > LONGEST_SUBJECT {
            return Err(Trouble::Broken("the user's `sub` is too long"));
        }
        let is_email = trusted && domain.is_some();
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

/// The domain of a mail address. A text with two `@` is not an address, because programs differ in which
/// one they split at.
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

    fn said() -> Said {
        Said {
            issuer: "https://id.test".into(),
            subject: "1".into(),
            username: "anna".into(),
            email: "Anna@Net.test".into(),
            email_verified: true,
            groups: vec!["staff".into()],
            ..Said::default()
        }
    }

    #[test]
    fn an_address_of_the_users_info_is_verified_by_what_is_said_with_it() {
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
            let said = Said::of(&read(&token), &read(&info), login, "groups");
            assert_eq!((&*said.email, said.email_verified), (email, is_verified));
        }
    }

    #[test]
    fn all_that_is_demanded_must_hold() {
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
            assert_eq!(said().profile(&table(more)).is_ok(), allowed, "{more}");
        }
    }

    #[test]
    fn an_address_that_nobody_verified_decides_nothing_and_is_not_kept() {
        let unverified = || Said { email_verified: false, ..said() };
        let strict = table("allowed_domains = [\"net.test\"]");
        assert_eq!(unverified().profile(&strict), Err(Trouble::Unverified));
        assert_eq!(unverified().profile(&table("")).unwrap().email, "");
        let lax = "email_verified_required = false\nallowed_domains = [\"net.test\"]";
        assert_eq!(unverified().profile(&table(lax)).unwrap().email, "Anna@Net.test");
    }

    #[test]
    fn what_is_no_address_has_no_domain_and_is_nobody() {
        for email in
            ["eve@evil.test@net.test", "eve\n@net.test", "eve @net.test", "@net.test", "net.test"]
        {
            let said = || Said { email: email.into(), ..said() };
            for more in
                ["allowed_domains = [\"net.test\"]".into(), format!("allowed_users = [{email:?}]")]
            {
                assert_eq!(said().profile(&table(&more)), Err(Trouble::NotAllowed), "{more}");
            }
            assert_eq!(said().profile(&table("")).unwrap().email, "");
        }
    }

    #[test]
    fn a_login_has_bounded_memory_whatever_the_provider_says() {
        let text = || "x".repeat(64 << 10);
        let groups = (0..2000).map(|number| format!("{number}")).chain([text()]);
        let said = Said {
            username: text(),
            name: text(),
            email: format!("{}@net.test", text()),
            picture: format!("https://net.test/{}", text()),
            groups: groups.collect(),
            ..said()
        };
        let profile = said.clone().profile(&table("")).unwrap();
        assert_eq!((profile.groups.len(), &*profile.username, &*profile.email), (1000, "", ""));
        assert_eq!((&*profile.display_name, &*profile.picture_url), ("", ""));
        assert!(Said { subject: text(), ..said }.profile(&table("")).is_err());
    }
}
