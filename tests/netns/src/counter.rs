//! Packet counters in a host's nftables.

use crate::host::Host;

/// Counts the packets that match a rule at one of a host's hooks.
pub struct Counter {
    host: Host,
    table: String,
}

impl Counter {
    /// Starts counting packets at `hook` (`prerouting`, `input`, `forward`, `output`, `postrouting`) that
    /// match `rule` in nft's syntax. Names are per host. The counter runs after every mangling rule.
    pub fn start(host: &Host, name: &str, hook: &str, rule: &str) -> Self {
        let table = format!("count_{name}");
        let text = format!(
            "table inet {table} {{\n counter matched {{ }}\n chain watch {{\n  \
             type filter hook {hook} priority 200; policy accept;\n  \
             {rule} counter name matched\n }}\n}}\n"
        );
        let path = host.write(&format!("{table}.nft"), &text);
        host.run(format!("nft -f {path}"));
        Self { host: host.clone(), table }
    }

    /// Number of packets. A super-packet of an offload counts as one.
    pub fn packets(&self) -> u64 {
        let text = self.host.run(format!("nft list counter inet {} matched", self.table));
        let mut words = text.split_whitespace().skip_while(|word| *word != "packets").skip(1);
        words.next().and_then(|n| n.parse().ok()).expect("nft prints `packets N`")
    }
}
