//! `linerate-server policy` on the command line.

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
fn filters_are_printed_as_tailscales_json_by_node_name() {
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
fn a_refused_policy_exits_with_1_and_names_line_and_key() {
    let directory = directory("{\n\"acls\": [{\"action\": \"accept\", \"src\": [\"tag:x\"]}],\n}");
    for arguments in [&["check", "policy.hujson"][..], &FILTERS] {
        let output = run(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("line 2, acls[0].src[0]: src=tag not found: \"tag:x\""), "{text}");
    }
}

#[test]
fn a_failing_test_refuses_a_policy_when_nodes_are_given() {
    let directory = directory(
        r#"{"tagOwners": {"tag:web": []}, "acls": [],
            "tests": [{"src": "ada@example.net", "accept": ["tag:web:443"]}]}"#,
    );
    assert!(run(directory.path(), &["check", "policy.hujson"]).status.success());
    let with_nodes = ["check", "policy.hujson", "--nodes", "nodes.json"];
    for arguments in [&with_nodes[..], &FILTERS] {
        let output = run(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("test(s) failed: ada@example.net does not reach"), "{text}");
    }
}

/// Status and output of `check`.
fn checked(policy: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = directory(policy);
    let output = run(directory.path(), &[&["check", "policy.hujson"], arguments].concat());
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn unsupported_parts_are_refused_by_name_or_ignored_on_request() {
    let policy = r#"{"tagOwners": {"tag:web": []},
        "postures": {"posture:x": ["node:os == 'linux'"]},
        "grants": [{"src": ["*"], "dst": ["tag:web"], "ip": ["*"], "srcPosture": ["posture:x"]}],
        "tests": [{"src": "ada@", "deny": ["tag:web:22"]}]}"#;
    let (status, text) = checked(policy, &[]);
    let postures =
        "line 2, postures: is not supported: this coordinator does not check device posture\n";
    assert!(status == Some(1) && text.contains(postures), "{text}");
    assert!(text.contains("line 3, grants[0].srcPosture: is not supported"), "{text}");
    assert!(text.contains("`--ignore-unsupported` ignores these parts"), "{text}");
    let (status, text) = checked(policy, &["--ignore-unsupported", "--nodes", "nodes.json"]);
    assert!(
        status == Some(0) && text.starts_with(&format!("left out: {postures}left out: ")),
        "{text}"
    );
    let unknown = policy.replace("postures", "posture");
    let (status, text) = checked(&unknown, &["--ignore-unsupported"]);
    assert!(status == Some(1) && text.contains("line 2, posture: unknown key"), "{text}");
    assert!(!text.contains("not supported"), "{text}");
}

#[test]
fn unmatched_names_and_an_empty_policy_give_warnings() {
    let (status, text) = checked("// none yet\n", &["--nodes", "nodes.json"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.starts_with("warning: line 1: there are neither acls nor grants"), "{text}");
    let rule = r#"{"acls": [{"action": "accept", "src": ["ada@", "https://id.test/abc@"], "dst": ["*:*"]}]}"#;
    let (status, text) = checked(rule, &["--nodes", "nodes.json"]);
    let wanted = "warning: line 1, acls[0].src[1]: \"https://id.test/abc@\" matches no user\n";
    assert_eq!((status, text.as_str()), (Some(0), wanted));
    assert_eq!(checked(rule, &[]), (Some(0), String::new()));
}
