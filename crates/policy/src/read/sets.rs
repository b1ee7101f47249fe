//! The section ipsets: named sets of networks, with added and removed parts.

use std::collections::BTreeMap;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{At, Reader};
use crate::{alias::Alias, refusal::Reason};

/// The maximum nesting of sets.
const DEPTH: usize = 16;

/// A part of a set, which is added or removed in the order of the text.
struct Part<'a> {
    at: At<'a>,
    is_removed: bool,
    alias: Alias,
}

type Sets<'a> = BTreeMap<&'a str, Vec<Part<'a>>>;

impl Reader {
    pub(super) fn sets(&mut self, at: &At<'_>) {
        let entries = self.entries(at);
        let names = entries.iter().map(|(name, _)| ((*name).to_owned(), Vec::new()));
        self.policy.sets = names.collect();
        let mut sets = Sets::new();
        for (name, parts) in entries {
            if !name.starts_with("ipset:") {
                self.fault(&parts, Reason::WrongType("a name that begins with ipset:"));
            }
            let list = self.list(&parts).into_iter();
            sets.insert(name, list.filter_map(|at| self.part(at)).collect());
        }
        let mut done = BTreeMap::new();
        for name in sets.keys() {
            self.flatten(&sets, name, 0, &mut done);
        }
        self.policy.sets = done;
    }

    fn part<'a>(&mut self, at: At<'a>) -> Option<Part<'a>> {
        let text = self.text(&at)?.trim();
        let (is_removed, name) = match text.split_once(char::is_whitespace) {
            Some(("add", name)) => (false, name),
            Some(("remove", name)) => (true, name),
            _ => (false, text),
        };
        let alias = match Alias::parse(name.trim().trim_start_matches("host:")) {
            Ok(alias @ (Alias::Net(_) | Alias::Host(_) | Alias::Set(_))) => alias,
            Ok(_) => {
                self.fault(&at, Reason::WrongType("a network, a host or an ipset"));
                return None;
            }
            Err(reason) => {
                self.fault(&at, reason);
                return None;
            }
        };
        self.defined(&at, &alias, "");
        Some(Part { at, is_removed, alias })
    }

    /// The networks of a set, after its parts in their order. Each set is computed once.
    fn flatten(
        &mut self,
        sets: &Sets<'_>,
        name: &str,
        depth: usize,
        done: &mut BTreeMap<String, Vec<IpNet>>,
    ) -> Vec<IpNet> {
        if let Some(nets) = done.get(name) {
            return nets.clone();
        }
        let mut nets: Vec<IpNet> = Vec::new();
        for part in sets.get(name).into_iter().flatten() {
            let of_part = match &part.alias {
                Alias::Set(_) if depth == DEPTH => {
                    self.fault(&part.at, Reason::SetInItself);
                    Vec::new()
                }
                Alias::Set(other) => self.flatten(sets, other, depth + 1, done),
                Alias::Host(host) => self.policy.hosts.get(host).copied().into_iter().collect(),
                Alias::Net(net) => vec![*net],
                _ => Vec::new(),
            };
            if part.is_removed {
                for removed in &of_part {
                    nets = nets.iter().flat_map(|net| without(net, removed)).collect();
                }
            } else {
                nets.extend(of_part);
            }
        }
        nets.sort();
        nets.dedup();
        done.insert(name.to_owned(), nets.clone());
        nets
    }
}

/// Removes `gone` from a network. Splits the network in halves until `gone` is one of them.
fn without(net: &IpNet, removed: &IpNet) -> Vec<IpNet> {
    if removed.contains(net) {
        return Vec::new();
    }
    if !net.contains(removed) {
        return vec![*net];
    }
    let mut remain = Vec::new();
    for length in net.prefix_len() + 1..=removed.prefix_len() {
        remain.extend(sibling(removed, length));
    }
    remain
}

/// The other half of the network of length `length - 1` that contains `of`.
fn sibling(of: &IpNet, length: u8) -> Option<IpNet> {
    match of {
        IpNet::V4(net) => {
            let flipped = net.network().to_bits() ^ 1_u32.checked_shl(32 - u32::from(length))?;
            Ipv4Net::new(flipped.into(), length).ok().map(|net| IpNet::V4(net.trunc()))
        }
        IpNet::V6(net) => {
            let flipped = net.network().to_bits() ^ 1_u128.checked_shl(128 - u32::from(length))?;
            Ipv6Net::new(flipped.into(), length).ok().map(|net| IpNet::V6(net.trunc()))
        }
    }
}
