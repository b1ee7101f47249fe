use proptest::prelude::*;
use serde_json::json;

use super::*;

fn edits(value: Value) -> MaskedPrefs {
    serde_json::from_value(value).unwrap()
}

#[test]
fn only_fields_marked_as_set_are_edited() {
    let old = Prefs { hostname: "old".into(), shields_up: true, ..Prefs::new() };
    let edits = edits(json!({
        "Hostname": "new", "HostnameSet": true,
        "CorpDNS": false, "ShieldsUp": false, "ShieldsUpSet": false,
        "ExitNodeIP": "", "ExitNodeIPSet": true,
        "AdvertiseRoutes": ["10.0.0.0/8", "0.0.0.0/0", "::/0"], "AdvertiseRoutesSet": true,
        "AutoUpdate": {"Check": true, "Apply": true}, "AutoUpdateSet": {"CheckSet": true},
    }));
    let new = old.edited(&edits).unwrap();
    assert_eq!(new.hostname, "new");
    assert!(new.corp_dns && new.shields_up && new.advertises_exit_node());
    assert_eq!(new.advertise_routes.len(), 3);
    assert_eq!(new.foreign.auto_update, AutoUpdate { check: true, apply: None });
}

#[test]
fn absent_field_marked_as_set_becomes_empty() {
    let old = Prefs { operator_user: "ann".into(), ..Prefs::new() };
    let edits = edits(json!({"OperatorUserSet": true, "NoStatefulFilteringSet": true}));
    let new = old.edited(&edits).unwrap();
    assert_eq!(new.operator_user, "");
    assert_eq!(new.foreign.no_stateful_filtering, None);
}

#[test]
fn login_and_internal_preferences_cannot_be_set() {
    let login = Some(Login { node_id: "n1".into(), ..Login::default() });
    let old = Prefs { login: login.clone(), ..Prefs::new() };
    let new = old.edited(&edits(json!({"Config": null, "HostnameSet": true}))).unwrap();
    assert_eq!(new.login, login);
    for (name, text) in [
        ("Config", "there is no preference Config"),
        ("Colour", "there is no preference Colour"),
        ("InternalExitNodePrior", "InternalExitNodePrior cannot be set"),
    ] {
        let error = old.edited(&MaskedPrefs::default().with(name, "x")).unwrap_err();
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn value_of_a_wrong_type_changes_nothing() {
    for (name, value) in [
        ("Hostname", json!(1)),
        ("AdvertiseRoutes", json!(["10.0.0.0/33"])),
        ("ExitNodeIP", json!("x")),
        ("NetfilterMode", json!(3)),
        ("RelayServerPort", json!(70000)),
    ] {
        let edited = Prefs::new().edited(&MaskedPrefs::default().with(name, value));
        assert!(matches!(edited, Err(PrefsError::Malformed(_))), "{name}");
    }
}

#[test]
fn unsupported_preference_is_refused_with_its_flag() {
    assert!(Prefs::new().check().is_ok());
    for (name, value, text) in [
        ("RunSSH", json!(true), "--ssh"),
        ("NoStatefulFiltering", json!(false), "--stateful-filtering"),
        ("AppConnector", json!({"Advertise": true}), "--advertise-connector"),
        ("RelayServerStaticEndpoints", json!(["10.0.0.1:1"]), "--relay-server-static-endpoints"),
        ("AutoExitNode", json!("any"), "--exit-node=auto:"),
        ("NetfilterMode", json!(1), "nodivert"),
    ] {
        let edits = MaskedPrefs::default().with(name, value);
        let error = Prefs::new().edited(&edits).unwrap().check().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

proptest! {
    #[test]
    fn random_edits_are_refused_or_applied(
        at in 0..NAMES.len(), value in any_json(), set in any_json(), other in any_json(),
    ) {
        let name = NAMES[at];
        let edits = edits(json!({name: value, format!("{name}Set"): set, "xSet": false, "y": other}));
        if let Ok(edited) = Prefs::new().edited(&edits) {
            let text = serde_json::to_value(&edited).unwrap();
            prop_assert_eq!(serde_json::from_value::<Prefs>(text).unwrap(), edited);
        }
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9./:]{0,12}".prop_map(Value::from),
        Just(json!("::/0")),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let key = prop_oneof!["(Check|Apply|Advertise)(Set)?", "[a-z]{0,4}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

#[test]
fn preferences_are_unchanged_after_serialization_and_can_be_set() {
    let prefs = Prefs::new();
    let text = serde_json::to_value(&prefs).unwrap();
    assert_eq!(text["ExitNodeIP"], "");
    assert_eq!(text["AdvertiseRoutes"], Value::Null);
    assert_eq!(text["NetfilterMode"], 2);
    assert_eq!(serde_json::from_value::<Prefs>(text.clone()).unwrap(), prefs);
    for name in text.as_object().unwrap().keys() {
        let own = ["Config", "InternalExitNodePrior"].contains(&&**name);
        assert!(own || NAMES.contains(&&**name), "{name}");
    }
}

#[test]
fn coordinator_key_is_removed_when_the_url_changes() {
    let (one, other) = (MachinePublic([1; 32]), MachinePublic([2; 32]));
    let mut prefs = Prefs::new();
    prefs.set_coordinator("https://a.test".into(), Some(one));
    prefs.set_coordinator("https://a.test".into(), None);
    assert_eq!(prefs.server_key, one);
    prefs.set_coordinator("https://b.test".into(), None);
    assert_eq!(
        (&*prefs.control_url, prefs.server_key),
        ("https://b.test", MachinePublic::default())
    );
    prefs.set_coordinator("https://b.test".into(), Some(other));
    assert_eq!(prefs.server_key, other);
}
