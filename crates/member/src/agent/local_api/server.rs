//! The server of the local API.

use std::{io, os::unix::net::UnixListener, sync::Arc};

use tokio::{sync::mpsc, task::JoinHandle};

use super::{Request, Writers, serve};

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    accepting: JoinHandle<()>,
}

impl Server {
    /// Starts the server in the present runtime. Requests go to `requests`.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub fn start(
        listener: UnixListener,
        writers: Arc<Writers>,
        requests: mpsc::Sender<Request>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        Ok(Self { accepting: tokio::spawn(serve::accept(listener, writers, requests)) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
