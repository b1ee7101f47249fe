//! Users that a provider of identities vouches for: made at their first login, and at each later one
//! what the provider says of them is read again.

use crate::{
    object::{Identity, Kind, User, UserId},
    refusal::Refusal,
    state::State,
    time::Time,
};

/// The most groups of a user that are kept, and the longest name of one in bytes.
const MOST_GROUPS: usize = 1000;
const LONGEST_GROUP: usize = 256;
/// The longest text, in bytes: a URL with a signature in it.
const LONGEST: usize = 2 << 10;
/// How many numbers behind a name are tried that others have.
const NAMES: u32 = 1000;

/// What a provider says of somebody who logged in. The caller has verified it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Who it is.
    pub identity: Identity,
    /// What they call themselves; the provider may give it to another later. It gives rights only with
    /// [`Settings::trusts_usernames`](crate::Settings::trusts_usernames).
    pub username: String,
    /// The name that is shown.
    pub display_name: String,
    /// An address that is theirs for certain; else empty.
    pub email: String,
    /// Where a picture is.
    pub picture_url: String,
    /// Their groups.
    pub groups: Vec<String>,
}

impl Profile {
    /// Without texts and groups that are too long or too many.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.display_name, &mut self.email, &mut self.picture_url] {
            *text = bounded(text);
        }
        if self.username.len() > LONGEST {
            self.username = String::new();
        }
        self.groups.retain(|group| !group.is_empty() && group.len() <= LONGEST_GROUP);
        self.groups.sort_unstable();
        self.groups.dedup();
        self.groups.truncate(MOST_GROUPS);
        self.groups.shrink_to_fit();
        self
    }
}

impl State {
    /// The user of an identity, who is made if there is none, as the provider describes them now.
    ///
    /// # Errors
    /// There is no name for them.
    pub fn sign_in(&mut self, profile: &Profile, now: Time) -> Result<UserId, Refusal> {
        let profile = &profile.clone().bounded();
        let known = self.user_of_identity(&profile.identity).cloned();
        let mut user = User {
            id: known.as_ref().map_or(UserId(0), |user| user.id),
            name: self.choose_user_name(profile, known.as_ref())?,
            display_name: profile.display_name.clone(),
            email: profile.email.clone(),
            picture_url: profile.picture_url.clone(),
            identity: Some(profile.identity.clone()),
            groups: profile.groups.clone(),
            is_owner: known.as_ref().is_some_and(|user| user.is_owner),
            created: known.as_ref().map_or(now, |user| user.created),
        };
        match known {
            None => Ok(self.create_user(user, now)?.id),
            Some(known) => {
                if user.name != known.name
                    && self.settings.trusts_usernames
                    && self.rename_user_in_policy(known.id, &user.name, now).is_err()
                {
                    // With the new name, the user would have rights of another. The login goes on.
                    user.name.clone_from(&known.name);
                }
                if user != known {
                    self.change_user(user);
                }
                Ok(known.id)
            }
        }
    }

    /// The user that a provider knows by this identity.
    pub fn user_of_identity(&self, identity: &Identity) -> Option<&User> {
        let own = |user: &&User| user.identity.as_ref().is_some_and(|own| own.matches(identity));
        let is_exact = |user: &&User| user.identity.as_ref() == Some(identity);
        self.users.values().find(is_exact).or_else(|| self.users.values().find(own))
    }

    /// The name of a user: as they call themselves, else by their address, with a number where it is
    /// another's. A policy names users by addresses, so nobody may call themselves by one that is not
    /// theirs.
    fn choose_user_name(&self, profile: &Profile, known: Option<&User>) -> Result<String, Refusal> {
        let Profile { username, email, .. } = profile;
        let is_theirs = !username.contains('@') || username.eq_ignore_ascii_case(email);
        let own = Some(username.as_str()).filter(|name| is_theirs && is_name(name));
        let wanted = own.or(Some(email.as_str()).filter(|email| is_name(email)));
        let wanted = match wanted {
            Some(name) => name.to_owned(),
            None => match known {
                Some(user) => return Ok(user.name.clone()),
                None => format!("user-{}", self.last_number(Kind::User) + 1),
            },
        };
        let numbered = (1..NAMES).map(|number| format!("{wanted}-{number}"));
        let free = std::iter::once(wanted.clone())
            .chain(numbered)
            .find(|name| known.is_some_and(|user| user.name == *name) || !self.has_user(name));
        free.ok_or(Refusal::NameTaken(wanted))
    }

    fn has_user(&self, name: &str) -> bool {
        self.users.values().any(|user| user.name == name)
    }
}

/// Whether a user may be named so, a number behind it included.
fn is_name(name: &str) -> bool {
    (1..=120).contains(&name.len())
        && name.chars().all(|letter| !letter.is_control() && !letter.is_whitespace())
        && name.parse::<i64>().is_err()
}

/// Text of a provider's on one line; nothing of what is too long.
fn bounded(text: &str) -> String {
    let is_sound = text.len() <= LONGEST && !text.chars().any(char::is_control);
    if is_sound { text.trim().to_owned() } else { String::new() }
}
