//! Refused policies, with line and key, and failures of tests.

use policy::{Policy, Reason};
use serde_json::{Value, json};

use crate::network::{network, parse, text};

fn refused(sections: &Value) -> String {
    Policy::parse(&text(sections)).unwrap_err().to_string()
}

fn run_tests(sections: &Value) -> Result<(), String> {
    parse(sections).run_tests(&network()).map_err(|refusal| refusal.to_string())
}

#[test]
fn each_defect_is_reported_with_line_and_key() {
    let text = "{\n  \"acls\": [\n    {\"action\": \"drop\", \"src\": [\"tag:x\"],\n     \"dst\": [\"nowhere:22\", \"*:http\"]},\n  ],\n  \"grant\": [],\n}";
    let refusal = Policy::parse(text).unwrap_err();
    let indices: Vec<_> =
        refusal.faults.iter().map(|fault| (fault.line, fault.key.as_str())).collect();
    let wanted = [
        (3, "acls[0].action"),
        (3, "acls[0].src[0]"),
        (4, "acls[0].dst[0]"),
        (4, "acls[0].dst[1]"),
        (6, "grant"),
    ];
    assert_eq!(indices, wanted);
    assert_eq!(refusal.faults[4].reason, Reason::UnknownKey);
    assert!(refusal.to_string().contains("line 3, acls[0].src[0]: src=tag not found: \"tag:x\""));
}

#[test]
fn an_unsupported_key_is_refused_by_name() {
    let grant = json!({"src": ["*"], "dst": ["*"], "ip": ["*"], "srcPosture": ["posture:x"]});
    assert!(
        refused(&json!({"grants": [grant]})).contains("grants[0].srcPosture: is not supported")
    );
    let postures = json!({"posture:x": ["node:os == 'linux'"]});
    assert!(refused(&json!({"postures": postures})).contains("postures: is not supported"));
    let regions = json!({"900": {"regionID": 900}});
    let expected = refused(&json!({"derpMap": {"regions": regions}}));
    assert!(expected.contains("derpMap: is not supported: relays are set in"), "{expected}");
}

#[test]
fn a_login_to_nodes_of_a_user_is_for_the_same_user_only() {
    let rule = |sources: &[&str]| {
        json!({"ssh": [{"action": "accept", "src": sources, "dst": ["ada@example.net"],
            "users": ["root"]}]})
    };
    parse(&rule(&["ada@example.net"]));
    for sources in [&["ben@example.net"][..], &["ada@example.net", "ben@example.net"]] {
        assert!(refused(&rule(sources)).contains("ssh[0]"), "{sources:?}");
    }
}

#[test]
fn names_must_be_defined_and_allowed_in_their_position() {
    let acl = |src: &str, dst: &str| {
        refused(&json!({"acls": [{"action": "accept", "src": [src], "dst": [dst]}]}))
    };
    assert!(acl("group:nobody", "*:*").contains("group not found"));
    assert!(acl("ipset:nothing", "*:*").contains("ipset not found"));
    assert!(acl("*", "autogroup:danger-all:*").contains("danger-all"));
    assert!(acl("autogroup:internet", "*:*").contains("can only be a destination"));
    assert!(acl("tag:web", "autogroup:self:*").contains("can only be used with users"));
    assert!(acl("*", "*:0").contains("must be >0"));
    assert!(acl("*", "*:99999").contains("at most 65535"));
    assert!(acl("*", "*:9-3").contains("must not be above"));
    assert!(acl("*", "tag:web").contains("invalid first integer"));
}

#[test]
fn only_protocols_with_ports_have_ports() {
    let acl = |proto: &str, dst: &str| {
        let rule = json!({"action": "accept", "proto": proto, "src": ["*"], "dst": [dst]});
        Policy::parse(&text(&json!({"acls": [rule]}))).map_err(|refusal| refusal.to_string())
    };
    assert!(acl("icmp", "*:*").is_ok() && acl("89", "*:*").is_ok() && acl("SCTP", "*:7").is_ok());
    assert!(acl("icmp", "*:7").unwrap_err().contains("does not support ports"));
    for wrong in ["*", "0", "06", "256", "tcpp"] {
        assert!(acl(wrong, "*:*").unwrap_err().contains("neither a protocol's name"), "{wrong}");
    }
}

