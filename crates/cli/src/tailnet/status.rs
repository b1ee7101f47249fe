//! `linerate status`: the node, its peers, and the path to each.

use clap::Args;
use serde_json::{Map, Value};

use super::{NodeSelector, runtime};
use crate::units::bytes;

/// Arguments of `linerate status`.
#[derive(Args)]
pub(crate) struct Status {
    /// Print JSON, with the fields of `tailscale status --json`.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selector: NodeSelector,
}

impl Status {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = self.selector.client()?;
        let status = runtime()?.block_on(client.get("status"))?;
        if self.json {
            println!("{status:#}");
        } else {
            print!("{}", text(&status));
        }
        Ok(())
    }
}

/// Whether a peer of the status has this name, short or long, or this address.
pub(super) fn has_name(peer: &Value, name: &str) -> bool {
    let own = peer["DNSName"].as_str().unwrap_or_default().trim_end_matches('.');
    let name = name.trim_end_matches('.');
    let short = own.split('.').next().unwrap_or_default();
    let host = peer["HostName"].as_str().unwrap_or_default();
    let addresses = peer["TailscaleIPs"].as_array().into_iter().flatten();
    own.eq_ignore_ascii_case(name)
        || short.eq_ignore_ascii_case(name)
        || host.eq_ignore_ascii_case(name)
        || addresses.into_iter().any(|address| address.as_str() == Some(name))
}

fn text(status: &Value) -> String {
    let mut text = String::new();
    let state = status["BackendState"].as_str().unwrap_or("unknown");
    if state != "Running" {
        text += &format!("{state}\n");
    }
    if let Some(page) = status["AuthURL"].as_str().filter(|page| !page.is_empty()) {
        text += &format!("log in at {page}\n");
    }
    let peers = status["Peer"].as_object().into_iter().flat_map(Map::values);
    let users = &status["User"];
    let mut rows: Vec<[String; 5]> = peers.map(|peer| row(peer, users)).collect();
    rows.sort_by(|one, other| one[1].cmp(&other[1]));
    if status["Self"].is_object() {
        rows.insert(0, row(&status["Self"], users));
        rows[0][4] = "this machine".to_owned() + &expiry(&status["Self"]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths = [0, 1, 2, 3].map(|column| width(column).unwrap_or_default());
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}  "));
        let line: String = cells.collect::<String>() + &row[4];
        text += &format!("{}\n", line.trim_end());
    }
    for problem in status["Health"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        text += &format!("\n! {}\n", on_one_line(problem));
    }
    text
}

fn row(peer: &Value, users: &Value) -> [String; 5] {
    let word = |key: &str| peer[key].as_str().unwrap_or_default().trim_end_matches('.').to_owned();
    let address = peer["TailscaleIPs"][0].as_str().unwrap_or("-").to_owned();
    let traffic = |key: &str| peer[key].as_u64().unwrap_or_default();
    let rates = match (traffic("RxBytes"), traffic("TxBytes")) {
        (0, 0) => String::new(),
        (received, sent) => format!("; {} in, {} out", bytes(received), bytes(sent)),
    };
    let online = peer["Online"] == Value::Bool(true);
    let path = match (word("CurAddr"), word("PeerRelay"), word("Relay")) {
        (direct, ..) if !direct.is_empty() => format!("direct {direct}"),
        (_, relay, _) if !relay.is_empty() => format!("peer relay {relay}"),
        (.., relay) if online && !relay.is_empty() => format!("relay {relay}"),
        _ if online => "online".to_owned(),
        _ => "offline".to_owned(),
    };
    let name = word("DNSName").split('.').next().unwrap_or_default().to_owned();
    let user = peer["UserID"].as_u64().map(|id| &users[id.to_string()]["LoginName"]);
    let user = match peer["Tags"].as_array() {
        Some(_) => "tagged".to_owned(),
        None => user.and_then(Value::as_str).unwrap_or("-").to_owned(),
    };
    let secret = if peer["PostQuantum"].is_string() { "; post-quantum" } else { "" };
    let path = format!("{path}{rates}{secret}{}", expiry(peer));
    [address, name, user, word("OS"), path].map(|cell| on_one_line(&cell))
}

/// Replaces control characters of a text from the network, so that it cannot start a line of the output.
pub(super) fn on_one_line(words: &str) -> String {
    words.replace(char::is_control, " ")
}

/// Describes when a node's key expires, if it does.
fn expiry(peer: &Value) -> String {
    match peer["KeyExpiry"].as_str() {
        _ if peer["Expired"] == Value::Bool(true) => "; its key has expired".to_owned(),
        Some(when) => format!("; key until {}", when.split('T').next().unwrap_or(when)),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_peer_has_a_line_with_its_path() {
        let status = json!({
            "BackendState": "Running",
            "Health": ["the relay does not answer"],
            "User": {"1": {"LoginName": "ann@example"}},
            "Self": {"DNSName": "a.net.", "TailscaleIPs": ["100.64.0.1"], "OS": "linux", "UserID": 1},
            "Peer": {
                "nodekey:1": {
                    "DNSName": "b.net.", "TailscaleIPs": ["100.64.0.2"], "OS": "linux", "Online": true,
                    "CurAddr": "192.0.2.1:41641", "RxBytes": 2048, "TxBytes": 1,
                    "PostQuantum": "2026-01-01T00:00:00Z",
                },
                "nodekey:2": {"DNSName": "c.net.", "TailscaleIPs": ["100.64.0.3"], "Online": true, "Relay": "r1"},
                "nodekey:3": {"DNSName": "d.net.", "TailscaleIPs": ["100.64.0.4"], "Expired": true},
                "nodekey:4": {
                    "DNSName": "e.net.", "TailscaleIPs": ["100.64.0.5"], "Online": true, "Relay": "r1",
                    "PeerRelay": "192.0.2.7:40000:vni:3",
                },
            },
        });
        let text = text(&status);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("100.64.0.1  a  ann@example  linux")
                && lines[0].ends_with("this machine")
        );
        assert!(lines[1].contains("direct 192.0.2.1:41641; 2.00 KiB in"), "{text}");
        assert!(lines[1].ends_with("; post-quantum"), "{text}");
        assert_eq!(text.matches("post-quantum").count(), 1, "{text}");
        assert!(
            lines[2].ends_with("relay r1") && lines[3].ends_with("offline; its key has expired")
        );
        assert!(lines[4].ends_with("peer relay 192.0.2.7:40000:vni:3"), "{text}");
        assert_eq!(lines[6], "! the relay does not answer");
    }

    #[test]
    fn remote_text_cannot_start_a_line() {
        let evil = "a\n! forged\u{1b}[2J";
        let peer = json!({"DNSName": evil, "OS": evil, "KeyExpiry": evil, "CurAddr": evil});
        let text = text(&json!({"BackendState": "Running", "Health": [evil], "Peer": {"1": peer}}));
        assert!(!text.lines().any(|line| line.starts_with("! forged")), "{text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn a_peer_is_found_by_its_names_and_addresses() {
        let peer =
            json!({"DNSName": "b.net.example.", "HostName": "Bee", "TailscaleIPs": ["100.64.0.2"]});
        for name in ["b", "B", "b.net.example", "b.net.example.", "bee", "100.64.0.2"] {
            assert!(has_name(&peer, name), "{name}");
        }
        assert!(!has_name(&peer, "c") && !has_name(&peer, "100.64.0.3"));
    }
}
