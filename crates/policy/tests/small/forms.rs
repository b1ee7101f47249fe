//! Forms of policies: keys without effect, unsupported keys, and unknown keys.

use policy::{Compiled, Policy, Reason, to_json};
use serde_json::{Value, json};

use crate::network::{BEN, WEB, network};

/// A policy with these sections. They begin at line 10, after rules that grant nothing.
fn text(sections: &str) -> String {
    format!(
        "{{\"groups\": {{\"group:staff\": [\"ada@example.net\", \"ben@example.net\"]}},
        \"hosts\": {{\"printer\": \"10.1.2.3\"}},
        \"tagOwners\": {{
            \"tag:web\": [\"ada@example.net\"],
            \"tag:base\": [\"tag:web\"],
            \"tag:router\": [],
            \"tag:exit\": [],
        }},
        {}
        {sections}\n}}",
        if sections.contains("grants") { "" } else { "\"grants\": []," }
    )
}

fn filters(compiled: &Compiled) -> Vec<Value> {
    network().indices().map(|index| to_json(&compiled.filter(index))).collect()
}

#[test]
fn a_file_without_a_value_is_a_policy_without_rules() {
    let open = Policy::parse("{}").unwrap().compile(&network());
    let bom = '\u{feff}';
    for text in [
        "",
        " \n\t",
        "// none\n",
        "/* none */",
        "null",
        "{}",
        "{/* none */}",
        "{\"$schema\": \"x\"}",
    ] {
        for text in [text.to_owned(), format!("{bom}{text}"), text.replace('\n', "\r\n")] {
            let read = Policy::parse(&text).unwrap_or_else(|refusal| panic!("{text:?}: {refusal}"));
            assert_eq!(filters(&read.compile(&network())), filters(&open), "{text:?}");
            let warnings = read.warnings(&network());
            assert_eq!(warnings[0].reason, Reason::NoRules, "{text:?}");
        }
    }
}

#[test]
fn a_null_section_of_rules_grants_nothing() {
    for section in ["\"acls\": null", "\"grants\": null", "\"ACLs\": null, \"groups\": null"] {
        let read = Policy::parse(&format!("{{{section}}}")).unwrap();
        assert!(read.compile(&network()).peers(WEB).is_empty(), "{section}");
    }
}

#[test]
fn sections_without_effect_are_accepted() {
    let without = Policy::parse(&text("")).unwrap().compile(&network());
    for section in [
        r#""postures": {}"#,
        r#""postures": null"#,
        r#""defaultSrcPosture": []"#,
        r#""defaultSrcPosture": null"#,
        r#""attrConfig": {}"#,
        r#""services": {}"#,
        r#""services": []"#,
        r#""derpMap": null"#,
        r#""derpMap": {}"#,
        r#""derpMap": {"Regions": {}}"#,
        r#""derpMap": {"regions": null, "OmitDefaultRegions": false}"#,
        r#""DERPMap": {"omitDefaultRegions": null}"#,
        r#""disableIPv4": false"#,
        r#""disableIPv4": null"#,
        r#""OneCGNATRoute": """#,
        r#""oneCGNATRoute": null"#,
        r#""randomizeClientPort": false"#,
        r#""randomizeClientPort": null"#,
        r#""autoApprovers": null"#,
        r#""autoApprovers": {}"#,
        r#""autoApprovers": {"services": {}}"#,
        r#""autoApprovers": {"services": null, "routes": null, "exitNode": null}"#,
        r#""autoApprovers": {"services": {"svc:a": []}, "routes": {}, "exitNode": []}"#,
        r#""nodeAttrs": null"#,
        r#""nodeAttrs": [{"target": ["*"], "app": []}]"#,
        r#""nodeAttrs": [{"target": ["*"], "attr": null, "app": {}}]"#,
        r#""nodeAttrs": [{"target": ["*"], "app": {"tailscale.com/app-connectors": []}}]"#,
        r#""ssh": []"#,
        r#""tests": null"#,
        r#""sshTests": []"#,
        r#""ipsets": {}"#,
        r##""#note": {"of": "a program"}"##,
    ] {
        let read = Policy::parse(&text(section));
        let read = read.unwrap_or_else(|refusal| panic!("{section}: {refusal}"));
        assert_eq!(filters(&read.compile(&network())), filters(&without), "{section}");
        assert!(read.left_out().is_empty(), "{section}");
    }
}

