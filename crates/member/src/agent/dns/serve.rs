//! Receives queries and sends answers.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use mesh::magic_dns::{Answer, Forward, Transport};
use sys::ACCEPT_PAUSE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::OwnedSemaphorePermit,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::Shared;

/// More than any valid query over UDP. A longer one is truncated and therefore malformed.
const MAX_DATAGRAM: usize = 4096;
/// The time limit for a client to send the next query or to read an answer (RFC 7766, section
/// 6.2.3, suggests seconds).
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Answers queries over UDP; never returns.
pub(super) async fn datagrams(shared: Arc<Shared>, socket: Arc<UdpSocket>) {
    let mut buffer = [0; MAX_DATAGRAM];
    let mut forwarding = JoinSet::new();
    loop {
        let (len, sender) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        // Removes finished tasks.
        while forwarding.try_join_next().is_some() {}
        let Some(query) = buffer.get(..len).filter(|_| shared.admits(sender.ip())) else {
            continue;
        };
        match shared.served().names.answer(query, Transport::Udp) {
            Answer::Ignore => {}
            Answer::Reply(reply) => {
                shared.counters.answered.fetch_add(1, Relaxed);
                send(&socket, &reply, sender).await;
            }
            Answer::Forward(forward) => match shared.forwarded.clone().try_acquire_owned() {
                Ok(permit) => {
                    let (shared, socket) = (shared.clone(), socket.clone());
                    forwarding.spawn(async move {
                        let reply = shared.forward(&forward, permit).await;
                        send(&socket, &reply, sender).await;
                    });
                }
                Err(_) => {
                    shared.counters.busy.fetch_add(1, Relaxed);
                    send(&socket, &forward.failed(), sender).await;
                }
            },
        }
    }
}

async fn send(socket: &UdpSocket, reply: &[u8], to: SocketAddr) {
    // A client without an answer repeats its query.
    if let Err(error) = socket.send_to(reply, to).await {
        tracing::debug!(%to, %error, "an answer cannot be sent");
    }
}

/// Answers queries over TCP; never returns.
pub(super) async fn streams(shared: Arc<Shared>, listener: TcpListener) {
    let mut clients = JoinSet::new();
    loop {
        let (stream, sender) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                pause(&error).await;
                continue;
            }
        };
        while clients.try_join_next().is_some() {}
        let Some(permit) = shared.admit_stream(sender.ip()) else { continue };
        let shared = shared.clone();
        clients.spawn(async move {
            let _permit = permit;
            if let Err(error) = converse(&shared, stream).await {
                tracing::debug!(%sender, %error, "a client's connection ends");
            }
        });
    }
}

/// Answers queries in sequence, each with its length (RFC 1035, section 4.2.2).
async fn converse(shared: &Shared, mut stream: TcpStream) -> io::Result<()> {
    let mut query = Vec::new();
    loop {
        match timeout(IDLE_TIMEOUT, read(&mut stream, &mut query)).await?? {
            Some(()) => {}
            None => return Ok(()),
        }
        let reply = match shared.served().names.answer(&query, Transport::Tcp) {
            // The message is not a query.
            Answer::Ignore => return Ok(()),
            Answer::Reply(reply) => {
                shared.counters.answered.fetch_add(1, Relaxed);
                reply
            }
            Answer::Forward(forward) => match shared.forwarded.clone().try_acquire_owned() {
                Ok(permit) => shared.forward(&forward, permit).await,
                Err(_) => {
                    shared.counters.busy.fetch_add(1, Relaxed);
                    forward.failed()
                }
            },
        };
        timeout(IDLE_TIMEOUT, write(&mut stream, &reply)).await??;
    }
}

/// Reads a message; `None` at the end of the stream.
async fn read(stream: &mut TcpStream, message: &mut Vec<u8>) -> io::Result<Option<()>> {
    let len = match stream.read_u16().await {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    message.resize(usize::from(len), 0);
    stream.read_exact(message).await?;
    Ok(Some(()))
}

/// Writes a message and its length in one segment.
pub(super) async fn write(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u16::try_from(message.len()).map_err(|_| ErrorKind::InvalidData)?;
    stream.write_all(&[&len.to_be_bytes(), message].concat()).await
}

impl Shared {
    async fn forward(&self, forward: &Forward, _permit: OwnedSemaphorePermit) -> Vec<u8> {
        match self.forwarder.forward(forward).await {
            Ok(reply) => {
                self.counters.forwarded.fetch_add(1, Relaxed);
                reply
            }
            Err(error) => {
                tracing::debug!(%error, "a query was not answered");
                self.counters.failed.fetch_add(1, Relaxed);
                forward.failed()
            }
        }
    }
}

/// Waits after an error, unless it concerns one client only.
async fn pause(error: &io::Error) {
    if !matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::ConnectionAborted) {
        tracing::debug!(%error, "socket of the DNS server");
        sleep(ACCEPT_PAUSE).await;
    }
}
