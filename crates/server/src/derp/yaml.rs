//! Parser for the part of YAML 1.2 that map files use: block and flow collections, plain and quoted
//! scalars on one line, and comments. Other features, such as anchors, tags and multi-line strings,
//! are refused by name.

use std::fmt;

use serde_json::{Map, Value};

/// Maximum nesting depth.
const DEPTH: usize = 32;

/// A line that cannot be parsed, and the reason.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct YamlError {
    /// Line number, from 1.
    line: usize,
    reason: &'static str,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for YamlError {}

/// Converts a plain scalar to a value. `key` is empty at the top level.
pub(super) type Resolve = fn(key: &str, plain: &str) -> Value;

/// Parses a document.
///
/// # Errors
/// The text is not YAML, or uses an unsupported feature.
pub(super) fn read(text: &str, resolve: Resolve) -> Result<Value, YamlError> {
    let lines = lines(text)?;
    let mut reader = Reader { lines, at: 0, resolve };
    let Some(first) = reader.lines.first() else { return Ok(Value::Null) };
    let value = reader.block(first.indent, "", 0)?;
    match reader.lines.get(reader.at) {
        Some(line) => Err(line.error("the indentation does not match")),
        None => Ok(value),
    }
}

/// A line without its comment.
#[derive(Clone)]
struct Line {
    number: usize,
    indent: usize,
    text: String,
}

impl Line {
    fn error(&self, reason: &'static str) -> YamlError {
        YamlError { line: self.number, reason }
    }

    /// The text after the dash of a list element, with its indentation.
    fn element(&self) -> Option<Self> {
        let rest =
            self.text.strip_prefix('-').filter(|rest| rest.is_empty() || rest.starts_with(' '))?;
        let text = rest.trim_start();
        let indent = self.indent + self.text.len() - text.len();
        Some(Self { number: self.number, indent, text: text.to_owned() })
    }

    /// The key of a member, and the text after its colon.
    fn member(&self) -> Result<Option<(String, String)>, YamlError> {
        let text = self.text.as_str();
        if text.starts_with(['"', '\'']) {
            let (key, rest) = quoted(self, text)?;
            let rest = rest.trim_start().strip_prefix(':');
            return Ok(rest.map(|rest| (key, rest.trim_start().to_owned())));
        }
        if text.starts_with(['{', '[']) {
            return Ok(None);
        }
        if text.starts_with("? ") {
            return Err(self.error("keys with `?` are not supported"));
        }
        let ends = text.match_indices(':').map(|(at, _)| at);
        let mut ends = ends.filter(|at| text.len() == at + 1 || text[at + 1..].starts_with(' '));
        Ok(ends
            .next()
            .map(|at| (text[..at].trim_end().to_owned(), text[at + 1..].trim().to_owned())))
    }
}

/// All lines except empty ones and comments.
fn lines(text: &str) -> Result<Vec<Line>, YamlError> {
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.trim_start_matches('\u{feff}').lines()) {
        let without = without_comment(line).trim_end();
        let text = without.trim_start_matches(' ');
        let line = Line { number, indent: without.len() - text.len(), text: text.to_owned() };
        match text {
            "" => {}
            "..." => break,
            "---" if lines.is_empty() => {}
            "---" => return Err(line.error("several documents are not supported")),
            _ if text.starts_with('%') && lines.is_empty() => {}
            _ if text.starts_with('\t') => return Err(line.error("a tab cannot indent")),
            _ => lines.push(line),
        }
    }
    Ok(lines)
}

/// Removes a comment: a `#` at the beginning or after a space, outside quotes.
fn without_comment(line: &str) -> &str {
    let is_comment =
        |(_, before, letter): &(usize, char, char)| *letter == '#' && before.is_whitespace();
    unquoted(line).find(is_comment).map_or(line, |(at, ..)| &line[..at])
}

