//! What a node of a tailnet says of itself.

use crate::{Facts, Finding, Fix, Member, Severity, Tunnel};

/// What the findings of a node have in common.
fn finding(tunnel: &Tunnel, severity: Severity, what: String, why: &str, fix: String) -> Finding {
    Finding {
        check: "tailnet",
        on: tunnel.name.clone(),
        severity,
        what,
        why: why.into(),
        cost: match severity {
            Severity::Broken => {
                "what the coordinator changes does not arrive; peers that are known \
                               stay reachable"
            }
            _ => "a relay carries TCP inside TCP: `make bench ARGS='--only tailnet'` has the rates",
        },
        fix: Fix::Manual(fix),
    }
}

fn members(facts: &Facts) -> impl Iterator<Item = (&Tunnel, &Member)> {
    facts.tunnels.iter().filter_map(|tunnel| Some((tunnel, tunnel.member.as_ref()?)))
}

/// Nodes whose agent does not answer, or that are not logged in.
pub(crate) fn state(facts: &Facts) -> Vec<Finding> {
    let of_member = |(tunnel, member): (&Tunnel, &Member)| {
        let name = &tunnel.name;
        let (what, fix) = match member {
            Member::NoAnswer(error) => (
                format!("the agent of {name} does not answer: {error}"),
                format!("the log of {name}: journalctl -u linerate-join@{name}"),
            ),
            Member::Answers { state, .. } => match state.as_str() {
                "Running" => return None,
                "NeedsLogin" => (
                    format!("{name} is not logged in"),
                    format!("linerate join URL {name}, with the URL of its coordinator"),
                ),
                "NeedsMachineAuth" => (
                    format!("{name} waits for an administrator of the tailnet to approve it"),
                    "approve the machine at the coordinator".to_owned(),
                ),
                "Stopped" => (format!("{name} was stopped"), format!("linerate join URL {name}")),
                other => {
                    (format!("{name} is in the state {other}"), format!("linerate status {name}"))
                }
            },
        };
        let why = "the agent speaks to the coordinator and the relays, and finds paths to peers";
        Some(finding(tunnel, Severity::Broken, what, why, fix))
    };
    members(facts).filter_map(of_member).collect()
}

/// What nodes say is wrong.
pub(crate) fn health(facts: &Facts) -> Vec<Finding> {
    let of_member = |(tunnel, member): (&Tunnel, &Member)| {
        let Member::Answers { health, .. } = member else { return Vec::new() };
        let fix = format!("linerate status {0} and linerate netcheck {0} say more", tunnel.name);
        let why = "the node itself reports this";
        let of_line =
            |line: &String| finding(tunnel, Severity::Broken, line.clone(), why, fix.clone());
        health.iter().map(of_line).collect()
    };
    members(facts).flat_map(of_member).collect()
}

/// Peers that are reached through a relay while packets go to them.
pub(crate) fn relayed(facts: &Facts) -> Vec<Finding> {
    let of_member = |(tunnel, member): (&Tunnel, &Member)| {
        let Member::Answers { relayed, .. } = member else { return None };
        let first = relayed.first()?;
        let what = match relayed.len() {
            1 => format!("packets to {first} go through a relay"),
            count => format!("packets to {count} peers go through a relay, {first} among them"),
        };
        let why = "no direct path was found: UDP is blocked on the way, or both ends are behind \
                   NATs that no path leads through";
        let fix = format!(
            "linerate why {first} says what was tried; linerate netcheck, whether UDP leaves"
        );
        Some(finding(tunnel, Severity::Slow, what, why, fix))
    };
    members(facts).filter_map(of_member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::healthy;

    /// What is found of a node, by its severity and text.
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
    fn a_node_that_runs_is_no_finding() {
        let (state, health, relayed) = running();
        assert_eq!(found(Member::Answers { state, health, relayed }), []);
    }

    #[test]
    fn a_node_that_is_silent_or_not_logged_in_is_broken() {
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
    fn what_a_node_reports_and_peers_behind_relays_are_told() {
        let (state, _, _) = running();
        let health = vec!["the coordinator does not answer".to_owned()];
        let relayed = vec!["desk".to_owned(), "phone".to_owned()];
        let found = found(Member::Answers { state, health, relayed });
        assert_eq!(found[0], (Severity::Broken, "the coordinator does not answer".to_owned()));
        let text = "packets to 2 peers go through a relay, desk among them";
        assert_eq!(found[1], (Severity::Slow, text.to_owned()));
    }
}
