//! The filter policy as it is sent.

use std::net::IpAddr;

use packet::filter::{AddressRange, Destination, Policy, Rule};
use serde::{Deserialize, Serialize};

/// A [`Policy`] for serialization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterPolicy {
    local: Vec<(IpAddr, IpAddr)>,
    rules: Vec<FilterRule>,
    open_protocols: Vec<u8>,
    shields_up: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FilterRule {
    protocols: Vec<u8>,
    sources: Vec<(IpAddr, IpAddr)>,
    destinations: Vec<(IpAddr, IpAddr, u16, u16)>,
}

impl From<&Policy> for FilterPolicy {
    fn from(policy: &Policy) -> Self {
        let pair = |range: &AddressRange| (range.first(), range.last());
        let rule = |rule: &Rule| FilterRule {
            protocols: rule.protocols.clone(),
            sources: rule.sources.iter().map(pair).collect(),
            destinations: rule
                .destinations
                .iter()
                .map(|to| {
                    let (first, last) = pair(&to.addresses);
                    (first, last, *to.ports.start(), *to.ports.end())
                })
                .collect(),
        };
        Self {
            local: policy.local.iter().map(pair).collect(),
            rules: policy.rules.iter().map(rule).collect(),
            open_protocols: policy.open_protocols.clone(),
            shields_up: policy.shields_up,
        }
    }
}

impl From<&FilterPolicy> for Policy {
    /// An invalid range accepts nothing.
    fn from(sent: &FilterPolicy) -> Self {
        let range = |&(first, last): &(IpAddr, IpAddr)| AddressRange::new(first, last);
        let to = |&(first, last, from, to): &(IpAddr, IpAddr, u16, u16)| {
            let addresses = AddressRange::new(first, last)?;
            Some(Destination { addresses, ports: from..=to })
        };
        let rule = |rule: &FilterRule| Rule {
            protocols: rule.protocols.clone(),
            sources: rule.sources.iter().filter_map(range).collect(),
            destinations: rule.destinations.iter().filter_map(to).collect(),
        };
        Self {
            local: sent.local.iter().filter_map(range).collect(),
            rules: sent.rules.iter().map(rule).collect(),
            open_protocols: sent.open_protocols.clone(),
            shields_up: sent.shields_up,
        }
    }
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;
    use crate::{
        data_plane_messages::ToDataPlane,
        framing::{Reader, tests::parts},
    };

    #[test]
    fn policy_is_unchanged_after_transfer() {
        let net = |text: &str| {
            let net: IpNet = text.parse().unwrap();
            AddressRange::prefix(net.addr(), net.prefix_len()).unwrap()
        };
        let policy = Policy {
            local: vec![net("100.64.0.1/32"), net("fd7a::1/128")],
            rules: vec![Rule {
                protocols: vec![6, 17],
                sources: vec![AddressRange::V4, net("10.0.0.0/8")],
                destinations: vec![Destination { addresses: net("100.64.0.1/32"), ports: 22..=80 }],
            }],
            open_protocols: vec![99],
            shields_up: true,
        };
        let sent = FilterPolicy::from(&policy);
        let mut reader = Reader::default();
        let read = reader.handle_part(&parts(&ToDataPlane::Filter(sent))[0]);
        let Ok(Some(ToDataPlane::Filter(read))) = read else { panic!("{read:?}") };
        assert_eq!(Policy::from(&read), policy);
    }
}
