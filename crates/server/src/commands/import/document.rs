//! A network as one JSON document:
//!
//! ```text
//!   { "linerate_server": 1, "noise_key": "privkey:..", "derp_key": "privkey:..",
//!     "objects": [ { "kind": "user", "id": 1, "body": { .. } }, .. ] }
//! ```
//!
//! An object without a body was deleted. Its ID must not be assigned again.

use anyhow::{Context, bail};
use coordinator::object::{Kind, Stored};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tailnet::keys::MachineKey;
use zeroize::Zeroizing;

use super::Incoming;

/// Version of the format. A newer version contains something that this program cannot ignore.
const VERSION: u32 = 1;

/// The parsed document.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    linerate_server: u32,
    noise_key: Zeroizing<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    derp_key: Option<Zeroizing<String>>,
    objects: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    kind: String,
    id: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    body: Option<Value>,
}

#[derive(Deserialize)]
struct Version {
    linerate_server: u32,
}

impl Document {
    /// The document of a network.
    pub(super) fn new(
        objects: &[Stored],
        noise: &MachineKey,
        relay: Option<&MachineKey>,
    ) -> anyhow::Result<Self> {
        let entry = |object: &Stored| {
            let body = object.body.as_deref().map(serde_json::from_str).transpose()?;
            Ok(Entry { kind: object.kind.name().to_owned(), id: object.id, body })
        };
        Ok(Self {
            linerate_server: VERSION,
            noise_key: noise.text(),
            derp_key: relay.map(MachineKey::text),
            objects: objects.iter().map(entry).collect::<anyhow::Result<_>>()?,
        })
    }

    /// Parses a document.
    ///
    /// # Errors
    /// It is not an export, or one of a newer program.
    pub(super) fn read(text: &str) -> anyhow::Result<Self> {
        let version: Version = serde_json::from_str(text)
            .context("neither an SQLite database nor an export of linerate-server")?;
        if version.linerate_server != VERSION {
            bail!(
                "an export of version {}, but this linerate-server reads version {VERSION}",
                version.linerate_server
            );
        }
        serde_json::from_str(text).context("not an export of linerate-server")
    }

    /// The JSON text.
    ///
    /// # Errors
    /// Serialization failed.
    pub(super) fn text(&self) -> anyhow::Result<Zeroizing<String>> {
        Ok(Zeroizing::new(serde_json::to_string_pretty(self)?))
    }

    /// Converts the document to a network.
    ///
    /// # Errors
    /// An object has an unknown kind, or a key is invalid.
    pub(super) fn into_incoming(self) -> anyhow::Result<Incoming> {
        let stored = |entry: Entry| {
            let kind = Kind::named(&entry.kind)
                .with_context(|| format!("unknown kind of object: {:?}", entry.kind))?;
            Ok(Stored { kind, id: entry.id, body: entry.body.map(|body| body.to_string()) })
        };
        let objects = self.objects.into_iter().map(stored).collect::<anyhow::Result<_>>()?;
        let noise = self.noise_key.parse().context("noise_key")?;
        let relay = self.derp_key.map(|text| text.parse()).transpose().context("derp_key")?;
        Ok(Incoming::whole(objects, noise, relay))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> MachineKey {
        MachineKey::new(Box::new(Zeroizing::new([7; 32])))
    }

    #[test]
    fn an_export_round_trips_with_deleted_objects() {
        let user =
            |id, body: Option<&str>| Stored { kind: Kind::User, id, body: body.map(str::to_owned) };
        let objects = vec![user(1, Some(r#"{"id":1}"#)), user(2, None)];
        let text = Document::new(&objects, &key(), None).unwrap().text().unwrap();
        let read = Document::read(&text).unwrap().into_incoming().unwrap();
        assert_eq!((read.objects, read.noise.public()), (objects, key().public()));
    }

    #[test]
    fn an_export_of_a_newer_program_is_refused_with_a_reason() {
        let why = |text: &str| match Document::read(text).and_then(Document::into_incoming) {
            Ok(_) => panic!("{text} is read"),
            Err(why) => format!("{why:#}"),
        };
        assert!(why(r#"{"linerate_server":2}"#).contains("version 2"));
        assert!(why("[]").contains("neither"));
        let text = Document::new(&[], &key(), None).unwrap().text().unwrap();
        let stranger = text.replace("\"objects\": []", r#""objects": [{"kind":"moon","id":1}]"#);
        assert!(why(&stranger).contains("moon"));
    }
}
