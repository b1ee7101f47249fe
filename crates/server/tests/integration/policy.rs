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

/// The status and output of `check`.
fn checked(policy: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = directory(policy);
    let output = run(directory.path(), &[&["check", "policy.hujson"], arguments].concat());
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn what_is_not_supported_is_refused_by_name_and_left_out_where_that_is_wanted() {
    let policy = r#"{"tagOwners": {"tag:web": []},
        "postures": {"posture:x": ["node:os == 'linux'"]},
        "grants": [{"src": ["*"], "dst": ["tag:web"], "ip": ["*"], "srcPosture": ["posture:x"]}],
        "tests": [{"src": "ada@", "deny": ["tag:web:22"]}]}"#;
    let (status, told) = checked(policy, &[]);
    let postures = "line 2, postures: is not supported: there is no device posture\n";
    assert!(status == Some(1) && told.contains(postures), "{told}");
    assert!(told.contains("line 3, grants[0].srcPosture: is not supported"), "{told}");
    assert!(told.contains("`--ignore-unsupported` leaves out these parts"), "{told}");
    let (status, told) = checked(policy, &["--ignore-unsupported", "--nodes", "nodes.json"]);
    assert!(
        status == Some(0) && told.starts_with(&format!("left out: {postures}left out: ")),
        "{told}"
    );
    let unknown = policy.replace("postures", "posture");
    let (status, told) = checked(&unknown, &["--ignore-unsupported"]);
    assert!(status == Some(1) && told.contains("line 2, posture: unknown key"), "{told}");
    assert!(!told.contains("not supported"), "{told}");
}

#[test]
fn names_that_match_nobody_and_a_file_without_rules_are_warned_of() {
    let (status, told) = checked("// none yet\n", &["--nodes", "nodes.json"]);
    assert_eq!(status, Some(0), "{told}");
    assert!(told.starts_with("warning: line 1: there are neither acls nor grants"), "{told}");
    let rule = r#"{"acls": [{"action": "accept", "src": ["ada@", "https://id.test/abc@"], "dst": ["*:*"]}]}"#;
    let (status, told) = checked(rule, &["--nodes", "nodes.json"]);
    let wanted = "warning: line 1, acls[0].src[1]: \"https://id.test/abc@\" matches no user\n";
    assert_eq!((status, told.as_str()), (Some(0), wanted));
    assert_eq!(checked(rule, &[]), (Some(0), String::new()));
}
