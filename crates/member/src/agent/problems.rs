//! The present problems of this node, one text for each kind.

use std::collections::BTreeMap;

/// Present problems, by kind. Users see the texts.
#[derive(Debug, Default)]
pub(super) struct Problems(BTreeMap<&'static str, String>);

impl Problems {
    pub(super) fn set(&mut self, kind: &'static str, text: impl Into<String>) {
        self.0.insert(kind, text.into());
    }

    pub(super) fn clear(&mut self, kind: &'static str) {
        self.0.remove(kind);
    }

    /// Sets or clears the problem of a kind.
    pub(super) fn update(&mut self, kind: &'static str, text: Option<String>) {
        match text {
            Some(text) => self.set(kind, text),
            None => self.clear(kind),
        }
    }

    /// The text of a kind; empty without a problem.
    pub(super) fn text(&self, kind: &'static str) -> &str {
        self.0.get(kind).map_or("", String::as_str)
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &String> {
        self.0.values()
    }
}
