//! HTML pages for browsers.

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
        REFERRER_POLICY, X_FRAME_OPTIONS,
    },
};

use crate::http::body::Answer;

/// Forbids external content, framing, and sending the page's URL.
const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_TYPE, "text/html; charset=utf-8"),
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; \
         frame-ancestors 'none'; base-uri 'none'",
    ),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

const STYLE: &str = "body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:4rem auto;\
padding:0 1rem;color-scheme:light dark}th{text-align:left;padding-right:1rem;vertical-align:top}\
td{overflow-wrap:anywhere}pre{white-space:pre-wrap;overflow-wrap:anywhere}\
button{font:inherit;padding:.5rem 1.5rem;margin-top:1rem}";

/// A page.
pub struct Page {
    status: StatusCode,
    title: &'static str,
    body: String,
}

impl Page {
    pub fn new(status: StatusCode, title: &'static str) -> Self {
        Self { status, title, body: String::new() }
    }

    /// Adds a paragraph.
    #[must_use]
    pub fn paragraph(mut self, words: &str) -> Self {
        self.body += &format!("<p>{}</p>", escaped(words));
        self
    }

    /// Adds preformatted lines.
    #[must_use]
    pub fn preformatted(mut self, lines: &str) -> Self {
        self.body += &format!("<pre>{}</pre>", escaped(lines));
        self
    }

    /// Adds a table of names and values. Rows without a value are omitted.
    #[must_use]
    pub fn table_of(mut self, rows: &[(&str, &str)]) -> Self {
        self.body += "<table>";
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let (name, value) = (escaped(name), escaped(value));
            self.body += &format!("<tr><th>{name}</th><td>{value}</td></tr>");
        }
        self.body += "</table>";
        self
    }

    /// Adds a button that posts this token to `to`.
    #[must_use]
    pub fn confirm_button(mut self, words: &str, to: &str, token: &str) -> Self {
        let [words, to, token] = [words, to, token].map(escaped);
        self.body += &format!(
            "<form method=\"post\" action=\"{to}\"><input type=\"hidden\" name=\"token\" \
             value=\"{token}\"><button>{words}</button></form>"
        );
        self
    }
}

impl From<Page> for Response<Answer> {
    fn from(Page { status, title, body }: Page) -> Self {
        let text = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width,initial-scale=1\"><title>{title}</title>\
             <style>{STYLE}</style><h1>{title}</h1>{body}</html>\n"
        );
        let mut response = Self::new(Answer::Text(Some(Bytes::from(text))));
        *response.status_mut() = status;
        for (name, value) in HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Escapes text for HTML, including attributes.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars().filter(|letter| *letter == '\n' || !letter.is_control()) {
        match letter {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&#39;",
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_a_machine_is_escaped() {
        let page = Page::new(StatusCode::OK, "Title")
            .paragraph("<script>alert(1)</script>")
            .table_of(&[("a", "\"><img src=x>"), ("empty", "")])
            .confirm_button("go", "/x", "'>");
        let body = &page.body;
        assert!(!body.contains("<script") && !body.contains("<img") && !body.contains("'>"));
        assert!(!body.contains("empty"));
        let response = Response::from(page);
        assert_eq!(response.headers()[X_FRAME_OPTIONS], "DENY");
    }
}