/// The characters outside quotes, each with its position and the preceding character.
fn unquoted(line: &str) -> impl Iterator<Item = (usize, char, char)> {
    let (mut quote, mut before) = (None, ' ');
    let mut letters = line.char_indices();
    std::iter::from_fn(move || {
        loop {
            let (at, letter) = letters.next()?;
            let last = std::mem::replace(&mut before, letter);
            match (quote, letter) {
                // A quote inside a plain scalar is an ordinary character.
                (None, '"' | '\'') if last.is_whitespace() || "[{,:".contains(last) => {
                    quote = Some(letter);
                }
                (None, letter) => return Some((at, last, letter)),
                (Some('"'), '\\') => drop(letters.next()),
                (Some(open), letter) if open == letter => quote = None,
                _ => {}
            }
        }
    })
}

struct Reader {
    lines: Vec<Line>,
    at: usize,
    resolve: Resolve,
}

impl Reader {
    /// The value that begins at the current line, with this indentation.
    fn block(&mut self, indent: usize, key: &str, depth: usize) -> Result<Value, YamlError> {
        let line = &self.lines[self.at];
        if depth > DEPTH {
            return Err(line.error("collections are nested too deeply"));
        }
        if line.element().is_some() {
            return self.list(indent, key, depth);
        }
        if line.member()?.is_some() {
            return self.table(indent, depth);
        }
        let line = line.clone();
        self.at += 1;
        self.inline(&line, &line.text, key, depth)
    }

    fn list(&mut self, indent: usize, key: &str, depth: usize) -> Result<Value, YamlError> {
        let mut list = Vec::new();
        while let Some(line) = self.lines.get(self.at).filter(|line| line.indent == indent) {
            let Some(element) = line.element() else { break };
            if element.text.is_empty() {
                self.at += 1;
                list.push(self.below(indent, key, depth)?);
            } else {
                let indent = element.indent;
                self.lines[self.at] = element;
                list.push(self.block(indent, key, depth + 1)?);
            }
        }
        Ok(Value::Array(list))
    }

    fn table(&mut self, indent: usize, depth: usize) -> Result<Value, YamlError> {
        let mut table = Map::new();
        while let Some(line) = self.lines.get(self.at).filter(|line| line.indent == indent).cloned()
        {
            if line.element().is_some() {
                break;
            }
            let (key, rest) =
                line.member()?.ok_or_else(|| line.error("a key with `:` is missing"))?;
            self.at += 1;
            let value = if !rest.is_empty() {
                self.inline(&line, &rest, &key, depth)?
            } else if self.lines.get(self.at).is_some_and(|next| {
                // The elements of a list may have the indentation of its key.
                next.indent == indent && next.element().is_some()
            }) {
                self.list(indent, &key, depth + 1)?
            } else {
                self.below(indent, &key, depth)?
            };
            if table.insert(key, value).is_some() {
                return Err(line.error("duplicate key"));
            }
        }
        Ok(Value::Object(table))
    }

    /// The value with a larger indentation, or null.
    fn below(&mut self, indent: usize, key: &str, depth: usize) -> Result<Value, YamlError> {
        match self.lines.get(self.at).map(|next| next.indent).filter(|next| *next > indent) {
            Some(next) => self.block(next, key, depth + 1),
            None => Ok(Value::Null),
        }
    }

    /// A scalar or a flow collection, which may continue on the next lines.
    fn inline(
        &mut self,
        line: &Line,
        text: &str,
        key: &str,
        depth: usize,
    ) -> Result<Value, YamlError> {
        let mut text = text.to_owned();
        let is_flow = text.starts_with(['{', '[']);
        let mut open = if is_flow { open_brackets(&text) } else { 0 };
        while let Some(next) = self.lines.get(self.at).filter(|_| open > 0) {
            text.push(' ');
            text.push_str(&next.text);
            open += open_brackets(&next.text);
            self.at += 1;
        }
        let mut flow = Flow { line, rest: &text, resolve: self.resolve };
        let value = flow.value(key, depth, is_flow)?;
        if !flow.rest.trim().is_empty() {
            return Err(line.error("unexpected text after the value"));
        }
        match self.lines.get(self.at).filter(|next| next.indent > line.indent && !is_flow) {
            Some(next) if next.element().is_none() && next.member()?.is_none() => {
                Err(next.error("multi-line strings are not supported"))
            }
            _ => Ok(value),
        }
    }
}

