//! Answers as YAML 1.2. Strings are in double quotes as in JSON, so that a string such as `no` stays
//! a string.

use serde_json::Value;

/// Formats a value as a document.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    write(value, 0, &mut text);
    text
}

/// Appends a value. Its first line continues the last line of the text, and further lines are
/// indented.
fn write(value: &Value, indent: usize, text: &mut String) {
    match value {
        Value::Array(values) if !values.is_empty() => {
            for (at, value) in values.iter().enumerate() {
                begin(at, indent, text);
                *text += "- ";
                write(value, indent + 2, text);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            for (at, (name, value)) in fields.iter().enumerate() {
                begin(at, indent, text);
                *text += &key(name);
                *text += ":";
                if is_block(value) {
                    *text += "\n";
                    *text += &" ".repeat(indent + 2);
                    write(value, indent + 2, text);
                } else {
                    *text += " ";
                    write(value, indent + 2, text);
                }
            }
        }
        scalar => {
            *text += &scalar.to_string();
            *text += "\n";
        }
    }
}

/// Indents an entry. The first entry continues the last line of the text.
fn begin(at: usize, indent: usize, text: &mut String) {
    if at > 0 {
        *text += &" ".repeat(indent);
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Array(values) => !values.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

/// The name of a field, in quotes unless it is a plain word.
fn key(name: &str) -> String {
    let is_word = name.contains(|letter: char| letter.is_ascii_lowercase())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        && !matches!(name, "null" | "true" | "false" | "yes" | "no" | "on" | "off" | "y" | "n");
    if is_word { name.to_owned() } else { Value::from(name).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lists_and_objects_are_blocks_and_strings_are_quoted() {
        let value = json!([
            { "id": 1, "name": "no", "tags": ["tag:a", "tag:b"], "user": { "id": 2 }, "none": null },
            { "id": 2, "name": "a: \"b\"\n", "tags": [], "user": {}, "No": true },
            [[1, 2], []],
        ]);
        let expected = [
            "- id: 1",
            "  name: \"no\"",
            "  none: null",
            "  tags:",
            "    - \"tag:a\"",
            "    - \"tag:b\"",
            "  user:",
            "    id: 2",
            "- \"No\": true",
            "  id: 2",
            "  name: \"a: \\\"b\\\"\\n\"",
            "  tags: []",
            "  user: {}",
            "- - - 1",
            "    - 2",
            "  - []",
        ];
        let mut lines: Vec<String> = yaml(&value).lines().map(str::to_owned).collect();
        let mut expected: Vec<String> = expected.map(str::to_owned).into();
        // The order of fields depends on a feature of serde_json.
        lines.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lines, expected);
        assert_eq!(yaml(&json!({ "a": [] })), "a: []\n");
        assert_eq!(yaml(&json!("x")), "\"x\"\n");
    }
}
