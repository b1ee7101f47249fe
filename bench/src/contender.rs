//! Who is measured.

use std::path::Path;

use netns::{Implementation, Program};

/// An implementation, or one of several builds of linerate.
#[derive(Clone, Debug)]
pub struct Contender {
    /// Its name in the report.
    pub name: String,
    /// What is run at both ends.
    pub program: Program,
    /// The offloads that linerate may use, if not all.
    pub offloads: Option<Vec<&'static str>>,
}

impl Contender {
    /// The installed one.
    ///
    /// # Panics
    /// When it is not installed.
    pub fn installed(implementation: Implementation) -> Contender {
        let name = implementation.name().to_owned();
        Contender { name, program: implementation.into(), offloads: None }
    }

    /// A build of linerate, from `PATH` or `NAME=PATH`. The path is made absolute, for the hosts
    /// have a working directory of their own.
    pub fn build(text: &str) -> Result<Contender, String> {
        let (name, path) = text.split_once('=').unwrap_or((text, text));
        let path = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
        let program = Program { implementation: Implementation::Linerate, path };
        Ok(Contender { name: name.to_owned(), program, offloads: None })
    }
}
