//! Rules for logins by SSH.

use std::time::Duration;

use policy::{SshCheck, SshRule};
use serde_json::{Value, json};

use crate::network::{ADA, BASE, BEN, WEB, compile, network, parse};

fn rules(ssh: Value, node: usize) -> Vec<SshRule> {
    compile(&json!({"ssh": ssh})).ssh(node, "https://control")
}

fn from(rule: &SshRule) -> Vec<&str> {
    rule.principals.iter().map(|principal| principal.node_ip.as_str()).collect()
}

#[test]
fn a_rule_has_its_nodes_and_accounts_and_root_only_if_named() {
    let rule = json!({"action": "accept", "src": ["ben@example.net"], "dst": ["tag:web"],
        "users": ["autogroup:nonroot", "www"], "acceptEnv": ["LANG"]});
    let found = rules(json!([rule]), WEB);
    let wanted = json!([{
        "principals": [{"nodeIP": "100.64.0.3"}, {"nodeIP": "fd7a:115c:a1e0::3"}],
        "sshUsers": {"*": "=", "root": "", "www": "www"},
        "action": {"accept": true, "allowAgentForwarding": true, "allowLocalPortForwarding": true,
            "allowRemotePortForwarding": true},
        "acceptEnv": ["LANG"],
    }]);
    assert_eq!(json!(found), wanted);
    assert!(rules(json!([rule]), BASE).is_empty());
}

#[test]
fn checked_rules_come_first_and_delegate_to_the_server() {
    let rule = |action| json!({"action": action, "src": ["group:staff"], "dst": ["tag:web"], "users": ["root"]});
    let found = rules(json!([rule("accept"), rule("check")]), WEB);
    let wanted =
        "https://control/machine/ssh/action/$SRC_NODE_ID/to/$DST_NODE_ID?local_user=$LOCAL_USER";
    assert_eq!(found[0].action.hold_and_delegate, wanted);
    assert!(!found[0].action.accept && found[1].action.accept);
}

#[test]
fn autogroup_self_allows_logins_between_nodes_of_a_user() {
    let rule = json!({"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self"], "users": ["root"]});
    let found = rules(json!([rule]), BEN);
    assert_eq!(from(&found[0]), ["100.64.0.3", "fd7a:115c:a1e0::3"]);
    assert!(rules(json!([rule]), WEB).is_empty());
}

#[test]
fn localpart_names_an_account_for_its_user_only() {
    let rule = json!({"action": "accept", "src": ["group:staff"], "dst": ["tag:web"],
        "users": ["localpart:*@example.net"]});
    let found = rules(json!([rule]), WEB);
    let accounts: Vec<_> = found.iter().map(|rule| json!(rule.ssh_users)).collect();
    let root_refused = json!({"root": ""});
    assert_eq!(
        accounts,
        [root_refused.clone(), json!({"ada": "ada"}), root_refused, json!({"ben": "ben"})]
    );
    assert_eq!(from(&found[3]), ["100.64.0.3", "fd7a:115c:a1e0::3"]);
    // At the user's own nodes, too.
    assert_eq!(rules(json!([rule]), ADA).len(), 2);
}

#[test]
fn localpart_of_another_domain_names_no_account() {
    let rule = json!({"action": "accept", "src": ["autogroup:member"], "dst": ["tag:web"],
        "users": ["localpart:*@example.net"]});
    let mut nodes = network();
    nodes.users[1].email = "ben@other.test".into();
    let found = parse(&json!({"ssh": [rule]})).compile(&nodes).ssh(WEB, "https://control");
    let has = |account| found.iter().any(|rule| rule.ssh_users.contains_key(account));
    assert!(has("ada") && !has("ben"));
}

#[test]
fn ssh_check_returns_the_period_of_a_checked_login() {
    let rule = |action: Value| {
        let mut rule = json!({"src": ["ben@example.net"], "dst": ["tag:web"], "users": ["www"]});
        rule.as_object_mut().unwrap().extend(action.as_object().unwrap().clone());
        json!([rule])
    };
    let check = |ssh: Value, from, at, account: &str| {
        compile(&json!({"ssh": ssh})).ssh_check(from, at, account)
    };
    let hour = rule(json!({"action": "check", "checkPeriod": "1h"}));
    let period = Some(Duration::from_secs(3600));
    assert_eq!(check(hour.clone(), BEN, WEB, "www"), Some(SshCheck { period }));
    let others = [(BEN, WEB, "root"), (BEN, WEB, "git"), (ADA, WEB, "www"), (BEN, BASE, "www")];
    for (from, at, account) in others {
        assert_eq!(check(hour.clone(), from, at, account), None, "{from} {at} {account}");
    }
    let always = rule(json!({"action": "check", "checkPeriod": "always"}));
    assert_eq!(check(always, BEN, WEB, "www"), Some(SshCheck { period: None }));
    assert_eq!(check(rule(json!({"action": "accept"})), BEN, WEB, "www"), None);
    let others = rule(json!({"action": "check", "users": ["autogroup:nonroot"]}));
    assert_eq!(check(others.clone(), BEN, WEB, "root"), None);
    assert!(check(others, BEN, WEB, "git").is_some());
}
