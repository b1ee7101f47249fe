//! `linerate-server policy`, as it is called.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::{Value, json};

fn run(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_linerate-server"));
    command.current_dir(directory).arg("policy").args(arguments).output().unwrap()
}

fn directory(policy: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let nodes = json!({
        "users": [{"id": 1, "name": "ada", "email": "ada@example.net"}],
        "nodes": {
            "laptop": {"user": "ada", "ipv4": "100.64.0.1"},
            "web": {"tags": ["tag:web"], "ipv4": "100.64.0.2", "routable_ips": null},
        },
    });
    fs::write(directory.path().join("nodes.json"), nodes.to_string()).unwrap();
    fs::write(directory.path().join("policy.hujson"), policy).unwrap();
    directory
}

const FILTERS: [&str; 6] =
    ["filters", "--policy", "policy.hujson", "--nodes", "nodes.json", "--json"];

#[test]
fn filters_are_tailscales_json_by_the_nodes_names() {
    let directory = directory(
        r#"{"tagOwners": {"tag:web": []}, // nobody's
            "acls": [{"action": "accept", "src": ["ada@example.net"], "dst": ["tag:web:443"]}]}"#,
    );
    let output = run(directory.path(), &FILTERS);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let ports = json!([{"IP": "100.64.0.2", "Ports": {"First": 443, "Last": 443}}]);
    let wanted = json!({"laptop": [], "web": [{"SrcIPs": ["100.64.0.1"], "DstPorts": ports}]});
    assert_eq!(found, wanted);
    assert!(output.status.success());
    assert!(run(directory.path(), &["check", "policy.hujson"]).status.success());
}

#[test]
fn a_refused_policy_ends_with_1_and_says_line_and_key() {
    let directory = directory("{\n\"acls\": [{\"action\": \"accept\", \"src\": [\"tag:x\"]}],\n}");
    for arguments in [&["check", "policy.hujson"][..], &FILTERS] {
        let output = run(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("line 2, acls[0].src[0]: src=tag not found: \"tag:x\""), "{told}");
    }
}

#[test]
fn a_test_that_fails_refuses_a_policy_where_nodes_are_known() {
    let directory = directory(
        r#"{"tagOwners": {"tag:web": []}, "acls": [],
            "tests": [{"src": "ada@example.net", "accept": ["tag:web:443"]}]}"#,
    );
    assert!(run(directory.path(), &["check", "policy.hujson"]).status.success());
    let with_nodes = ["check", "policy.hujson", "--nodes", "nodes.json"];
    for arguments in [&with_nodes[..], &FILTERS] {
        let output = run(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains("test(s) failed: ada@example.net does not reach"), "{told}");
    }
}
