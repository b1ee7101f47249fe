//! Parser of JSON with comments and trailing commas. Values have their positions in the text.

use std::ops::Range;

use serde_json::{Map, Number};

use crate::refusal::{Fault, Reason, Refusal};

/// The maximum nesting of arrays and objects. Real policies have fewer than ten levels.
const DEPTH: u32 = 64;

/// A value and its position.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Value {
    /// The line, from 1.
    pub line: u32,
    /// The bytes of the value in the text.
    pub span: Range<usize>,
    pub kind: Kind,
}

/// The type and content of a value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Value>),
    /// Entries in the order of the text, without duplicate keys.
    Table(Vec<Entry>),
}

/// A key of an object, with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub key: String,
    /// The line of the key.
    pub line: u32,
    pub value: Value,
}

/// Parses a text that is one value.
pub(crate) fn parse(text: &str) -> Result<Value, Fault> {
    let reason = Reason::Syntax("a value");
    parse_optional(text)?.ok_or(Fault { line: 1, key: String::new(), reason })
}

/// Parses a text. Returns `None` if it has only spaces and comments.
pub(crate) fn parse_optional(text: &str) -> Result<Option<Value>, Fault> {
    let mut parser = Parser { text, at: 0, line: 1, key: Vec::new() };
    parser.space()?;
    if parser.peek().is_none() {
        return Ok(None);
    }
    let value = parser.value(0)?;
    parser.space()?;
    match parser.peek() {
        None => Ok(Some(value)),
        Some(_) => Err(parser.fault(Reason::Syntax("the end"))),
    }
}

/// Converts JSON with comments and trailing commas to JSON.
pub fn read_json(text: &str) -> Result<serde_json::Value, Refusal> {
    parse(text).map(|value| value.to_json()).map_err(|fault| Refusal { faults: vec![fault] })
}

