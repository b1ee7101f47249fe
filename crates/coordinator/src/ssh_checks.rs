//! Logins by SSH that are checked: the node that is logged in to holds the connection and asks here,
//! until the user of the other node, or an administrator, has said that it may go on.
//!
//! ```text
//!   ssh_login ──► checked by the policy? ── no ──► Refused
//!       │ confirmed within the period, or under this number? ──► Accepted
//!       └──► Held, under a number ──► decide_ssh
//! ```
//!
//! All of it is memory: a server that starts again asks again. If too many logins wait, the party with the most
//! loses its oldest: at one node, the user with the most logins; of all nodes, the owner of the nodes.

use std::{collections::BTreeMap, hash::Hash, time::Duration};

use crate::{
    object::{NodeId, UserId},
    pending::most_frequent,
    refusal::Refusal,
    state::State,
    time::Time,
};

/// How long a login waits to be confirmed.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);
/// The longest that a check is good for (Tailscale's documentation of checkPeriod).
const LONGEST_PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);
/// The most logins that wait, and the most to one node.
const MOST: usize = 4096;
const MOST_EACH: usize = 64;
/// The most checks that are remembered.
const MOST_CONFIRMED: usize = 1 << 16;
/// The longest name of an account, in bytes.
const LONGEST_ACCOUNT: usize = 256;

/// A login that is checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SshLogin {
    /// From which node.
    pub from: NodeId,
    /// Whose that node is; none of a tagged one.
    pub user: Option<UserId>,
    /// At which node.
    pub at: NodeId,
    /// The account there.
    pub account: String,
}

/// What becomes of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshOutcome {
    /// It goes on.
    Accepted,
    /// It does not: why.
    Refused(&'static str),
    /// It waits under this number.
    Pending(String),
}

/// Logins that wait, and those that were confirmed.
#[derive(Debug, Default)]
pub(crate) struct SshChecks {
    waiting: BTreeMap<String, PendingLogin>,
    confirmed: BTreeMap<SshLogin, Time>,
}

/// What was said of a login.
#[derive(Debug)]
pub(crate) struct SshDecision {
    number: String,
    login: SshLogin,
    is_allowed: bool,
    at: Time,
    /// When it was confirmed before, if it was.
    before: Option<Time>,
}

#[derive(Debug)]
struct PendingLogin {
    login: SshLogin,
    /// The owner of the node that is logged in to.
    target_owner: Owner,
    since: Time,
    decision: Option<bool>,
}

/// The owner of nodes: a user, or a single node with tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    User(UserId),
    Node(NodeId),
}

impl Owner {
    fn of(id: NodeId, user: Option<UserId>) -> Self {
        user.map_or(Self::Node(id), Self::User)
    }
}

impl SshLogin {
    fn owner(&self) -> Owner {
        Owner::of(self.from, self.user)
    }
}

impl State {
    /// What becomes of a login from one node at another. `number` is random, for one that has to wait;
    /// `followed` is that under which it waits already.
    pub fn ssh_login(
        &mut self,
        [from, at]: [NodeId; 2],
        account: &str,
        followed: Option<&str>,
        number: &str,
        now: Time,
    ) -> SshOutcome {
        let (Some(source), Some(target)) = (self.nodes.get(&from), self.nodes.get(&at)) else {
            return SshOutcome::Refused("there is no such node");
        };
        if source.node.has_expired(now) {
            return SshOutcome::Refused("the key of the node has expired");
        }
        if account.len() > LONGEST_ACCOUNT {
            return SshOutcome::Refused("there is no such account");
        }
        let check = self.access.ssh_check(source.index, target.index, account);
        let Some(check) = check else {
            return SshOutcome::Refused("the policy does not let this login be confirmed");
        };
        let user = source.node.user;
        let target_owner = Owner::of(at, target.node.user);
        let login = SshLogin { from, user, at, account: account.to_owned() };
        let checks = &mut self.ssh_checks;
        if checks.is_confirmed(&login, check.period, now) {
            return SshOutcome::Accepted;
        }
        if let Some(number) = followed
            && let Some(waiting) = checks.waiting.get(number).filter(|own| own.login == login)
        {
            let decision = waiting.decision;
            if decision.is_none() && now.since(waiting.since) < LONGEST_WAIT {
                return SshOutcome::Pending(number.to_owned());
            }
            checks.waiting.remove(number);
            return match decision {
                Some(true) => SshOutcome::Accepted,
                Some(false) => SshOutcome::Refused("the login was rejected"),
                None => SshOutcome::Refused("the login was not confirmed in time"),
            };
        }
        checks.wait(number, PendingLogin { login, target_owner, since: now, decision: None }, now);
        SshOutcome::Pending(number.to_owned())
    }

    /// The login that waits under a number.
    pub fn pending_ssh_login(&self, number: &str, now: Time) -> Option<&SshLogin> {
        let waiting = self.ssh_checks.waiting.get(number)?;
        let is_open = waiting.decision.is_none() && now.since(waiting.since) < LONGEST_WAIT;
        is_open.then_some(&waiting.login)
    }

