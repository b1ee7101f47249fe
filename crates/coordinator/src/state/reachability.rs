//! Explains why one machine does not reach another, by the coordinator's data. The checks are in the order in which a
//! connection can fail.
//!
//! ```text
//!   machine exists? ──► key valid? ──► online? ──► policy allows it? ──► route approved? ──► primary?
//! ```

use std::net::IpAddr;

use ipnet::IpNet;
use tailnet::map_messages::FilterRule;

use super::State;
use crate::{
    frame::Frame,
    nodes::Entry,
    object::{Node, NodeId},
    time::Time,
};

/// The protocol of a port: TCP.
const TCP: i32 = 6;

/// A check and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReachabilityStep {
    /// The condition.
    pub question: String,
    /// Whether the condition is met.
    pub is_met: bool,
    /// The actual situation.
    pub answer: String,
}

/// The destination of packets.
struct Target<'a> {
    entry: &'a Entry,
    /// The address and the network behind it, if it is a router.
    behind: Option<(IpAddr, IpNet)>,
}

impl State {
    /// Checks step by step whether one machine reaches another. Ends with the first condition that is not met.
    pub fn check_reachability(
        &self,
        from: &str,
        to: &str,
        port: Option<u16>,
        now: Time,
    ) -> Vec<ReachabilityStep> {
        let mut steps = Vec::new();
        let _ = self.check_steps(from, to, port, now, &mut steps);
        steps
    }

    /// Returns `None` after the first condition that is not met.
    fn check_steps(
        &self,
        from: &str,
        to: &str,
        port: Option<u16>,
        now: Time,
        steps: &mut Vec<ReachabilityStep>,
    ) -> Option<()> {
        let mut step = |question: String, is_met: bool, answer: String| {
            steps.push(ReachabilityStep { question, is_met, answer });
            is_met.then_some(())
        };
        let unknown = "no machine has this name, number or address";
        let source = self.find_entry(from);
        let answer = source.map_or_else(|| unknown.into(), |entry| described(&entry.node));
        step(format!("{from} is in the network"), source.is_some(), answer)?;
        let source = source?;
        let target = self.find_target(to);
        let answer = match &target {
            None => unknown.into(),
            Some(Target { entry, behind: None }) => described(&entry.node),
            Some(Target { entry, behind: Some((_, net)) }) => {
                format!("behind {}, which offers {net}", entry.node.name)
            }
        };
        step(format!("{to} is in the network"), target.is_some(), answer)?;
        let Target { entry, behind } = target?;
        for node in [&source.node, &entry.node] {
            let answer = match node.expires {
                None => "it does not expire".to_owned(),
                Some(at) => format!("expires {}", at.text()),
            };
            let question = format!("The key of {} is valid", node.name);
            step(question, !node.has_expired(now), answer)?;
        }
        for entry in [source, entry] {
            let answer = match entry.node.last_seen {
                _ if entry.online => "connected".to_owned(),
                Some(seen) => format!("last seen {}", seen.text()),
                None => "never connected".to_owned(),
            };
            step(format!("{} is online", entry.node.name), entry.online, answer)?;
        }
        let accepts = self.accepts(source, entry, behind.map(|(address, _)| address), port);
        let what = port.map(|port| format!(" on port {port}")).unwrap_or_default();
        let answer = match accepts {
            true => format!("a rule allows {}", source.node.name),
            false => format!("no rule allows {}{what}", source.node.name),
        };
        step(format!("The policy allows it{what}"), accepts, answer)?;
        let (_, net) = behind?;
        let name = &entry.node.name;
        let is_approved = entry.node.routes().any(|own| own == net);
        let answer = match is_approved {
            true => format!("{name} may route {net}"),
            false => format!("{name} offers {net}, which is not approved"),
        };
        step(format!("The route to {net} is approved"), is_approved, answer)?;
        let is_primary = net.prefix_len() == 0 || entry.node.primaries.contains(&net);
        let answer = match is_primary {
            true => format!("{net} is routed to {name}; the other machine must accept routes"),
            false => format!("{net} is routed to another machine than {name}"),
        };
        step(format!("{net} is routed"), is_primary, answer)
    }

