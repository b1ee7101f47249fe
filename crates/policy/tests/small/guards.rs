//! The section tests must be able to fail. Unmatched names are reported.

use policy::{Node, Policy, Reason};
use serde_json::{Value, json};

use crate::network::{self, network, parse};

/// The message of a test in a policy with these ACLs.
fn run_test(acls: &Value, test: &Value) -> String {
    let outcome = parse(&json!({"acls": acls, "tests": [test]})).run_tests(&network());
    outcome.map_or_else(|refusal| refusal.to_string(), |()| String::new())
}

fn acl(src: &str, dst: &str) -> Value {
    json!([{"action": "accept", "src": [src], "dst": [dst]}])
}

const ADA: &str = "ada@example.net";
const BEN: &str = "ben@example.net";

#[test]
fn a_test_covers_the_internet() {
    let rules = acl(BEN, "autogroup:internet:*");
    let reached = ["198.51.100.8:22", "8.8.8.8:53", "[2001:db8::1]:443"];
    for target in reached {
        let found = run_test(&rules, &json!({"src": BEN, "deny": [target]}));
        assert!(found.ends_with(&format!("{BEN} reaches {target}")), "{target}: {found}");
        assert_eq!(run_test(&rules, &json!({"src": BEN, "accept": [target]})), "", "{target}");
        assert_eq!(run_test(&rules, &json!({"src": ADA, "deny": [target]})), "", "{target}");
    }
    for target in ["10.1.2.3:22", "192.168.0.1:80", "100.64.0.4:22", "169.254.0.1:1", "[fd00::1]:1"]
    {
        assert_eq!(run_test(&rules, &json!({"src": BEN, "deny": [target]})), "", "{target}");
    }
    let only_web = acl(BEN, "autogroup:internet:443");
    assert_eq!(run_test(&only_web, &json!({"src": BEN, "deny": ["198.51.100.8:22"]})), "");
}

#[test]
fn a_denial_fails_if_one_of_several_machines_reaches_one_target() {
    // Ada's telephone is one of her two machines, and the web server has two addresses.
    let rules = acl("100.64.0.2", "100.64.0.4:22");
    let found = run_test(&rules, &json!({"src": ADA, "deny": ["tag:web:22"]}));
    assert!(found.ends_with("ada@example.net reaches tag:web:22"), "{found}");
    let found = run_test(&rules, &json!({"src": "group:staff", "deny": ["tag:web:22"]}));
    assert!(found.ends_with("group:staff reaches tag:web:22"), "{found}");
    let found = run_test(&rules, &json!({"src": ADA, "accept": ["tag:web:22"]}));
    assert!(found.ends_with("ada@example.net does not reach tag:web:22"), "{found}");
}

#[test]
fn a_test_covers_routed_networks() {
    let grants = json!([{"src": [BEN], "dst": ["10.1.0.0/16", "autogroup:internet"], "ip": ["tcp:443"],
        "via": ["tag:router"]}]);
    let with = |test: Value| {
        let policy = parse(&json!({"grants": grants, "tests": [test]}));
        policy.run_tests(&network()).map_err(|refusal| refusal.to_string())
    };
    for target in ["10.1.0.1:443", "printer:443", "198.51.100.8:443"] {
        assert_eq!(with(json!({"src": BEN, "accept": [target]})), Ok(()), "{target}");
        assert!(with(json!({"src": BEN, "deny": [target]})).is_err(), "{target}");
        assert_eq!(with(json!({"src": ADA, "deny": [target]})), Ok(()), "{target}");
    }
    // The router itself is not in it.
    assert_eq!(with(json!({"src": BEN, "deny": ["tag:router:443", "10.1.0.1:22"]})), Ok(()));
}

