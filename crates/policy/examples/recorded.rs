//! Compares this crate with Tailscale's recorded answers, in a checkout of headscale's repository:
//!
//! ```text
//! cargo run -p linerate-policy --example recorded -- HEADSCALE/hscontrol/policy/v2/testdata
//! ```
//!
//! Prints counts for each folder and the cases that differ. Exits with 1 if a case differs that is not listed here.

use std::{collections::BTreeSet, error::Error, fs, path::Path, process::ExitCode};

use policy::{Compiled, Nodes, Policy, Role, SshRule, to_json};
use serde_json::Value;

/// Cases that differ, with the reason.
const NAMED: [(&str, &str); 7] = [
    ("acl-ah01", UNAPPROVED),
    ("acl-h03", UNAPPROVED),
    ("acl-k03", UNAPPROVED),
    ("acl-mu07", UNAPPROVED),
    ("policytest-allpass-grants-only-tag-src-ipv6-literal-dst", RENUMBERED),
    ("ssh-e1", "the refusal's domain was replaced in the record"),
    ("sshtest-malformed-dst-bare-ipv6", RENUMBERED),
];

const UNAPPROVED: &str = "peers and routes: the topology has a route unapproved that was approved";
const RENUMBERED: &str =
    "recorded as if no node had this IPv6 address: the record's were renumbered";

const ADMIN: &str = "https://tailscale.com/cap/is-admin";

/// Capabilities that come from a tailnet's state at Tailscale, not from its policy.
const OF_STATE: [&str; 15] = [
    "default-auto-update",
    "https://tailscale.com/cap/file-sharing",
    "https://tailscale.com/cap/is-admin",
    "https://tailscale.com/cap/is-owner",
    "https://tailscale.com/cap/ssh",
    "https://tailscale.com/cap/tailnet-lock",
    "probe-udp-lifetime",
    "service-host",
    "ssh-behavior-v1",
    "ssh-env-vars",
    "store-appc-routes",
    "tailnet-display-name",
    "tailnet.maxKeyDuration",
    "native-ipv4",
    "https://tailscale.com/cap/warn-funnel-no-https",
];

