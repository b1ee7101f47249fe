//! A capture for a client of the control socket, in the pcapng format, until either side ends it.
//!
//! ```text
//!   engine's threads -> chunks -> this client's thread -> socket -> client -> its file
//!   client closes its half, or exits -> second thread -> the capture ends -> the rest,
//!                                                        statistics, end of the stream
//! ```
//!
//! The client writes the file, because this process may be confined.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    thread::{self, Builder},
};

use config::uapi::{CaptureOptions, write_errno};
use node::{Capture, CaptureEnd, Node};
use packet::pcapng;
use sys::{Errno, process::release_heap};

/// Sends a capture to a client. The connection is not used for anything else afterwards.
///
/// # Errors
/// The client closed the connection.
pub(crate) fn serve(client: &UnixStream, node: &Node, wanted: CaptureOptions) -> io::Result<()> {
    // 0 means unlimited.
    let snaplen = u32::try_from(wanted.snaplen).unwrap_or(0);
    let of = wanted.peer.map(|key| key.to_base64());
    let capture = match begin(node, wanted) {
        Ok(capture) => capture,
        Err(errno) => return answer(client, -errno, &[]),
    };
    let mut head = Vec::new();
    pcapng::section(&mut head, concat!("linerate ", env!("CARGO_PKG_VERSION")));
    let what = of.map_or("inside the tunnel".to_owned(), |key| format!("tunnel to peer {key}"));
    pcapng::interface(&mut head, &node.info().name, &what, snaplen);
    answer(client, 0, &head)?;
    let end = capture.end().clone();
    let served = thread::scope(|scope| {
        let hangs_up = move || end_with(client, &end);
        Builder::new().name("capture".into()).spawn_scoped(scope, hangs_up)?;
        let written = write(client, &capture);
        // Ends the other thread if the client has not closed its direction.
        let _ = client.shutdown(Shutdown::Read);
        written
    });
    // The queue contained megabytes.
    drop(capture);
    release_heap();
    served
}

fn begin(node: &Node, wanted: CaptureOptions) -> Result<Capture, i32> {
    if let Some(wanted) = &wanted.peer
        && !node.state().peers.iter().any(|peer| peer.public_key == *wanted)
    {
        return Err(Errno::ENOENT as i32);
    }
    node.tap().capture(wanted).map_err(|_| Errno::EBUSY as i32)
}

fn answer(mut client: &UnixStream, errno: i32, behind: &[u8]) -> io::Result<()> {
    let mut text = String::new();
    write_errno(&mut text, errno);
    client.write_all(&[text.as_bytes(), behind].concat())
}

fn write(mut client: &UnixStream, capture: &Capture) -> io::Result<()> {
    while let Some(chunk) = capture.next() {
        client.write_all(chunk.bytes())?;
    }
    let mut last = Vec::new();
    pcapng::statistics(&mut last, capture.statistics());
    client.write_all(&last)
}

/// Ends the capture when the client closes its direction of the connection, or exits.
fn end_with(mut client: &UnixStream, end: &CaptureEnd) {
    // Input is ignored.
    while client.read(&mut [0; 64]).is_ok_and(|len| len > 0) {}
    end.end();
}
