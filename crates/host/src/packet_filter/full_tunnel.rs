//! The packet filter of a full tunnel, as in wg-quick(8). Answers to our marked datagrams are
//! marked on arrival, so that a strict reverse path filter accepts them. Packets to the tunnel's
//! addresses from outer networks are dropped (CVE-2019-14899).

use ipnet::IpNet;
use serde_json::{Value, json};
use sys::netlink::FwMark;

use crate::nft::{Chain, Ruleset, connection, is, is_not, meta};

const PRERAW: Chain = Chain { name: "preraw", kind: "filter", hook: "prerouting", priority: -300 };
const PREMANGLE: Chain =
    Chain { name: "premangle", kind: "filter", hook: "prerouting", priority: -150 };
const POSTMANGLE: Chain =
    Chain { name: "postmangle", kind: "filter", hook: "postrouting", priority: -150 };

pub(super) fn add_rules(rules: &mut Ruleset, interface: &str, addresses: &[IpNet], mark: FwMark) {
    // A chain without a rule would be reported as flushed.
    if !addresses.is_empty() {
        rules.add_chain(PRERAW);
    }
    [PREMANGLE, POSTMANGLE].into_iter().for_each(|chain| rules.add_chain(chain));
    for address in addresses {
        let protocol = if address.addr().is_ipv4() { "ip" } else { "ip6" };
        let destination = json!({"payload": {"protocol": protocol, "field": "daddr"}});
        let source = json!({"fib": {"flags": ["saddr"], "result": "type"}});
        rules.add_rule(
            PRERAW,
            &[
                is_not(&meta("iifname"), interface),
                is(&destination, address.addr().to_string()),
                is_not(&source, "local"),
                json!({"counter": null}),
                json!({"drop": null}),
            ],
        );
    }
    let udp = is(&meta("l4proto"), "udp");
    let ways = [
        (POSTMANGLE, meta("mark"), connection("mark")),
        (PREMANGLE, connection("mark"), meta("mark")),
    ];
    for (chain, from, to) in ways {
        rules.add_rule(chain, &[udp.clone(), has_mark(&from, mark), set_mark(&to, mark)]);
    }
}

fn has_mark(field: &Value, FwMark { value, mask }: FwMark) -> Value {
    is(&json!({"&": [field, mask]}), value)
}

/// Sets the mark without changing the bits outside of its mask.
fn set_mark(field: &Value, FwMark { value, mask }: FwMark) -> Value {
    let whole = match !mask {
        0 => json!(value),
        others => json!({"|": [{"&": [field, others]}, value]}),
    };
    json!({"mangle": {"key": field, "value": whole}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::has_rules;

    #[test]
    fn each_chain_has_a_rule() {
        for addresses in [vec![], vec!["10.9.0.1/24".parse().unwrap()]] {
            let mut rules = Ruleset::new("wg0");
            add_rules(&mut rules, "wg0", &addresses, FwMark::exact(51_820));
            let listed = rules.as_listed();
            assert!(has_rules("linerate-wg0", &listed), "{addresses:?}: {listed}");
        }
    }
}
