//! The agent's end of a line: messages in and out, without blocking.
//!
//! ```text
//!   handle.send(message) ──► queue ──► writer ──► line ──► reader ──► messages
//! ```
//!
//! The queue stores the latest value of each state and a limited number of datagrams ([`queue`]).

pub(super) mod queue;

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixDatagram as StdSocket},
    sync::{Arc, Mutex, PoisonError},
};

use ipc::{self, IpcError, PART, Reader};
use serde::de::DeserializeOwned;
use sys::Channel;
use tokio::{
    net::UnixDatagram,
    sync::{Notify, mpsc},
};

use self::queue::Message;

/// Sends messages. Clones share one queue.
pub(super) struct LineSender<M: Message>(Arc<Shared<M>>);

struct Shared<M: Message> {
    pending: Mutex<M::Queue>,
    more: Notify,
}

impl<M: Message> LineSender<M> {
    /// A sender. Its messages remain in the queue until the writer takes them.
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared { pending: Mutex::default(), more: Notify::new() }))
    }

    /// Queues a message. If the other process is gone, this one ends soon.
    pub(super) fn send(&self, message: M) {
        message.push(&mut self.0.pending.lock().unwrap_or_else(PoisonError::into_inner));
        self.0.more.notify_one();
    }

    /// The next message to send.
    pub(super) fn poll(&self) -> Option<M> {
        M::pop(&mut self.0.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn next(&self) -> M {
        loop {
            if let Some(message) = self.poll() {
                return message;
            }
            self.0.more.notified().await;
        }
    }
}

impl<M: Message> Clone for LineSender<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Reads and writes messages until the other process is gone. Received messages go to `inbox`; the
/// returned handle sends.
pub(super) fn open<Out, In>(
    channel: Channel,
    inbox: mpsc::Sender<In>,
) -> io::Result<(LineSender<Out>, impl Future<Output = io::Result<()>>)>
where
    Out: Message,
    In: DeserializeOwned,
{
    channel.set_nonblocking()?;
    // A SOCK_SEQPACKET socket preserves boundaries, so it works as a datagram socket.
    let channel = UnixDatagram::from_std(StdSocket::from(OwnedFd::from(channel)))?;
    let sender = LineSender::new();
    let queue = sender.clone();
    let run = async move {
        tokio::select! {
            ended = read(&channel, inbox) => ended,
            ended = write(&channel, queue) => ended,
        }
    };
    Ok((sender, run))
}

async fn read<In: DeserializeOwned>(
    channel: &UnixDatagram,
    inbox: mpsc::Sender<In>,
) -> io::Result<()> {
    let (mut buffer, mut reader) = (vec![0; PART], Reader::default());
    loop {
        let len = channel.recv(&mut buffer).await?;
        if len == 0 {
            return Ok(());
        }
        match reader.handle_part(&buffer[..len]) {
            Ok(Some(message)) => {
                if inbox.send(message).await.is_err() {
                    return Ok(());
                }
            }
            // The rest of a message to the previous agent.
            Ok(None) | Err(IpcError::BadPart) => {}
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

async fn write<Out: Message>(channel: &UnixDatagram, queue: LineSender<Out>) -> io::Result<()> {
    let mut parts = Vec::new();
    loop {
        let message = queue.next().await;
        let collect = |part: &[u8]| {
            parts.push(part.to_vec());
            Ok::<_, std::convert::Infallible>(())
        };
        let Ok(()) = ipc::write(&message, collect);
        for part in parts.drain(..) {
            channel.send(&part).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use ipc::{ToAgent, ToDataPlane};
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn messages_pass_in_both_directions_and_the_end_is_noticed() {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = Channel::pair().unwrap();
            let (sender, mut inbox) = mpsc::channel(4);
            let (line, run) = open::<ToDataPlane, ToAgent>(ours, sender).unwrap();
            let run = tokio::spawn(run);
            line.send(ToDataPlane::Hello);
            line.send(ToDataPlane::Port(7));
            let mut buffer = vec![0; PART];
            for expected in [ToDataPlane::Hello, ToDataPlane::Port(7)] {
                let len = tokio::task::block_in_place(|| theirs.receive(&mut buffer)).unwrap();
                let message = Reader::default().handle_part(&buffer[..len]).unwrap();
                assert_eq!(message, Some(expected));
            }
            ipc::write(&ToAgent::NetworkChanged, |part| theirs.send(part)).unwrap();
            assert_eq!(inbox.recv().await, Some(ToAgent::NetworkChanged));
            drop(theirs);
            run.await.unwrap().unwrap();
        });
    }
}
