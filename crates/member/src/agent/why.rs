//! Why a node is reached, or is not: each thing that a packet meets, in its order.

use std::{net::IpAddr, time::Duration};

use tailnet::{
    line::Path,
    local::{State, Why, WhyStep},
    messages::Node,
    netcheck::Mapping,
    paths::{Candidate, Chance, Fate, Origins, Shown},
};

use super::{core::Agent, status::short};

/// A session is as old as this at most (WireGuard's REJECT_AFTER_TIME).
const SESSION: Duration = Duration::from_secs(180);

/// A peer is looked for directly for so long after something was sent to it.
const ACTIVE: Duration = Duration::from_secs(45);

impl Agent {
    /// What is in the way to `NODE[:PORT]`.
    pub fn why(&self, target: &str) -> Why {
        let mut steps = Vec::new();
        let reaches = self.look(target, &mut steps).is_some();
        Why { steps, reaches }
    }

    /// `None` where something is in the way.
    fn look(&self, target: &str, steps: &mut Vec<WhyStep>) -> Option<()> {
        let mut told = |ok: bool, text: String| {
            steps.push(WhyStep { ok, text });
            ok.then_some(())
        };
        let state = self.node_state();
        told(state == State::Running, format!("this node: {state}"))?;
        let control = match self.login.connected {
            true => "the coordinator is connected".to_owned(),
            false => "the coordinator is not connected: the last map serves".to_owned(),
        };
        told(true, control)?;
        let Some(node) = self.named(target) else {
            told(false, format!("the map has no node {target}: does it exist, may it be seen?"))?;
            return None;
        };
        let online = match node.online {
            Some(true) => "connected to the coordinator",
            Some(false) => "not connected to the coordinator",
            None => "nobody knows whether it is connected",
        };
        let addresses: Vec<String> =
            node.addresses.iter().map(|net| net.addr().to_string()).collect();
        told(true, format!("the map: {} is {}, {online}", short(node), addresses.join(", ")))?;
        let expired = node.has_expired(self.map.time(self.clock.wall));
        told(!expired, format!("its key: {}", if expired { "has expired" } else { "is valid" }))?;
        if let Some((ok, text)) = self.why_locked(node) {
            told(ok, text)?;
        }
        told(
            self.settings.peers.iter().any(|peer| peer.key == node.key),
            "it is a peer of the data plane".to_owned(),
        )?;
        self.look_at_path(node, &mut told)
    }

    fn look_at_path(
        &self,
        node: &Node,
        told: &mut impl FnMut(bool, String) -> Option<()>,
    ) -> Option<()> {
        let Some(path) = self.mesh.path(node.key) else {
            return told(false, "no path is looked for".to_owned());
        };
        for candidate in &path.candidates {
            let fate = match candidate.fate {
                Fate::NotTried => "not tried yet".to_owned(),
                Fate::NeverAnswered { last } => {
                    let ago = self.clock.now.saturating_sub(last).as_secs();
                    format!("never answered, last tried {ago} s ago")
                }
                Fate::Answered { latency, .. } => {
                    format!("answered in {:.1} ms", latency.as_secs_f64() * 1000.0)
                }
            };
            let by = origins(candidate.origins);
            told(true, format!("candidate {}, {by}: {fate}", candidate.addr))?;
        }
        match path.path {
            Some(Path::Direct(at)) => told(true, format!("the path: direct, {at}"))?,
            Some(Path::Auxiliary { at, .. }) => {
                told(true, format!("the path: direct, {at}, from a port that it met by chance"))?;
            }
            Some(Path::PeerRelay { at, vni }) => {
                told(
                    true,
                    format!("the path: by UDP, relayed by another node at {at}, vni {vni}"),
                )?;
            }
            Some(Path::Relay(region)) => {
                let gone =
                    path.relay_gone.is_some_and(|at| self.clock.now.saturating_sub(at) < SESSION);
                let code = self.region_code(region);
                let text = match gone {
                    true => format!("the path: relay {code}, which says that it is not there"),
                    false => format!("the path: relay {code}"),
                };
                told(!gone, text)?;
                told(true, format!("not direct: {}", self.why_relayed(&path)))?;
                if let Some(text) = self.why_not_met(path.chance) {
                    told(true, text)?;
                }
            }
            None => told(false, "the path: none, it has no home relay".to_owned())?,
        }
        let last = self.mesh.activity(&node.key).and_then(|activity| activity.last_handshake);
        let text = match last.map(|at| self.clock.wall.saturating_sub(at)) {
            Some(ago) if ago < SESSION => format!("WireGuard: a session, {} s old", ago.as_secs()),
            Some(ago) => format!("WireGuard: the last handshake was {} s ago", ago.as_secs()),
            None => "WireGuard: no handshake yet: nothing was sent, or it does not answer".into(),
        };
        told(true, text)?;
        told(true, "what it admits is its own filter's business".to_owned())
    }

    /// What keeps a peer from being reached directly, as far as is known here.
    fn why_relayed(&self, path: &Shown) -> String {
        let answers = |candidate: &&Candidate| matches!(candidate.fate, Fate::Answered { .. });
        let is_idle = path.sent.is_none_or(|at| self.clock.now >= at + ACTIVE);
        let nat = self.mesh.nat().map(|nat| nat.mapping);
        if !self.mesh.udp_works() {
            "no STUN server answers: UDP seems to be blocked here".to_owned()
        } else if path.candidates.is_empty() {
            "it has told no address of its own".to_owned()
        } else if path.candidates.iter().any(|candidate| answers(&candidate)) {
            "an address answered, and does not now or carried no data; it is tried again".to_owned()
        } else if is_idle {
            "nothing is sent to it, so no direct path is looked for".to_owned()
        } else if path.called.is_none() {
            "it has not called back through its relay: it is away, or cannot be asked".to_owned()
        } else if nat == Some(Mapping::EndpointDependent) {
            "none of its addresses answers; the NAT here is symmetric, so it cannot know where to \
             answer"
                .to_owned()
        } else {
            "none of its addresses answers: its NAT is symmetric, or a firewall is between"
                .to_owned()
        }
    }

    /// What came of meeting it by chance.
    fn why_not_met(&self, chance: Chance) -> Option<String> {
        let ago = |at: Duration| self.clock.now.saturating_sub(at).as_secs();
        Some(match chance {
            Chance::NotTried | Chance::Met(_) => return None,
            Chance::NotAnswered(at) => {
                let ago = ago(at);
                format!("guessing ports: it did not agree {ago} s ago, as only a linerate can")
            }
            Chance::InVain(at) => format!("guessing ports: in vain, {} s ago", ago(at)),
            Chance::Lost(at) => format!("guessing ports: the path was lost {} s ago", ago(at)),
        })
    }

    fn named(&self, target: &str) -> Option<&Node> {
        let is_called = |name: &str| {
            let name = name.trim_end_matches('.');
            let is_its = |node: &&Node| {
                node.name.trim_end_matches('.').eq_ignore_ascii_case(name)
                    || short(node).eq_ignore_ascii_case(name)
            };
            match name.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => self.map.node_at(address),
                Err(_) => self.map.peers().find(is_its),
            }
        };
        is_called(target).or_else(|| is_called(target.rsplit_once(':')?.0))
    }
}

/// Who said that it may be there.
fn origins(origins: Origins) -> String {
    let all =
        [(origins.map, "of the map"), (origins.call, "of its call"), (origins.heard, "heard")];
    let words: Vec<_> = all.into_iter().filter_map(|(is, word)| is.then_some(word)).collect();
    words.join(" and ")
}