#[test]
fn keys_without_effect_in_a_rule_are_accepted() {
    let with = |grant: &str| {
        let section =
            format!(r#""grants": [{{"src": ["ben@example.net"], "dst": ["tag:web"], {grant}}}]"#);
        Policy::parse(&text(&section)).unwrap_or_else(|refusal| panic!("{grant}: {refusal}"))
    };
    let plain = filters(&with(r#""ip": ["*"]"#).compile(&network()));
    for more in [
        r#""ip": ["*"], "srcPosture": []"#,
        r#""ip": ["*"], "srcPosture": null"#,
        r#""ip": ["*"], "app": []"#,
        r#""ip": ["*"], "app": {}"#,
        r#""ip": ["*"], "app": null, "via": null"#,
        r#""ip": ["*"], "via": []"#,
        r#""ip": ["*:*"]"#,
    ] {
        assert_eq!(filters(&with(more).compile(&network())), plain, "{more}");
    }
    for section in [
        r#""acls": [{"action": "accept", "proto": null, "src": [], "dst": [], "srcPosture": []}]"#,
        r#""ssh": [{"action": "accept", "src": ["tag:web"], "dst": ["tag:base"], "users": ["root"],
            "recorder": [], "enforceRecorder": false, "srcPosture": null, "checkPeriod": null}]"#,
        r#""tests": [{"src": "tag:web", "deny": ["tag:base:1"], "accept": null, "srcPostureAttrs": {}}]"#,
    ] {
        let read = Policy::parse(&text(section));
        assert!(read.is_ok_and(|read| read.left_out().is_empty()), "{section}");
    }
}

#[test]
fn a_grant_accepts_protocols_by_name_number_or_star() {
    let with = |ip: &str| {
        let grant = json!({"src": ["ben@example.net"], "dst": ["tag:web"], "ip": [ip]});
        let read = Policy::parse(&text(&format!("\"grants\": [{grant}]")));
        read.map(|policy| policy.compile(&network()).filter(WEB).remove(0))
    };
    for (ip, protocols, ports) in [
        ("*", &[][..], (0, 65535)),
        ("*:*", &[], (0, 65535)),
        ("443", &[], (443, 443)),
        ("*:443", &[], (443, 443)),
        ("*:80-443", &[], (80, 443)),
        ("tcp:*", &[6], (0, 65535)),
        ("TCP:22", &[6], (22, 22)),
        ("6:22", &[6], (22, 22)),
        ("17:53", &[17], (53, 53)),
        ("132:9", &[132], (9, 9)),
        ("icmp:*", &[1], (0, 65535)),
        ("1:*", &[1], (0, 65535)),
        ("58:*", &[58], (0, 65535)),
        ("89:*", &[89], (0, 65535)),
    ] {
        let rule = with(ip).unwrap_or_else(|refusal| panic!("{ip}: {refusal}"));
        assert_eq!(rule.protocols, protocols, "{ip}");
        let found = rule.destinations[0].ports;
        assert_eq!((found.first, found.last), ports, "{ip}");
    }
    for wrong in [
        "icmp", "tcp", "*:0", "0:*", "06:1", "256:*", "tcpp:1", "1:8", "icmp:7", "tcp:x", "**:1",
        "",
    ] {
        assert!(with(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn only_known_capabilities_of_the_tailscale_domain_are_granted() {
    let with = |name: &str| {
        let grant =
            json!({"src": ["ben@example.net"], "dst": ["tag:web"], "app": {name: [{"a": 1}]}});
        Policy::parse(&text(&format!("\"grants\": [{grant}]")))
    };
    for name in [
        "aperture",
        "databases",
        "drive",
        "golink",
        "kubernetes",
        "pam",
        "proxy-to-grafana",
        "relay",
        "secrets",
        "tailsql",
        "tsidp",
        "webui",
    ] {
        let name = format!("tailscale.com/cap/{name}");
        let compiled = with(&name).unwrap().compile(&network());
        let grants = &compiled.filter(WEB)[0].grants;
        assert!(grants[0].cap_map.contains_key(&name), "{name}");
    }
    assert!(with("example.com/cap/x").is_ok());
    for (name, expected) in [
        ("tailscale.com/cap/funnel", "must not be in the tailscale.com domain"),
        ("tailscale.com/cap/ingress", "must not be in the tailscale.com domain"),
        ("tailscale.com/cap/relay-target", "must not be in the tailscale.com domain"),
        ("tailscale.com/cap/golinks", "must not be in the tailscale.com domain"),
        ("golink", "must have the form"),
        ("https://example.com/cap/x", "must have the form"),
    ] {
        assert!(with(name).unwrap_err().to_string().contains(expected), "{name}");
    }
}

#[test]
fn unsupported_parts_are_refused_or_omitted_without_granting_more() {
    let acl = |src: &str, dst: &str, more: &str| {
        format!(r#""acls": [{{"action": "accept", "src": ["{src}"], "dst": ["{dst}"]{more}}}]"#)
    };
    let grant =
        |more: &str| format!(r#""grants": [{{"src": ["*"], "dst": ["*"], "ip": ["*"]{more}}}]"#);
    let ssh = |more: &str| {
        format!(
            r#""ssh": [{{"action": "accept", "src": ["group:staff"], "dst": ["tag:web"], "users": ["root"]{more}}}]"#
        )
    };
    let condition = r#", "srcPosture": ["posture:x"]"#;
    for (section, key, name) in [
        (r#""postures": {"posture:x": ["node:os == 'linux'"]}"#.to_owned(), "postures", ""),
        (r#""attrConfig": {"custom:a": {"type": "string"}}"#.into(), "attrConfig", ""),
        (r#""services": {"svc:a": {}}"#.into(), "services", ""),
        (r#""derpMap": {"regions": {"900": {"regionID": 900}}}"#.into(), "derpMap", ""),
        (r#""DERPMap": {"OmitDefaultRegions": true}"#.into(), "DERPMap", ""),
        (r#""derpMap": {"regions": {"1": null}}"#.into(), "derpMap", ""),
        (r#""disableIPv4": true"#.into(), "disableIPv4", ""),
        (r#""OneCGNATRoute": "mac-always""#.into(), "OneCGNATRoute", ""),
        (r#""OneCGNATRoute": "mac-never""#.into(), "OneCGNATRoute", ""),
        (r#""autoApprovers": {"services": {"svc:a": ["tag:web"]}}"#.into(), "autoApprovers.services", ""),
        (
            r#""nodeAttrs": [{"target": ["*"], "app": {"tailscale.com/app-connectors": [{"name": "a"}]}}]"#.into(),
            "nodeAttrs[0].app",
            "",
        ),
        (acl("*", "*:*", condition), "acls[0].srcPosture", ""),
        (grant(condition), "grants[0].srcPosture", ""),
        (ssh(condition), "ssh[0].srcPosture", ""),
        (format!("{}, \"defaultSrcPosture\": [\"posture:x\"]", grant("")), "defaultSrcPosture", ""),
        (format!("{}, \"defaultSrcPosture\": [\"posture:x\"]", ssh("")), "defaultSrcPosture", ""),
        (ssh(r#", "recorder": ["tag:web"]"#), "ssh[0].recorder", ""),
        (ssh(r#", "enforceRecorder": true"#), "ssh[0].enforceRecorder", ""),
        (acl("autogroup:shared", "*:*", ""), "acls[0].src[0]", "autogroup:shared "),
        (acl("autogroup:it-admin", "*:*", ""), "acls[0].src[0]", "autogroup:it-admin "),
        (acl("group:staff@example.net", "*:*", ""), "acls[0].src[0]", "group:staff@example.net "),
        (acl("*", "autogroup:network-admin:22", ""), "acls[0].dst[0]", "autogroup:network-admin "),
        (acl("*", "svc:wiki:443", ""), "acls[0].dst[0]", "svc:wiki "),
        (
            r#""grants": [{"src": ["*"], "dst": ["svc:wiki"], "ip": ["*"]}]"#.into(),
            "grants[0].dst[0]",
            "svc:wiki ",
        ),
        (
            r#""tests": [{"src": "tag:web", "deny": ["tag:base:1"], "srcPostureAttrs": {"node:os": "x"}}]"#.into(),
            "tests[0].srcPostureAttrs",
            "",
        ),
        (r#""tests": [{"src": "autogroup:shared", "deny": ["tag:web:1"]}]"#.into(), "tests[0].src", ""),
        (r#""tests": [{"src": "tag:web", "deny": ["svc:a:1"]}]"#.into(), "tests[0].deny[0]", "svc:a "),
    ] {
        let text = text(&section);
        let refusal = Policy::parse(&text).unwrap_err();
        let fault = &refusal.faults[0];
        assert_eq!((fault.key.as_str(), refusal.faults.len()), (key, 1), "{section}: {refusal}");
        assert!(fault.line >= 10 && fault.reason.is_unsupported(), "{section}: {fault}");
        let expected = format!(": {name}");
        assert!(fault.to_string().contains(&expected) && fault.to_string().contains("is not supported"), "{fault}");
        let read = Policy::parse_supported(&text);
        let read = read.unwrap_or_else(|refusal| panic!("{section}: {refusal}"));
        assert_eq!(read.left_out(), refusal.faults, "{section}");
        let compiled = read.compile(&network());
        let reaches = |index: usize| compiled.peers(index).iter().count() + compiled.ssh(index, "").len();
        assert_eq!(network().indices().map(reaches).sum::<usize>(), 0, "{section}");
        assert!(read.run_tests(&network()).is_ok(), "{section}");
    }
}

#[test]
fn an_unsupported_name_does_not_remove_other_names() {
    let section = r#""acls": [{"action": "accept", "src": ["autogroup:shared", "ben@example.net"],
        "dst": ["svc:wiki:443", "tag:web:443"]}]"#;
    let read = Policy::parse_supported(&text(section)).unwrap();
    assert_eq!(read.left_out().len(), 2);
    let compiled = read.compile(&network());
    assert_eq!(compiled.peers(WEB).iter().collect::<Vec<_>>(), [BEN]);
}

#[test]
fn a_test_with_a_posture_still_checks_denials() {
    let section = r#""grants": [{"src": ["*"], "dst": ["tag:web"], "ip": ["443"]}],
        "tests": [{"src": "ben@example.net", "srcPostureAttrs": {"node:os": "x"},
            "accept": ["tag:base:1"], "deny": ["tag:web:443"]}]"#;
    let read = Policy::parse_supported(&text(section)).unwrap();
    let refusal = read.run_tests(&network()).unwrap_err().to_string();
    assert!(refusal.ends_with("ben@example.net reaches tag:web:443"), "{refusal}");
}

#[test]
fn an_ipset_with_an_unsupported_part_is_refused() {
    let sets = r#""ipsets": {"ipset:a": ["10.0.0.0/8", "remove svc:wiki"]}"#;
    let refusal = Policy::parse_supported(&text(sets)).unwrap_err().to_string();
    assert!(refusal.contains("ipsets.ipset:a[1]: svc:wiki is not supported"), "{refusal}");
}

#[test]
fn unknown_keys_are_refused_in_both_parse_modes() {
    for (section, key) in [
        (r#""acl": []"#, "acl"),
        (r#""posture": {}"#, "posture"),
        (r#""derpMaps": null"#, "derpMaps"),
        (r#""derpMap": {"region": {}}"#, "derpMap.region"),
        (r#""autoApprovers": {"exitNodes": []}"#, "autoApprovers.exitNodes"),
        (r#""nodeAttrs": [{"target": ["*"], "apps": {}}]"#, "nodeAttrs[0].apps"),
        (
            r#""grants": [{"src": ["*"], "dst": ["*"], "ip": ["*"], "action": "accept"}]"#,
            "grants[0].action",
        ),
        (
            r#""ssh": [{"action": "accept", "users": ["root"], "recorders": []}]"#,
            "ssh[0].recorders",
        ),
        (r#""tests": [{"src": "tag:web", "deny": ["tag:web:1"], "via": []}]"#, "tests[0].via"),
    ] {
        for read in [Policy::parse(&text(section)), Policy::parse_supported(&text(section))] {
            let faults = read.err().map(|refusal| refusal.faults).unwrap_or_default();
            assert_eq!(faults.len(), 1, "{section}");
            for fault in faults {
                assert_eq!((fault.key.as_str(), &fault.reason), (key, &Reason::UnknownKey));
            }
        }
    }
}

#[test]
fn a_section_of_the_wrong_type_is_refused() {
    for (section, expected) in [
        (r#""derpMap": 7"#, "derpMap: must be an object"),
        (r#""postures": []"#, "postures: must be an object"),
        (r#""disableIPv4": "yes""#, "disableIPv4: must be true or false"),
        (r#""randomizeClientPort": "no""#, "randomizeClientPort: must be true or false"),
        (
            r#""OneCGNATRoute": "linux-always""#,
            "OneCGNATRoute: must be mac-always, mac-never or empty",
        ),
        (r#""defaultSrcPosture": "posture:x""#, "defaultSrcPosture: must be an array"),
        (
            r#""autoApprovers": {"services": ["svc:a"]}"#,
            "autoApprovers.services: must be an object",
        ),
    ] {
        let refusal = Policy::parse_supported(&text(section)).unwrap_err().to_string();
        assert!(refusal.contains(expected), "{section}: {refusal}");
    }
}