impl Value {
    /// Whether it is null, false or empty, like a missing key.
    pub(crate) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Null => true,
            Kind::Bool(yes) => !yes,
            Kind::Number(_) => false,
            Kind::Text(text) => text.is_empty(),
            Kind::List(list) => list.is_empty(),
            Kind::Table(entries) => entries.is_empty(),
        }
    }

    /// Converts the value to JSON without positions.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.kind {
            Kind::Null => serde_json::Value::Null,
            Kind::Bool(yes) => (*yes).into(),
            Kind::Number(number) => number.clone().into(),
            Kind::Text(text) => text.clone().into(),
            Kind::List(list) => list.iter().map(Self::to_json).collect(),
            Kind::Table(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json()));
                serde_json::Value::Object(pairs.collect::<Map<_, _>>())
            }
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    /// The keys that enclose the current position.
    key: Vec<String>,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn fault(&self, reason: Reason) -> Fault {
        Fault { line: self.line, key: self.key.concat(), reason }
    }

    /// Skips spaces and comments.
    fn space(&mut self) -> Result<(), Fault> {
        loop {
            let rest = &self.text[self.at..];
            let length = match rest.as_bytes() {
                [b'\n', ..] => {
                    self.line += 1;
                    1
                }
                [b' ' | b'\t' | b'\r', ..] => 1,
                [b'/', b'/', ..] => rest.find('\n').unwrap_or(rest.len()),
                [b'/', b'*', ..] => {
                    let Some(end) = rest[2..].find("*/") else {
                        return Err(self.fault(Reason::Syntax("*/")));
                    };
                    let comment = &rest[..end + 4];
                    self.line += lines(comment);
                    comment.len()
                }
                _ if self.at == 0 && rest.starts_with('\u{feff}') => '\u{feff}'.len_utf8(),
                _ => return Ok(()),
            };
            self.at += length;
        }
    }

    fn value(&mut self, depth: u32) -> Result<Value, Fault> {
        if depth > DEPTH {
            return Err(self.fault(Reason::TooDeep));
        }
        let (line, start) = (self.line, self.at);
        let kind = match self.peek() {
            Some(b'{') => self.table(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Kind::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => Kind::Number(self.number()?),
            Some(b'a'..=b'z') => self.word()?,
            _ => return Err(self.fault(Reason::Syntax("a value"))),
        };
        Ok(Value { line, span: start..self.at, kind })
    }

    fn table(&mut self, depth: u32) -> Result<Kind, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        self.at += 1;
        loop {
            self.space()?;
            match self.peek() {
                Some(b'}') => break self.at += 1,
                Some(b'"') => {}
                _ => return Err(self.fault(Reason::Syntax("a key or }"))),
            }
            let line = self.line;
            let key = self.string()?;
            self.key.push(if self.key.is_empty() { key.clone() } else { format!(".{key}") });
            if entries.iter().any(|entry| entry.key == key) {
                return Err(self.fault(Reason::DuplicateKey));
            }
            self.space()?;
            self.expect(b':', "a colon")?;
            self.space()?;
            let value = self.value(depth + 1)?;
            self.key.pop();
            entries.push(Entry { key, line, value });
            if self.is_last(b'}', "a comma or }")? {
                break;
            }
        }
        Ok(Kind::Table(entries))
    }

    fn list(&mut self, depth: u32) -> Result<Kind, Fault> {
        let mut list = Vec::new();
        self.at += 1;
        loop {
            self.space()?;
            if self.peek() == Some(b']') {
                self.at += 1;
                break;
            }
            self.key.push(format!("[{}]", list.len()));
            list.push(self.value(depth + 1)?);
            self.key.pop();
            if self.is_last(b']', "a comma or ]")? {
                break;
            }
        }
        Ok(Kind::List(list))
    }

    /// Skips a comma or the end; returns whether it was the end.
    fn is_last(&mut self, end: u8, wanted: &'static str) -> Result<bool, Fault> {
        self.space()?;
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(true);
        }
        self.expect(b',', wanted)?;
        Ok(false)
    }

    fn expect(&mut self, byte: u8, wanted: &'static str) -> Result<(), Fault> {
        if self.peek() != Some(byte) {
            return Err(self.fault(Reason::Syntax(wanted)));
        }
        self.at += 1;
        Ok(())
    }

    fn string(&mut self) -> Result<String, Fault> {
        let bytes = self.text.as_bytes();
        let mut end = self.at + 1;
        loop {
            match bytes.get(end) {
                Some(b'"') => break,
                Some(b'\\') => end += 2,
                Some(b'\n') | None => return Err(self.fault(Reason::Syntax("a quote"))),
                Some(_) => end += 1,
            }
        }
        let text = serde_json::from_str(&self.text[self.at..=end])
            .map_err(|_| self.fault(Reason::Syntax("a JSON string")))?;
        self.at = end + 1;
        Ok(text)
    }

    fn number(&mut self) -> Result<Number, Fault> {
        let text = self.run(|byte| matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'));
        serde_json::from_str(text).map_err(|_| self.fault(Reason::Syntax("a number")))
    }

    fn word(&mut self) -> Result<Kind, Fault> {
        match self.run(|byte| byte.is_ascii_alphanumeric()) {
            "null" => Ok(Kind::Null),
            "true" => Ok(Kind::Bool(true)),
            "false" => Ok(Kind::Bool(false)),
            _ => Err(self.fault(Reason::Syntax("a value"))),
        }
    }

    fn run(&mut self, belongs: impl Fn(u8) -> bool) -> &str {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|byte| !belongs(byte)).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }
}

fn lines(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|&byte| byte == b'\n').count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_skipped_and_lines_counted() {
        let text =
            "// one\n{ /* two\n*/ \"a\": [1, // three\n 2,],\n \"b\": {\"c\": \"x\\n//\",},\n}\n";
        let value = parse(text).unwrap();
        assert_eq!(value.to_json(), serde_json::json!({"a": [1, 2], "b": {"c": "x\n//"}}));
        let Kind::Table(entries) = &value.kind else { panic!("no table") };
        assert_eq!((entries[0].line, entries[1].line), (3, 5));
    }

    #[test]
    fn an_error_names_line_and_key() {
        let fault = parse("{\n\"a\": {\n\"b\": [1,\n nul]}}").unwrap_err();
        assert_eq!((fault.line, fault.key.as_str()), (4, "a.b[1]"));
        let fault = parse("{\"a\": 1,\n\"a\": 2}").unwrap_err();
        assert_eq!((fault.line, fault.key.as_str(), fault.reason), (2, "a", Reason::DuplicateKey));
    }

    #[test]
    fn invalid_json_is_refused() {
        for text in
            ["", "{", "[1,,2]", "{\"a\" 1}", "\"a", "\"a\\", "/* ", "1 2", "01", "[\"\\q\"]"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
