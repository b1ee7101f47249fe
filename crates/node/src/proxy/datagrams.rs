//! Datagrams of many clients at one socket, carried to one place: for each client
//! there is a socket of its own on the other side, so that answers find back.

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::{
    associate::{DATAGRAM, UDP_IDLE},
    stack::Datagrams,
};

/// Clients of one socket at a time, each with a file descriptor.
const FLOWS: usize = 4096;
/// How long a socket rests that cannot receive.
const PAUSE: Duration = Duration::from_millis(100);

/// A client's way.
struct Flow<B> {
    socket: B,
    to: SocketAddr,
    /// Whether it was used since somebody looked.
    is_used: AtomicBool,
}

type Flows<B> = Arc<Mutex<HashMap<SocketAddr, Arc<Flow<B>>>>>;

/// Carries datagrams until the task is dropped. `open` makes a socket on the other
/// side, and says where its datagrams are to go.
pub(super) async fn carry_datagrams<A, B, F>(
    what: String,
    near: A,
    open: impl Fn(SocketAddr) -> F + Send,
) where
    A: Datagrams,
    B: Datagrams,
    F: Future<Output = io::Result<(B, SocketAddr)>> + Send,
{
    let near = Arc::new(near);
    let flows: Flows<B> = Arc::default();
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let (len, client) = match near.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An answer to a client that has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::error!(%error, "{what}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let known = lock(&flows).get(&client).cloned();
        let flow = match known {
            Some(flow) => flow,
            None if lock(&flows).len() >= FLOWS => {
                tracing::debug!(%client, "{what}: there are too many clients");
                continue;
            }
            None => match open(client).await {
                Ok((socket, to)) => start(&near, &flows, client, socket, to),
                Err(error) => {
                    tracing::debug!(%error, %client, "{what}");
                    continue;
                }
            },
        };
        flow.is_used.store(true, Ordering::Relaxed);
        // Datagrams may be lost.
        if let Err(error) = flow.socket.send_to(&buffer[..len], flow.to).await {
            tracing::debug!(%error, %client, "{what}: a datagram was dropped");
        }
    }
}

fn start<A: Datagrams, B: Datagrams>(
    near: &Arc<A>,
    flows: &Flows<B>,
    client: SocketAddr,
    socket: B,
    to: SocketAddr,
) -> Arc<Flow<B>> {
    let flow = Arc::new(Flow { socket, to, is_used: AtomicBool::new(true) });
    lock(flows).insert(client, flow.clone());
    let (near, flows, answers) = (near.clone(), flows.clone(), flow.clone());
    tokio::spawn(async move {
        bring_back(&*near, &answers, client).await;
        lock(&flows).remove(&client);
    });
    flow
}

/// Brings answers back, until nothing has gone either way for long enough.
async fn bring_back<A: Datagrams, B: Datagrams>(near: &A, flow: &Flow<B>, client: SocketAddr) {
    let mut buffer = vec![0; DATAGRAM];
    loop {
        match timeout(UDP_IDLE, flow.socket.recv_from(&mut buffer)).await {
            Ok(Ok((len, from))) if from == flow.to => {
                flow.is_used.store(true, Ordering::Relaxed);
                // Datagrams may be lost.
                let _ = near.send_to(&buffer[..len], client).await;
            }
            // From somebody else, or the service is not there at the moment.
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
            Ok(Err(_)) => return,
            Err(_) if flow.is_used.swap(false, Ordering::Relaxed) => {}
            Err(_) => return,
        }
    }
}

fn lock<T>(flows: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    flows.lock().unwrap_or_else(PoisonError::into_inner)
}
