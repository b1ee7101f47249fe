//! Users from an OpenID provider. They are created at their first login, and updated at each later one.

use super::State;
use crate::{
    object::{Identity, Kind, User, UserId},
    refusal::Refusal,
    time::Time,
};

/// The maximum number of groups of a user, and the maximum length of a group's name in bytes.
const MAX_GROUPS: usize = 1000;
const MAX_GROUP_NAME: usize = 256;
/// The maximum length of a text, in bytes. URLs may contain a signature.
const MAX_TEXT: usize = 2 << 10;
/// The maximum number that is appended to a used name.
const MAX_SUFFIX: u32 = 1000;

/// The claims of a provider about a user at a login. The caller has verified them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub identity: Identity,
    /// The username. The provider may reuse it for another user. It gives rights only with
    /// [`Settings::trusts_usernames`](crate::Settings::trusts_usernames).
    pub username: String,
    /// The displayed name.
    pub display_name: String,
    /// The verified mail address, or empty.
    pub email: String,
    /// The URL of a picture.
    pub picture_url: String,
    pub groups: Vec<String>,
}

impl Profile {
    /// Removes texts and groups that exceed the limits.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.display_name, &mut self.email, &mut self.picture_url] {
            *text = bounded(text);
        }
        if self.username.len() > MAX_TEXT {
            self.username = String::new();
        }
        self.groups.retain(|group| !group.is_empty() && group.len() <= MAX_GROUP_NAME);
        self.groups.sort_unstable();
        self.groups.dedup();
        self.groups.truncate(MAX_GROUPS);
        self.groups.shrink_to_fit();
        self
    }
}

impl State {
    /// Updates the user of an identity by the provider's claims, or creates the user.
    ///
    /// # Errors
    /// No name is free.
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
                    // With the new name, the user would have rights of another user. The login continues.
                    user.name.clone_from(&known.name);
                }
                if user != known {
                    self.change_user(user);
                }
                Ok(known.id)
            }
        }
    }

    /// The user with this identity.
    pub fn user_of_identity(&self, identity: &Identity) -> Option<&User> {
        self.directory.user_of_identity(identity)
    }

    /// Chooses the name of a user: the username or else the mail address, with a number if it is in use. A policy names
    /// users by mail addresses, so a username must not be the mail address of another user.
    fn choose_user_name(&self, profile: &Profile, known: Option<&User>) -> Result<String, Refusal> {
        let Profile { username, email, .. } = profile;
        let is_theirs = !username.contains('@') || username.eq_ignore_ascii_case(email);
        let own = Some(username.as_str()).filter(|name| is_theirs && is_name(name));
        let wanted = own.or(Some(email.as_str()).filter(|email| is_name(email)));
        let wanted = match wanted {
            Some(name) => name.to_owned(),
            None => match known {
                Some(user) => return Ok(user.name.clone()),
                None => format!("user-{}", self.journal.last_number(Kind::User) + 1),
            },
        };
        let numbered = (1..MAX_SUFFIX).map(|number| format!("{wanted}-{number}"));
        let free = std::iter::once(wanted.clone()).chain(numbered).find(|name| {
            known.is_some_and(|user| user.name == *name) || !self.directory.has_name(name)
        });
        free.ok_or(Refusal::NameTaken(wanted))
    }
}

/// Whether a name is valid for a user, with room for an appended number.
fn is_name(name: &str) -> bool {
    (1..=120).contains(&name.len())
        && name.chars().all(|letter| !letter.is_control() && !letter.is_whitespace())
        && name.parse::<i64>().is_err()
}

/// Trims a text of a provider. Returns an empty text if it is too long or has control characters.
fn bounded(text: &str) -> String {
    let is_sound = text.len() <= MAX_TEXT && !text.chars().any(char::is_control);
    if is_sound { text.trim().to_owned() } else { String::new() }
}
