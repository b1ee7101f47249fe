//! The legacy tables of iptables, which nft(8) does not show.

use std::{fs, io, process::Command};

/// The programs that list the tables, and the files in which the kernel names the tables in use.
/// These
/// files are read first, because listing a table creates it.
const FAMILIES: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/net/ip6_tables_names"),
];

/// The programs of the families in which chain FORWARD drops packets by default.
pub(super) fn dropping() -> Vec<&'static str> {
    let drops = |(program, names): &(&str, &str)| {
        let in_use = fs::read_to_string(names).unwrap_or_default();
        in_use.lines().any(|table| table == "filter") && is_dropping(&forward_rules(program))
    };
    FAMILIES.into_iter().filter(drops).map(|(program, _)| program).collect()
}

/// The rules of FORWARD; empty if the program is not installed.
fn forward_rules(program: &str) -> String {
    let list = |program: &str| Command::new(program).args(["-S", "FORWARD"]).output();
    // On hosts without nftables the program has its plain name.
    let plain = program.trim_end_matches("-legacy");
    let listed = match list(program) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => list(plain),
        listed => listed,
    };
    listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

fn is_dropping(rules: &str) -> bool {
    rules.lines().any(|line| line == "-P FORWARD DROP")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_drops_by_its_policy_not_by_a_rule() {
        assert!(is_dropping("-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n"));
        assert!(!is_dropping("-P FORWARD ACCEPT\n-A FORWARD -i eth9 -j DROP\n"));
        assert!(!is_dropping(""));
    }
}
