//! An arbitrary policy, applied to a small network.

use policy::{Nodes, Policy};

const NETWORK: &str = r#"{
    "users": [{"id": 1, "name": "a", "email": "a@x"}, {"id": 2, "name": "b", "email": "b@x"}],
    "nodes": {
        "a": {"user": "a", "ipv4": "100.64.0.1", "ipv6": "fd7a:115c:a1e0::1"},
        "b": {"user": "b", "ipv4": "100.64.0.2", "ipv6": "fd7a:115c:a1e0::2"},
        "t": {"tags": ["tag:t"], "ipv4": "100.64.0.3", "ipv6": "fd7a:115c:a1e0::3",
              "routable_ips": ["10.0.0.0/8", "0.0.0.0/0", "::/0"],
              "approved_routes": ["10.0.0.0/8", "0.0.0.0/0", "::/0"]}
    }
}"#;

/// Every error names an existing line, visibility is mutual, and no rule is empty.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count().max(1) + 1;
    let policy = match Policy::parse(text) {
        Ok(policy) => policy,
        Err(refusal) => {
            let in_text = |line: u32| line >= 1 && line as usize <= lines;
            assert!(!refusal.faults.is_empty());
            assert!(refusal.faults.iter().all(|fault| in_text(fault.line)), "{refusal}");
            return;
        }
    };
    let nodes = Nodes::from_json(NETWORK).expect("it is ours");
    let _ = policy.run_tests(&nodes);
    let compiled = policy.compile(&nodes);
    for node in nodes.indices() {
        let peers = compiled.peers(node);
        assert!(!peers.contains(node));
        assert!(peers.iter().all(|peer| compiled.peers(peer).contains(node)));
        for rule in compiled.filter(node) {
            assert!(!rule.destinations.is_empty() || !rule.grants.is_empty());
        }
        compiled.ssh(node, "https://x");
        compiled.attributes(node);
        for route in &nodes.nodes[node].routes {
            policy.approves(&nodes, node, route);
        }
    }
}
