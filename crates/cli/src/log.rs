//! Logs, on standard error, as `LOG_LEVEL` says: `verbose` (or `debug`),
//! `error`, `silent`, as for wireguard-go; without it, warnings and errors.

use std::io::IsTerminal;

use sys::process::silence_stderr;
use tracing_subscriber::filter::LevelFilter;

pub(crate) fn start() {
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
        .with_target(false)
        .init();
}

/// A process in the background logs on only where that was asked for, or where
/// somebody collects it: a pipe that it keeps open would hold up its reader.
pub(crate) fn leave_terminal() {
    let wanted = ["LOG_LEVEL", "JOURNAL_STREAM"];
    if wanted.iter().all(|name| std::env::var_os(name).is_none())
        && let Err(error) = silence_stderr()
    {
        eprintln!("linerate: standard error stays open: {error}");
    }
}