#[test]
fn a_test_checks_the_protocol_that_it_names() {
    let rules = |proto: Option<&str>, dst: &str| json!([{"action": "accept", "proto": proto, "src": [BEN], "dst": [dst]}]);
    let reaches = |rules: &Value, proto: Option<&str>, target: &str| {
        let accepts = run_test(rules, &json!({"src": BEN, "proto": proto, "accept": [target]}));
        let denies = run_test(rules, &json!({"src": BEN, "proto": proto, "deny": [target]}));
        assert_ne!(accepts.is_empty(), denies.is_empty(), "{rules} {proto:?} {target}");
        accepts.is_empty()
    };
    let (any, tcp) = (rules(None, "tag:web:443"), rules(Some("tcp"), "tag:web:443"));
    for (rules, proto, target, is_open) in [
        (&any, None, "tag:web:443", true),
        (&any, Some("tcp"), "tag:web:443", true),
        (&any, Some("17"), "tag:web:443", true),
        (&any, Some("sctp"), "tag:web:443", false),
        (&any, Some("47"), "tag:web:0", false),
        (&any, Some("icmp"), "tag:web:0", true),
        (&any, Some("icmp"), "tag:base:0", false),
        (&any, Some("1"), "tag:web:0", true),
        (&any, Some("ipv6-icmp"), "tag:web:0", true),
        (&any, None, "tag:web:22", false),
        (&tcp, Some("tcp"), "tag:web:443", true),
        (&tcp, Some("udp"), "tag:web:443", false),
        (&tcp, None, "tag:web:443", true),
        // A rule that allows any packet also allows pings.
        (&tcp, Some("icmp"), "tag:web:0", true),
        (&rules(Some("gre"), "tag:web:*"), Some("47"), "tag:web:0", true),
        (&rules(Some("89"), "tag:web:*"), Some("gre"), "tag:web:0", false),
        (&rules(Some("sctp"), "tag:web:9"), Some("132"), "tag:web:9", true),
        (&rules(Some("icmp"), "tag:web:*"), None, "tag:web:443", false),
    ] {
        assert_eq!(reaches(rules, proto, target), is_open, "{rules} {proto:?} {target}");
    }
    for (proto, target) in
        [("tcp", "tag:web:0"), ("icmp", "tag:web:*"), ("icmp", "tag:web:0-1"), ("x", "tag:web:1")]
    {
        let sections = json!({"tests": [{"src": BEN, "proto": proto, "accept": [target]}]});
        assert!(Policy::parse(&network::text(&sections)).is_err(), "{proto} {target}");
    }
}

#[test]
fn tags_and_users_without_a_machine_are_tested_with_an_imaginary_one() {
    let mut nodes = network();
    nodes.nodes.retain(|node: &Node| node.user != Some(2) && node.tags != ["tag:base"]);
    let rule = json!({"action": "accept", "src": [BEN], "dst": ["tag:base:5432"]});
    let ssh = json!({"action": "accept", "src": [BEN], "dst": ["tag:base"], "users": ["www"]});
    let with = |sections: Value| {
        let mut sections = sections;
        sections["acls"] = json!([rule]);
        sections["ssh"] = json!([ssh]);
        parse(&sections).run_tests(&nodes).map_err(|refusal| refusal.to_string())
    };
    let test = |test: Value| with(json!({"tests": [test]}));
    assert_eq!(
        test(json!({"src": BEN, "accept": ["tag:base:5432"], "deny": ["tag:base:22"]})),
        Ok(())
    );
    assert_eq!(test(json!({"src": ADA, "deny": ["tag:base:5432"]})), Ok(()));
    assert_eq!(test(json!({"src": "tag:base", "deny": ["ben@example.net:22"]})), Ok(()));
    let found = test(json!({"src": "group:staff", "deny": ["tag:base:5432"]})).unwrap_err();
    assert!(found.ends_with("group:staff reaches tag:base:5432"), "{found}");
    let found = test(json!({"src": "tag:web", "accept": ["tag:base:5432"]})).unwrap_err();
    assert!(found.ends_with("tag:web does not reach tag:base:5432"), "{found}");
    let logins = |user: &str| {
        with(json!({"sshTests": [{"src": BEN, "dst": ["tag:base"], "accept": [user]}]}))
    };
    assert_eq!(logins("www"), Ok(()));
    assert!(logins("root").unwrap_err().ends_with("does not reach root@a machine of tag:base"));
    let unknown = test(json!({"src": "eve@example.net", "deny": ["tag:base:1"]})).unwrap_err();
    assert!(unknown.ends_with("src \"eve@example.net\" matches no user or node"), "{unknown}");
}

#[test]
fn an_invalid_user_name_is_refused() {
    for text in [
        "@",
        " @ ",
        "@@",
        "@example.net",
        "user:*@",
        "user:ada@example.net",
        "group:",
        "tag:",
        "ipset:",
        "",
    ] {
        let rule = json!({"action": "accept", "src": [text], "dst": ["*:*"]});
        let refusal = Policy::parse(&network::text(&json!({"acls": [rule]}))).unwrap_err();
        let fault = &refusal.faults[0];
        assert_eq!(fault.key, "acls[0].src[0]", "{text}");
        let group = json!({"groups": {"group:a": [text]}});
        assert!(Policy::parse(&group.to_string()).is_err(), "{text}");
    }
}

