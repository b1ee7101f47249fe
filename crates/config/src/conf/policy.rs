//! Keys for policy rules and a separate routing table. wg-quick(8) does not have them.
//!
//! ```text
//!  FwMask            = 0xff00   the bits of marks that linerate uses; they contain FwMark
//!  DefaultRouteTable = 1000     the table of a default route
//!  RulePriority      = 100      its rules have the priorities 100 and 101
//!  ConnectedFirst    = false    the peers' routes precede connected networks
//! ```

use ipnet::IpNet;

use super::{
    Peer, Reason, Table,
    error::Fault,
    lines::{Entries, Key},
    parse::{boolean, or_off},
};
use crate::value::{self, ValueError, Wanted};

/// The highest priority for which both rules precede that of the main table, 32766.
const LAST_PRIORITY: u32 = 32_764;
/// The tables `default`, `main` and `local`.
const COMMON_TABLES: std::ops::RangeInclusive<u32> = 253..=255;

/// Settings that select a separate routing table.
const OWN_TABLE: &str = "a default route in AllowedIPs, or ConnectedFirst = false";

/// Policy rules for a separate routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The bits of a mark that rules compare and change; all if `None`.
    pub mask: Option<u32>,
    /// The table of a default route. If `None`, its number is the mark, or a free number.
    pub table: Option<u32>,
    /// The priority of the first rule; the second rule has the next one. If `None`, they precede all
    /// present rules.
    pub priority: Option<u32>,
    /// Whether connected networks precede the peers' routes.
    pub connected_first: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { mask: None, table: None, priority: None, connected_first: true }
    }
}

impl Policy {
    pub(super) fn read(entries: &Entries<'_>, table: Table) -> Result<Self, Fault> {
        // Rules exist only with `Table = auto`.
        if table != Table::Auto
            && let Some(entry) = entries.entries.iter().find(|entry| entry.key.is_of_policy())
        {
            return Err(entry.fault(Reason::NoEffect("a Table that is not auto")));
        }
        let mark = entries.one(Key::FwMark, |text| or_off(text, value::mark))?.unwrap_or(0);
        let mask = entries.one(Key::FwMask, |text| mask(text, mark))?;
        if let Some(entry) = entries.of(Key::FwMask).next()
            && mark == 0
        {
            return Err(entry.fault(Reason::Needs("FwMark")));
        }
        Ok(Self {
            mask,
            table: entries.one(Key::DefaultRouteTable, own_table)?,
            priority: entries.one(Key::RulePriority, priority)?,
            connected_first: entries.one(Key::ConnectedFirst, boolean)?.unwrap_or(true),
        })
    }

    /// Whether a peer's network needs the separate table. Otherwise these keys are useless.
    pub fn is_for_own_table(&self, net: IpNet) -> bool {
        net.prefix_len() == 0 || !self.connected_first
    }

    /// Refuses keys that do not affect the networks of these peers. If the peers lack networks, a hook
    /// or `wg set` may still add some.
    pub(super) fn suits(&self, entries: &Entries<'_>, peers: &[Peer]) -> Result<(), Fault> {
        let mut nets = peers.iter().flat_map(|peer| &peer.allowed_ips).peekable();
        if nets.peek().is_none() || nets.any(|net| self.is_for_own_table(*net)) {
            return Ok(());
        }
        let mut ours = entries.entries.iter().filter(|entry| entry.key.is_of_policy());
        match ours.find(|entry| entry.key != Key::ConnectedFirst) {
            Some(entry) => Err(entry.fault(Reason::Needs(OWN_TABLE))),
            None => Ok(()),
        }
    }
}

fn mask(text: &str, mark: u32) -> Result<u32, ValueError> {
    let mask = value::u32_of_either_base(text).filter(|&mask| mask != 0);
    let mask = mask.ok_or_else(|| ValueError::new(Wanted::Mask, text))?;
    if mark & !mask == 0 { Ok(mask) } else { Err(ValueError::new(Wanted::MaskOfMark, text)) }
}

fn own_table(text: &str) -> Result<u32, ValueError> {
    value::u32_of_either_base(text)
        .filter(|table| *table != 0 && !COMMON_TABLES.contains(table))
        .ok_or_else(|| ValueError::new(Wanted::OwnTable, text))
}