#[derive(Default)]
struct Counts {
    equal: usize,
    refusals: usize,
    different: usize,
    named: usize,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("which directory of records?")?;
    let mut is_good = true;
    let mut folders: Vec<_> = fs::read_dir(&directory)?.collect::<Result<_, _>>()?;
    folders.sort_by_key(fs::DirEntry::file_name);
    println!("{:24} {:>6} {:>9} {:>6} {:>10}", "", "equal", "refusals", "named", "different");
    let mut differences = Vec::new();
    for folder in folders {
        let mut counts = Counts::default();
        let mut files: Vec<_> = fs::read_dir(folder.path())?.collect::<Result<_, _>>()?;
        files.sort_by_key(fs::DirEntry::file_name);
        for file in files {
            let path = file.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let named = NAMED.iter().find(|(other, _)| *other == name);
            match (compare(&path), named) {
                (Ok(true), _) => counts.refusals += 1,
                (Ok(false), _) => counts.equal += 1,
                (Err(difference), Some((_, why))) => {
                    counts.named += 1;
                    differences.push(format!("{name} ({why}): {difference}"));
                }
                (Err(difference), None) => {
                    counts.different += 1;
                    is_good = false;
                    differences.push(format!("{name}: {difference}"));
                }
            }
        }
        let Counts { equal, refusals, different, named } = counts;
        let folder = folder.file_name();
        println!(
            "{:24} {equal:>6} {refusals:>9} {named:>6} {different:>10}",
            folder.to_string_lossy()
        );
    }
    differences.iter().for_each(|difference| println!("{difference}"));
    Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns whether both refuse the policy; the error is the difference.
fn compare(path: &Path) -> Result<bool, Box<dyn Error>> {
    let record: Value = policy::read_json(&fs::read_to_string(path)?)?;
    let input = &record["input"];
    let text = match &input["full_policy"] {
        Value::String(text) => text.clone(),
        object => serde_json::to_string_pretty(object)?,
    };
    let mut nodes = Nodes::from_json(&record["topology"].to_string())?;
    roles(&mut nodes, &record["captures"]);
    let read = Policy::parse(&text).and_then(|policy| policy.run_tests(&nodes).map(|()| policy));
    let is_accepted = input["api_response_code"] == 200;
    let policy = match read {
        Ok(_) if !is_accepted => {
            return Err(format!("accepted, not refused: {}", input["api_response_body"]).into());
        }
        Ok(policy) => policy,
        Err(refusal) if is_accepted => return Err(format!("refused: {refusal}").into()),
        Err(refusal) => {
            let wanted = input["api_response_body"]["message"].as_str().unwrap_or_default();
            // The message of an internal error of the service is not about the policy.
            let is_internal = input["api_response_code"] == 500;
            return if is_internal || refusal.to_string().contains(wanted) {
                Ok(true)
            } else {
                Err(format!("refused by other words: {refusal} / {wanted}").into())
            };
        }
    };
    let compiled = policy.compile(&nodes);
    let captures = record["captures"].as_object().ok_or("no captures")?;
    for (name, capture) in captures {
        let index = nodes.nodes.iter().position(|node| node.name == *name);
        let index = index.ok_or_else(|| format!("no node {name}"))?;
        node(&compiled, &nodes, index, capture).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(false)
}

/// Sets the roles of users. The records have them only in the nodes' capabilities.
fn roles(nodes: &mut Nodes, captures: &Value) {
    for user in &mut nodes.users {
        let own = nodes.nodes.iter().filter(|node| node.user == Some(user.id));
        let mut caps = own.map(|node| &captures[&node.name]["netmap"]["SelfNode"]["CapMap"]);
        if user.role.is_none() && caps.any(|caps| caps.get(ADMIN).is_some()) {
            user.role = Some(Role::Admin);
        }
    }
}

fn node(
    compiled: &Compiled,
    nodes: &Nodes,
    index: usize,
    capture: &Value,
) -> Result<(), Box<dyn Error>> {
    let wanted = filter(&capture["packet_filter_rules"]);
    let found = filter(&to_json(&compiled.filter(index)));
    same("filter", &wanted, &found)?;
    if capture.get("ssh_rules").is_some() {
        let wanted: Option<Vec<SshRule>> = serde_json::from_value(capture["ssh_rules"].clone())?;
        let sorted = |mut rules: Vec<SshRule>| {
            rules.iter_mut().for_each(|rule| rule.principals.sort());
            serde_json::json!(rules)
        };
        let found = sorted(compiled.ssh(index, "https://unused"));
        same("ssh", &sorted(wanted.unwrap_or_default()), &found)?;
    }
    let myself = &capture["netmap"]["SelfNode"];
    if let Some(capabilities) = myself["CapMap"].as_object() {
        let wanted = capabilities.keys().map(String::as_str);
        let wanted: BTreeSet<&str> = wanted.filter(|name| !is_of_state(name)).collect();
        let mut found = compiled.attributes(index);
        found.retain(|name| !is_of_state(name));
        same("attributes", &serde_json::json!(wanted), &serde_json::json!(found))?;
    }
    if let Some(peers) = capture["netmap"]["Peers"].as_array() {
        let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        let wanted: BTreeSet<String> =
            peers.iter().filter_map(|peer| peer["Name"].as_str()).map(label).collect();
        let found: BTreeSet<String> =
            compiled.peers(index).iter().map(|peer| nodes.nodes[peer].name.clone()).collect();
        same("peers", &serde_json::json!(wanted), &serde_json::json!(found))?;
        for peer in peers {
            routes(compiled, nodes, index, peer)?;
        }
    }
    Ok(())
}

/// Compares routes. Of several routers of a network, a map has only one; the policy does not choose it.
fn routes(
    compiled: &Compiled,
    nodes: &Nodes,
    index: usize,
    peer: &Value,
) -> Result<(), Box<dyn Error>> {
    let name = peer["Name"].as_str().and_then(|name| name.split('.').next()).unwrap_or_default();
    let router = nodes.nodes.iter().position(|node| node.name == name).ok_or("no such peer")?;
    let is_shared = |net: &str| {
        let routers = nodes.nodes.iter().flat_map(|node| &node.routes);
        !net.ends_with("/0") && routers.filter(|route| route.to_string() == *net).count() > 1
    };
    let own = peer["Addresses"].as_array().cloned().unwrap_or_default();
    let allowed = peer["AllowedIPs"].as_array().into_iter().flatten();
    let allowed = allowed.filter(|net| !own.contains(net)).filter_map(Value::as_str);
    let found: BTreeSet<String> =
        compiled.routes(index, router).iter().map(ToString::to_string).collect();
    let mut wanted: BTreeSet<String> = allowed.map(str::to_owned).collect();
    wanted.extend(found.iter().filter(|net| is_shared(net)).cloned());
    same(&format!("routes of {name}"), &serde_json::json!(wanted), &serde_json::json!(found))
}

fn is_of_state(name: &str) -> bool {
    OF_STATE.contains(&name) || name.contains("/cap/funnel-ports?")
}

/// Rules with their sources and destinations in order.
fn filter(rules: &Value) -> Value {
    let mut rules = rules.as_array().cloned().unwrap_or_default();
    for rule in &mut rules {
        for key in ["SrcIPs", "DstPorts"] {
            sort(&mut rule[key]);
        }
        for grant in rule["CapGrant"].as_array_mut().into_iter().flatten() {
            sort(&mut grant["Dsts"]);
            for values in
                grant["CapMap"].as_object_mut().into_iter().flat_map(|map| map.values_mut())
            {
                if values.as_array().is_some_and(Vec::is_empty) {
                    *values = Value::Null;
                }
            }
        }
    }
    rules.into()
}

/// Sorts a list. Null counts as empty.
fn sort(list: &mut Value) {
    if list.is_null() {
        *list = Value::Array(Vec::new());
    }
    if let Some(list) = list.as_array_mut() {
        list.sort_by_key(ToString::to_string);
    }
}

fn same(what: &str, wanted: &Value, found: &Value) -> Result<(), Box<dyn Error>> {
    if wanted == found {
        return Ok(());
    }
    let (wanted, found) = (wanted.as_array(), found.as_array());
    let pairs = wanted.into_iter().flatten().zip(found.into_iter().flatten());
    let first = pairs.enumerate().find(|(_, (one, two))| one != two);
    let lengths = (wanted.map_or(0, Vec::len), found.map_or(0, Vec::len));
    Err(match first {
        Some((at, (wanted, found))) => {
            format!("{what} {lengths:?}[{at}]\n    recorded {wanted}\n    ours     {found}").into()
        }
        None => format!("{what}: {} recorded, {} ours", lengths.0, lengths.1).into(),
    })
}
