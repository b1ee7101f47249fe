//! Warnings about settings that are allowed but probably not meant.

use std::fmt;

/// The warnings of one file, each in the form `FILE:LINE: KEY: warning`.
pub(super) struct Warnings<'a> {
    file_name: &'a str,
    all: Vec<String>,
}

impl<'a> Warnings<'a> {
    pub(super) fn new(file_name: &'a str) -> Self {
        Self { file_name, all: Vec::new() }
    }

    pub(super) fn add(&mut self, line: usize, key: &str, warning: fmt::Arguments<'_>) {
        self.all.push(format!("{}:{line}: {key}: {warning}", self.file_name));
    }

    /// A warning about the whole file.
    pub(super) fn add_whole(&mut self, warning: &str) {
        self.all.push(format!("{}: {warning}", self.file_name));
    }

    pub(super) fn into_all(self) -> Vec<String> {
        self.all
    }
}
