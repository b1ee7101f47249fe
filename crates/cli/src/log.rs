//! Logs to standard error, and to syslog in the background. `LOG_LEVEL` is `verbose` (or `debug`),
//! `error` or `silent`, as for wireguard-go; by default warnings and errors are logged.
//!
//! ```text
//!   event -- level --> Limits, for each call site --> a line of text or JSON
//!      `---- errors and warnings --> the command that waits for this process, if any
//! ```

mod json;
mod output;
mod plain_text;
mod rate_limit;

use std::{
    fmt,
    io::{self, IsTerminal},
    time::Duration,
};

use clap::{Args, ValueEnum};
use sys::clock::boottime;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    fmt::{
        FmtContext, FormatEvent,
        format::{DefaultFields, Format as Text, Writer},
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use json::Json;
use output::Output;
pub(crate) use output::TerminalDetachment;
use plain_text::{Plain, Reports};
use process::LogStyle;
use rate_limit::{Limits, Verdict};

/// Modules without a rate limit: they log the start, end and configuration of the process, which are few
/// and important events.
const UNLIMITED: [&str; 12] = [
    "host",
    "node",
    "process::member",
    "process::guardian",
    "process::interface",
    "process::lifecycle",
    "process::log_error",
    "process::proxy",
    "process::sandbox",
    "process::supervisor",
    "process::up",
    "proxy::proxies",
];

/// Libraries that log each of their steps.
const LIBRARIES: [&str; 4] = ["h2", "hickory_proto", "hyper", "rustls"];

/// The prefix of an error that ends the process.
const NAME: &str = "linerate: ";

/// Arguments of commands that log.
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
    /// The log of a child process, with the style of its parent.
    pub(crate) fn of(style: LogStyle) -> Self {
        Self { format: if style.json { Format::Json } else { Format::Text } }
    }

    /// The style to pass to a child process.
    pub(crate) fn style(self, background: bool) -> LogStyle {
        LogStyle { background, json: self.format == Format::Json }
    }

    /// Prints the line with the error that ends the process, whatever the level.
    pub(crate) fn print_failure(self, error: &anyhow::Error) {
        output::print(&self.failure(error));
    }

    fn failure(self, error: &anyhow::Error) -> String {
        match self.format {
            Format::Text => format!("{NAME}{error:#}"),
            Format::Json => json::failure(&format!("{error:#}")),
        }
    }

    /// Installs the logger.
    pub(crate) fn start(self) {
        let level = match std::env::var("LOG_LEVEL").as_deref() {
            Ok("verbose" | "debug") => LevelFilter::DEBUG,
            Ok("error") => LevelFilter::ERROR,
            Ok("silent") => LevelFilter::OFF,
            _ => LevelFilter::WARN,
        };
        // Debug messages of libraries do not help users.
        let quiet = LIBRARIES.map(|library| (library, level.min(LevelFilter::WARN)));
        let targets = Targets::new().with_default(level).with_targets(quiet);
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(|| Output)
            .with_ansi(io::stderr().is_terminal())
            .event_format(Lines {
                format: self.format,
                limits: Limits::default(),
                clock: boottime,
            });
        // The messages that a waiting command prints do not depend on the log level.
        let reports = Reports.with_filter(LevelFilter::WARN);
        tracing_subscriber::registry().with(lines.with_filter(targets)).with(reports).init();
    }
}

/// Formats events as lines, within their limits.
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
        let suppressed = if is_unlimited(metadata.target()) {
            0
        } else {
            match self.limits.check(metadata.callsite(), (self.clock)()) {
                Verdict::Log { suppressed } => suppressed,
                Verdict::Suppress => return Ok(()),
            }
        };
        if output::is_syslog() {
            output::write_head(&mut writer, *metadata.level())?;
        }
        match (self.format, suppressed) {
            (Format::Text, suppressed) if output::is_syslog() => {
                Plain { suppressed }.write(&mut writer, event)
            }
            (Format::Json, _) => Json { suppressed }.write(&mut writer, event),
            (Format::Text, 0) => text().format_event(context, writer, event),
            (Format::Text, _) => {
                let mut line = String::new();
                text().format_event(context, Writer::new(&mut line), event)?;
                writeln!(
                    writer,
                    "{} ({suppressed} similar messages were suppressed)",
                    line.trim_end()
                )
            }
        }
    }
}

fn text() -> Text {
    Text::default().with_target(false)
}

fn is_unlimited(target: &str) -> bool {
    UNLIMITED.iter().any(|module| {
        target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

#[cfg(test)]
mod tests;
