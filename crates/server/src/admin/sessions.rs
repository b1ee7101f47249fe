//! Sessions of the page, links that open one, and sources of wrong keys. They are in memory only:
//! sessions do not survive a restart.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context;
use coordinator::{Time, secret::Hash};

use crate::net::connections::source;

/// Name of a session's cookie. With this prefix, browsers accept it only from the origin itself,
/// with TLS.
pub(crate) const COOKIE_NAME: &str = "__Host-linerate";
/// Lifetime of a session.
pub(crate) const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// Lifetime of a link.
pub(crate) const LINK_LIFETIME: Duration = Duration::from_secs(3600);
/// Prefix of a link's token.
const LINK_MARK: &str = "lrlink-";
/// Maximum number of sessions, and of links. The oldest is dropped.
const MOST: usize = 64;
/// Number of wrong keys within [`WINDOW`] after which a source is throttled.
const WRONG: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of counted sources.
const COUNTED: usize = 4096;

/// Sessions, links, and wrong keys.
#[derive(Default)]
pub struct Sessions(Mutex<Table>);

#[derive(Default)]
struct Table {
    links: Vec<(Hash, Time)>,
    sessions: Vec<(Hash, Session)>,
    wrong: HashMap<IpAddr, (u32, Time)>,
}

/// A session of the page.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its actor in the audit log.
    pub who: String,
    /// Prefix of the API key that it was opened with, if any.
    pub key: Option<String>,
    /// CSRF token, which the page sends with every command.
    pub token: String,
    /// When it expires.
    pub until: Time,
}

impl Session {
    /// Whether this is the session's CSRF token.
    pub fn is_token(&self, shown: &[u8]) -> bool {
        str::from_utf8(shown).is_ok_and(|shown| Hash::of(shown) == Hash::of(&self.token))
    }
}

