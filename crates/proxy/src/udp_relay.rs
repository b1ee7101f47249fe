//! Relays the datagrams of many clients of one socket. Each client has a separate socket on the other
//! side, so that answers can be assigned to it, and a task that opens the socket and relays the
//! answers.

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
    stack::Datagrams,
    udp_associate::{DATAGRAM, UDP_IDLE},
    udp_flows::Flows,
};

/// The maximum number of clients of one socket. Each needs a file descriptor.
const MAX_FLOWS: usize = 4096;
/// The maximum number of bytes of one client that wait while its socket is opened. One datagram of
/// any length may wait.
const MAX_WAITING_BYTES: usize = 16 * 1024;
/// Memory of a waiting datagram in addition to its bytes.
const OVERHEAD: usize = 64;

/// The flow of one client.
struct Flow<B> {
    state: Mutex<FlowState<B>>,
    /// Whether it was used since the last check.
    is_used: AtomicBool,
}

enum FlowState<B> {
    /// The socket is being opened; these datagrams wait for it.
    Opening(Vec<Vec<u8>>),
    Open(Arc<Remote<B>>),
}

/// A socket on the other side, and the address that it is connected to.
struct Remote<B> {
    socket: B,
    to: SocketAddr,
}

/// A flow, and its task.
type FlowEntry<B> = (Arc<Flow<B>>, AbortHandle);
type AllFlows<B> = Arc<Mutex<Flows<FlowEntry<B>>>>;

/// Relays datagrams until the task is dropped. `open` returns a socket on the other side that is
/// connected to one address, and that address. `limit` is the maximum number of flows.
pub(super) async fn relay_datagrams<A, B, F>(
    what: String,
    limit: usize,
    near: A,
    open: impl Fn(SocketAddr) -> F + Send,
) where
    A: Datagrams,
    B: Datagrams,
    F: Future<Output = io::Result<(B, SocketAddr)>> + Send + 'static,
{
    let (what, near): (Arc<str>, _) = (what.into(), Arc::new(near));
    let flows: AllFlows<B> = Arc::new(Mutex::new(Flows::new(limit.clamp(1, MAX_FLOWS))));
    let mut buffer = vec![0; DATAGRAM];
    loop {
        let (len, client) = match near.recv_from(&mut buffer).await {
            Ok(received) => received,
            // A previous answer was sent to a client that has closed its socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Err(error) => {
                tracing::error!(%error, "{what}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let existing = lock(&flows).find(client).map(|(flow, _)| flow.clone());
        let flow = existing.unwrap_or_else(|| {
            let flow = Arc::new(Flow::default());
            let flow_task = FlowTask { flow: flow.clone(), near: near.clone(), client };
            start(what.clone(), &flows, flow_task, open(client));
            flow
        });
        if let Err(error) = flow.send(&buffer[..len]).await {
            tracing::debug!(%error, %client, "{what}: a datagram was dropped");
        }
    }
}

/// Opens the socket of a flow and relays the answers to its client.
struct FlowTask<A, B> {
    flow: Arc<Flow<B>>,
    near: Arc<A>,
    client: SocketAddr,
}

fn start<A: Datagrams, B: Datagrams>(
    what: Arc<str>,
    flows: &AllFlows<B>,
    flow_task: FlowTask<A, B>,
    opening: impl Future<Output = io::Result<(B, SocketAddr)>> + Send + 'static,
) {
    let (client, flow) = (flow_task.client, flow_task.flow.clone());
    let all = flows.clone();
    let evicted_error = lock(flows).insert(client, |number| {
        let task = tokio::spawn(async move {
            if let Err(error) = flow_task.serve(opening).await {
                tracing::debug!(%error, %client, "{what}");
            }
            lock(&all).remove(client, number);
        });
        (flow, task.abort_handle())
    });
    if let Some((_, task)) = evicted_error {
        task.abort();
    }
}

impl<A: Datagrams, B: Datagrams> FlowTask<A, B> {
    /// Opens the socket and relays answers, until no datagram has passed for [`UDP_IDLE`]. Ends with
    /// an error if the port is closed: the next datagram starts another flow, which resolves the
    /// name again.
    async fn serve(
        &self,
        opening: impl Future<Output = io::Result<(B, SocketAddr)>>,
    ) -> io::Result<()> {
        let (socket, to) = opening.await?;
        let remote = Arc::new(Remote { socket, to });
        while let Some(waiting) = self.flow.open(&remote) {
            for datagram in waiting {
                // Datagrams may be lost.
                let _ = remote.socket.send_to(&datagram, to).await;
            }
        }
        let mut buffer = vec![0; DATAGRAM];
        loop {
            match timeout(UDP_IDLE, remote.socket.recv_from(&mut buffer)).await {
                Ok(Ok((len, from))) if from == to => {
                    self.flow.is_used.store(true, Ordering::Relaxed);
                    // Datagrams may be lost.
                    let _ = self.near.send_to(&buffer[..len], self.client).await;
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) if is_transient(&error) => {
                    let client = self.client;
                    tracing::debug!(%error, %client, %to, "a client's datagram was not delivered");
                }
                Ok(Err(error)) => return Err(error),
                Err(_) if self.flow.is_used.swap(false, Ordering::Relaxed) => {}
                Err(_) => return Ok(()),
            }
        }
    }
}

impl<B: Datagrams> Flow<B> {
    /// Sends a datagram, or stores it until the socket is open.
    async fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.is_used.store(true, Ordering::Relaxed);
        let remote = match &mut *lock(&self.state) {
            FlowState::Open(remote) => remote.clone(),
            FlowState::Opening(waiting) => {
                let held: usize = waiting.iter().map(|other| OVERHEAD + other.len()).sum();
                if held > 0 && held + OVERHEAD + datagram.len() > MAX_WAITING_BYTES {
                    return Err(io::Error::other("too many datagrams wait for the connection"));
                }
                waiting.push(datagram.to_vec());
                return Ok(());
            }
        };
        remote.socket.send_to(datagram, remote.to).await
    }

    /// Returns the datagrams that wait. If none does, marks the flow as open.
    fn open(&self, remote: &Arc<Remote<B>>) -> Option<Vec<Vec<u8>>> {
        let state = &mut *lock(&self.state);
        if let FlowState::Opening(waiting) = state
            && !waiting.is_empty()
        {
            return Some(std::mem::take(waiting));
        }
        *state = FlowState::Open(remote.clone());
        None
    }
}

impl<B> Default for Flow<B> {
    fn default() -> Self {
        Self { state: Mutex::new(FlowState::Opening(Vec::new())), is_used: AtomicBool::new(true) }
    }
}

/// Whether an error of a socket concerns only the path, which may recover.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable)
        || // The path MTU has become smaller.
        errno(error) == Some(Errno::EMSGSIZE)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
