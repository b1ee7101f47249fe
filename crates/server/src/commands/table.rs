//! Answers as tables for people.

use serde_json::Value;

pub(super) fn user(user: &Value) -> String {
    users(&Value::Array(vec![user.clone()]))
}

pub(super) fn users(users: &Value) -> String {
    let head = ["ID", "Name", "Display name", "Email", "Provider", "Owner", "Created"];
    let fields = ["id", "name", "display_name", "email", "provider", "owner", "created_at"];
    table(head, rows(users).map(|user| fields.map(|field| text(&user[field]))))
}

pub(super) fn networks(networks: &Value) -> String {
    let head = ["Name", "URL", "Nodes", "Users", "Error"];
    let fields = ["name", "server_url", "nodes", "users", "error"];
    table(head, rows(networks).map(|network| fields.map(|field| text(&network[field]))))
}

pub(super) fn keys(keys: &Value) -> String {
    let head = ["ID", "Key", "User", "Tags", "Reusable", "Ephemeral", "Used", "Expires"];
    table(
        head,
        rows(keys).map(|key| {
            [
                text(&key["id"]),
                text(&key["key"]),
                text(&key["user"]["name"]),
                list(&key["acl_tags"]),
                text(&key["reusable"]),
                text(&key["ephemeral"]),
                text(&key["used"]),
                text(&key["expiration"]),
            ]
        }),
    )
}

pub(super) fn api_keys(keys: &Value) -> String {
    let head = ["ID", "Prefix", "Expires", "Created"];
    let fields = ["id", "prefix", "expiration", "created_at"];
    table(head, rows(keys).map(|key| fields.map(|field| text(&key[field]))))
}

pub(super) fn audit(entries: &Value) -> String {
    let head = ["ID", "When", "Who", "What", "Refused"];
    let fields = ["id", "at", "who", "what", "refused"];
    table(head, rows(entries).map(|entry| fields.map(|field| text(&entry[field]))))
}

pub(super) fn lock(lock: &Value) -> String {
    let keys = rows(&lock["trusted_keys"]).map(|key| text(&key["Key"]));
    table(
        ["On", "Head", "Trusted keys", "Locked out", "May enable it"],
        std::iter::once([
            text(&lock["enabled"]),
            text(&lock["head"]),
            keys.collect::<Vec<_>>().join(","),
            list(&lock["locked_out"]),
            text(&lock["may_initialize"]),
        ]),
    )
}

pub(super) fn warnings(warnings: &Value) -> String {
    let head = ["Severity", "What", "More"];
    let fields = ["severity", "title", "text"];
    table(head, rows(warnings).map(|warning| fields.map(|field| text(&warning[field]))))
}

pub(super) fn nodes(nodes: &Value) -> String {
    let head = [
        "ID",
        "Name",
        "User",
        "Tags",
        "Addresses",
        "Online",
        "Last seen",
        "Expires",
        "Registered by",
    ];
    table(
        head,
        rows(nodes).map(|node| {
            [
                text(&node["id"]),
                text(&node["given_name"]),
                text(&node["user"]["name"]),
                list(&node["tags"]),
                list(&node["ip_addresses"]),
                text(&node["online"]),
                text(&node["last_seen"]),
                text(&node["expiry"]),
                text(&node["register_method"]),
            ]
        }),
    )
}

pub(super) fn routes(nodes: &Value) -> String {
    let head = ["ID", "Name", "Offered", "Approved", "Primary for"];
    table(
        head,
        rows(nodes).map(|node| {
            [
                text(&node["id"]),
                text(&node["given_name"]),
                list(&node["available_routes"]),
                list(&node["approved_routes"]),
                list(&node["primary_routes"]),
            ]
        }),
    )
}

pub(super) fn policies(policies: &Value) -> String {
    let fields = ["id", "updated_at", "bytes"];
    let row = |policy: &Value| fields.map(|field| text(&policy[field]));
    table(["ID", "Saved", "Bytes"], rows(policies).map(row))
}

fn rows(values: &Value) -> impl Iterator<Item = &Value> {
    values.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Bool(true) => "yes".into(),
        Value::Bool(false) => "no".into(),
        // Control characters in texts from clients cannot move the cursor.
        Value::String(text) => text.chars().filter(|letter| !letter.is_control()).collect(),
        other => other.to_string(),
    }
}

fn list(values: &Value) -> String {
    let texts: Vec<String> = rows(values).map(text).collect();
    if texts.is_empty() { "-".into() } else { texts.join(",") }
}

/// Formats rows with columns as wide as their longest text.
fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_fit_their_longest_text_and_control_characters_are_removed() {
        let table = users(&json!([
            { "id": 1, "name": "a\u{1b}[31m", "display_name": "", "email": null, "provider": "",
              "owner": true, "created_at": "t" },
        ]));
        assert_eq!(
            table,
            "ID  Name   Display name  Email  Provider  Owner  Created\n\
             1   a[31m                -                yes    t\n"
        );
    }
}