    /// Says that a login may go on, or may not.
    ///
    /// # Errors
    /// None waits under this number.
    pub fn decide_ssh(
        &mut self,
        number: &str,
        is_allowed: bool,
        now: Time,
    ) -> Result<SshLogin, Refusal> {
        let login = self.pending_ssh_login(number, now).ok_or(Refusal::NoLogin)?.clone();
        let before = self.ssh_checks.confirmed.get(&login).copied();
        let number = number.to_owned();
        let decision = SshDecision { number, login: login.clone(), is_allowed, at: now, before };
        self.ssh_checks.decide(&decision);
        self.undo.ssh_decision(decision);
        Ok(login)
    }
}

impl SshChecks {
    pub fn decide(&mut self, decision: &SshDecision) {
        if let Some(waiting) = self.waiting.get_mut(&decision.number) {
            waiting.decision = Some(decision.is_allowed);
        }
        if decision.is_allowed {
            self.confirm(decision.login.clone(), decision.at);
        }
    }

    pub fn undo(&mut self, SshDecision { number, login, before, .. }: &SshDecision) {
        if let Some(waiting) = self.waiting.get_mut(number) {
            waiting.decision = None;
        }
        match before {
            Some(at) => self.confirmed.insert(login.clone(), *at),
            None => self.confirmed.remove(login),
        };
    }

    /// Whether a check of this login is still good.
    fn is_confirmed(&self, login: &SshLogin, period: Option<Duration>, now: Time) -> bool {
        let at = self.confirmed.get(login);
        at.zip(period).is_some_and(|(at, period)| now.since(*at) < period)
    }

    fn wait(&mut self, number: &str, new: PendingLogin, now: Time) {
        self.waiting.retain(|_, waiting| now.since(waiting.since) < LONGEST_WAIT);
        let is_there = |waiting: &PendingLogin| waiting.login.at == new.login.at;
        if self.waiting.values().filter(|waiting| is_there(waiting)).count() >= MOST_EACH {
            self.evict_oldest(is_there, |waiting| waiting.login.owner());
        } else if self.waiting.len() >= MOST {
            self.evict_oldest(|_| true, |waiting| waiting.target_owner);
        }
        self.waiting.insert(number.to_owned(), new);
    }

    /// Of those that are meant, the party with most loses its oldest.
    fn evict_oldest<P: Copy + Eq + Hash>(
        &mut self,
        is_meant: impl Fn(&PendingLogin) -> bool,
        owner: impl Fn(&PendingLogin) -> P,
    ) {
        let meant = || self.waiting.iter().filter(|(_, waiting)| is_meant(waiting));
        let busiest = most_frequent(meant().map(|(_, waiting)| owner(waiting)));
        let of_busiest = meant().filter(|(_, waiting)| Some(owner(waiting)) == busiest);
        let oldest = of_busiest.min_by_key(|(_, waiting)| waiting.since);
        if let Some(number) = oldest.map(|(number, _)| number.clone()) {
            self.waiting.remove(&number);
        }
    }

    fn confirm(&mut self, login: SshLogin, now: Time) {
        if self.confirmed.len() >= MOST_CONFIRMED {
            self.confirmed.retain(|_, at| now.since(*at) < LONGEST_PERIOD);
        }
        if self.confirmed.len() >= MOST_CONFIRMED {
            // Whoever is forgotten is asked again.
            let busiest = most_frequent(self.confirmed.keys().map(SshLogin::owner));
            let of_busiest = self.confirmed.iter().filter(|(own, _)| Some(own.owner()) == busiest);
            let oldest = of_busiest.min_by_key(|(_, at)| **at).map(|(own, _)| own.clone());
            oldest.map(|oldest| self.confirmed.remove(&oldest));
        }
        self.confirmed.insert(login, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(user: i64, at: i64, target_owner: i64) -> PendingLogin {
        let (from, account) = (NodeId(user), "www".to_owned());
        let login = SshLogin { from, user: Some(UserId(user)), at: NodeId(at), account };
        let target_owner = Owner::User(UserId(target_owner));
        PendingLogin { login, target_owner, since: Time(1), decision: None }
    }

    #[test]
    fn a_user_with_thousands_of_nodes_ends_no_login_at_a_node_of_another() {
        let mut checks = SshChecks::default();
        checks.wait("mine", waiting(1, 1, 1), Time(1));
        for number in 0..2 * MOST {
            let at = 2 + i64::try_from(number / 8).unwrap();
            checks.wait(&format!("{number}"), waiting(2, at, 2), Time(2));
        }
        assert!(checks.waiting.contains_key("mine") && checks.waiting.len() == MOST);
    }

    #[test]
    fn who_confirms_logins_without_end_is_asked_again_and_nobody_else() {
        let mut checks = SshChecks::default();
        let mine = waiting(1, 1, 1).login;
        checks.confirm(mine.clone(), Time(1));
        for number in 0..MOST_CONFIRMED + 9 {
            let login = SshLogin { account: format!("{number}"), ..waiting(2, 1, 1).login };
            checks.confirm(login, Time(2));
        }
        assert!(checks.confirmed.contains_key(&mine) && checks.confirmed.len() == MOST_CONFIRMED);
    }
}