#[test]
fn a_failed_test_names_source_and_target() {
    let acl = json!({"action": "accept", "src": ["group:staff"], "dst": ["tag:web:443"]});
    let with = |test: Value| run_tests(&json!({"acls": [acl], "tests": [test]}));
    let ben = "ben@example.net";
    assert_eq!(
        with(json!({"src": ben, "accept": ["tag:web:443"], "deny": ["tag:web:22"]})),
        Ok(())
    );
    let fault = with(json!({"src": ben, "accept": ["tag:base:443"]})).unwrap_err();
    assert!(
        fault.contains("test(s) failed: ben@example.net does not reach tag:base:443"),
        "{fault}"
    );
    let fault = with(json!({"src": ben, "deny": ["tag:web:443"]})).unwrap_err();
    assert!(fault.contains("ben@example.net reaches tag:web:443"), "{fault}");
    let fault = with(json!({"src": "eve@example.net", "deny": ["tag:web:443"]})).unwrap_err();
    assert!(fault.contains("src \"eve@example.net\" matches no user or node"), "{fault}");
    assert!(with(json!({"src": ben, "proto": "udp", "accept": ["100.64.0.4:443"]})).is_ok());
}

#[test]
fn a_test_target_must_be_one_port_of_one_machine() {
    let with = |target: &str| refused(&json!({"tests": [{"src": "tag:web", "accept": [target]}]}));
    for target in
        ["tag:web:*", "tag:web:1-2", "lab:22", "10.1.0.0/16:22", "autogroup:internet:80", "x"]
    {
        assert!(with(target).contains("is not one port of one machine"), "{target}");
    }
}

#[test]
fn failed_ssh_tests_are_reported() {
    let ssh = json!({"action": "check", "src": ["ben@example.net"], "dst": ["tag:web"], "users": ["www"]});
    let with = |test: Value| run_tests(&json!({"ssh": [ssh], "sshTests": [test]}));
    let ben = "ben@example.net";
    let good = json!({"src": ben, "dst": ["tag:web"], "accept": ["www"], "check": ["www"], "deny": ["root"]});
    assert_eq!(with(good), Ok(()));
    for (test, expected) in [
        (json!({"dst": ["tag:web"], "accept": ["root"]}), "does not reach root@web"),
        (json!({"dst": ["tag:base"], "accept": ["www"]}), "does not reach www@base"),
        (json!({"dst": ["tag:web"], "deny": ["www"]}), "reaches www@web"),
        (
            json!({"dst": ["tag:web"], "check": ["root"]}),
            "cannot reach root@web by a checked login",
        ),
    ] {
        let mut test = test;
        test["src"] = json!(ben);
        let fault = with(test).unwrap_err();
        assert!(fault.contains(&format!("test(s) failed: {ben} {expected}")), "{fault}");
    }
}

#[test]
fn mail_domains_must_belong_to_the_network() {
    let with = |domain: &str| {
        let rule = json!({"action": "accept", "src": ["group:staff"], "dst": ["tag:web"],
            "users": [format!("localpart:*@{domain}")]});
        run_tests(&json!({"ssh": [rule]}))
    };
    assert_eq!(with("example.net"), Ok(()));
    assert!(with("example.com").unwrap_err().contains("is not associated"));
}

#[test]
fn a_check_period_is_at_most_a_week() {
    let with = |period: Value| {
        let rule = json!({"action": "check", "src": ["group:staff"], "dst": ["tag:web"],
            "users": ["root"], "checkPeriod": period});
        Policy::parse(&text(&json!({"ssh": [rule]}))).map_err(|refusal| refusal.to_string())
    };
    for good in ["always", "1h30m", "168h", "0s", "1.5h"] {
        assert!(with(json!(good)).is_ok(), "{good}");
    }
    assert!(with(json!("168h1s")).unwrap_err().contains("168h0m1s is above the max (168h)"));
    assert!(with(json!("-90s")).unwrap_err().contains("-1m30s must be a positive duration"));
    assert!(with(json!("soon")).unwrap_err().contains("invalid duration \"soon\""));
    assert!(with(json!("")).unwrap_err().contains("invalid duration \"\""));
}

#[test]
fn ipsets_may_be_nested_in_any_order_but_not_in_a_cycle() {
    let good = json!({"ipset:a": ["ipset:b"], "ipset:b": ["10.0.0.0/8"]});
    assert!(Policy::parse(&text(&json!({"ipsets": good}))).is_ok());
    let circle = json!({"ipset:a": ["ipset:b"], "ipset:b": ["remove ipset:a"]});
    assert!(refused(&json!({"ipsets": circle})).contains("cannot be part of itself"));
}

#[test]
fn a_rule_must_have_the_action_accept() {
    let fault = refused(&json!({"acls": [{"src": ["*"], "dst": ["*:*"]}]}));
    assert!(fault.contains("action=\"\" is not supported"), "{fault}");
}
