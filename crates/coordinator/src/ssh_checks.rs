//! Checked logins by SSH. The target node holds the connection and polls the coordinator, until the user of the source
//! node or an administrator decides on the login.
//!
//! ```text
//!   ssh_login ──► checked by the policy? ── no ──► Refused
//!       │ confirmed within the period, or under this number? ──► Accepted
//!       └──► Pending, under a number ──► decide_ssh
//! ```
//!
//! Nothing is stored: after a restart, logins are checked again. If too many logins are pending, the oldest one of the
//! owner with the most is evicted. At one node, this is the owner of the source nodes; else that of the target nodes.

use std::{collections::BTreeMap, hash::Hash, time::Duration};

use crate::{
    object::{NodeId, UserId},
    pending::most_frequent,
    time::Time,
};

/// The time after which a pending login is refused.
const MAX_WAIT: Duration = Duration::from_secs(15 * 60);
/// The maximum validity of a check (Tailscale's documentation of checkPeriod).
const MAX_PERIOD: Duration = Duration::from_secs(7 * 24 * 3600);
/// The maximum number of pending logins, and of those at one node.
const MAX_PENDING: usize = 4096;
const MAX_PER_NODE: usize = 64;
/// The maximum number of confirmed logins in memory.
const MAX_CONFIRMED: usize = 1 << 16;
/// The maximum length of an account's name, in bytes.
pub(crate) const MAX_ACCOUNT: usize = 256;

/// A checked login.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SshLogin {
    /// The source node.
    pub from: NodeId,
    /// The owner of the source node. `None` if it is tagged.
    pub user: Option<UserId>,
    /// The target node.
    pub at: NodeId,
    /// The account at the target.
    pub account: String,
}

/// The outcome of a login request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshOutcome {
    /// The login is accepted.
    Accepted,
    /// The login is refused, with the reason.
    Refused(&'static str),
    /// The login is pending under this number.
    Pending(String),
}

/// Pending and confirmed logins.
#[derive(Debug, Default)]
pub(crate) struct SshChecks {
    waiting: BTreeMap<String, PendingLogin>,
    confirmed: BTreeMap<SshLogin, Time>,
}

/// A decision on a login.
#[derive(Debug)]
pub(crate) struct SshDecision {
    number: String,
    pub login: SshLogin,
    is_allowed: bool,
    at: Time,
    /// The time of the previous confirmation, if any.
    before: Option<Time>,
}

#[derive(Debug)]
struct PendingLogin {
    login: SshLogin,
    /// The owner of the target node.
    target_owner: Owner,
    since: Time,
    decision: Option<bool>,
}

/// The owner of nodes: a user, or a single tagged node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    User(UserId),
    Node(NodeId),
}

impl Owner {
    pub(crate) fn of(id: NodeId, user: Option<UserId>) -> Self {
        user.map_or(Self::Node(id), Self::User)
    }
}

impl SshLogin {
    fn owner(&self) -> Owner {
        Owner::of(self.from, self.user)
    }
}

impl SshChecks {
    /// The outcome of a login: by its last confirmation, or by the pending login that is polled. `None` if the login
    /// must be added as a pending one.
    pub(crate) fn outcome(
        &mut self,
        login: &SshLogin,
        period: Option<Duration>,
        followed: Option<&str>,
        now: Time,
    ) -> Option<SshOutcome> {
        if self.is_confirmed(login, period, now) {
            return Some(SshOutcome::Accepted);
        }
        let number = followed?;
        let waiting = self.waiting.get(number).filter(|own| own.login == *login)?;
        let decision = waiting.decision;
        if decision.is_none() && now.since(waiting.since) < MAX_WAIT {
            return Some(SshOutcome::Pending(number.to_owned()));
        }
        self.waiting.remove(number);
        Some(match decision {
            Some(true) => SshOutcome::Accepted,
            Some(false) => SshOutcome::Refused("the login was rejected"),
            None => SshOutcome::Refused("the login was not confirmed in time"),
        })
    }

    /// Adds a pending login at a node of this owner.
    pub(crate) fn add(&mut self, number: &str, login: SshLogin, target_owner: Owner, now: Time) {
        self.wait(number, PendingLogin { login, target_owner, since: now, decision: None }, now);
    }

    /// The pending login with this number.
    pub(crate) fn pending(&self, number: &str, now: Time) -> Option<&SshLogin> {
        let waiting = self.waiting.get(number)?;
        let is_open = waiting.decision.is_none() && now.since(waiting.since) < MAX_WAIT;
        is_open.then_some(&waiting.login)
    }

