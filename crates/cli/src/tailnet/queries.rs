//! `linerate ping`, `whois`, `netcheck` and `why` for a node of a tailnet.

use std::{thread, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use member::client::Client;
use serde_json::{Map, Value};
use tokio::runtime::Runtime;

use super::{
    NodeSelector, runtime,
    status::{has_name, on_one_line},
};

/// The time between two pings.
const INTERVAL: Duration = Duration::from_secs(1);

/// Arguments of `linerate whois`.
#[derive(Args)]
pub(crate) struct Whois {
    /// An address in the tailnet, with or without a port.
    address: String,
    #[command(flatten)]
    selector: NodeSelector,
}

/// Arguments of `linerate netcheck`.
#[derive(Args)]
pub(crate) struct Netcheck {
    #[command(flatten)]
    selector: NodeSelector,
}

/// Arguments of `linerate why`.
#[derive(Args)]
pub(crate) struct Why {
    /// A node, by its name or address, optionally with a port.
    #[arg(value_name = "NODE[:PORT]")]
    target: String,
    #[command(flatten)]
    selector: NodeSelector,
}

impl Whois {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = self.selector.client()?;
        let answer = runtime()?.block_on(client.get_with("whois", "addr", &self.address))?;
        whois_lines(&answer).iter().for_each(|line| println!("{line}"));
        Ok(())
    }
}

fn whois_lines(answer: &Value) -> [String; 3] {
    let (node, user) = (&answer["Node"], &answer["UserProfile"]);
    let owner = match words(&node["Tags"]) {
        tags if !tags.is_empty() => format!("tags       {}", tags.join(", ")),
        _ => format!("user       {} ({})", word(&user["LoginName"]), word(&user["DisplayName"])),
    };
    [
        format!("machine    {}", word(&node["Name"]).trim_end_matches('.')),
        format!("addresses  {}", words(&node["Addresses"]).join(", ")),
        owner,
    ]
}

impl Netcheck {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = self.selector.client()?;
        let report = runtime()?.block_on(client.get("linerate/netcheck"))?;
        let lines = netcheck_lines(&report).context("the node did not report")?;
        lines.iter().for_each(|line| println!("{line}"));
        Ok(())
    }
}

fn netcheck_lines(report: &Value) -> Option<Vec<String>> {
    let all = report.as_object()?.iter().filter(|(what, _)| *what != "regions");
    let mut lines: Vec<String> = all
        .map(|(what, value)| {
            let value = if value.is_string() { word(value) } else { value.to_string() };
            format!("{what:<20} {value}")
        })
        .collect();
    for region in report["regions"].as_array().into_iter().flatten() {
        let latency = region["latency_ms"].as_f64();
        let latency = latency.map_or("no answer".to_owned(), |ms| format!("{ms:.1} ms"));
        let (code, name) = (word(&region["code"]), word(&region["name"]));
        lines.push(format!("relay {code:<14} {latency}  {name}"));
    }
    Some(lines)
}

impl Why {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        let client = self.selector.client()?;
        let answer =
            runtime()?.block_on(client.get_with("linerate/why", "target", &self.target))?;
        for step in answer["steps"].as_array().into_iter().flatten() {
            let mark = if step["ok"] == Value::Bool(true) { "ok  " } else { "FAIL" };
            println!("{mark} {}", word(&step["text"]));
        }
        match answer["reaches"].as_bool() {
            Some(true) => Ok(()),
            _ => bail!("{}: not reachable", self.target),
        }
    }
}

/// `linerate ping` for a node: pings until the path is direct, but at most `count` times. Pings through
/// the tunnel are always sent `count` times.
pub(crate) fn ping(
    node: Option<String>,
    target: &str,
    count: u32,
    through_tunnel: bool,
) -> anyhow::Result<()> {
    let client = NodeSelector::new(node).client()?;
    let runtime = runtime()?;
    let address = address(&runtime, &client, target)?;
    let kind = if through_tunnel { "TSMP" } else { "disco" };
    let mut answered = false;
    for number in 1..=count {
        let path = format!("ping?ip={address}&type={kind}");
        let pong = runtime.block_on(client.post(&path, None))?;
        let text = |key: &str| word(&pong[key]);
        match text("Err").as_str() {
            "" => {
                let milliseconds = pong["LatencySeconds"].as_f64().unwrap_or_default() * 1000.0;
                let direct = text("Endpoint");
                let path = match (direct.as_str(), text("PeerRelay")) {
                    _ if through_tunnel => "the tunnel".to_owned(),
                    ("", relay) if !relay.is_empty() => format!("peer relay {relay}"),
                    ("", _) => format!("relay {}", text("DERPRegionCode")),
                    (direct, _) => direct.to_owned(),
                };
                let name = text("NodeName");
                println!("answer from {name} ({address}) via {path} in {milliseconds:.1} ms");
                answered = true;
                if !direct.is_empty() {
                    return Ok(());
                }
            }
            error => println!("no answer: {error}"),
        }
        if number < count {
            thread::sleep(INTERVAL);
        }
    }
    if answered { Ok(()) } else { bail!("{target}: no answer") }
}

/// Looks up the address of a node by its name or address.
fn address(runtime: &Runtime, client: &Client, target: &str) -> anyhow::Result<String> {
    if target.parse::<std::net::IpAddr>().is_ok() {
        return Ok(target.to_owned());
    }
    let status = runtime.block_on(client.get("status"))?;
    let peers = status["Peer"].as_object().into_iter().flat_map(Map::values);
    let found = peers.into_iter().find(|peer| has_name(peer, target));
    let address = found.and_then(|peer| words(&peer["TailscaleIPs"]).into_iter().next());
    address.with_context(|| format!("{target}: no such node"))
}

/// A text from the network without control characters.
pub(super) fn word(value: &Value) -> String {
    on_one_line(value.as_str().unwrap_or_default())
}

pub(super) fn words(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|word| Some(on_one_line(word.as_str()?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn control_characters_of_remote_text_are_removed() {
        let evil = "a\nmachine    b\u{1b}[2J";
        let node = json!({ "Name": evil, "Addresses": [evil] });
        let user = json!({ "LoginName": evil, "DisplayName": evil });
        let mut lines = whois_lines(&json!({ "Node": node, "UserProfile": user })).to_vec();
        lines.extend(whois_lines(&json!({ "Node": { "Tags": [evil] } })));
        let region = json!({ "code": evil, "name": evil });
        let report = json!({ "NAT": evil, "count": 7, "regions": [region] });
        lines.extend(netcheck_lines(&report).unwrap());
        assert_eq!(lines.len(), 9);
        for line in lines {
            assert!(!line.contains(char::is_control), "{line:?}");
        }
    }
}
