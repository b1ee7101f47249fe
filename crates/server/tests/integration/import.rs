//! `linerate-server import` of databases of several headscale versions.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use serde_json::Value;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

/// Tables of headscale 0.29 that an import reads.
const NEW: &str = "
    CREATE TABLE users(id integer PRIMARY KEY AUTOINCREMENT, name text, display_name text, email text,
        provider_identifier text, created_at datetime, deleted_at datetime);
    CREATE TABLE pre_auth_keys(id integer PRIMARY KEY AUTOINCREMENT, key text, prefix text, hash blob,
        user_id integer, reusable numeric, ephemeral numeric, used numeric, tags text,
        expiration datetime, revoked datetime, created_at datetime);
    CREATE TABLE api_keys(id integer PRIMARY KEY AUTOINCREMENT, prefix text, hash blob,
        expiration datetime, created_at datetime);
    CREATE TABLE nodes(id integer PRIMARY KEY AUTOINCREMENT, machine_key text, node_key text,
        disco_key text, endpoints text, host_info text, ipv4 text, ipv6 text, hostname text,
        given_name text, user_id integer, register_method text, tags text, auth_key_id integer,
        last_seen datetime, expiry datetime, approved_routes text, created_at datetime,
        deleted_at datetime);
    CREATE TABLE policies(id integer PRIMARY KEY AUTOINCREMENT, data text, deleted_at datetime);
    CREATE TABLE database_versions(id integer PRIMARY KEY, version text);
    CREATE TABLE migrations(id text PRIMARY KEY);
    INSERT INTO users(id, name, created_at) VALUES (1, 'anna', '2026-11-20 10:00:00+00:00');
";

/// Tables of headscale 0.23.
const OLD: &str = "
    CREATE TABLE users(id integer PRIMARY KEY AUTOINCREMENT, created_at datetime, name text);
    CREATE TABLE pre_auth_keys(id integer PRIMARY KEY AUTOINCREMENT, key text, user_id integer,
        reusable numeric, ephemeral numeric, used numeric, created_at datetime, expiration datetime);
    CREATE TABLE pre_auth_key_acl_tags(id integer PRIMARY KEY, pre_auth_key_id integer, tag text);
    CREATE TABLE nodes(id integer PRIMARY KEY AUTOINCREMENT, machine_key text, node_key text,
        host_info text, ipv4 text, hostname text, given_name text, user_id integer, forced_tags text,
        auth_key_id integer, expiry datetime);
    CREATE TABLE routes(id integer PRIMARY KEY, node_id integer, prefix text, advertised numeric,
        enabled numeric, is_primary numeric, deleted_at datetime);
    INSERT INTO users(id, name) VALUES (1, 'anna');
";

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef";

/// A folder with headscale's files and the server's files.
struct Rig(TempDir);