fn priority(text: &str) -> Result<u32, ValueError> {
    value::decimal(text)
        .filter(|priority| (1..=LAST_PRIORITY).contains(priority))
        .ok_or_else(|| ValueError::new(Wanted::RulePriority, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::Conf;

    /// A file with a peer that has these networks.
    fn parse_beside(lines: &str, allowed_ips: &str) -> Result<Policy, String> {
        let peer = format!("[Peer]\nPublicKey = {}E=\n", "A".repeat(42));
        let text = format!("[Interface]\n{lines}\n{peer}AllowedIPs = {allowed_ips}\n");
        let conf = Conf::parse("wg0.conf", &text);
        conf.map(|conf| conf.interface.policy).map_err(|error| error.to_string())
    }

    fn parse(lines: &str) -> Result<Policy, String> {
        parse_beside(lines, "::/0")
    }

    #[test]
    fn every_key_is_parsed_and_optional() {
        assert_eq!(parse("FwMark = 7"), Ok(Policy::default()));
        let text = "FwMask = 0xff00\nFwMark = 0x100\nDefaultRouteTable = 1000\n\
                    RulePriority = 32764\nConnectedFirst = False\nTable = auto";
        let policy = Policy {
            mask: Some(0xff00),
            table: Some(1000),
            priority: Some(32764),
            connected_first: false,
        };
        assert_eq!(parse(text), Ok(policy));
    }

    #[test]
    fn invalid_or_ineffective_keys_are_refused_with_their_line() {
        for (lines, error) in [
            ("FwMark = 1\nFwMask = 0", "3: FwMask: \"0\" is not a mask"),
            ("FwMark = 1\nFwMask = all", "3: FwMask: \"all\" is not a mask"),
            ("FwMark = 0x101\nFwMask = 0xff", "3: FwMask: \"0xff\" is not a mask that holds"),
            ("FwMask = 0xff", "2: FwMask: this key requires FwMark"),
            ("FwMask = 0xff\nFwMark = off", "2: FwMask: this key requires FwMark"),
            ("DefaultRouteTable = main", "2: DefaultRouteTable: \"main\" is not the number"),
            ("DefaultRouteTable = 254", "2: DefaultRouteTable: \"254\" is not the number"),
            ("DefaultRouteTable = 0", "2: DefaultRouteTable: \"0\" is not the number"),
            ("RulePriority = 0", "2: RulePriority: \"0\" is not the priority"),
            ("RulePriority = 32765", "2: RulePriority: \"32765\" is not the priority"),
            ("ConnectedFirst = maybe", "2: ConnectedFirst: \"maybe\" is not true or false"),
            (
                "RulePriority = 1\nTable = off",
                "2: RulePriority: this key cannot be used together with",
            ),
            (
                "Table = 7\nConnectedFirst = 1",
                "3: ConnectedFirst: this key cannot be used together with",
            ),
        ] {
            let shown = parse(lines).unwrap_err();
            assert!(shown.starts_with(&format!("wg0.conf:{error}")), "{lines}: {shown}");
        }
    }

    #[test]
    fn keys_without_effect_on_the_peers_networks_are_refused() {
        for lines in ["DefaultRouteTable = 7", "RulePriority = 100", "FwMark = 1\nFwMask = 1"] {
            let key = lines.lines().last().unwrap().split(' ').next().unwrap();
            let line = lines.lines().count() + 1;
            let shown = parse_beside(lines, "10.0.0.0/8, fd00::/8").unwrap_err();
            let expected = format!(
                "wg0.conf:{line}: {key}: this key requires a default route in \
                 AllowedIPs, or ConnectedFirst = false"
            );
            assert_eq!(shown, expected);
            // This mask makes all networks use the separate table.
            let lines = format!("{lines}\nConnectedFirst = false");
            assert!(parse_beside(&lines, "10.0.0.0/8").is_ok(), "{lines}");
            assert!(parse_beside(&lines, "").is_ok(), "{lines}: no network yet");
        }
        assert!(parse_beside("ConnectedFirst = true", "10.0.0.0/8").is_ok());
        assert!(
            Conf::parse("wg0.conf", "[Interface]\nRulePriority = 100\n").is_ok(),
            "no peer yet"
        );
        assert!(parse_beside("RulePriority = 100\nSaveConfig = true", "10.0.0.0/8").is_ok());
    }
}
