//! Connections for hyper's clients.

use std::{
    future::Future,
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use hyper::{
    Uri,
    rt::{Read, ReadBufCursor, Write},
};
use hyper_util::{
    client::legacy::connect::{Connected, Connection},
    rt::TokioIo,
};
use netstack::TcpStream;
use tower_service::Service;

use crate::Tunnel;

/// Connects hyper's clients through a [`Tunnel`], which it keeps running. hyper-util's `legacy::Client`
/// accepts it in place of an `HttpConnector`. For an `https` address it connects to port 443 and leaves
/// TLS to a connector around it, such as `HttpsConnector` of hyper-rustls.
///
/// ```no_run
/// # use tunnel::{Connector, Tunnel};
/// # fn client(tunnel: Tunnel) {
/// use hyper_util::{client::legacy::Client, rt::TokioExecutor};
///
/// let client: Client<_, String> =
///     Client::builder(TokioExecutor::new()).build(Connector::new(tunnel));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Connector {
    tunnel: Tunnel,
}

/// A connection of a [`Connector`].
#[derive(Debug)]
pub struct Stream(TokioIo<TcpStream>);

impl Connector {
    /// A connector through this tunnel.
    pub fn new(tunnel: Tunnel) -> Self {
        Self { tunnel }
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let tunnel = self.tunnel.clone();
        Box::pin(async move {
            let no_host = || io::Error::new(io::ErrorKind::InvalidInput, "no host in the address");
            let host = uri.host().ok_or_else(no_host)?;
            let port = if uri.scheme_str() == Some("https") { 443 } else { 80 };
            let stream = tunnel.connect_host(host, uri.port_u16().unwrap_or(port)).await?;
            Ok(Stream(TokioIo::new(stream)))
        })
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buf)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
