//! What a browser is shown.

use bytes::Bytes;
use hyper::{
    Response, StatusCode,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
        REFERRER_POLICY, X_FRAME_OPTIONS,
    },
};

use crate::body::Answer;

/// Nothing is loaded from anywhere, nobody frames the page, and no address of it is told.
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

    /// With a paragraph.
    #[must_use]
    pub fn says(mut self, words: &str) -> Self {
        self.body += &format!("<p>{}</p>", escaped(words));
        self
    }

    /// With lines for a terminal.
    #[must_use]
    pub fn shows(mut self, lines: &str) -> Self {
        self.body += &format!("<pre>{}</pre>", escaped(lines));
        self
    }

    /// With rows of names and values; those without a value are left out.
    #[must_use]
    pub fn lists(mut self, rows: &[(&str, &str)]) -> Self {
        self.body += "<table>";
        for (name, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
            let (name, value) = (escaped(name), escaped(value));
            self.body += &format!("<tr><th>{name}</th><td>{value}</td></tr>");
        }
        self.body += "</table>";
        self
    }

    /// With a button that posts this token there.
    #[must_use]
    pub fn asks(mut self, words: &str, to: &str, token: &str) -> Self {
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

/// Text that is nothing but text, in an attribute too.
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
    fn what_a_machine_says_of_itself_is_text() {
        let page = Page::new(StatusCode::OK, "Title")
            .says("<script>alert(1)</script>")
            .lists(&[("a", "\"><img src=x>"), ("empty", "")])
            .asks("go", "/x", "'>");
        let body = &page.body;
        assert!(!body.contains("<script") && !body.contains("<img") && !body.contains("'>"));
        assert!(!body.contains("empty"));
        let response = Response::from(page);
        assert_eq!(response.headers()[X_FRAME_OPTIONS], "DENY");
    }
}
