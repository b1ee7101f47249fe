//! Logs, on standard error, as `LOG_LEVEL` says: `verbose` (or `debug`),
//! `error`, `silent`, as for wireguard-go; without it, warnings and errors.
//!
//! ```text
//!   event -- its level --> Limits, by its place in the code --> a line of text, or of JSON
//! ```

mod json;
mod limit;

use std::{fmt, io::IsTerminal, time::Duration};

use clap::{Args, ValueEnum};
use sys::{clock::boottime_nanos, process::silence_stderr};
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    filter::LevelFilter,
    fmt::{
        FmtContext, FormatEvent,
        format::{DefaultFields, Format as Text, Writer},
    },
    registry::LookupSpan,
};

use json::Json;
use limit::{Limits, Verdict};
use process::LogStyle;

/// Where the process itself is told of: its start and end, and what its configuration says.
/// These are never too many, and each is to be read.
const ALWAYS_TOLD: [&str; 11] = [
    "host",
    "node",
    "process::guardian",
    "process::interface",
    "process::life",
    "process::log_error",
    "process::proxy",
    "process::sandbox",
    "process::supervisor",
    "process::sweep",
    "process::up",
];

/// Arguments of what logs.
#[derive(Args, Clone, Copy, Default)]
pub(crate) struct Log {
    /// The format of the log: text, or one JSON object per line.
    #[arg(
        long = "log-format",
        value_name = "text|json",
        default_value = "text",
        value_enum,
        hide_possible_values = true
    )]
    format: Format,
}

#[derive(Clone, Copy, Default, PartialEq, ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

impl Log {
    /// The arguments of a process that logs in this style.
    pub fn of(style: LogStyle) -> Self {
        Self { format: if style.json { Format::Json } else { Format::Text } }
    }

    /// The style that these arguments ask for.
    pub fn style(self, background: bool) -> LogStyle {
        LogStyle { background, json: self.format == Format::Json }
    }

    /// The line that says why the process ends, whatever the level.
    pub fn failure(self, error: &anyhow::Error) -> String {
        match self.format {
            Format::Text => format!("linerate: {error:#}"),
            Format::Json => json::failure(&format!("{error:#}")),
        }
    }

    /// Starts it.
    pub fn start(self) {
        let level = match std::env::var("LOG_LEVEL").as_deref() {
            Ok("verbose" | "debug") => LevelFilter::DEBUG,
            Ok("error") => LevelFilter::ERROR,
            Ok("silent") => LevelFilter::OFF,
            _ => LevelFilter::WARN,
        };
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .event_format(Lines {
                format: self.format,
                limits: Limits::default(),
                clock: || Duration::from_nanos(boottime_nanos()),
            })
            .init();
    }
}

/// A process in the background logs on only where that was asked for, or where
/// somebody collects it: a pipe that it keeps open would hold up its reader.
pub(crate) fn leave_terminal() {
    let wanted = ["LOG_LEVEL", "JOURNAL_STREAM"];
    if wanted.iter().all(|name| std::env::var_os(name).is_none())
        && let Err(error) = silence_stderr()
    {
        tracing::warn!(%error, "standard error stays open");
    }
}

/// Makes a line of each event, but of those that are too many.
struct Lines {
    format: Format,
    limits: Limits,
    clock: fn() -> Duration,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> FormatEvent<S, DefaultFields> for Lines {
    fn format_event(
        &self,
        context: &FmtContext<'_, S, DefaultFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let untold = if is_always_told(metadata.target()) {
            0
        } else {
            match self.limits.judge(metadata.callsite(), (self.clock)()) {
                Verdict::Told { untold } => untold,
                Verdict::Untold => return Ok(()),
            }
        };
        match (self.format, untold) {
            (Format::Json, _) => Json { untold }.write(&mut writer, event),
            (Format::Text, 0) => text().format_event(context, writer, event),
            (Format::Text, _) => {
                let mut line = String::new();
                text().format_event(context, Writer::new(&mut line), event)?;
                writeln!(writer, "{} ({untold} more like it were not told)", line.trim_end())
            }
        }
    }
}

fn text() -> Text {
    Text::default().with_target(false)
}

fn is_always_told(target: &str) -> bool {
    ALWAYS_TOLD.iter().any(|module| {
        target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

#[cfg(test)]
mod tests;
