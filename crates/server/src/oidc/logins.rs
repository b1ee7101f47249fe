//! Logins of identified users. Each belongs to one tab of a browser, can be taken once, and expires
//! soon. Their number is limited, in total and for each machine.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

/// Maximum time between two requests of a login's browser. The user may need a second device.
pub(super) const LIFE: Duration = Duration::from_secs(15 * 60);
/// Maximum number of logins, and of logins for one machine. The oldest is dropped.
const MOST: usize = 4096;
const MOST_EACH: usize = 8;

/// Logins in progress, by their token.
pub(super) struct Logins<T> {
    by_key: HashMap<String, Login<T>>,
}

struct Login<T> {
    number: String,
    since: Instant,
    value: T,
}

impl<T> Default for Logins<T> {
    fn default() -> Self {
        Self { by_key: HashMap::new() }
    }
}

impl<T> Logins<T> {
    /// Adds a login for the registration with this ID.
    pub(super) fn begin(&mut self, key: String, number: String, value: T, now: Instant) {
        self.by_key.retain(|_, login| now < login.since + LIFE);
        let of_number = self.by_key.values().filter(|login| login.number == number).count();
        let is_full = self.by_key.len() >= MOST;
        if of_number >= MOST_EACH || is_full {
            let candidates =
                self.by_key.iter().filter(|(_, login)| is_full || login.number == number);
            let oldest = candidates.min_by_key(|(_, login)| login.since);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.by_key.remove(&oldest);
            }
        }
        self.by_key.insert(key, Login { number, since: now, value });
    }

    /// Takes a login, which is possible once.
    pub(super) fn take(&mut self, key: &str, now: Instant) -> Option<(String, T)> {
        let login = self.by_key.remove(key)?;
        (now < login.since + LIFE).then_some((login.number, login.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_login_is_taken_once_and_in_time() {
        let (mut logins, now) = (Logins::default(), Instant::now());
        logins.begin("a".into(), "1".into(), 7, now);
        assert_eq!(logins.take("a", now), Some(("1".into(), 7)));
        assert_eq!(logins.take("a", now), None);
        logins.begin("b".into(), "1".into(), 8, now);
        assert_eq!(logins.take("b", now + LIFE), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_logins_for_one_machine_evicts_no_other() {
        let (mut logins, now) = (Logins::default(), Instant::now());
        logins.begin("mine".into(), "1".into(), 0, now);
        for flood in 1..3 * MOST {
            let at = now + Duration::from_millis(flood as u64);
            logins.begin(format!("{flood}"), "2".into(), flood, at);
        }
        assert_eq!(logins.by_key.len(), 1 + MOST_EACH);
        for flood in 0..3 * MOST {
            logins.begin(format!("x{flood}"), format!("m{flood}"), 0, now + LIFE / 2);
        }
        assert_eq!(logins.by_key.len(), MOST);
    }
}