    /// The machine with this name, number or address.
    fn find_entry(&self, text: &str) -> Option<&Entry> {
        let text = text.trim().trim_end_matches('.').to_lowercase();
        let name = text.strip_suffix(&format!(".{}", self.settings.base_domain));
        let name = name.unwrap_or(&text);
        let address: Option<IpAddr> = text.parse().ok();
        let by_number = || self.nodes.get(NodeId(text.parse().ok()?));
        let is_it = |entry: &&Entry| {
            let node = &entry.node;
            node.name == name || address.is_some_and(|own| own == node.v4 || own == node.v6)
        };
        self.nodes.all().find(is_it).or_else(by_number)
    }

    /// The machine with this name, number or address, or the best router that offers the address.
    fn find_target(&self, text: &str) -> Option<Target<'_>> {
        if let Some(entry) = self.find_entry(text) {
            return Some(Target { entry, behind: None });
        }
        let address: IpAddr = text.trim().parse().ok()?;
        let offers = self.nodes.all().flat_map(|entry| {
            let nets = entry.node.hostinfo.routable.iter();
            nets.filter(|net| net.contains(&address)).map(move |net| (entry, *net))
        });
        let is_better = |(entry, net): &(&Entry, IpNet)| {
            let is_approved = entry.node.routes().any(|own| own == *net);
            (is_approved, net.prefix_len(), entry.node.primaries.contains(net), entry.online)
        };
        let (entry, net) = offers.max_by_key(is_better)?;
        Some(Target { entry, behind: Some((address, net)) })
    }

    /// Whether a rule of the target's filter allows the source to reach the target, or the address behind it.
    fn accepts(
        &self,
        source: &Entry,
        target: &Entry,
        behind: Option<IpAddr>,
        port: Option<u16>,
    ) -> bool {
        let filter = Frame { parts: self.policies.access().filter(target.index), key: None }.text();
        let rules: Vec<FilterRule> = serde_json::from_str(&filter).unwrap_or_default();
        let from = [IpAddr::from(source.node.v4), IpAddr::from(source.node.v6)];
        let to = match behind {
            Some(address) => vec![address],
            None => vec![target.node.v4.into(), target.node.v6.into()],
        };
        rules.iter().any(|rule| {
            let is_from = rule.sources.iter().any(|text| has_any(text, &from));
            let is_protocol =
                port.is_none() || rule.protocols.is_empty() || rule.protocols.contains(&TCP);
            is_from
                && is_protocol
                && rule.destinations.iter().any(|destination| {
                    let ports = destination.ports;
                    has_any(&destination.addresses, &to)
                        && port.is_none_or(|port| (ports.first..=ports.last).contains(&port))
                })
        })
    }
}

fn described(node: &Node) -> String {
    format!("{}, {}", node.v4, node.v6)
}

/// Whether the text of a rule contains any of these addresses.
fn has_any(text: &str, addresses: &[IpAddr]) -> bool {
    let range = || {
        let (first, last) = text.split_once('-')?;
        Some((first.parse::<IpAddr>().ok()?, last.parse::<IpAddr>().ok()?))
    };
    addresses.iter().any(|address| {
        text == "*"
            || text.parse::<IpAddr>().is_ok_and(|own| own == *address)
            || text.parse::<IpNet>().is_ok_and(|net| net.contains(address))
            || range().is_some_and(|(first, last)| {
                first.is_ipv4() == address.is_ipv4() && (first..=last).contains(address)
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_texts_contain_their_addresses() {
        let four: IpAddr = "100.64.0.5".parse().unwrap();
        let six: IpAddr = "fd7a:115c:a1e0::5".parse().unwrap();
        for (text, has) in [
            ("*", [true, true]),
            ("100.64.0.5", [true, false]),
            ("100.64.0.0/10", [true, false]),
            ("100.64.0.6-100.64.0.9", [false, false]),
            ("100.64.0.0-100.115.91.255", [true, false]),
            ("fd7a:115c:a1e0::/48", [false, true]),
            ("::-ffff::", [false, true]),
            ("cap:x", [false, false]),
        ] {
            assert_eq!([has_any(text, &[four]), has_any(text, &[six])], has, "{text}");
        }
    }
}
