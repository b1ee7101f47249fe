//! Whether what `up` did for an interface still stands, as its ledger tells of it. Nobody is
//! told when a table is flushed or a file is written over; so `linerate doctor` looks.

use std::fs;

use sys::netlink::{Family, Netlink};

use super::{
    dns,
    ledger::{Deed, Ledger},
    nft, rules,
};

/// Something that is not there any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gone {
    /// A policy rule, by family and priority.
    Rule(String),
    /// The nftables table of the interface, or what stood in it.
    Table(String),
    /// Our name servers in resolv.conf(5).
    ResolvConf,
    /// A kernel setting has another value.
    Setting {
        /// Its path under `/proc/sys`.
        key: String,
        /// What was written.
        ours: String,
        /// What stands there.
        now: String,
    },
}

/// What of an interface of this network namespace is gone.
///
/// # Errors
/// It cannot be told.
pub(crate) fn gone(interface: &str, netlink: &Netlink) -> anyhow::Result<Vec<Gone>> {
    let ledger = Ledger::open(interface)?;
    let rules = rules::missing(&ledger, netlink)?.into_iter().map(|rule| {
        let family = if rule.family == Family::V4 { "IPv4" } else { "IPv6" };
        Gone::Rule(format!("{} of {family}", rule.priority.unwrap_or(0)))
    });
    let mut gone: Vec<Gone> = rules.collect();
    for deed in ledger.deeds() {
        match deed {
            Deed::Table if !nft::stands(interface)? => {
                gone.push(Gone::Table(nft::table_of(interface)));
            }
            Deed::ResolvConf if !dns::file_is_ours(interface) => gone.push(Gone::ResolvConf),
            Deed::Setting(setting) => {
                // A device may have gone, and its settings with it.
                let Ok(now) = fs::read_to_string(&setting.path) else { continue };
                let (path, ours) = (setting.path.display().to_string(), setting.ours.clone());
                if now.trim() != ours {
                    let key = path.trim_start_matches("/proc/sys/").to_owned();
                    gone.push(Gone::Setting { key, ours, now: now.trim().to_owned() });
                }
            }
            // Rules were looked at above; what resolvconf(8) was given is its own.
            _ => {}
        }
    }
    Ok(gone)
}