/// Number of brackets that a line opens outside quotes, minus those that it closes.
fn open_brackets(text: &str) -> i64 {
    let count = |letter| match letter {
        '[' | '{' => 1,
        ']' | '}' => -1,
        _ => 0,
    };
    unquoted(text).map(|(_, _, letter)| count(letter)).sum()
}

/// The rest of a line inside a flow collection, or of a scalar.
struct Flow<'a> {
    line: &'a Line,
    rest: &'a str,
    resolve: Resolve,
}

impl Flow<'_> {
    fn value(&mut self, key: &str, depth: usize, is_within: bool) -> Result<Value, YamlError> {
        self.rest = self.rest.trim_start();
        if depth > DEPTH {
            return Err(self.line.error("collections are nested too deeply"));
        }
        match self.rest.chars().next() {
            Some('[') => self.list(key, depth),
            Some('{') => self.table(depth),
            Some('"' | '\'') => {
                let (text, rest) = quoted(self.line, self.rest)?;
                self.rest = rest;
                Ok(text.into())
            }
            Some('&' | '*') => Err(self.line.error("anchors are not supported")),
            Some('!') => Err(self.line.error("tags are not supported")),
            Some('|' | '>') => Err(self.line.error("multi-line strings are not supported")),
            Some('@' | '`' | '%') => {
                Err(self.line.error("a plain scalar cannot begin with this character"))
            }
            _ => {
                let end = self.rest.find(|letter| is_within && ",]}".contains(letter));
                let (plain, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
                self.rest = rest;
                Ok((self.resolve)(key, plain.trim()))
            }
        }
    }

    fn list(&mut self, key: &str, depth: usize) -> Result<Value, YamlError> {
        let mut list = Vec::new();
        while !self.ends(']', if list.is_empty() { '[' } else { ',' })? {
            list.push(self.value(key, depth + 1, true)?);
        }
        Ok(Value::Array(list))
    }

    fn table(&mut self, depth: usize) -> Result<Value, YamlError> {
        let mut table = Map::new();
        while !self.ends('}', if table.is_empty() { '{' } else { ',' })? {
            let (key, rest) = if self.rest.starts_with(['"', '\'']) {
                quoted(self.line, self.rest)?
            } else {
                let end = self.rest.find([':', ',', '}']).unwrap_or(self.rest.len());
                (self.rest[..end].trim().to_owned(), &self.rest[end..])
            };
            self.rest = rest.trim_start();
            let value = match self.rest.strip_prefix(':') {
                Some(rest) => {
                    self.rest = rest;
                    self.value(&key, depth + 1, true)?
                }
                None => Value::Null,
            };
            if table.insert(key, value).is_some() {
                return Err(self.line.error("duplicate key"));
            }
        }
        Ok(Value::Object(table))
    }

    /// Whether a collection ends here. Skips the bracket or comma before an element.
    fn ends(&mut self, bracket: char, before: char) -> Result<bool, YamlError> {
        let rest = self.rest.trim_start();
        let element = rest.strip_prefix(before).map(str::trim_start);
        self.rest = element.unwrap_or(rest);
        if let Some(rest) = self.rest.strip_prefix(bracket) {
            self.rest = rest;
            return Ok(true);
        }
        match element.is_some_and(|element| !element.is_empty()) {
            true => Ok(false),
            false => Err(self.line.error("a bracket or a comma is missing")),
        }
    }
}

