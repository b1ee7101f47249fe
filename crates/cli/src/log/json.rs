//! Events as lines of JSON. The schema is `docs/json.md`, which changes with this file.

use std::fmt::{self, Debug, Write};

use serde_json::{Map, Value, json};
use tracing::{
    Event,
    field::{Field, Visit},
};
use tracing_subscriber::fmt::{
    format::Writer,
    time::{FormatTime, SystemTime},
};

/// A writer of an event. `suppressed` similar events were suppressed before it.
pub(super) struct Json {
    pub suppressed: u64,
}

impl Json {
    pub(super) fn write(&self, writer: &mut Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let line = json!({
            "time": now()?,
            "level": metadata.level().as_str().to_ascii_lowercase(),
            "target": metadata.target(),
            "message": fields.message,
            "fields": fields.others,
            "untold": self.suppressed,
        });
        writeln!(writer, "{line}")
    }
}

/// The line with the error that ends the process.
pub(super) fn failure(error: &str) -> String {
    let line = json!({
        // Writing to a string does not fail.
        "time": now().unwrap_or_default(),
        "level": "error",
        "target": "cli",
        "message": error,
        "fields": {},
        "untold": 0,
    });
    line.to_string()
}

fn now() -> Result<String, fmt::Error> {
    let mut time = String::new();
    SystemTime.format_time(&mut Writer::new(&mut time))?;
    Ok(time)
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            (name, value) => {
                self.others.insert(name.to_owned(), value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        self.put(field, text.into());
    }
}
