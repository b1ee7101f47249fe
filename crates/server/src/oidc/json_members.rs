//! JSON objects from providers. Only members that are used are read, in all types that providers
//! send. Unreadable members are ignored.

use serde_json::{Map, Value};

/// A JSON object.
#[derive(Clone, Debug, Default)]
pub(super) struct Members(Map<String, Value>);

impl Members {
    /// Parses an object.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub(super) fn read(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text).map(Self)
    }

    /// A member of any type except null.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// A non-empty string, a number as a string, or a list of one of these.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        let value = self.value(name)?;
        let one = match value {
            Value::Array(values) if values.len() == 1 => &values[0],
            value => value,
        };
        match one {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Number(number) => Some(number.to_string()),
            _ => ignored(name, value),
        }
    }

    /// A string without a language tag, or else in any language (OpenID Connect Core 1.0,
    /// section 5.2).
    pub(super) fn text_in_any_language(&self, name: &str) -> Option<String> {
        let is_translated =
            |key: &&String| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('#'));
        let translated = || self.0.keys().filter(is_translated).find_map(|key| self.text(key));
        self.text(name).or_else(translated)
    }

    /// A boolean, or one as a string or number. A value that is neither true nor false is false.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let value = self.value(name)?;
        let text = match value {
            Value::Bool(flag) => return Some(*flag),
            Value::String(text) => text.trim().to_ascii_lowercase(),
            other => other.to_string(),
        };
        match text.as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => ignored(name, value).or(Some(false)),
        }
    }

    /// A number, or one as a string.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        let value = self.value(name)?;
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        number.filter(|number: &f64| number.is_finite()).or_else(|| ignored(name, value))
    }

    /// A list of strings, or one string.
    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        match self.value(name)? {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(values) => {
                let text = |value: &Value| match value {
                    Value::String(text) => Some(text.clone()),
                    other => ignored(name, other),
                };
                Some(values.iter().filter_map(text).collect())
            }
            other => ignored(name, other),
        }
    }
}

/// Logs only the type, because a value may be secret or personal.
fn ignored<T>(name: &str, value: &Value) -> Option<T> {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "an unexpected string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    tracing::debug!("OIDC: {name:?} of the provider is ignored: {kind} cannot be used there");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(text: &str) -> Members {
        Members::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn members_are_read_in_all_types_that_providers_use() {
        let all = members(
            r#"{"text":"a","number":7,"list":["a"],"empty":"","null":null,"two":["a","b"],"map":{},
               "name#de":"Anna","yes":"True","no":"false","one":1,"odd":"maybe","real":1.5,
               "digits":"600","nan":"NaN","mixed":["a",7,{"name":"b"},"c"]}"#,
        );
        let text = |name| all.text(name);
        assert_eq!([text("text"), text("list")], [Some("a".into()), Some("a".into())]);
        assert_eq!(text("number"), Some("7".into()));
        assert_eq!([text("empty"), text("null"), text("two"), text("map")], [const { None }; 4]);
        assert_eq!(all.text_in_any_language("name"), Some("Anna".into()));
        assert_eq!(
            ["yes", "no", "one", "odd"].map(|name| all.flag(name)),
            [Some(true), Some(false), Some(true), Some(false)]
        );
        assert_eq!(all.flag("null"), None);
        assert_eq!(
            ["number", "real", "digits", "nan"].map(|name| all.number(name)),
            [Some(7.0), Some(1.5), Some(600.0), None]
        );
        assert_eq!(all.texts("mixed"), Some(vec!["a".into(), "c".into()]));
        assert_eq!(all.texts("text"), Some(vec!["a".into()]));
        assert_eq!((all.texts("map"), all.texts("none")), (None, None));
    }

    #[test]
    fn a_text_that_is_not_an_object_is_refused() {
        for text in ["", "[]", "\"a\"", "{"] {
            assert!(Members::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
