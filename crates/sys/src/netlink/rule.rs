//! Policy rules, which select the routing table of a packet.

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};

use super::{Netlink, NetlinkError};

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The version of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl From<Family> for AddressFamily {
    fn from(family: Family) -> Self {
        match family {
            Family::V4 => Self::Inet,
            Family::V6 => Self::Inet6,
        }
    }
}

impl TryFrom<AddressFamily> for Family {
    type Error = ();

    fn try_from(family: AddressFamily) -> Result<Self, ()> {
        match family {
            AddressFamily::Inet => Ok(Self::V4),
            AddressFamily::Inet6 => Ok(Self::V6),
            _ => Err(()),
        }
    }
}

/// A mark with a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FwMark {
    pub value: u32,
    /// The compared bits of a packet's mark.
    pub mask: u32,
}

impl FwMark {
    /// A mark with a full mask.
    pub fn exact(value: u32) -> Self {
        Self { value, mask: u32::MAX }
    }
}

/// A rule that selects a table by a packet's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The IP version of the packets.
    pub family: Family,
    /// The mark that a packet must have; `None` for any.
    pub fwmark: Option<FwMark>,
    /// Whether the rule applies to packets that do *not* have the mark.
    pub invert: bool,
    /// The selected table.
    pub table: u32,
    /// Rules with lower numbers are tried first. With `None`, the kernel inserts the rule before
    /// all rules except the first.
    pub priority: Option<u32>,
    /// Routes with a prefix of at most this length are ignored.
    pub suppress_prefix_length: Option<u32>,
}

impl Netlink {
    /// Adds a rule.
    ///
    /// # Errors
    /// An error of the kernel: EEXIST if there is an equal one.
    pub fn add_rule(&self, rule: &Rule) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::NewRule(rule.to_message()), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a rule before those of `others` that exist. The kernel adds a rule behind all rules of
    /// the same priority, so the others are added again. Each of them stays in effect throughout:
    /// the kernel allows a second equal rule, and deletes the first of two.
    ///
    /// # Errors
    /// An error of the kernel: EEXIST if there is an equal one.
    pub fn add_rule_before(&self, rule: &Rule, others: &[Rule]) -> Result<(), NetlinkError> {
        self.add_rule(rule)?;
        let is_after = |other: &&Rule| {
            (other.family, other.priority) == (rule.family, rule.priority) && *other != rule
        };
        for other in others.iter().filter(is_after) {
            self.change(RouteNetlinkMessage::NewRule(other.to_message()), NLM_F_CREATE)?;
            // If it did not exist, this deletes the new one.
            self.delete_rule(other)?;
        }
        Ok(())
    }

    /// Deletes the first matching rule. The kernel compares neither fields that are `None` nor
    /// `invert`, so pass a rule from [`Netlink::rules`], with its priority.
    ///
    /// # Errors
    /// An error of the kernel: ENOENT if the rule does not exist.
    pub fn delete_rule(&self, rule: &Rule) -> Result<(), NetlinkError> {
        self.change(RouteNetlinkMessage::DelRule(rule.to_message()), 0)
    }

    /// The rules of a family that a [`Rule`] can represent, by priority.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn rules(&self, family: Family) -> Result<Vec<Rule>, NetlinkError> {
        let mut rules = Vec::new();
        self.dump_rules(family, |message| rules.extend(Rule::from_message(message)))?;
        Ok(rules)
    }

    /// The priority of a family's first rule of any kind after that of the local table; `None` if
    /// that is the only rule.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn first_rule_priority(&self, family: Family) -> Result<Option<u32>, NetlinkError> {
        let mut first: Option<u32> = None;
        self.dump_rules(family, |message| {
            // Priority 0 is encoded without an attribute.
            let priority = message.attributes.iter().find_map(|attribute| match attribute {
                RuleAttribute::Priority(priority) => Some(*priority),
                _ => None,
            });
            first = first.into_iter().chain(priority).min();
        })?;
        Ok(first)
    }

    fn dump_rules(
        &self,
        family: Family,
        mut each: impl FnMut(&RuleMessage),
    ) -> Result<(), NetlinkError> {
        let mut request = RuleMessage::default();
        request.header.family = family.into();
        self.dump(RouteNetlinkMessage::GetRule(request), |reply| {
            if let RouteNetlinkMessage::NewRule(message) = reply {
                each(&message);
            }
        })
    }
}