/// Parses a quoted string. Returns it and the rest of the line.
fn quoted<'a>(line: &Line, text: &'a str) -> Result<(String, &'a str), YamlError> {
    let open = line.error("the closing quote is missing");
    let mut letters = text.char_indices();
    let quote = letters.next().map(|(_, quote)| quote);
    let mut read = String::new();
    while let Some((at, letter)) = letters.next() {
        let rest = &text[at + letter.len_utf8()..];
        match letter {
            // Two single quotes are an escaped one.
            '\'' if quote == Some('\'') && rest.starts_with('\'') => {
                letters.next();
                read.push('\'');
            }
            letter if Some(letter) == quote => return Ok((read, rest)),
            '\\' if quote == Some('"') => match letters.next() {
                Some((_, letter @ ('"' | '\\' | '/'))) => read.push(letter),
                Some((_, 't')) => read.push('\t'),
                Some((_, 'n')) => read.push('\n'),
                _ => return Err(line.error("unsupported escape sequence")),
            },
            letter => read.push(letter),
        }
    }
    Err(open)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(_: &str, plain: &str) -> Value {
        plain.into()
    }

    fn parsed(yaml: &str) -> Result<Value, String> {
        read(yaml, text).map_err(|error| error.to_string())
    }

    #[test]
    fn block_and_flow_styles_are_parsed_alike() {
        let expected = json!({ "regions": { "900": { "name": "A # b", "nodes": [
            { "name": "900a", "ipv6": "2001:db8::1", "list": ["a", "b"] }, { "name": "it's" },
        ] } } });
        for yaml in [
            "%YAML 1.2\n---\n# relays\nregions:\n  900: # ours\n    name: \"A # b\"\n    nodes:\n\
             \n      - name: 900a\n        ipv6: 2001:db8::1\n        list:\n        - a\n        - b\n\
             \x20     - name: 'it''s'\n...\n",
            "regions:\r\n  \"900\":\r\n    name: 'A # b'\r\n    nodes:\r\n    -\r\n      name: 900a\r\n\
             \x20     ipv6: '2001:db8::1'\r\n      list: [a, \"b\"]\r\n    - {name: it's}\r\n",
            "regions: {900: {name: \"A # b\", nodes: [\n  {name: 900a, ipv6: \"2001:db8::1\",\n\
             \x20  list: [a, b,]}, # first\n  {\"name\": \"it's\"}]}}",
        ] {
            assert_eq!(parsed(yaml).as_ref(), Ok(&expected), "{yaml}");
        }
        assert_eq!(
            parsed("a:\nb: {}\nc: []\nd: -1"),
            Ok(json!({
                "a": null, "b": {}, "c": [], "d": "-1",
            }))
        );
        assert_eq!(parsed("# nothing\n"), Ok(Value::Null));
        assert_eq!(parsed("- - a\n  - b\n- c: d"), Ok(json!([["a", "b"], { "c": "d" }])));
    }

    #[test]
    fn unsupported_yaml_is_refused_by_its_line() {
        for (yaml, reason) in [
            ("a: &x b", "line 1: anchors are not supported"),
            ("a: b\nc: *x", "line 2: anchors are not supported"),
            ("a: !!str b", "line 1: tags are not supported"),
            ("a: |\n  b", "line 1: multi-line strings are not supported"),
            ("a: b\n  c", "line 2: multi-line strings are not supported"),
            ("a:\n\tb: c", "line 2: a tab cannot indent"),
            ("a: b\na: c", "line 2: duplicate key"),
            ("a: b\n  c: d", "line 2: the indentation does not match"),
            ("a:\n    b: c\n  d: e", "line 3: the indentation does not match"),
            ("a: \"b", "line 1: the closing quote is missing"),
            ("a: [[b][c]]", "line 1: a bracket or a comma is missing"),
            ("a: [b", "line 1: a bracket or a comma is missing"),
            ("a: [b] c", "line 1: unexpected text after the value"),
            ("a: b\n---\nc: d", "line 2: several documents are not supported"),
            ("a: b\nc", "line 2: a key with `:` is missing"),
        ] {
            assert_eq!(parsed(yaml), Err(reason.to_owned()), "{yaml}");
        }
        assert!(parsed(&"- ".repeat(100)).is_err());
        assert!(parsed(&format!("a: {}", "[".repeat(100))).is_err());
    }

    #[test]
    fn a_flow_collection_of_many_lines_is_parsed_once() {
        // This would take minutes if each line were parsed together with all previous ones.
        let many = 100_000;
        let list = parsed(&format!("a: [\n{}]", "b,\n".repeat(many))).unwrap();
        assert_eq!(list["a"].as_array().map(Vec::len), Some(many));
    }
}