impl Rig {
    async fn new(tables: &str, rows: &str) -> Self {
        let rig = Self(tempfile::tempdir().unwrap());
        let state = rig.path("state");
        let text = format!(
            "server_url = \"http://127.0.0.1:1\"\nstate_dir = {state:?}\nsocket = {:?}\n[derp]\n\
             enabled = false\n",
            rig.path("socket")
        );
        fs::write(rig.path("server.toml"), text).unwrap();
        fs::write(rig.path("noise_private.key"), format!("privkey:{}", "7".repeat(64))).unwrap();
        rig.execute(tables).await;
        rig.execute(rows).await;
        rig
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs statements in headscale's database.
    async fn execute(&self, statements: &str) {
        let options = SqliteConnectOptions::new().filename(self.path("headscale.sqlite"));
        let mut to = options.create_if_missing(true).connect().await.unwrap();
        let statements = AssertSqlSafe(statements.to_owned());
        sqlx::raw_sql(statements).execute(&mut to).await.unwrap();
        to.close().await.unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_linerate-server"));
        command.current_dir(self.0.path()).args(["--config", "server.toml"]).args(arguments);
        command.output().unwrap()
    }

    /// Status and output of an import.
    fn import(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.run(&[&["import", "headscale.sqlite"], arguments].concat());
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    /// The network's objects of a kind.
    fn objects(&self, kind: &str) -> Vec<Value> {
        let output = self.run(&["export", "export.json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = fs::read_to_string(self.path("export.json")).unwrap();
        let all: Value = serde_json::from_str(&text).unwrap();
        let objects = all["objects"].as_array().unwrap().iter();
        let of_kind = objects.filter(|object| object["kind"] == kind && !object["body"].is_null());
        of_kind.map(|object| object["body"].clone()).collect()
    }
}

/// A row of a node with additional columns.
fn node(id: u8, name: &str, more: &[(&str, &str)]) -> String {
    let (machine, key) = (format!("mkey:{id:064x}"), format!("nodekey:{id:064x}"));
    let mut columns = vec![
        ("machine_key", machine.as_str()),
        ("node_key", &key),
        ("given_name", name),
        ("hostname", name),
        ("user_id", "1"),
    ];
    columns.retain(|(column, _)| more.iter().all(|(other, _)| other != column));
    columns.extend(more);
    let names: Vec<&str> = columns.iter().map(|(column, _)| *column).collect();
    let values: Vec<String> =
        columns.iter().map(|(_, value)| format!("'{}'", value.replace('\'', "''"))).collect();
    format!("INSERT INTO nodes(id, {}) VALUES ({id}, {});", names.join(", "), values.join(", "))
}

#[tokio::test]
async fn an_import_counts_objects_and_its_status_shows_omissions() {
    let rig = Rig::new(
        NEW,
        &[
            node(1, "desk", &[]),
            node(2, "build_box", &[]),
            node(3, "stranger", &[("user_id", "77")]),
            node(4, "tagged", &[("user_id", "77"), ("tags", "[\"tag:web_server\"]")]),
            node(5, "gone", &[("deleted_at", "2026-11-20 10:00:00+00:00")]),
            format!("INSERT INTO pre_auth_keys(key, user_id) VALUES ('{KEY}', 1), ('short', 1);"),
        ]
        .concat(),
    )
    .await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(3), "{text}");
    for line in [
        "users: 1 read, 1 imported, 0 already present, 0 left out",
        "nodes: 4 read, 3 imported, 0 already present, 1 left out",
        "pre-auth keys: 2 read, 1 imported, 0 already present, 1 left out",
        "API keys: 0 read, 0 imported, 0 already present, 0 left out",
        "policy: none",
        "note: node 2: \"build_box\" becomes build-box",
        "left out: node 3: user not found: 77",
        "left out: pre-auth key 2: it is not a key",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}\n{text}");
    }
    assert_eq!((rig.objects("node").len(), rig.objects("preauthkey").len()), (3, 1));
}

#[tokio::test]
async fn an_unreadable_field_is_dropped_and_the_machine_is_imported() {
    let hostinfo = r#"{"Hostname":"odd","OS":7,"Services":[{"Proto":"peerapi4","Port":-1},
        {"Proto":"peerapi6","Port":1}],"NetInfo":{"PreferredDERP":-1},"Userspace":"x"}"#;
    let rig = Rig::new(
        NEW,
        &[
            node(1, "odd", &[("host_info", hostinfo), ("ipv6", ""), ("ipv4", "100.64.0.9")]),
            node(2, "b", &[("endpoints", "[\"[fe80::1%eth0]:1\",\"192.0.2.1:41641\"]")]),
            node(3, "c", &[("disco_key", "x"), ("last_seen", "x"), ("ipv6", "x")]),
            node(4, "d", &[("host_info", "x"), ("tags", "null"), ("approved_routes", "[\"x\"]")]),
        ]
        .concat(),
    )
    .await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(0), "{text}");
    for note in [
        "node 1: host_info.OS",
        "node 1: host_info.Services[0]",
        "node 1: host_info.NetInfo.PreferredDERP",
        "node 2: endpoints: \"[fe80::1%eth0]:1\"",
        "node 3: disco_key",
        "node 3: last_seen",
        "node 3: ipv6",
        "node 4: host_info",
        "node 4: approved_routes: \"x\"",
    ] {
        assert!(text.contains(&format!("note: {note}")), "{note}\n{text}");
    }
    let nodes = rig.objects("node");
    assert_eq!(nodes.len(), 4);
    assert_eq!((&nodes[0]["v4"], &nodes[0]["name"]), (&"100.64.0.9".into(), &"odd".into()));
    assert_eq!(nodes[1]["endpoints"], serde_json::json!(["192.0.2.1:41641"]));
}

#[tokio::test]
async fn an_unreadable_restriction_never_grants_a_right() {
    let rig = Rig::new(
        NEW,
        &[
            node(1, "a", &[("tags", "{")]),
            node(2, "b", &[("expiry", "soon")]),
            node(3, "c", &[("tags", "[\"no tag\"]")]),
            format!(
                "INSERT INTO pre_auth_keys(id, key, user_id, reusable, revoked, expiration) VALUES
                 (1, '{KEY}', 1, 1, '2026-01-01 00:00:00+00:00', '2090-01-01 00:00:00+00:00'),
                 (2, '1{KEY}', 1, 1, 'yes', NULL), (3, '2{KEY}', 1, 1, NULL, 'never');
                 UPDATE pre_auth_keys SET key = substr(key, 1, 48);"
            ),
        ]
        .concat(),
    )
    .await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(3), "{text}");
    let (nodes, keys) = (rig.objects("node"), rig.objects("preauthkey"));
    assert_eq!((nodes.len(), keys.len()), (1, 2), "{text}");
    let now = server_now();
    assert!(nodes[0]["expires"].as_u64().unwrap() <= now, "{}", nodes[0]);
    for key in keys {
        assert!(key["expires"].as_u64().unwrap() <= now, "{key}");
    }
}