impl Sessions {
    /// Creates the token of a link.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub fn make_link(&self, now: Time) -> anyhow::Result<String> {
        let token = format!("{LINK_MARK}{}", random()?);
        let mut table = self.lock();
        make_room(&mut table.links);
        table.links.push((Hash::of(&token), now.after(LINK_LIFETIME)));
        Ok(token)
    }

    /// Uses the token of a link. Returns false if it is invalid or already used.
    pub fn use_link(&self, token: &str, now: Time) -> bool {
        let hash = Hash::of(token);
        let mut table = self.lock();
        table.links.retain(|(_, until)| *until > now);
        let before = table.links.len();
        table.links.retain(|(own, _)| *own != hash);
        table.links.len() < before
    }

    /// Opens a session and returns its cookie.
    ///
    /// # Errors
    /// The system provides no randomness.
    pub fn open(&self, who: String, key: Option<String>, now: Time) -> anyhow::Result<String> {
        let (cookie, token) = (random()?, random()?);
        let session = Session { who, key, token, until: now.after(LIFETIME) };
        let mut table = self.lock();
        table.sessions.retain(|(_, session)| session.until > now);
        make_room(&mut table.sessions);
        table.sessions.push((Hash::of(&cookie), session));
        Ok(cookie)
    }

    /// The session of a cookie.
    pub fn find(&self, cookie: &str, now: Time) -> Option<Session> {
        let hash = Hash::of(cookie);
        let table = self.lock();
        let found =
            table.sessions.iter().find(|(own, session)| *own == hash && session.until > now);
        found.map(|(_, session)| session.clone())
    }

    /// Closes a session.
    pub fn close(&self, token: &str) {
        self.lock().sessions.retain(|(_, session)| !session.is_token(token.as_bytes()));
    }

    /// Whether this source recently sent too many wrong keys.
    pub fn is_guessing(&self, from: IpAddr, now: Time) -> bool {
        let table = self.lock();
        let of_source = table.wrong.get(&source(from));
        of_source.is_some_and(|(count, since)| *count > WRONG && now.since(*since) < WINDOW)
    }

    /// Counts a wrong key. Returns whether its source sent too many.
    pub fn count_wrong_key(&self, from: IpAddr, now: Time) -> bool {
        let mut table = self.lock();
        if table.wrong.len() >= COUNTED {
            table.wrong.retain(|_, (_, since)| now.since(*since) < WINDOW);
        }
        // This many sources at once are a distributed flood.
        if table.wrong.len() >= COUNTED {
            return true;
        }
        let (count, since) = table.wrong.entry(source(from)).or_insert((0, now));
        if now.since(*since) >= WINDOW {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
        *count > WRONG
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_room<T>(of: &mut Vec<T>) {
    if of.len() >= MOST {
        of.remove(0);
    }
}

fn random() -> anyhow::Result<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).context("randomness")?;
    Ok(base16ct::lower::encode_string(&random))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time(1_000_000_000);

    #[test]
    fn a_link_works_once_and_for_an_hour() {
        let sessions = Sessions::default();
        let (one, other) = (sessions.make_link(NOW).unwrap(), sessions.make_link(NOW).unwrap());
        assert!(!sessions.use_link("lrlink-0", NOW));
        assert!(sessions.use_link(&one, NOW) && !sessions.use_link(&one, NOW));
        assert!(!sessions.use_link(&other, NOW.after(LINK_LIFETIME)));
    }

    #[test]
    fn a_full_table_of_links_drops_its_oldest() {
        let sessions = Sessions::default();
        let links: Vec<String> = (0..=MOST).map(|_| sessions.make_link(NOW).unwrap()).collect();
        assert!(!sessions.use_link(&links[0], NOW) && sessions.use_link(&links[1], NOW));
    }

    #[test]
    fn a_session_is_found_by_its_cookie_until_it_ends() {
        let sessions = Sessions::default();
        let cookie = sessions.open("link".into(), None, NOW).unwrap();
        let session = sessions.find(&cookie, NOW).unwrap();
        assert!(session.is_token(session.token.as_bytes()) && !session.is_token(b""));
        assert!(sessions.find(&session.token, NOW).is_none());
        assert!(sessions.find(&cookie, NOW.after(LIFETIME)).is_none());
        sessions.close(&session.token);
        assert!(sessions.find(&cookie, NOW).is_none());
    }

    #[test]
    fn a_full_table_of_sessions_drops_its_oldest() {
        let sessions = Sessions::default();
        let open = || sessions.open("key".into(), None, NOW).unwrap();
        let cookies: Vec<String> = (0..=MOST).map(|_| open()).collect();
        assert!(sessions.find(&cookies[0], NOW).is_none());
        assert!(cookies[1..].iter().all(|cookie| sessions.find(cookie, NOW).is_some()));
    }

    #[test]
    fn wrong_keys_are_counted_by_network_and_forgotten_after_a_minute() {
        let sessions = Sessions::default();
        let near: IpAddr = "2001:db8::1".parse().unwrap();
        let neighbour: IpAddr = "2001:db8::2".parse().unwrap();
        let far: IpAddr = "192.0.2.1".parse().unwrap();
        for _ in 0..WRONG {
            assert!(!sessions.count_wrong_key(near, NOW));
        }
        assert!(!sessions.is_guessing(near, NOW));
        assert!(sessions.count_wrong_key(neighbour, NOW) && !sessions.count_wrong_key(far, NOW));
        assert!(sessions.is_guessing(near, NOW) && !sessions.is_guessing(far, NOW));
        assert!(!sessions.is_guessing(near, NOW.after(WINDOW)));
        assert!(!sessions.count_wrong_key(near, NOW.after(WINDOW)));
    }

    #[test]
    fn a_flood_from_everywhere_has_bounded_memory() {
        let sessions = Sessions::default();
        for number in 0..COUNTED as u32 + 9 {
            sessions.count_wrong_key(std::net::Ipv4Addr::from_bits(number).into(), NOW);
        }
        assert_eq!(sessions.lock().wrong.len(), COUNTED);
        assert!(
            sessions.count_wrong_key("192.0.2.1".parse().unwrap(), NOW),
            "too many come from everywhere"
        );
        assert!(!sessions.count_wrong_key("192.0.2.1".parse().unwrap(), NOW.after(WINDOW)));
    }
}
