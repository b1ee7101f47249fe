//! Datagrams of many clients at one socket, carried to one place: for each client
//! there is a socket of its own on the other side, so that answers find back, and a task
//! that opens it and brings them.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use sys::ACCEPT_PAUSE;
use sys::errno::{Errno, errno};
use tokio::{
    task::AbortHandle,
    time::{sleep, timeout},
};

use super::{
    associate::{DATAGRAM, UDP_IDLE},
    flows::Flows,
    stack::Datagrams,
};

/// Clients of one socket at a time at most, each with a file descriptor.
const FLOWS: usize = 4096;
/// Bytes of one client that wait while its way is opened. What is more is dropped, except for a
/// single datagram of any length.
const WAITING: usize = 16 * 1024;
/// Memory of a waiting datagram in addition to its bytes.
const OVERHEAD: usize = 64;

/// A client's way.
struct Flow<B> {
    way: Mutex<Way<B>>,
    /// Whether it was used since somebody looked.
    is_used: AtomicBool,
}

enum Way<B> {
    /// With the datagrams that wait for it.
    Opening(Vec<Vec<u8>>),
    Open(Arc<Far<B>>),
}

/// A socket on the other side, and its peer.
struct Far<B> {
    socket: B,
    to: SocketAddr,
}

/// A flow, and the task that ends with it.
type Known<B> = (Arc<Flow<B>>, AbortHandle);
type AllFlows<B> = Arc<Mutex<Flows<Known<B>>>>;

/// Carries datagrams until the task is dropped. `open` makes a socket on the other
/// side that speaks with one peer, and says with which. There are `most` at a time.
pub(super) async fn carry_datagrams<A, B, F>(
    what: String,
    most: usize,
    near: A,
    open: impl Fn(SocketAddr) -> F + Send,
) where
    A: Datagrams,
    B: Datagrams,
    F: Future<Output = io::Result<(B, SocketAddr)>> + Send + 'static,
{
    let (what, near): (Arc<str>, _) = (what.into(), Arc::new(near));
    let flows: AllFlows<B> = Arc::new(Mutex::new(Flows::new(most.clamp(1, FLOWS))));
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let (len, client) = match near.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An answer to a client that has gone.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::error!(%error, "{what}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let known = lock(&flows).find(client).map(|(flow, _)| flow.clone());
        let flow = known.unwrap_or_else(|| {
            let flow = Arc::new(Flow::default());
            let carried = Carried { flow: flow.clone(), near: near.clone(), client };
            start(what.clone(), &flows, carried, open(client));
            flow
        });
        // Datagrams may be lost.
        if let Err(error) = flow.send(&buffer[..len]).await {
            tracing::debug!(%error, %client, "{what}: a datagram was dropped");
        }
    }
}

/// A flow whose way is to be opened, and where its answers go.
struct Carried<A, B> {
    flow: Arc<Flow<B>>,
    near: Arc<A>,
    client: SocketAddr,
}

fn start<A: Datagrams, B: Datagrams>(
    what: Arc<str>,
    flows: &AllFlows<B>,
    carried: Carried<A, B>,
    opening: impl Future<Output = io::Result<(B, SocketAddr)>> + Send + 'static,
) {
    let (client, flow) = (carried.client, carried.flow.clone());
    let all = flows.clone();
    let made_way = lock(flows).insert(client, |number| {
        let task = tokio::spawn(async move {
            if let Err(error) = carried.serve(opening).await {
                tracing::debug!(%error, %client, "{what}");
            }
            lock(&all).remove(client, number);
        });
        (flow, task.abort_handle())
    });
    if let Some((_, task)) = made_way {
        task.abort();
    }
}

impl<A: Datagrams, B: Datagrams> Carried<A, B> {
    /// Opens the way and brings answers back, until nothing has gone either way for long
    /// enough. Where nobody is there to answer, it ends with an error: the next datagram
    /// begins anew, and a name is asked for again.
    async fn serve(
        &self,
        opening: impl Future<Output = io::Result<(B, SocketAddr)>>,
    ) -> io::Result<()> {
        let (socket, to) = opening.await?;
        let far = Arc::new(Far { socket, to });
        while let Some(waiting) = self.flow.open(&far) {
            for datagram in waiting {
                // Datagrams may be lost.
                let _ = far.socket.send_to(&datagram, to).await;
            }
        }
        let mut buffer = vec![0; DATAGRAM];
        loop {
            match timeout(UDP_IDLE, far.socket.recv_from(&mut buffer)).await {
                Ok(Ok((len, from))) if from == to => {
                    self.flow.is_used.store(true, Ordering::Relaxed);
                    // Datagrams may be lost.
                    let _ = self.near.send_to(&buffer[..len], self.client).await;
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) if may_pass(&error) => {
                    let client = self.client;
                    tracing::debug!(%error, %client, %to, "said of a client's datagram");
                }
                Ok(Err(error)) => return Err(error),
                Err(_) if self.flow.is_used.swap(false, Ordering::Relaxed) => {}
                Err(_) => return Ok(()),
            }
        }
    }
}

impl<B: Datagrams> Flow<B> {
    /// Sends a datagram, or keeps it until the way is open.
    async fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.is_used.store(true, Ordering::Relaxed);
        let far = match &mut *lock(&self.way) {
            Way::Open(far) => far.clone(),
            Way::Opening(waiting) => {
                let held: usize = waiting.iter().map(|other| OVERHEAD + other.len()).sum();
                if held > 0 && held + OVERHEAD + datagram.len() > WAITING {
                    return Err(io::Error::other("too much waits for its way"));
                }
                waiting.push(datagram.to_vec());
                return Ok(());
            }
        };
        far.socket.send_to(datagram, far.to).await
    }

    /// Opens the way when nothing waits for it any more; else what does.
    fn open(&self, far: &Arc<Far<B>>) -> Option<Vec<Vec<u8>>> {
        let way = &mut *lock(&self.way);
        if let Way::Opening(waiting) = way
            && !waiting.is_empty()
        {
            return Some(std::mem::take(waiting));
        }
        *way = Way::Open(far.clone());
        None
    }
}

impl<B> Default for Flow<B> {
    fn default() -> Self {
        Self { way: Mutex::new(Way::Opening(Vec::new())), is_used: AtomicBool::new(true) }
    }
}

/// Whether an error of a socket is of the path only, which may become better.
fn may_pass(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable)
        || // The path is narrower than it was.
        errno(error) == Some(Errno::EMSGSIZE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