/// The current time, in milliseconds.
fn server_now() -> u64 {
    let file = tempfile::NamedTempFile::new().unwrap();
    let modified = file.as_file().metadata().unwrap().modified().unwrap();
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap() + 1000
}

#[tokio::test]
async fn a_database_without_a_policy_needs_policy_or_no_policy() {
    let rig = Rig::new(NEW, "INSERT INTO policies(data) VALUES ('  ');").await;
    let (status, text) = rig.import(&[]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("--policy FILE") && text.contains("--no-policy"), "{text}");
    assert!(!rig.path("state").exists(), "nothing was changed");
    fs::write(rig.path("policy"), "// nothing yet\n").unwrap();
    let (status, text) = rig.import(&["--policy", "policy"]);
    assert!(status == Some(1) && text.contains("every node may reach every other"), "{text}");
    fs::write(rig.path("policy"), r#"{"acls": []}"#).unwrap();
    let (status, text) = rig.import(&["--policy", "policy"]);
    assert_eq!((status, text.contains("policy: imported")), (Some(0), true), "{text}");
    assert_eq!(rig.objects("policy").len(), 1);

    let policy = r#"INSERT INTO policies(data) VALUES ('{"acls": []}');"#;
    let rig = Rig::new(NEW, policy).await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert!(status == Some(1) && text.contains("the database has a policy"), "{text}");
    assert_eq!(rig.import(&[]).0, Some(0));
}

#[tokio::test]
async fn a_newer_headscale_gives_a_warning_and_unknown_values_an_error() {
    let newer = "INSERT INTO database_versions VALUES (1, 'v0.31.0');
                 INSERT INTO migrations VALUES ('202507021200'), ('203001010000-suspend');
                 ALTER TABLE nodes ADD COLUMN suspended datetime;
                 ALTER TABLE nodes ADD COLUMN colour text;
                 CREATE TABLE quarantine(node_id integer);";
    let rig = Rig::new(NEW, &[newer, &node(1, "a", &[])].concat()).await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(0), "{text}");
    for sign in ["version v0.31.0", "migration 203001010000-suspend"] {
        assert!(text.contains(&format!(
            "warning: the database is of a newer headscale than 0.29 ({sign})"
        )));
    }
    assert!(!text.contains("202507021200"), "{text}");

    let values = [node(1, "a", &[("suspended", "2026-01-01")]), node(2, "b", &[])].concat();
    let rig = Rig::new(NEW, &[newer, &values, "INSERT INTO quarantine VALUES (2);"].concat()).await;
    for (ignored, named) in [(&[][..], "nodes.suspended"), (&["nodes.suspended"], "quarantine")] {
        let ignored = ignored.iter().flat_map(|name| ["--ignore", name]);
        let arguments: Vec<&str> = ["--no-policy"].into_iter().chain(ignored).collect();
        let (status, text) = rig.import(&arguments);
        assert_eq!(status, Some(1), "{text}");
        assert!(text.contains(&format!("{named} has values in 1 rows")), "{text}");
        assert!(!rig.path("state").exists(), "nothing was changed");
    }
    let both = ["--no-policy", "--ignore", "nodes.suspended", "--ignore", "quarantine"];
    let (status, text) = rig.import(&both);
    assert_eq!((status, text.contains("others: 2 left out")), (Some(3), true), "{text}");
}

