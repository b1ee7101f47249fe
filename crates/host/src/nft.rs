//! The nftables table of an interface, through the JSON interface of nft(8) (libnftables-json(5)).
//! One transaction sets the table and replaces a stale one.

use std::{
    io::{self, Write as _},
    process::{Command, Stdio},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sys::process::unmask;

/// A chain of the table.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub name: &'static str,
    pub kind: &'static str,
    pub hook: &'static str,
    pub priority: i32,
}

/// The contents of a table.
pub struct Ruleset {
    table: String,
    commands: Vec<Value>,
}

impl Ruleset {
    /// An empty ruleset for an interface.
    pub fn new(interface: &str) -> Self {
        Self { table: table_of(interface), commands: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// Adds a chain with the policy "accept".
    pub fn add_chain(&mut self, Chain { name, kind, hook, priority }: Chain) {
        self.commands.push(json!({"add": {"chain": {
            "family": "inet", "table": self.table, "name": name,
            "type": kind, "hook": hook, "prio": priority, "policy": "accept",
        }}}));
    }

    /// Appends a rule to a chain.
    pub fn add_rule(&mut self, chain: Chain, statements: &[Value]) {
        self.commands.push(json!({"add": {"rule": {
            "family": "inet", "table": self.table, "chain": chain.name, "expr": statements,
        }}}));
    }

    /// The output of nft(8) for this table after it is set.
    #[cfg(test)]
    pub fn as_listed(&self) -> Value {
        let objects: Vec<&Value> = self.commands.iter().map(|command| &command["add"]).collect();
        json!({"nftables": objects})
    }

    /// Sets the table.
    ///
    /// # Errors
    /// nft(8) is not installed, or refuses.
    pub fn apply(self) -> anyhow::Result<()> {
        let table = json!({"table": {"family": "inet", "name": self.table}});
        // An absent table can be deleted only after it was added.
        let mut commands =
            vec![json!({"add": table}), json!({"delete": table}), json!({"add": table})];
        commands.extend(self.commands);
        nft(commands)
    }
}

/// Removes the table of an interface, if present.
pub(crate) fn remove(interface: &str) -> anyhow::Result<()> {
    let table = json!({"table": {"family": "inet", "name": table_of(interface)}});
    nft(vec![json!({"add": table}), json!({"delete": table})])
}

/// The name of an interface's table.
pub(crate) fn table_of(interface: &str) -> String {
    format!("linerate-{interface}")
}

/// A statement that matches if `left` and `right` compare by `operator`.
pub(crate) fn compare(operator: &str, left: &Value, right: impl Into<Value>) -> Value {
    json!({"match": {"op": operator, "left": left, "right": right.into()}})
}

/// `left == right`
pub(crate) fn is(left: &Value, right: impl Into<Value>) -> Value {
    compare("==", left, right)
}

/// `left != right`
pub(crate) fn is_not(left: &Value, right: impl Into<Value>) -> Value {
    compare("!=", left, right)
}

/// A meta key of the packet: `iifname`, `mark`, ...
pub(crate) fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

/// A key of the packet's connection: `mark`, `state`, ...
pub(crate) fn connection(key: &str) -> Value {
    json!({"ct": {"key": key}})
}

/// The forward chains of other tables with the policy "drop". nft(8) does not show those of
/// iptables-legacy.
///
/// # Errors
/// nft(8) is not installed, or refuses.
pub fn dropping_chains() -> anyhow::Result<Vec<String>> {
    Ok(dropping(&list(&["chains"])?))
}

/// Whether the table of an interface exists and each of its chains has a rule.
///
/// # Errors
/// nft(8) is not installed, or refuses.
pub(crate) fn is_intact(interface: &str) -> anyhow::Result<bool> {
    let table = table_of(interface);
    // For an absent table nft fails in the same way as for other errors, so the chains are listed
    // first.
    Ok(!chains_of(&table, &list(&["chains"])?).is_empty()
        && has_rules(&table, &list(&["table", "inet", &table])?))
}

pub(crate) fn has_rules(table: &str, listed: &Value) -> bool {
    let rules = || all(listed, "rule").filter_map(|rule| rule["chain"].as_str());
    chains_of(table, listed).iter().all(|chain| rules().any(|of| of == *chain))
}

fn chains_of<'a>(table: &str, listed: &'a Value) -> Vec<&'a str> {
    let chains = all(listed, "chain");
    let chains = chains.filter(|chain| chain["family"] == "inet" && chain["table"] == table);
    chains.filter_map(|chain| chain["name"].as_str()).collect()
}

