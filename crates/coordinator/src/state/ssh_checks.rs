//! Commands on checked logins by SSH.

use super::State;
use crate::{
    object::NodeId,
    refusal::Refusal,
    ssh_checks::{MAX_ACCOUNT, Owner, SshLogin, SshOutcome},
    time::Time,
};

impl State {
    /// Handles a login from one node at another. `number` is random, for a new pending login. `followed` is the number
    /// of the pending login that is polled.
    pub fn ssh_login(
        &mut self,
        [from, at]: [NodeId; 2],
        account: &str,
        followed: Option<&str>,
        number: &str,
        now: Time,
    ) -> SshOutcome {
        let (Some(source), Some(target)) = (self.nodes.get(from), self.nodes.get(at)) else {
            return SshOutcome::Refused("node not found");
        };
        if source.node.has_expired(now) {
            return SshOutcome::Refused("the key of the node has expired");
        }
        if account.len() > MAX_ACCOUNT {
            return SshOutcome::Refused("account not found");
        }
        let check = self.policies.access().ssh_check(source.index, target.index, account);
        let Some(check) = check else {
            return SshOutcome::Refused("the policy does not allow this login to be confirmed");
        };
        let user = source.node.user;
        let target_owner = Owner::of(at, target.node.user);
        let login = SshLogin { from, user, at, account: account.to_owned() };
        let outcome = self.ssh_checks.outcome(&login, check.period, followed, now);
        outcome.unwrap_or_else(|| {
            self.ssh_checks.add(number, login, target_owner, now);
            SshOutcome::Pending(number.to_owned())
        })
    }

    /// The pending login with this number.
    pub fn pending_ssh_login(&self, number: &str, now: Time) -> Option<&SshLogin> {
        self.ssh_checks.pending(number, now)
    }

    /// Accepts or refuses a pending login.
    ///
    /// # Errors
    /// The login does not exist, or is not pending.
    pub fn decide_ssh(
        &mut self,
        number: &str,
        is_allowed: bool,
        now: Time,
    ) -> Result<SshLogin, Refusal> {
        let decision = self.ssh_checks.decision(number, is_allowed, now).ok_or(Refusal::NoLogin)?;
        self.ssh_checks.decide(&decision);
        let login = decision.login.clone();
        self.journal.save_ssh_decision(decision);
        Ok(login)
    }
}