#[tokio::test]
async fn a_second_import_completes_the_first_and_changes_nothing_else() {
    let rows = [node(1, "a", &[]), node(2, "b", &[("user_id", "2")])].concat();
    let rig = Rig::new(NEW, &rows).await;
    assert_eq!(rig.import(&["--no-policy"]).0, Some(3));
    let first = rig.objects("node");
    rig.execute("INSERT INTO users(id, name) VALUES (2, 'bert');").await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(0), "{text}");
    for line in [
        "users: 2 read, 1 imported, 1 already present, 0 left out",
        "nodes: 2 read, 1 imported, 1 already present, 0 left out",
        "policy: stays as it is",
    ] {
        assert!(text.lines().any(|own| own == line), "{line}\n{text}");
    }
    let nodes = rig.objects("node");
    assert_eq!((nodes.len(), &nodes[0]), (2, &first[0]));
    let (status, text) = rig.import(&[]);
    assert_eq!(status, Some(0), "{text}");
    assert_eq!(rig.objects("node"), nodes);

    fs::write(rig.path("other.key"), format!("privkey:{}", "8".repeat(64))).unwrap();
    let (status, text) = rig.import(&["--noise-key", "other.key"]);
    assert!(status == Some(1) && text.contains("already contains another network"), "{text}");
    let (status, text) = {
        let output = rig.run(&["import", "export.json"]);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    assert!(status == Some(1) && text.contains("already contains a network"), "{text}");
}

#[tokio::test]
async fn tags_and_routes_of_an_old_database_are_imported() {
    let host_info = r#"{"Hostname":"b","RequestTags":["tag:b"],"RoutableIPs":["10.0.0.0/24"]}"#;
    let rig = Rig::new(
        OLD,
        &[
            node(1, "a", &[("forced_tags", "[\"tag:a\"]")]),
            node(2, "b", &[("host_info", host_info), ("ipv4", "100.64.0.2")]),
            format!("INSERT INTO pre_auth_keys(id, key, user_id) VALUES (1, '{KEY}', 1);"),
            "INSERT INTO pre_auth_key_acl_tags VALUES (1, 1, 'tag:c');
             INSERT INTO routes VALUES (1, 2, '10.0.0.0/24', 1, 1, 1, NULL),
             (2, 2, '10.0.1.0/24', 1, 0, 0, NULL), (3, 2, '10.0.2.0/24', 1, 1, 0, '2026-01-01');"
                .into(),
        ]
        .concat(),
    )
    .await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("note: node 2: the policy decides about tag:b"), "{text}");
    let (nodes, keys) = (rig.objects("node"), rig.objects("preauthkey"));
    assert_eq!(nodes[0]["tags"], serde_json::json!(["tag:a"]));
    assert_eq!(nodes[1]["approved"], serde_json::json!(["10.0.0.0/24"]));
    assert_eq!(keys[0]["tags"], serde_json::json!(["tag:c"]));
}

#[tokio::test]
async fn tables_unused_by_newer_versions_are_ignored() {
    let rig = Rig::new(
        NEW,
        &[
            node(1, "a", &[("approved_routes", "[\"10.0.1.0/24\"]")]),
            format!("INSERT INTO pre_auth_keys(id, key, user_id) VALUES (1, '{KEY}', 1);"),
            "CREATE TABLE routes(id integer PRIMARY KEY, node_id integer, prefix text, enabled numeric);
             INSERT INTO routes VALUES (1, 1, '10.0.0.0/24', 1);
             CREATE TABLE pre_auth_key_acl_tags(id integer, pre_auth_key_id integer, tag text);
             INSERT INTO pre_auth_key_acl_tags VALUES (1, 1, 'tag:c');"
                .into(),
        ]
        .concat(),
    )
    .await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(0), "{text}");
    let (nodes, keys) = (rig.objects("node"), rig.objects("preauthkey"));
    assert_eq!(nodes[0]["approved"], serde_json::json!(["10.0.1.0/24"]));
    assert_eq!(keys[0]["tags"], serde_json::json!([]));
}

#[tokio::test]
async fn a_node_without_a_user_gets_the_user_of_its_auth_key() {
    let rig = Rig::new(
        NEW,
        &[
            node(1, "a", &[("auth_key_id", "1"), ("tags", "null")]),
            node(2, "b", &[("auth_key_id", "1"), ("tags", "[\"tag:a\"]")]),
            "UPDATE nodes SET user_id = NULL;
             INSERT INTO pre_auth_keys(id, key, user_id, ephemeral) VALUES (1, 'short', 1, 1);"
                .into(),
        ]
        .concat(),
    )
    .await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert_eq!(status, Some(3), "{text}");
    assert!(
        text.contains("note: node 1: it belongs to user 1, the owner of its auth key"),
        "{text}"
    );
    let nodes = rig.objects("node");
    assert_eq!((&nodes[0]["user"], &nodes[1]["user"]), (&1.into(), &Value::Null));
    assert_eq!((&nodes[0]["ephemeral"], nodes.len()), (&true.into(), 2));
}

#[tokio::test]
async fn another_database_than_headscales_is_refused() {
    let rig = Rig::new("CREATE TABLE machines(id integer);", "").await;
    let (status, text) = rig.import(&["--no-policy"]);
    assert!(status == Some(1) && text.contains("not a database of headscale"), "{text}");
}