impl Rule {
    fn to_message(self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = self.family.into();
        message.header.action = RuleAction::ToTable;
        if self.invert {
            message.header.flags.insert(RuleFlags::Invert);
        }
        message.attributes.push(RuleAttribute::Table(self.table));
        if let Some(FwMark { value, mask }) = self.fwmark {
            message.attributes.push(RuleAttribute::FwMark(value));
            message.attributes.push(RuleAttribute::FwMask(mask));
        }
        message.attributes.extend(self.priority.map(RuleAttribute::Priority));
        message
            .attributes
            .extend(self.suppress_prefix_length.map(RuleAttribute::SuppressPrefixLen));
        message
    }

    fn from_message(message: &RuleMessage) -> Option<Self> {
        let header = &message.header;
        if header.action != RuleAction::ToTable
            || (header.src_len, header.dst_len, header.tos) != (0, 0, 0)
        {
            return None;
        }
        let mut rule = Self {
            family: Family::try_from(header.family).ok()?,
            fwmark: None,
            invert: header.flags.contains(RuleFlags::Invert),
            table: header.table.into(),
            // Priority 0 is encoded without an attribute.
            priority: Some(0),
            suppress_prefix_length: None,
        };
        let (mut mark, mut mask) = (0, None);
        for attribute in &message.attributes {
            match attribute {
                // Mark 0 is encoded without an attribute.
                RuleAttribute::FwMark(value) => mark = *value,
                RuleAttribute::FwMask(bits) => mask = Some(*bits),
                RuleAttribute::Protocol(_) => {}
                RuleAttribute::Table(table) => rule.table = *table,
                RuleAttribute::Priority(priority) => rule.priority = Some(*priority),
                RuleAttribute::SuppressPrefixLen(length) => {
                    // -1 means none.
                    rule.suppress_prefix_length = Some(*length).filter(|&l| l != u32::MAX);
                }
                RuleAttribute::SuppressIfGroup(u32::MAX) => {}
                _ => return None,
            }
        }
        rule.fwmark = mask.map(|mask| FwMark { value: mark, mask });
        Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_with_an_unsupported_selector_is_ignored() {
        let rule = Rule {
            family: Family::V4,
            fwmark: Some(FwMark::exact(7)),
            invert: true,
            table: 51_820,
            priority: Some(9),
            suppress_prefix_length: None,
        };
        let message = rule.to_message();
        assert_eq!(Rule::from_message(&message), Some(rule));
        let changed = |change: &dyn Fn(&mut RuleMessage)| {
            let mut message = message.clone();
            change(&mut message);
            Rule::from_message(&message)
        };
        assert_eq!(changed(&|message| message.header.src_len = 8), None, "from 10.0.0.0/8");
        assert_eq!(changed(&|message| message.header.dst_len = 8), None, "to 10.0.0.0/8");
        assert_eq!(changed(&|message| message.header.tos = 0x10), None, "tos 0x10");
        for attribute in [RuleAttribute::Iifname("lo".into()), RuleAttribute::SuppressIfGroup(1)] {
            let more = |message: &mut RuleMessage| message.attributes.push(attribute.clone());
            assert_eq!(changed(&more), None, "{attribute:?}");
        }
        let none = RuleAttribute::SuppressIfGroup(u32::MAX);
        assert_eq!(changed(&|message| message.attributes.push(none.clone())), Some(rule));
    }
}
