//! Explains why a node is reached, or not: each condition in the order in which a packet meets it.

use std::{net::IpAddr, time::Duration};

use ipc::Path;
use mesh::{
    local_json::{State, Why, WhyStep},
    netcheck::Mapping,
    peer_paths::{BirthdayOutcome, Candidate, Origins, PathView, ProbeOutcome},
};
use tailnet::map_messages::Node;

use super::View;
use crate::agent::this_node::short;

/// The longest age of a session (WireGuard's REJECT_AFTER_TIME).
const SESSION_LIFETIME: Duration = Duration::from_secs(180);

/// How long direct paths are probed after something was sent.
const ACTIVE_TIME: Duration = Duration::from_secs(45);

impl View<'_> {
    /// Explains why `NODE[:PORT]` is reached, or not.
    pub(super) fn why(&self, target: &str) -> Why {
        let mut steps = Vec::new();
        let reaches = self.diagnose(target, &mut steps).is_some();
        Why { steps, reaches }
    }

    /// Adds steps. `None` if one fails.
    fn diagnose(&self, target: &str, steps: &mut Vec<WhyStep>) -> Option<()> {
        let mut step = |ok: bool, text: String| {
            steps.push(WhyStep { ok, text });
            ok.then_some(())
        };
        let state = self.node_state();
        step(state == State::Running, format!("this node: {state}"))?;
        let control = match self.coordinator.is_connected() {
            true => "the coordinator is connected".to_owned(),
            false => "the coordinator is not connected: the last map is used".to_owned(),
        };
        step(true, control)?;
        let Some(node) = self.find_node(target) else {
            step(
                false,
                format!(
                    "node {target} is not in the map: does it exist, and may this node see it?"
                ),
            )?;
            return None;
        };
        let online = match node.online {
            Some(true) => "connected to the coordinator",
            Some(false) => "not connected to the coordinator",
            None => "its connection to the coordinator is unknown",
        };
        let addresses: Vec<String> =
            node.addresses.iter().map(|net| net.addr().to_string()).collect();
        step(true, format!("the map: {} is {}, {online}", short(node), addresses.join(", ")))?;
        let expired = node.has_expired(self.node.map().time(self.clock.wall));
        step(!expired, format!("its key: {}", if expired { "has expired" } else { "is valid" }))?;
        if let Some((ok, text)) = self.coordinator.tka().verdict(self.node.map(), node) {
            step(ok, text)?;
        }
        step(
            self.applied.settings().peers.iter().any(|peer| peer.key == node.key),
            "it is a peer of the data plane".to_owned(),
        )?;
        self.diagnose_path(node, &mut step)
    }

    fn diagnose_path(
        &self,
        node: &Node,
        step: &mut impl FnMut(bool, String) -> Option<()>,
    ) -> Option<()> {
        let Some(path) = self.mesh.path(node.key) else {
            return step(false, "no path is probed".to_owned());
        };
        for candidate in &path.candidates {
            let fate = match candidate.outcome {
                ProbeOutcome::NotTried => "not tried yet".to_owned(),
                ProbeOutcome::NeverAnswered { last } => {
                    let ago = self.clock.now.saturating_sub(last).as_secs();
                    format!("never answered, last tried {ago} s ago")
                }
                ProbeOutcome::Answered { latency, .. } => {
                    format!("answered in {:.1} ms", latency.as_secs_f64() * 1000.0)
                }
            };
            let by = origin_text(candidate.origins);
            step(true, format!("candidate {}, {by}: {fate}", candidate.addr))?;
        }
        match path.path {
            Some(Path::Direct(at)) => step(true, format!("the path: direct, {at}"))?,
            Some(Path::Auxiliary { at, .. }) => {
                step(true, format!("the path: direct, {at}, found by port guessing"))?;
            }
            Some(Path::PeerRelay { at, vni }) => {
                step(
                    true,
                    format!("the path: by UDP, relayed by another node at {at}, vni {vni}"),
                )?;
            }
            Some(Path::Relay(region)) => {
                let gone = path
                    .relay_gone
                    .is_some_and(|at| self.clock.now.saturating_sub(at) < SESSION_LIFETIME);
                let code = self.node.region_code(region);
                let text = match gone {
                    true => format!(
                        "the path: relay {code}, which reports that the node is not connected there"
                    ),
                    false => format!("the path: relay {code}"),
                };
                step(!gone, text)?;
                step(true, format!("not direct: {}", self.relayed_reason(&path)))?;
                if let Some(text) = self.birthday_probing_result(path.birthday) {
                    step(true, text)?;
                }
            }
            None => step(false, "the path: none, because its home relay is unknown".to_owned())?,
        }
        let last = self.mesh.activity(&node.key).and_then(|activity| activity.last_handshake);
        let text = match last.map(|at| self.clock.wall.saturating_sub(at)) {
            Some(ago) if ago < SESSION_LIFETIME => {
                format!("WireGuard: a session, {} s old", ago.as_secs())
            }
            Some(ago) => format!("WireGuard: the last handshake was {} s ago", ago.as_secs()),
            None => "WireGuard: no handshake yet: nothing was sent, or it does not answer".into(),
        };
        step(true, text)?;
        step(true, "its own filter may still refuse the packet".to_owned())
    }

    /// The reason why a peer is not reached directly, as far as it is known here.
    fn relayed_reason(&self, path: &PathView) -> String {
        let answers =
            |candidate: &&Candidate| matches!(candidate.outcome, ProbeOutcome::Answered { .. });
        let is_idle = path.sent.is_none_or(|at| self.clock.now >= at + ACTIVE_TIME);
        let nat = self.mesh.network().nat().map(|nat| nat.mapping);
        if !self.mesh.network().udp_works() {
            "no STUN server answers: UDP seems to be blocked here".to_owned()
        } else if path.candidates.is_empty() {
            "it has announced no endpoints".to_owned()
        } else if path.candidates.iter().any(|candidate| answers(&candidate)) {
            "an endpoint answered before, but not now, or carried no data; it is retried".to_owned()
        } else if is_idle {
            "nothing is sent to it, so no direct path is probed".to_owned()
        } else if path.called.is_none() {
            "it has not replied through its relay: it is offline or does not support disco"
                .to_owned()
        } else if nat == Some(Mapping::EndpointDependent) {
            "none of its endpoints answers; the NAT here is symmetric, so it cannot know where to \
             reply"
                .to_owned()
        } else {
            "none of its endpoints answers: its NAT is symmetric, or a firewall blocks them"
                .to_owned()
        }
    }

    /// The result of birthday probing.
    fn birthday_probing_result(&self, outcome: BirthdayOutcome) -> Option<String> {
        let ago = |at: Duration| self.clock.now.saturating_sub(at).as_secs();
        Some(match outcome {
            BirthdayOutcome::NotTried | BirthdayOutcome::Succeeded(_) => return None,
            BirthdayOutcome::NotAnswered(at) => {
                let ago = ago(at);
                format!(
                    "port guessing: it did not take part {ago} s ago; only linerate supports it"
                )
            }
            BirthdayOutcome::Failed(at) => format!("port guessing: failed {} s ago", ago(at)),
            BirthdayOutcome::Lost(at) => {
                format!("port guessing: the path was lost {} s ago", ago(at))
            }
        })
    }

    fn find_node(&self, target: &str) -> Option<&Node> {
        let by_name = |name: &str| {
            let name = name.trim_end_matches('.');
            let has_name = |node: &&Node| {
                node.name.trim_end_matches('.').eq_ignore_ascii_case(name)
                    || short(node).eq_ignore_ascii_case(name)
            };
            match name.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => self.node.map().node_at(address),
                Err(_) => self.node.map().peers().find(has_name),
            }
        };
        by_name(target).or_else(|| by_name(target.rsplit_once(':')?.0))
    }
}

/// The origins of a candidate.
fn origin_text(origins: Origins) -> String {
    let all = [
        (origins.map, "from the map"),
        (origins.call, "from its disco message"),
        (origins.received, "from received packets"),
    ];
    let words: Vec<_> = all.into_iter().filter_map(|(is, word)| is.then_some(word)).collect();
    words.join(" and ")
}