/// All objects of a kind in the output of nft(8).
fn all<'a>(listed: &'a Value, kind: &str) -> impl Iterator<Item = &'a Value> {
    let objects = listed["nftables"].as_array().into_iter().flatten();
    objects.filter_map(move |object| object.get(kind))
}

/// The forward chains with the policy "drop". Chains of this module have the policy "accept".
fn dropping(listed: &Value) -> Vec<String> {
    let drops = all(listed, "chain")
        .filter(|chain| chain["hook"] == "forward" && chain["policy"] == "drop");
    let name = |chain: &Value| {
        let words = ["family", "table", "name"].map(|key| chain[key].as_str().unwrap_or("?"));
        words.join(" ")
    };
    drops.map(name).collect()
}

fn nft(commands: Vec<Value>) -> anyhow::Result<()> {
    let input = json!({"nftables": commands}).to_string();
    run(&["-f", "-"], &input).map(drop)
}

fn list(what: &[&str]) -> anyhow::Result<Value> {
    let output = run(&[&["list"], what].concat(), "")?;
    serde_json::from_slice(&output).context("nft")
}

/// Runs nft(8) and returns its output.
fn run(arguments: &[&str], input: &str) -> anyhow::Result<Vec<u8>> {
    let mut command = Command::new("nft");
    command.arg("-j").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = match unmask(&mut command).spawn() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!("nft is not installed"),
        process => process.context("nft")?,
    };
    if let Some(mut stdin) = process.stdin.take() {
        stdin.write_all(input.as_bytes()).context("nft")?;
    }
    let output = process.wait_with_output().context("nft")?;
    if !output.status.success() {
        bail!("nft: {}", output.status);
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_forward_chains_with_policy_drop_are_listed() {
        let chain = |name: &str, hook: &str, policy: &str| {
            json!({"chain": {"family": "ip", "table": "filter", "name": name, "hook": hook,
                             "type": "filter", "prio": 0, "policy": policy}})
        };
        let listed = json!({"nftables": [
            {"metainfo": {"json_schema_version": 1}},
            chain("INPUT", "input", "drop"),
            chain("FORWARD", "forward", "drop"),
            chain("own", "forward", "accept"),
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER", "handle": 2}},
        ]});
        assert_eq!(dropping(&listed), ["ip filter FORWARD"]);
        assert!(dropping(&Value::Null).is_empty());
    }

    #[test]
    fn table_is_intact_while_each_chain_has_a_rule() {
        let chain = |family: &str, table: &str, name: &str| json!({"chain": {"family": family, "table": table, "name": name}});
        let rule = |chain: &str| json!({"rule": {"table": "own", "chain": chain, "expr": []}});
        let mut objects = vec![
            json!({"metainfo": {}}),
            chain("inet", "own", "nat"),
            chain("ip", "own", "of another family"),
            chain("inet", "another", "of another table"),
            chain("inet", "own", "clamp"),
            rule("nat"),
        ];
        let listed = json!({"nftables": objects});
        assert_eq!(chains_of("own", &listed), ["nat", "clamp"]);
        assert!(!has_rules("own", &listed));
        objects.push(rule("clamp"));
        assert!(has_rules("own", &json!({"nftables": objects})));
        assert!(chains_of("own", &json!({"nftables": []})).is_empty());
    }
}
