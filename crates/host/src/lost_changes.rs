//! Whether what `up` did for an interface is still in force, by its undo log. A flushed table or an
//! overwritten file causes no event, so `linerate doctor` checks.

use std::{fs, iter};

use sys::netlink::{Family, Netlink, Rule};

use super::{
    dns, nft, rules,
    undo_log::{Undo, UndoLog},
};

/// Something that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LostChange {
    /// A policy rule, by family and priority.
    Rule(String),
    /// The nftables table of the interface, or the rules in it.
    Table(String),
    /// Our name servers in resolv.conf(5).
    ResolvConf,
    /// A kernel setting has another value.
    Setting {
        /// Its path under `/proc/sys`.
        key: String,
        /// What was written.
        ours: String,
        /// The value now.
        current: String,
    },
}

/// What is gone of an interface in this network namespace, and the errors of what could not be
/// checked.
pub fn lost_changes(interface: &str, netlink: &Netlink) -> (Vec<LostChange>, Vec<anyhow::Error>) {
    let log = match UndoLog::open(interface) {
        Ok(log) => log,
        Err(error) => return (Vec::new(), vec![error]),
    };
    let rules = rules::missing(&log, netlink);
    let rules = rules.map(|rules| rules.iter().map(of_rule).collect::<Vec<_>>());
    let others = log.entries().iter().map(|entry| of_entry(interface, entry));
    let (mut lost, mut unknown) = (Vec::new(), Vec::new());
    for told in iter::once(rules).chain(others.map(|told| told.map(Vec::from_iter))) {
        match told {
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

/// What is gone of one entry other than a rule.
fn of_entry(interface: &str, entry: &Undo) -> anyhow::Result<Option<LostChange>> {
    Ok(match entry {
        Undo::Table if !nft::is_intact(interface)? => {
            Some(LostChange::Table(nft::table_of(interface)))
        }
        Undo::ResolvConf if !dns::file_is_ours(interface) => Some(LostChange::ResolvConf),
        Undo::Setting(setting) => {
            // A device may have gone, and its settings with it.
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
        // resolvconf(8) keeps its entries itself.
        _ => None,
    })
}
