//! Logs, on standard error, as `LOG_LEVEL` says: `verbose` (or `debug`),
//! `error`, `silent`, as for wireguard-go; without it, warnings and errors.

use std::io::IsTerminal;

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
