//! The agent's end of a line: messages in and out, without waiting in the kernel.
//!
//! ```text
//!   handle.send(message) ──► queue ──► writer ──► line ──► reader ──► messages
//! ```
//!
//! The queue has no bound of its own: what goes to the data plane answers what came from it or from
//! the coordinator, and datagrams are bounded where they come from.

use std::{io, os::fd::OwnedFd, os::unix::net::UnixDatagram as StdSocket};

use serde::{Serialize, de::DeserializeOwned};
use sys::Channel;
use tailnet::line::{self, LineError, PART, Reader};
use tokio::{net::UnixDatagram, sync::mpsc};

/// Sends messages.
#[derive(Clone, Debug)]
pub(super) struct ToLine<M>(mpsc::UnboundedSender<M>);

impl<M> ToLine<M> {
    /// Queues a message. Where the other end is gone, so is this process soon.
    pub fn send(&self, message: M) {
        let _ = self.0.send(message);
    }
}

/// Reads and writes messages until the other end is gone. What it reads goes to `heard`; the
/// handle sends.
pub(super) fn open<Out, In>(
    channel: Channel,
    heard: mpsc::Sender<In>,
) -> io::Result<(ToLine<Out>, impl Future<Output = io::Result<()>>)>
where
    Out: Serialize,
    In: DeserializeOwned,
{
    channel.set_nonblocking()?;
    // What keeps the boundaries of packets is used as one that keeps those of datagrams.
    let channel = UnixDatagram::from_std(StdSocket::from(OwnedFd::from(channel)))?;
    let (sender, queue) = mpsc::unbounded_channel();
    let run = async move {
        tokio::select! {
            ended = read(&channel, heard) => ended,
            ended = write(&channel, queue) => ended,
        }
    };
    Ok((ToLine(sender), run))
}

async fn read<In: DeserializeOwned>(
    channel: &UnixDatagram,
    heard: mpsc::Sender<In>,
) -> io::Result<()> {
    let (mut buffer, mut reader) = (vec![0; PART], Reader::default());
    loop {
        let len = channel.recv(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        match reader.handle_part(&buffer[..len]) {
            Ok(Some(message)) => {
                if heard.send(message).await.is_err() {
                    return Ok(());
                }
            }
            // What a former agent was told half.
            Ok(None) | Err(LineError::BadPart) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

async fn write<Out: Serialize>(
    channel: &UnixDatagram,
    mut queue: mpsc::UnboundedReceiver<Out>,
) -> io::Result<()> {
    let mut parts = Vec::new();
    while let Some(message) = queue.recv().await {
        let collect = |part: &[u8]| {
            parts.push(part.to_vec());
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(()) = line::write(&message, collect);
        for part in parts.drain(..) {
            channel.send(&part).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tailnet::line::{ToAgent, ToPlane};
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn messages_pass_in_both_directions_and_the_end_is_noticed() {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = Channel::pair().unwrap();
            let (heard, mut inbox) = mpsc::channel(4);
            let (line, run) = open::<ToPlane, ToAgent>(ours, heard).unwrap();
            let run = tokio::spawn(run);
            let (heard, mut at_plane) = mpsc::channel(4);
            let (plane, theirs) = open::<ToAgent, ToPlane>(theirs, heard).unwrap();
            let theirs = tokio::spawn(theirs);
            line.send(ToPlane::Hello);
            line.send(ToPlane::Port(7));
            assert_eq!(at_plane.recv().await, Some(ToPlane::Hello));
            assert_eq!(at_plane.recv().await, Some(ToPlane::Port(7)));
            plane.send(ToAgent::NetworkChanged);
            assert_eq!(inbox.recv().await, Some(ToAgent::NetworkChanged));
            theirs.abort();
            assert!(theirs.await.is_err());
            run.await.unwrap().unwrap();
        });
    }
}
