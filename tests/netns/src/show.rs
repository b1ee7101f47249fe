//! What `linerate show` tells beyond wg(8): the offloads, and what was dropped and why. And the
//! offloads that a whole run is forced to do without.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use crate::host::Host;
use crate::implementation::Implementation;
use crate::wait::eventually;

/// Names the offloads that every linerate of the run starts without, as `--offload-off` takes them.
const OFFLOAD_OFF: &str = "LINERATE_NETNS_OFFLOAD_OFF";

/// What the run does without, if anything.
pub fn forced_off() -> Option<String> {
    env::var(OFFLOAD_OFF).ok().filter(|names| !names.is_empty())
}

/// An interface of linerate, as `linerate show` tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Whether each offload is on.
    pub offloads: BTreeMap<String, bool>,
    /// How often the kernel refused each, where it did.
    pub demotions: BTreeMap<String, u64>,
    /// Packets dropped, by reason, where any were.
    pub drops: BTreeMap<String, u64>,
    /// The longest packet that arrives at each peer, by its key, where it is known.
    pub path_mtus: BTreeMap<String, u32>,
    /// The keys of the peers that a secret against quantum computers was agreed on with.
    pub post_quantum: BTreeSet<String>,
}

impl Shown {
    /// Asks linerate.
    ///
    /// # Panics
    /// When it does not answer, or names no offloads.
    pub fn of(host: &Host, interface: &str) -> Shown {
        let program = Implementation::Linerate.path();
        let text = host.run(format!("{} show {interface}", program.display()));
        let shown = Shown::parse(&text);
        assert!(!shown.offloads.is_empty(), "`linerate show` names no offloads:\n{text}");
        shown
    }

    /// Waits until an interface's session with a peer, a linerate too, has a secret against quantum
    /// computers. Before that another handshake is to come, soon after the first.
    ///
    /// # Panics
    /// When it has none within that time.
    pub fn agree(host: &Host, interface: &str, peer: &str, within: Duration) {
        eventually("a secret against quantum computers", within, || {
            Shown::of(host, interface).post_quantum.contains(peer)
        });
    }

    fn parse(text: &str) -> Shown {
        let mut shown = Shown::default();
        let mut section = "";
        for line in text.lines() {
            if !line.starts_with(' ') {
                section = line;
                continue;
            }
            let Some((name, value)) = line.trim().split_once(": ") else { continue };
            let mut words = value.split([' ', ',']);
            let (name, first) = (name.to_owned(), words.next().unwrap_or_default());
            match section {
                "offloads:" => {
                    if let Some(count) = words.find_map(|word| word.parse().ok()) {
                        shown.demotions.insert(name.clone(), count);
                    }
                    shown.offloads.insert(name, first == "on");
                }
                "drops:" => {
                    shown.drops.insert(name, first.parse().expect("a count is a number"));
                }
                section => match (&*name, section.strip_prefix("peer: ")) {
                    ("path mtu", Some(peer)) => {
                        let mtu = first.parse().expect("an MTU is a number");
                        shown.path_mtus.insert(peer.to_owned(), mtu);
                    }
                    ("post-quantum", Some(peer)) if first.starts_with("yes") => {
                        shown.post_quantum.insert(peer.to_owned());
                    }
                    _ => {}
                },
            }
        }
        shown
    }

    /// Whether each of these is off; `all` is each that there is.
    pub fn has_off(&self, names: &str) -> bool {
        names.split(',').all(|name| match name {
            "all" => self.offloads.values().all(|on| !on),
            name => self.offloads.get(name) == Some(&false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Shown;

    const TEXT: &str = "interface: wg0\n  listening port: 51820\n\npeer: abc\n  \
        transfer: 5 B received, 5 B sent\n  path mtu: 1380 inside the tunnel\n\noffloads:\n  tun-tso: on\n  \
        udp-gso: off, refused by the kernel 2 times\n\ndrops:\n  in forged: 3 dropped\n";

    #[test]
    fn offloads_refusals_and_drops_are_read_and_nothing_else() {
        let shown = Shown::parse(TEXT);
        assert_eq!(shown.offloads, [("tun-tso".into(), true), ("udp-gso".into(), false)].into());
        assert_eq!(shown.demotions, [("udp-gso".into(), 2)].into());
        assert_eq!(shown.drops, [("in forged".into(), 3)].into());
        assert_eq!(shown.path_mtus, [("abc".into(), 1380)].into());
    }

    #[test]
    fn what_is_on_or_unknown_is_not_off() {
        let shown = Shown::parse(TEXT);
        assert!(shown.has_off("udp-gso"));
        for names in ["all", "tun-tso", "udp-gso,tun-tso", "udp-gsp", ""] {
            assert!(!shown.has_off(names), "{names}");
        }
    }
}
