//! Converts Markdown to the body of a manual page (man(7)). Supports the elements that the documents of
//! this tree use.
//!
//! A table of keys becomes a list:
//!
//! ```text
//!   | key          | value | meaning |
//!   | `ListenPort` | PORT  | the port |  -->  ListenPort = PORT
//!                                                the port
//! ```

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// Returns the body without the title.
pub(crate) fn from_markdown(text: &str) -> String {
    let mut page = Page::default();
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        page.add(event);
    }
    page.roff
}

#[derive(Default)]
struct Page {
    roff: String,
    /// Whether the text is verbatim: spaces and line ends are significant.
    verbatim: bool,
    /// For each enclosing list, the number of its next item, if it is numbered.
    lists: Vec<Option<u64>>,
    /// The head of the enclosing table, and the cells of its current row.
    head: Vec<String>,
    row: Vec<String>,
    /// The offset in `roff` at which the current cell or title begins.
    start: usize,
}

impl Page {
    fn add(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.begin(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => self.text(&text),
            Event::Code(code) => {
                self.roff += "\\fB";
                self.text(&code);
                self.roff += "\\fR";
            }
            Event::SoftBreak => self.line_end(),
            other => unreachable!("unsupported element: {other:?}"),
        }
    }

    fn begin(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::TableCell => self.start = self.roff.len(),
            Tag::Paragraph if self.lists.is_empty() => self.roff += ".PP\n",
            Tag::List(first) => self.lists.push(first),
            Tag::Item => self.item(),
            Tag::CodeBlock(CodeBlockKind::Fenced(_)) => {
                self.roff += ".PP\n.RS 4\n.nf\n";
                self.verbatim = true;
            }
            Tag::Strong | Tag::Emphasis => self.roff += "\\fI",
            Tag::Table(_) => self.head.clear(),
            Tag::Paragraph | Tag::Link { .. } | Tag::TableHead | Tag::TableRow => {}
            other => unreachable!("unsupported element: {other:?}"),
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let title = self.roff.split_off(self.start);
                match level {
                    HeadingLevel::H1 => {}
                    HeadingLevel::H2 => self.roff += &format!(".SH \"{title}\"\n"),
                    _ => self.roff += &format!(".SS \"{title}\"\n"),
                }
            }
            TagEnd::Paragraph | TagEnd::Item => self.line_end(),
            TagEnd::List(_) => drop(self.lists.pop()),
            TagEnd::CodeBlock => {
                self.roff += ".fi\n.RE\n";
                self.verbatim = false;
            }
            TagEnd::Strong | TagEnd::Emphasis => self.roff += "\\fR",
            TagEnd::TableCell => self.row.push(self.roff.split_off(self.start)),
            TagEnd::TableHead => self.head = std::mem::take(&mut self.row),
            TagEnd::TableRow => self.row(),
            _ => {}
        }
    }

    fn item(&mut self) {
        self.roff += &match self.lists.last_mut() {
            Some(Some(number)) => {
                *number += 1;
                format!(".IP {}. 4\n", *number - 1)
            }
            _ => ".IP \\(bu 2\n".to_owned(),
        };
    }

    /// Writes a row: a key, its values, and their meaning.
    fn row(&mut self) {
        let row = std::mem::take(&mut self.row);
        let [key, value, about] = row.as_slice() else {
            unreachable!("a table of keys has three columns, not {row:?}")
        };
        self.roff += &match value.is_empty() {
            true => format!(".TP\n{key}\n"),
            false => format!(".TP\n{key} = {value}\n"),
        };
        if self.head[2] == "without it" && !about.is_empty() {
            self.roff += "Without it: ";
        }
        self.roff += about;
        self.line_end();
    }

    fn line_end(&mut self) {
        if !self.roff.ends_with('\n') {
            self.roff.push('\n');
        }
    }

    /// Writes text, and escapes the control characters of roff.
    fn text(&mut self, text: &str) {
        for c in text.chars() {
            let begins = self.roff.ends_with('\n');
            match c {
                '\\' => self.roff += "\\e",
                '-' => self.roff += "\\-",
                '"' => self.roff += "\\(dq",
                '.' | '\'' if begins => self.roff += &format!("\\&{c}"),
                '\n' if begins && !self.verbatim => {}
                c if c.is_ascii() => self.roff.push(c),
                c => self.roff += &format!("\\[u{:04X}]", u32::from(c)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_of_keys_becomes_a_list() {
        let table = "| key | value | without it |\n|---|---|---|\n| `A`, `B` | `on` | *none* |\n\
                     | `C` | | |\n";
        let expected = ".TP\n\\fBA\\fR, \\fBB\\fR = \\fBon\\fR\nWithout it: \\fInone\\fR\n\
                        .TP\n\\fBC\\fR\n";
        assert_eq!(from_markdown(table), expected);
    }

    #[test]
    fn titles_lists_and_verbatim_blocks_are_converted() {
        let text = "# Title\n\nOne\ntwo.\n\n## Of [a](#b)\n\n1. first\n2. second\n\n### C\n\n\
                    - **d** e\n\n```\n. a\n\n  \\b\n```\n";
        let expected = ".PP\nOne\ntwo.\n.SH \"Of a\"\n.IP 1. 4\nfirst\n.IP 2. 4\nsecond\n\
                        .SS \"C\"\n.IP \\(bu 2\n\\fId\\fR e\n\
                        .PP\n.RS 4\n.nf\n\\&. a\n\n  \\eb\n.fi\n.RE\n";
        assert_eq!(from_markdown(text), expected);
    }

    #[test]
    fn text_cannot_contain_roff_requests() {
        let text = ".so x\n'br \"quoted\" -\u{2026}\n";
        assert_eq!(from_markdown(text), ".PP\n\\&.so x\n\\&'br \\(dqquoted\\(dq \\-\\[u2026]\n");
    }
}
