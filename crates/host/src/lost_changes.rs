//! Checks by the undo log whether the changes by `up` for an interface are still in effect. A
//! flushed table or an overwritten file causes no event, so `linerate doctor` calls this.

use std::{fs, iter};

use sys::netlink::{Family, Netlink, Rule};

use super::{
    dns, nft, rules,
    undo_log::{Undo, UndoLog},
};

/// A change that another program has undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostChange {
    /// A deleted policy rule, by priority and family.
    Rule(String),
    /// The deleted nftables table of the interface, or one with deleted rules.
    Table(String),
    /// Our name servers are not in resolv.conf(5).
    ResolvConf,
    /// A kernel setting has another value.
    Setting {
        /// Its path under `/proc/sys`.
        key: String,
        /// The value that was written.
        ours: String,
        /// The current value.
        current: String,
    },
}

/// The lost changes of an interface in this network namespace, and the errors of failed checks.
pub fn lost_changes(interface: &str, netlink: &Netlink) -> (Vec<LostChange>, Vec<anyhow::Error>) {
    let log = match UndoLog::open(interface) {
        Ok(log) => log,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let rules = rules::missing(&log, netlink);
    let rules = rules.map(|rules| rules.iter().map(of_rule).collect::<Vec<_>>());
    let others = log.entries().iter().map(|entry| of_entry(interface, entry));
    let (mut lost, mut unknown) = (Vec::new(), Vec::new());
    for result in iter::once(rules).chain(others.map(|result| result.map(Vec::from_iter))) {
        match result {
            Ok(found) => lost.extend(found),
            Err(error) => unknown.push(error),
        }
    }
    (lost, unknown)
}

fn of_rule(rule: &Rule) -> LostChange {
    let family = if rule.family == Family::V4 { "IPv4" } else { "IPv6" };
    LostChange::Rule(format!("{} of {family}", rule.priority.unwrap_or(0)))
}

/// The lost change of an entry other than a rule.
fn of_entry(interface: &str, entry: &Undo) -> anyhow::Result<Option<LostChange>> {
    Ok(match entry {
        Undo::Table if !nft::is_intact(interface)? => {
            Some(LostChange::Table(nft::table_of(interface)))
        }
        Undo::ResolvConf if !dns::file_is_ours(interface) => Some(LostChange::ResolvConf),
        Undo::Setting(setting) => {
            // A device may have been removed together with its settings.
            let Ok(current) = fs::read_to_string(&setting.path) else { return Ok(None) };
            let (path, ours, current) =
                (setting.path.display(), setting.ours.clone(), current.trim());
            let key = path.to_string().trim_start_matches("/proc/sys/").to_owned();
            (current != ours).then(|| LostChange::Setting {
                key,
                ours,
                current: current.to_owned(),
            })
        }
        // resolvconf(8) maintains its entries.
        _ => None,
    })
}
