//! Sessions of the page, links that open one, and who tries keys that are wrong. All of it is memory
//! of this process: a server that starts again knows no session.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context;
use coordinator::{Time, secret::Hash};

use crate::visitors::source;

/// The name of a session's cookie. What begins so a browser takes only from the origin itself, by TLS.
pub const COOKIE_NAME: &str = "__Host-linerate";
/// How long a session lasts.
pub const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// How long a link is good for.
pub const LINK_LIFETIME: Duration = Duration::from_secs(3600);
/// What the token of a link begins with.
const LINK_MARK: &str = "lrlink-";
/// The most sessions, and the most links: the oldest makes room.
const MOST: usize = 64;
/// How many wrong keys an address may show within [`WINDOW`] and still be told so.
const WRONG: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// The most addresses that are counted.
const COUNTED: usize = 4096;

/// Sessions and links, and wrong keys.
#[derive(Default)]
pub struct Sessions(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    links: Vec<(Hash, Time)>,
    sessions: Vec<(Hash, Session)>,
    wrong: HashMap<IpAddr, (u32, Time)>,
}

/// A session of the page.
#[derive(Clone, Debug)]
pub struct Session {
    /// Whose, as the audit says it.
    pub who: String,
    /// The prefix of the API key that it was opened with, if it was.
    pub key: Option<String>,
    /// What the page shows with every command.
    pub token: String,
    /// When it ends.
    pub until: Time,
}

impl Session {
    /// Whether this is what the page shows.
    pub fn is_token(&self, shown: &[u8]) -> bool {
        str::from_utf8(shown).is_ok_and(|shown| Hash::of(shown) == Hash::of(&self.token))
    }
}

impl Sessions {
    /// Makes what a link has in it.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn make_link(&self, now: Time) -> anyhow::Result<String> {
        let token = format!("{LINK_MARK}{}", random()?);
        let mut kept = self.kept();
        make_room(&mut kept.links);
        kept.links.push((Hash::of(&token), now.after(LINK_LIFETIME)));
        Ok(token)
    }

    /// Whether this is a link's token that nobody used. It is used by that.
    pub fn use_link(&self, token: &str, now: Time) -> bool {
        let hash = Hash::of(token);
        let mut kept = self.kept();
        kept.links.retain(|(_, until)| *until > now);
        let before = kept.links.len();
        kept.links.retain(|(own, _)| *own != hash);
        kept.links.len() < before
    }

    /// Opens a session. What is returned goes into the cookie.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn open(&self, who: String, key: Option<String>, now: Time) -> anyhow::Result<String> {
        let (cookie, token) = (random()?, random()?);
        let session = Session { who, key, token, until: now.after(LIFETIME) };
        let mut kept = self.kept();
        kept.sessions.retain(|(_, session)| session.until > now);
        make_room(&mut kept.sessions);
        kept.sessions.push((Hash::of(&cookie), session));
        Ok(cookie)
    }

    /// The session that a cookie is of.
    pub fn find(&self, cookie: &str, now: Time) -> Option<Session> {
        let hash = Hash::of(cookie);
        let kept = self.kept();
        let found = kept.sessions.iter().find(|(own, session)| *own == hash && session.until > now);
        found.map(|(_, session)| session.clone())
    }

    /// Ends a session.
    pub fn close(&self, token: &str) {
        self.kept().sessions.retain(|(_, session)| !session.is_token(token.as_bytes()));
    }

    /// Whether too many wrong keys came from there lately.
    pub fn is_guessing(&self, from: IpAddr, now: Time) -> bool {
        let kept = self.kept();
        let of_source = kept.wrong.get(&source(from));
        of_source.is_some_and(|(count, since)| *count > WRONG && now.since(*since) < WINDOW)
    }

    /// A wrong key came from there. Whether there were too many.
    pub fn wrong_from(&self, from: IpAddr, now: Time) -> bool {
        let mut kept = self.kept();
        if kept.wrong.len() >= COUNTED {
            kept.wrong.retain(|_, (_, since)| now.since(*since) < WINDOW);
        }
        // So many addresses at once are a flood from everywhere.
        if kept.wrong.len() >= COUNTED {
            return true;
        }
        let (count, since) = kept.wrong.entry(source(from)).or_insert((0, now));
        if now.since(*since) >= WINDOW {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
        *count > WRONG
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
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
    fn a_link_is_good_once_and_for_an_hour() {
        let sessions = Sessions::default();
        let (one, other) = (sessions.make_link(NOW).unwrap(), sessions.make_link(NOW).unwrap());
        assert!(!sessions.use_link("lrlink-0", NOW));
        assert!(sessions.use_link(&one, NOW) && !sessions.use_link(&one, NOW));
        assert!(!sessions.use_link(&other, NOW.after(LINK_LIFETIME)));
    }

    #[test]
    fn the_oldest_of_too_many_links_makes_room() {
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
    fn the_oldest_of_too_many_sessions_makes_room() {
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
            assert!(!sessions.wrong_from(near, NOW));
        }
        assert!(!sessions.is_guessing(near, NOW));
        assert!(sessions.wrong_from(neighbour, NOW) && !sessions.wrong_from(far, NOW));
        assert!(sessions.is_guessing(near, NOW) && !sessions.is_guessing(far, NOW));
        assert!(!sessions.is_guessing(near, NOW.after(WINDOW)));
        assert!(!sessions.wrong_from(near, NOW.after(WINDOW)));
    }

    #[test]
    fn a_flood_from_everywhere_has_bounded_memory() {
        let sessions = Sessions::default();
        for number in 0..COUNTED as u32 + 9 {
            sessions.wrong_from(std::net::Ipv4Addr::from_bits(number).into(), NOW);
        }
        assert_eq!(sessions.kept().wrong.len(), COUNTED);
        assert!(
            sessions.wrong_from("192.0.2.1".parse().unwrap(), NOW),
            "too many come from everywhere"
        );
        assert!(!sessions.wrong_from("192.0.2.1".parse().unwrap(), NOW.after(WINDOW)));
    }
}
