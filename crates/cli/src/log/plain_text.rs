//! Events as plain text without time and level: for syslog, and for the command that waits for this
//! process.

use std::fmt::{self, Debug, Write};

use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// A writer of an event. `suppressed` similar events were suppressed before it.
pub(super) struct Plain {
    pub suppressed: u64,
}

impl Plain {
    pub(super) fn write(&self, out: &mut dyn Write, event: &Event<'_>) -> fmt::Result {
        write!(out, "{}", text(event))?;
        if self.suppressed > 0 {
            write!(out, " ({} similar messages were suppressed)", self.suppressed)?;
        }
        out.write_char('\n')
    }
}

/// The message, then the error, then the other fields.
fn text(event: &Event<'_>) -> String {
    let mut fields = Fields::default();
    event.record(&mut fields);
    let Fields { message, error, others } = fields;
    let error = if error.is_empty() { error } else { format!(": {error}") };
    format!("{message}{error}{others}")
}

#[derive(Default)]
struct Fields {
    message: String,
    error: String,
    others: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "error" => write!(self.error, "{value:?}"),
            name => write!(self.others, " {name}={value:?}"),
        };
    }
}

/// Sends errors and warnings to the command that waits for this process.
pub(super) struct Reports;

impl<S: Subscriber> Layer<S> for Reports {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        process::report(*event.metadata().level(), &text(event));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    struct Texts(Arc<Mutex<String>>);

    impl<S: Subscriber> Layer<S> for Texts {
        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            let mut out = self.0.lock().unwrap();
            let suppressed = event.metadata().level().as_str().len() as u64 - 4;
            Plain { suppressed }.write(&mut *out, event).unwrap();
        }
    }

    #[test]
    fn an_error_follows_its_message_and_other_fields_follow_both() {
        let texts = Arc::<Mutex<String>>::default();
        let subscriber = tracing_subscriber::registry().with(Texts(texts.clone()));
        with_default(subscriber, || {
            let error = std::io::Error::other("no rights");
            tracing::warn!(errno = 7, %error, why = "none", "a change was refused");
            tracing::error!("{error:#}");
        });
        assert_eq!(
            *texts.lock().unwrap(),
            "a change was refused: no rights errno=7 why=none\n\
             no rights (1 similar messages were suppressed)\n"
        );
    }
}
