//! Restores policy rules that another program deletes while the tunnel is up. Without them,
//! traffic for the tunnel is sent outside of it. systemd-networkd deletes rules of other programs
//! whenever it is reconfigured, unless `ManageForeignRoutingPolicyRules=no` is set
//! (networkd.conf(5)).

use std::time::Duration;

use anyhow::Context;
use sys::{
    errno::{Errno, errno},
    netlink::{Family, Netlink, Rule},
    process::Helper,
};

use super::undo_log::UndoLog;

/// Limit of restorations in each [`PERIOD`], so that a program that deletes them repeatedly does
/// not cause a loop. It equals the number of rules, two for each family, because they are deleted
/// one by one.
const MAX_RESTORES: u32 = 4;
/// The period, which starts with the first restoration.
const PERIOD: Duration = Duration::from_secs(5);

/// The rules of an undo log that the kernel does not have.
pub fn missing(log: &UndoLog, netlink: &Netlink) -> anyhow::Result<Vec<Rule>> {
    let mut missing = Vec::new();
    for family in [Family::V4, Family::V6] {
        let ours: Vec<Rule> = log.rules().filter(|rule| rule.family == family).collect();
        if !ours.is_empty() {
            let present = netlink.rules(family).context("rules")?;
            missing.extend(ours.into_iter().filter(|rule| !present.contains(rule)));
        }
    }
    Ok(missing)
}

/// Restores missing rules, at a limited rate. Times are in nanoseconds of one clock.
#[derive(Debug, Default)]
pub struct RuleRestorer {
    /// Time of the first restoration in this period.
    first: Option<u64>,
    /// Number of restorations in this period.
    times: u32,
    /// Whether rules are missing that were not restored.
    due: bool,
}

impl RuleRestorer {
    /// Restores missing rules, directly or through a helper, or postpones that.
    ///
    /// # Errors
    /// The rules cannot be listed, or one cannot be added. It is retried after a period.
    pub fn restore_missing(
        &mut self,
        log: &UndoLog,
        netlink: &Netlink,
        helper: Option<&Helper>,
        now: u64,
    ) -> anyhow::Result<()> {
        let all: Vec<Rule> = log.rules().collect();
        self.restore(missing(log, netlink), now, |rule| {
            let position = all
                .iter()
                .position(|known| known == rule)
                .context("a missing rule is not in the undo log")?;
            add(&all, position, netlink, helper)
        })
    }

    fn restore(
        &mut self,
        missing: anyhow::Result<Vec<Rule>>,
        now: u64,
        mut add: impl FnMut(&Rule) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let restore = missing.and_then(|missing| {
            if !self.may_restore(!missing.is_empty(), now) {
                return Ok(());
            }
            missing.iter().map(&mut add).fold(Ok(()), Result::and)
        });
        if restore.is_err() {
            (self.first, self.times, self.due) = (Some(now), MAX_RESTORES, true);
        }
        restore
    }

    /// The time until postponed rules are restored, if any.
    pub fn wait(&self, now: u64) -> Option<Duration> {
        let first = self.first.filter(|_| self.due)?;
        Some(PERIOD.saturating_sub(Duration::from_nanos(now.saturating_sub(first))))
    }

    fn may_restore(&mut self, is_missing: bool, now: u64) -> bool {
        self.due = is_missing;
        if !is_missing {
            return false;
        }
        if self.wait(now).is_none_or(|wait| wait.is_zero()) {
            (self.first, self.times) = (Some(now), 0);
        }
        self.due = self.times == MAX_RESTORES;
        self.times = MAX_RESTORES.min(self.times + 1);
        !self.due
    }
}

/// Adds a rule, directly or through a helper, which identifies rules by their positions.
fn add(
    all: &[Rule],
    position: usize,
    netlink: &Netlink,
    helper: Option<&Helper>,
) -> anyhow::Result<()> {
    let priority = all[position].priority.unwrap_or(0);
    tracing::warn!(priority, "restoring a policy rule that another program deleted");
    let added = match helper {
        Some(helper) => helper.add_rule(position),
        None => netlink.add_rule_before(&all[position], &all[position + 1..]).map_err(Into::into),
    };
    match added {
        Err(error) if errno(&error) == Some(Errno::EEXIST) => Ok(()),
        added => added.with_context(|| format!("the rule of priority {priority}")),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn rules_are_restored_at_once_up_to_the_limit_of_a_period() {
        let mut restorer = RuleRestorer::default();
        let seconds = |seconds: u64| seconds * 1_000_000_000;
        assert!(!restorer.may_restore(false, seconds(1)));
        for _ in 0..MAX_RESTORES {
            assert!(restorer.may_restore(true, seconds(1)));
            assert_eq!(restorer.wait(seconds(1)), None, "nothing is missing");
        }
        assert!(!restorer.may_restore(true, seconds(3)));
        assert_eq!(restorer.wait(seconds(4)), Some(PERIOD - Duration::from_secs(3)));
        assert_eq!(restorer.wait(seconds(99)), Some(Duration::ZERO));
        for _ in 0..MAX_RESTORES {
            assert!(restorer.may_restore(true, seconds(6)));
        }
        assert!(!restorer.may_restore(true, seconds(7)));
        assert!(!restorer.may_restore(false, seconds(8)), "another program restored them");
        assert_eq!(restorer.wait(seconds(8)), None);
    }

    #[test]
    fn period_with_few_restorations_does_not_shorten_the_next() {
        let mut restorer = RuleRestorer::default();
        let nanos = |time: Duration| time.as_nanos() as u64;
        assert!(restorer.may_restore(true, 0));
        assert!(restorer.may_restore(true, nanos(PERIOD)), "a new period");
        assert_eq!(restorer.times, 1);
    }

    #[test]
    fn failed_rule_is_retried_after_a_period_and_does_not_block_the_others() {
        let (mut restorer, mut tried) = (RuleRestorer::default(), Vec::new());
        let later = PERIOD.as_nanos() as u64;
        restorer.restore(Err(anyhow::anyhow!("no list")), 0, |_| Ok(())).unwrap_err();
        assert_eq!(restorer.wait(0), Some(PERIOD));
        restorer.restore(Err(anyhow::anyhow!("no list")), later, |_| Ok(())).unwrap_err();
        assert_eq!(restorer.wait(later), Some(PERIOD), "it does not loop");

        let rule = |priority| Rule {
            family: Family::V4,
            fwmark: None,
            invert: false,
            table: 1,
            priority: Some(priority),
            suppress_prefix_length: None,
        };
        let mut add = |rule: &Rule| {
            tried.push(rule.priority);
            if rule.priority == Some(1) {
                bail!("refused")
            }
            Ok(())
        };
        let now = 2 * later;
        let error = restorer.restore(Ok(vec![rule(1), rule(2)]), now, &mut add).unwrap_err();
        assert_eq!(error.to_string(), "refused");
        assert_eq!(restorer.wait(now), Some(PERIOD), "one is still missing");
        restorer.restore(Ok(vec![rule(1)]), now + 1, &mut add).unwrap();
        restorer.restore(Ok(vec![rule(2)]), now + later, &mut add).unwrap();
        assert_eq!(restorer.wait(now + later), None);
        assert_eq!(tried, [Some(1), Some(2), Some(2)]);
    }
}
