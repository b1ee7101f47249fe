//! Lines of the keys of a configuration, for errors about several keys.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use toml::de::{DeTable, DeValue};

/// The file of a configuration, with the line of each key.
#[derive(Clone, Debug, Default)]
pub struct Source {
    file: PathBuf,
    lines: BTreeMap<String, usize>,
    /// Prefix of the keys of this network's table.
    table: String,
}

impl Source {
    /// Finds the lines of all keys in a file.
    pub fn of(file: &Path, text: &str) -> Self {
        let mut lines = BTreeMap::new();
        if let Ok(table) = DeTable::parse(text) {
            note(table.get_ref(), "", text, &mut lines);
        }
        Self { file: file.to_owned(), lines, table: String::new() }
    }

    /// The same for the table of a network.
    pub fn of_table(&self, name: impl fmt::Display) -> Self {
        Self { table: format!("networks.{name}."), ..self.clone() }
    }

    /// Notes that a flag overrides a key.
    pub fn override_by_flag(&mut self, key: &str) {
        self.lines.remove(key);
    }

    /// An error about the first of these keys, with the line of the first of them that is in the
    /// file.
    pub fn fault(&self, keys: &[&str], why: impl fmt::Display) -> anyhow::Error {
        let own = |key: &&str| format!("{}{key}", self.table);
        let line = keys.iter().find_map(|key| self.lines.get(&own(key)));
        let key = keys.first().map(own).unwrap_or_default();
        match line {
            Some(line) => anyhow::anyhow!("{}, line {line}: `{key}` {why}", self.file.display()),
            None => anyhow::anyhow!("`{key}` {why}"),
        }
    }
}

fn note(table: &DeTable<'_>, above: &str, text: &str, lines: &mut BTreeMap<String, usize>) {
    for (name, value) in table {
        let key = format!("{above}{}", name.get_ref());
        let before = text.get(..name.span().start).unwrap_or_default();
        if let DeValue::Table(inner) = value.get_ref() {
            note(inner, &format!("{key}."), text, lines);
        }
        lines.insert(key, before.matches('\n').count() + 1);
    }
}
