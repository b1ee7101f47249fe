//! The reported state of tailnet nodes.

use crate::{Facts, Finding, Fix, Member, Severity, Tunnel};

/// A finding about a node.
fn finding(tunnel: &Tunnel, severity: Severity, what: String, why: &str, fix: String) -> Finding {
    Finding {
        check: "tailnet",
        on: tunnel.name.clone(),
        severity,
        what,
        why: why.into(),
        cost: match severity {
            Severity::Broken => {
                "changes by the coordinator do not arrive; known peers stay reachable"
            }
            _ => "a relay carries TCP inside TCP: `make bench ARGS='--only tailnet'` has the rates",
        },
        fix: Fix::Manual(fix),
    }
}

fn members(facts: &Facts) -> impl Iterator<Item = (&Tunnel, &Member)> {
    facts.tunnels.iter().filter_map(|tunnel| Some((tunnel, tunnel.member.as_ref()?)))
}

/// Finds nodes without a login or without an answering agent.
pub(crate) fn state(facts: &Facts) -> Vec<Finding> {
    let of_member = |(tunnel, member): (&Tunnel, &Member)| {
        let name = &tunnel.name;
        let (what, fix) = match member {
            Member::NoAnswer(error) => (
                format!("the agent of {name} does not answer: {error}"),
                format!("see the log of {name}: journalctl -u linerate-join@{name}"),
            ),
            Member::Answers { state, .. } => match state.as_str() {
                "Running" => return None,
                "NeedsLogin" => (
                    format!("{name} is not logged in"),
                    format!("linerate join URL {name}, with the URL of its coordinator"),
                ),
                "NeedsMachineAuth" => (
                    format!("{name} waits for an administrator of the tailnet to approve it"),
                    "approve the machine in the coordinator".to_owned(),
                ),
                "Stopped" => (format!("{name} was stopped"), format!("linerate join URL {name}")),
                other => (
                    format!("{name} is in the state {other}"),
                    format!("linerate status -i {name}"),
                ),
            },
        };
        let why = "the agent connects to the coordinator and the relays, and finds paths to peers";
        Some(finding(tunnel, Severity::Broken, what, why, fix))
    };
    members(facts).filter_map(of_member).collect()
}

/// Returns the problems that nodes report.
pub(crate) fn health(facts: &Facts) -> Vec<Finding> {
    let of_member = |(tunnel, member): (&Tunnel, &Member)| {
        let Member::Answers { health, .. } = member else { return Vec::new() };
        let fix = format!(
            "linerate status -i {0} and linerate netcheck -i {0} show details",
            tunnel.name
        );
        let why = "the node itself reports this";
        let of_line =
            |line: &String| finding(tunnel, Severity::Broken, line.clone(), why, fix.clone());
        health.iter().map(of_line).collect()
    };
    members(facts).flat_map(of_member).collect()
}

/// Finds peers to which packets are sent through a relay.
pub(crate) fn relayed(facts: &Facts) -> Vec<Finding> {
    let of_member = |(tunnel, member): (&Tunnel, &Member)| {
        let Member::Answers { relayed, .. } = member else { return None };
        let first = relayed.first()?;
        let what = match relayed.len() {
            1 => format!("packets to {first} are relayed"),
            count => format!("packets to {count} peers are relayed, for example to {first}"),
        };
        let why = "no direct path was found: UDP is blocked, or no path leads through the NATs of both \
        ends";
        let fix = format!(
            "linerate why {first} shows the attempts; linerate netcheck shows whether UDP works"
        );
        Some(finding(tunnel, Severity::Slow, what, why, fix))
    };
    members(facts).filter_map(of_member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    /// The findings about a node: severity and text.
    fn found(member: Member) -> Vec<(Severity, String)> {
        let mut facts = healthy();
        facts.tunnels[0].member = Some(member);
        let all = [state(&facts), health(&facts), relayed(&facts)].concat();
        all.into_iter().map(|finding| (finding.severity, finding.what)).collect()
    }

    fn running() -> (String, Vec<String>, Vec<String>) {
        ("Running".into(), Vec::new(), Vec::new())
    }

    #[test]
    fn running_node_is_healthy() {
        let (state, health, relayed) = running();
        assert_eq!(found(Member::Answers { state, health, relayed }), []);
    }

    #[test]
    fn node_without_answer_or_login_is_broken() {
        let silent = found(Member::NoAnswer("connection refused".into()));
        let text = "the agent of wg0 does not answer: connection refused";
        assert_eq!(silent, [(Severity::Broken, text.to_owned())]);
        for (state, text) in [
            ("NeedsLogin", "wg0 is not logged in"),
            ("Stopped", "wg0 was stopped"),
            ("NoState", "wg0 is in the state NoState"),
        ] {
            let (_, health, relayed) = running();
            let found = found(Member::Answers { state: state.into(), health, relayed });
            assert_eq!(found, [(Severity::Broken, text.to_owned())]);
        }
    }

    #[test]
    fn reported_problems_and_relayed_peers_are_found() {
        let (state, _, _) = running();
        let health = vec!["the coordinator does not answer".to_owned()];
        let relayed = vec!["desk".to_owned(), "phone".to_owned()];
        let found = found(Member::Answers { state, health, relayed });
        assert_eq!(found[0], (Severity::Broken, "the coordinator does not answer".to_owned()));
        let text = "packets to 2 peers are relayed, for example to desk";
        assert_eq!(found[1], (Severity::Slow, text.to_owned()));
    }
}
