//! Logs errors of steps that do not stop the next ones, as when a process goes down.

pub(crate) fn log_error(result: anyhow::Result<()>) {
    if let Err(error) = result {
        tracing::error!("{error:#}");
    }
}