    /// Returns a decision on a pending login. `None` if the login is not pending.
    pub(crate) fn decision(
        &self,
        number: &str,
        is_allowed: bool,
        now: Time,
    ) -> Option<SshDecision> {
        let login = self.pending(number, now)?.clone();
        let before = self.confirmed.get(&login).copied();
        Some(SshDecision { number: number.to_owned(), login, is_allowed, at: now, before })
    }

    /// Applies a decision.
    pub(crate) fn decide(&mut self, decision: &SshDecision) {
        if let Some(waiting) = self.waiting.get_mut(&decision.number) {
            waiting.decision = Some(decision.is_allowed);
        }
        if decision.is_allowed {
            self.confirm(decision.login.clone(), decision.at);
        }
    }

    /// Undoes a decision.
    pub(crate) fn undo(&mut self, SshDecision { number, login, before, .. }: &SshDecision) {
        if let Some(waiting) = self.waiting.get_mut(number) {
            waiting.decision = None;
        }
        match before {
            Some(at) => self.confirmed.insert(login.clone(), *at),
            None => self.confirmed.remove(login),
        };
    }

    /// Whether the last check of this login is still valid.
    fn is_confirmed(&self, login: &SshLogin, period: Option<Duration>, now: Time) -> bool {
        let at = self.confirmed.get(login);
        at.zip(period).is_some_and(|(at, period)| now.since(*at) < period)
    }

    fn wait(&mut self, number: &str, new: PendingLogin, now: Time) {
        self.waiting.retain(|_, waiting| now.since(waiting.since) < MAX_WAIT);
        let is_there = |waiting: &PendingLogin| waiting.login.at == new.login.at;
        if self.waiting.values().filter(|waiting| is_there(waiting)).count() >= MAX_PER_NODE {
            self.evict_oldest(is_there, |waiting| waiting.login.owner());
        } else if self.waiting.len() >= MAX_PENDING {
            self.evict_oldest(|_| true, |waiting| waiting.target_owner);
        }
        self.waiting.insert(number.to_owned(), new);
    }

    /// Of the selected logins, removes the oldest one of the owner with the most.
    fn evict_oldest<P: Copy + Eq + Hash>(
        &mut self,
        is_selected: impl Fn(&PendingLogin) -> bool,
        owner: impl Fn(&PendingLogin) -> P,
    ) {
        let selected = || self.waiting.iter().filter(|(_, waiting)| is_selected(waiting));
        let busiest = most_frequent(selected().map(|(_, waiting)| owner(waiting)));
        let of_busiest = selected().filter(|(_, waiting)| Some(owner(waiting)) == busiest);
        let oldest = of_busiest.min_by_key(|(_, waiting)| waiting.since);
        if let Some(number) = oldest.map(|(number, _)| number.clone()) {
            self.waiting.remove(&number);
        }
    }

    fn confirm(&mut self, login: SshLogin, now: Time) {
        if self.confirmed.len() >= MAX_CONFIRMED {
            self.confirmed.retain(|_, at| now.since(*at) < MAX_PERIOD);
        }
        if self.confirmed.len() >= MAX_CONFIRMED {
            // An evicted login is checked again.
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
    fn a_flood_at_many_nodes_evicts_no_login_at_nodes_of_other_owners() {
        let mut checks = SshChecks::default();
        checks.wait("mine", waiting(1, 1, 1), Time(1));
        for number in 0..2 * MAX_PENDING {
            let at = 2 + i64::try_from(number / 8).unwrap();
            checks.wait(&format!("{number}"), waiting(2, at, 2), Time(2));
        }
        assert!(checks.waiting.contains_key("mine") && checks.waiting.len() == MAX_PENDING);
    }

    #[test]
    fn a_flood_of_confirmations_evicts_only_those_of_its_owner() {
        let mut checks = SshChecks::default();
        let mine = waiting(1, 1, 1).login;
        checks.confirm(mine.clone(), Time(1));
        for number in 0..MAX_CONFIRMED + 9 {
            let login = SshLogin { account: format!("{number}"), ..waiting(2, 1, 1).login };
            checks.confirm(login, Time(2));
        }
        assert!(checks.confirmed.contains_key(&mine) && checks.confirmed.len() == MAX_CONFIRMED);
    }
}
