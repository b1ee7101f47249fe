//! The socket, served.

use std::{io, os::unix::net::UnixListener, sync::Arc};

use tokio::{sync::mpsc, task::JoinHandle};

use super::{Request, Writers, serve};

/// The interface, which runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    accepting: JoinHandle<()>,
}

impl Server {
    /// Starts to serve, inside a runtime. Requests go to `requests`.
    ///
    /// # Errors
    /// When the socket cannot be made one of the runtime's.
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
