//! Formatted text: aligned tables, and colours only for a terminal.

use std::env;
use std::fmt;
use std::io::{IsTerminal, stdout};

/// How text is emphasised.
#[derive(Clone, Copy)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Colours if stdout is a terminal and NO_COLOR is not set.
    pub fn of_stdout() -> Self {
        Self { colour: stdout().is_terminal() && env::var_os("NO_COLOR").is_none() }
    }

    /// No colours.
    pub fn plain() -> Self {
        Self { colour: false }
    }

    /// Whether there are colours.
    pub fn has_colour(self) -> bool {
        self.colour
    }

    /// A heading or an important figure.
    pub fn strong(self, text: impl fmt::Display) -> String {
        self.wrap("1", text)
    }

    /// Less important text.
    pub fn faint(self, text: impl fmt::Display) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: impl fmt::Display) -> String {
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

/// Rows under headings; the first column is left-aligned, figures are right-aligned.
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(str::to_owned).collect()] }
    }

    /// Adds a row, with as many cells as there are headings.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The text, with emphasised headings.
    pub fn render(&self, style: Style) -> String {
        let column = |index: usize| self.rows.iter().filter_map(move |row| row.get(index));
        let width = |index| column(index).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for (index, cell) in row.iter().enumerate() {
                let width = widths[index];
                line += &match index {
                    0 => format!("  {cell:<width$}"),
                    _ => format!("   {cell:>width$}"),
                };
            }
            text += &if number == 0 { style.strong(line) } else { line };
            text.push('\n');
        }
        text
    }
}

impl Table {
    /// The same in Markdown.
    pub fn markdown(&self) -> String {
        let line = |row: &Vec<String>| {
            let cells: String =
                row.iter().map(|cell| format!(" {} |", cell.trim().replace('|', "\\|"))).collect();
            format!("|{cells}\n")
        };
        let mut lines: Vec<String> = self.rows.iter().map(line).collect();
        lines.insert(1, format!("|{}\n", "---|".repeat(self.rows[0].len())));
        lines.concat()
    }

    /// The same in HTML. The class of a cell is its verdict, and it has its heading for narrow
    /// screens.
    pub fn html(&self) -> String {
        let mut text = String::from("<table>");
        for (number, row) in self.rows.iter().enumerate() {
            let tag = if number == 0 { "th" } else { "td" };
            let cell = |(column, cell): (usize, &String)| {
                let heading = escape(&self.rows[0][column]);
                let name = match (number, column) {
                    (0, _) | (_, 0) => String::new(),
                    _ if heading.is_empty() => heading,
                    _ => format!(" data-name=\"{heading}\""),
                };
                let class = match cell.as_str() {
                    "met" => " class=met",
                    "NOT MET" => " class=missed",
                    _ if cell.starts_with("not measured") => " class=unmeasured",
                    _ if cell.starts_with("  ") => " class=detail",
                    _ => "",
                };
                format!("<{tag}{class}{name}>{}</{tag}>", escape(cell))
            };
            text += &format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>());
        }
        text + "</table>"
    }
}

/// Escapes text for HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::{Style, Table, escape};

    #[test]
    fn html_escapes_names_of_users() {
        assert_eq!(escape("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
        let mut table = Table::new(["<name>", "\"", ""]);
        table.row(["  x", "1", "NOT MET"].map(str::to_owned));
        assert_eq!(
            table.html(),
            "<table><tr><th>&lt;name&gt;</th><th>&quot;</th><th></th></tr>\n\
             <tr><td class=detail>  x</td><td data-name=\"&quot;\">1</td>\
             <td class=missed>NOT MET</td></tr>\n</table>"
        );
    }

    #[test]
    fn markdown_has_a_rule_below_the_headings() {
        let mut table = Table::new(["", "a|b"]);
        table.row(["  x", "1"].map(str::to_owned));
        assert_eq!(table.markdown(), "|  | a\\|b |\n|---|---|\n| x | 1 |\n");
    }

    #[test]
    fn figures_are_right_aligned_under_their_headings() {
        let mut table = Table::new(["", "Gbit/s"]);
        table.row(["bare".to_owned(), "31.4".to_owned()]);
        assert_eq!(table.render(Style::plain()), "         Gbit/s\n  bare     31.4\n");
    }
}
