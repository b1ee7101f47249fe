//! Logs to standard error, as text or as one JSON object per line.

use std::io::IsTerminal;

use clap::ValueEnum;
use serde::Deserialize;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, Targets},
    fmt,
    prelude::*,
};

/// Log targets of this program.
const OWN: [&str; 2] = ["server", "coordinator"];

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text without timestamps, which the service manager adds.
    #[default]
    Text,
    /// One JSON object per line, with a timestamp.
    Json,
}

/// Log level of the server, and of its parts and libraries.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct LogLevel(Targets);

impl Default for LogLevel {
    fn default() -> Self {
        Self::of(LevelFilter::INFO)
    }
}

impl LogLevel {
    fn of(level: LevelFilter) -> Self {
        Self(Targets::new().with_targets(OWN.map(|own| (own, level))))
    }

    /// The level for troubleshooting.
    pub fn debug() -> Self {
        Self::of(LevelFilter::DEBUG)
    }
}

impl TryFrom<String> for LogLevel {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mut all = Self::default().0;
        for part in text.split(',').map(str::trim) {
            let (target, level) = match part.split_once('=') {
                Some((target, level)) if !target.is_empty() => (Some(target), level),
                Some(_) => (None, ""),
                None => (None, part),
            };
            let names = ["off", "error", "warn", "info", "debug", "trace"];
            let level = level.to_ascii_lowercase();
            let known = names.contains(&level.as_str()).then(|| level.parse::<LevelFilter>());
            let Some(Ok(level)) = known else {
                return Err(format!(
                    "{part:?} is neither a level ({}) nor PART=LEVEL",
                    names.join(", ")
                ));
            };
            all = match target {
                Some(target) => all.with_target(target, level),
                None => all.with_targets(OWN.map(|own| (own, level))),
            };
        }
        Ok(Self(all))
    }
}

/// Starts logging.
pub(crate) fn start(format: LogFormat, level: LogLevel) {
    let layer = match format {
        LogFormat::Text => fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .without_time()
            .boxed(),
        LogFormat::Json => {
            fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed()
        }
    };
    tracing_subscriber::registry().with(layer.with_filter(level.0)).init();
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn targets_can_override_the_log_level() {
        let read = |text: &str| LogLevel::try_from(text.to_owned());
        let LogLevel(level) = read("warn, server::derp=trace, hyper=debug").unwrap();
        for (target, wanted, wants) in [
            ("server::serve", Level::WARN, true),
            ("server::serve", Level::INFO, false),
            ("server::derp::queue", Level::TRACE, true),
            ("hyper", Level::DEBUG, true),
            ("sqlx", Level::ERROR, false),
        ] {
            assert_eq!(level.would_enable(target, &wanted), wants, "{target} {wanted}");
        }
        assert_eq!(read("info").unwrap(), LogLevel::default());
        for bad in ["", "loud", "=info", "server=", "server=9", "info,,warn"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
