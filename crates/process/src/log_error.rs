//! What fails while something is taken down is logged, and the rest is still done.

pub(crate) fn log_error(result: anyhow::Result<()>) {
    if let Err(error) = result {
        tracing::error!("{error:#}");
    }
}