#[test]
fn a_group_name_with_an_at_sign_is_still_a_group() {
    let rule = json!({"action": "accept", "src": ["group:eng@example.net"], "dst": ["tag:web:22"]});
    let tags = json!({"tag:web": []});
    let with = |groups: Value| {
        Policy::parse(&json!({"groups": groups, "tagOwners": tags, "acls": [rule]}).to_string())
    };
    let compiled = with(json!({"group:eng@example.net": [BEN]})).unwrap().compile(&network());
    assert_eq!(compiled.peers(network::WEB).iter().collect::<Vec<_>>(), [network::BEN]);
    let refusal = with(json!({})).unwrap_err().to_string();
    assert!(refusal.contains("group:eng@example.net is not supported"), "{refusal}");
}

#[test]
fn names_that_match_no_user_are_reported_with_line_and_key() {
    let text = "{
        \"groups\": {\"group:a\": [\"ben@example.net\",
            \"eve@\"]},
        \"tagOwners\": {\"tag:web\": [\"gone@example.net\"]},
        \"acls\": [{\"action\": \"accept\", \"src\": [\"ada@\", \"user:*@example.com\"],
            \"dst\": [\"https://id.example.com/abc@:22\", \"tag:web:1\"]}],
        \"autoApprovers\": {\"exitNode\": [\"nobody@\"]},
        \"nodeAttrs\": [{\"target\": [\"zoe@\"], \"attr\": [\"funnel\"]}],
        \"ssh\": [{\"action\": \"accept\", \"src\": [\"sam@\"], \"dst\": [\"tag:web\"], \"users\": [\"a\"]}],
    }";
    let warnings = Policy::parse(text).unwrap().warnings(&network());
    let found: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    let wanted = [
        "line 3, groups.group:a[1]: \"eve@\" matches no user",
        "line 4, tagOwners.tag:web[0]: \"gone@example.net\" matches no user",
        "line 5, acls[0].src[1]: \"user:*@example.com\" matches no user",
        "line 6, acls[0].dst[0]: \"https://id.example.com/abc@\" matches no user",
        "line 7, autoApprovers.exitNode[0]: \"nobody@\" matches no user",
        "line 8, nodeAttrs[0].target[0]: \"zoe@\" matches no user",
        "line 9, ssh[0].src[0]: \"sam@\" matches no user",
    ];
    assert_eq!(found, wanted);
    assert!(warnings.iter().all(|fault| matches!(fault.reason, Reason::NoUser(_))));
}

#[test]
fn a_renamed_user_is_renamed_in_all_mentions() {
    let text = r#"{ // ben@ in a comment
        "groups": {"group:a": ["ben@", "ben@example.net", "big-ben@"]},
        "tagOwners": {"tag:ben": [" ben@ "]},
        "acls": [{"action": "accept", "src": ["ben@"], "dst": ["ben@:22,80", "tag:ben:22"]}],
        "tests": [{"src": "ben@", "accept": ["ben@:22"]}], // the end
    }"#;
    let policy = Policy::parse(text).unwrap();
    let mut nodes = network();
    let renamed = policy.with_renamed_user(text, &nodes, 2, "be\"n").unwrap();
    let wanted = r#"{ // ben@ in a comment
        "groups": {"group:a": ["be\"n@", "ben@example.net", "big-ben@"]},
        "tagOwners": {"tag:ben": [" be\"n@ "]},
        "acls": [{"action": "accept", "src": ["be\"n@"], "dst": ["be\"n@:22,80", "tag:ben:22"]}],
        "tests": [{"src": "be\"n@", "accept": ["be\"n@:22"]}], // the end
    }"#;
    assert_eq!(renamed, wanted);
    let before: Vec<_> = nodes.indices().map(|at| policy.compile(&nodes).filter(at)).collect();
    nodes.users[1].name = "be\"n".into();
    let policy = Policy::parse(&renamed).unwrap();
    let after: Vec<_> = nodes.indices().map(|at| policy.compile(&nodes).filter(at)).collect();
    assert_eq!(before, after);
    assert!(policy.with_renamed_user(&renamed, &nodes, 1, "eve").is_none());
    assert!(
        policy.find_mention_of_user(&nodes, 2).unwrap().to_string().contains("groups.group:a[0]")
    );
    assert!(policy.find_mention_of_user(&nodes, 1).is_none());
}
