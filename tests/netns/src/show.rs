//! Output of `linerate show` that wg(8) does not have: offloads and drops. And the offloads that a
//! whole run disables.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::time::Duration;

use crate::host::Host;
use crate::implementation::Implementation;
use crate::wait::eventually;

/// Names the offloads that every linerate of the run starts without, as for `--offload-off`.
const OFFLOAD_OFF: &str = "LINERATE_NETNS_OFFLOAD_OFF";

/// The offloads that the run disables.
pub fn forced_off() -> Option<String> {
    env::var(OFFLOAD_OFF).ok().filter(|names| !names.is_empty())
}

/// An interface of linerate in the output of `linerate show`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShowOutput {
    /// Whether each offload is on.
    pub offloads: BTreeMap<String, bool>,
    /// How often the kernel refused each offload.
    pub demotions: BTreeMap<String, u64>,
    /// Packets dropped, by reason.
    pub drops: BTreeMap<String, u64>,
    /// The longest packet that arrives at each peer, by its key, if known.
    pub path_mtus: BTreeMap<String, u32>,
    /// The keys of the peers with an agreed post-quantum secret.
    pub post_quantum: BTreeSet<String>,
}

impl ShowOutput {
    /// Runs `linerate show`.
    ///
    /// # Panics
    /// If it fails, or lists no offloads.
    pub fn of(host: &Host, interface: &str) -> Self {
        let program = Implementation::Linerate.path();
        let text = host.run(format!("{} show {interface}", program.display()));
        let shown = Self::parse(&text);
        assert!(!shown.offloads.is_empty(), "`linerate show` lists no offloads:\n{text}");
        shown
    }

    /// Waits until an interface's session with a peer, also a linerate, has a post-quantum secret.
    /// Before that another handshake follows soon after the first.
    ///
    /// # Panics
    /// If it has none within that time.
    pub fn wait_until_post_quantum(host: &Host, interface: &str, peer: &str, within: Duration) {
        eventually("a post-quantum secret", within, || {
            Self::of(host, interface).post_quantum.contains(peer)
        });
    }

    fn parse(text: &str) -> Self {
        let mut shown = Self::default();
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

    /// Whether each of these is off; `all` means every offload.
    pub fn has_off(&self, names: &str) -> bool {
        names.split(',').all(|name| match name {
            "all" => self.offloads.values().all(|on| !on),
            name => self.offloads.get(name) == Some(&false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::ShowOutput;

    const TEXT: &str = "interface: wg0\n  listening port: 51820\n\npeer: abc\n  \
        transfer: 5 B received, 5 B sent\n  path mtu: 1380 inside the tunnel\n\noffloads:\n  tun-tso: on\n  \
        udp-gso: off, refused by the kernel 2 times\n\ndrops:\n  in forged: 3 dropped\n";

    #[test]
    fn only_offloads_refusals_and_drops_are_parsed() {
        let shown = ShowOutput::parse(TEXT);
        assert_eq!(shown.offloads, [("tun-tso".into(), true), ("udp-gso".into(), false)].into());
        assert_eq!(shown.demotions, [("udp-gso".into(), 2)].into());
        assert_eq!(shown.drops, [("in forged".into(), 3)].into());
        assert_eq!(shown.path_mtus, [("abc".into(), 1380)].into());
    }

    #[test]
    fn an_offload_that_is_on_or_unknown_is_not_off() {
        let shown = ShowOutput::parse(TEXT);
        assert!(shown.has_off("udp-gso"));
        for names in ["all", "tun-tso", "udp-gso,tun-tso", "udp-gsp", ""] {
            assert!(!shown.has_off(names), "{names}");
        }
    }
}
