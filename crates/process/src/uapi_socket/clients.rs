//! The clients of the control socket. Their number is limited. The client that has been idle
//! longest is disconnected in favour of a new one.

use std::{
    cmp::Reverse,
    io,
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sys::{
    clock::boottime_nanos,
    poll::{StreamState, stream_state},
};

/// The most clients at a time.
const MAX_CLIENTS: usize = 64;
/// The time in which the thread of a client must end after its connection was closed.
const LEAVING: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Clients {
    list: Mutex<List>,
    left: Condvar,
}

#[derive(Debug, Default)]
struct List {
    next: u64,
    served: Vec<Served>,
}

#[derive(Debug)]
struct Served {
    number: u64,
    stream: Arc<UnixStream>,
    /// Start of its idle time in nanoseconds since boot; `None` while a request is processed.
    idle: Option<u64>,
    /// Whether its connection was closed in favour of another client.
    closed: bool,
}

impl Clients {
    /// Returns a slot for a client. If all slots are occupied, the connection of the client that
    /// has been idle longest is closed. Clients that disconnected or sent nothing are closed
    /// before those with an unread request. Returns `None` if all clients are busy.
    pub(super) fn admit(self: &Arc<Self>, stream: UnixStream) -> Option<ClientSlot> {
        let mut list = self.list();
        if list.served.len() >= MAX_CLIENTS {
            list.close_one()?;
            let is_full = |list: &mut List| list.served.len() >= MAX_CLIENTS;
            let waited = self.left.wait_timeout_while(list, LEAVING, is_full);
            list = waited.unwrap_or_else(PoisonError::into_inner).0;
            if is_full(&mut list) {
                return None;
            }
        }
        let (number, stream, idle) = (list.next, Arc::new(stream), Some(boottime_nanos()));
        list.next += 1;
        list.served.push(Served { number, stream: stream.clone(), idle, closed: false });
        Some(ClientSlot { clients: self.clone(), number, stream })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Closes the connection of an idle client; `None` if all clients are busy.
    fn close_one(&mut self) -> Option<()> {
        let idle = self.served.iter_mut().filter(|client| !client.closed);
        let idle = idle.filter_map(|client| Some((client.idle?, client)));
        let (_, client) = idle.min_by_key(|(since, client)| {
            let state = stream_state(client.stream.as_fd()).unwrap_or(StreamState::HungUp);
            (Reverse(state == StreamState::HungUp), state == StreamState::Readable, *since)
        })?;
        client.closed = true;
        tracing::debug!("closing an idle client of the control socket for another one");
        // An error means that the client has disconnected.
        let _ = client.stream.shutdown(Shutdown::Both);
        Some(())
    }
}

/// The slot of a client. It is freed when this is dropped.
#[derive(Debug)]
pub(super) struct ClientSlot {
    clients: Arc<Clients>,
    number: u64,
    stream: Arc<UnixStream>,
}

impl ClientSlot {
    /// The client.
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The client, to share with another thread.
    pub(super) fn shared_stream(&self) -> Arc<UnixStream> {
        self.stream.clone()
    }

    /// Marks the client as busy, so that its connection is not closed.
    ///
    /// # Errors
    /// Its connection was closed in favour of another client.
    pub(super) fn begin(&self) -> io::Result<()> {
        self.set_idle(None)
    }

    /// Marks the client as idle.
    ///
    /// # Errors
    /// Its connection was closed in favour of another client.
    pub(super) fn end(&self) -> io::Result<()> {
        self.set_idle(Some(boottime_nanos()))
    }

    fn set_idle(&self, idle: Option<u64>) -> io::Result<()> {
        let mut list = self.clients.list();
        let own = list.served.iter_mut().find(|client| client.number == self.number);
        let own = own.filter(|client| !client.closed);
        own.ok_or(io::ErrorKind::ConnectionAborted)?.idle = idle;
        Ok(())
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.clients.list().served.retain(|client| client.number != self.number);
        self.clients.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        sync::mpsc,
        thread,
    };

    use super::*;

    struct Client {
        stream: UnixStream,
        begin: Option<mpsc::Sender<()>>,
    }

    /// Admits a client. Its thread processes one request until `begin` is dropped, or else waits
    /// for one.
    fn admit(clients: &Arc<Clients>, is_served: bool) -> Option<Client> {
        let (stream, theirs) = UnixStream::pair().unwrap();
        let slot = clients.admit(theirs)?;
        let (begin, wait) = mpsc::channel::<()>();
        if is_served {
            slot.begin().unwrap();
        }
        let serve = move || match is_served {
            true => drop(wait.recv()),
            false => drop(io::copy(&mut slot.stream(), &mut io::sink())),
        };
        thread::Builder::new().spawn(serve).unwrap();
        Some(Client { stream, begin: is_served.then_some(begin) })
    }

    fn is_open(client: &mut Client) -> bool {
        client.stream.set_nonblocking(true).unwrap();
        let read = client.stream.read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    #[test]
    fn longest_idle_client_is_closed_instead_of_a_busy_one() {
        let clients = Arc::new(Clients::default());
        let mut all: Vec<_> =
            (0..MAX_CLIENTS).map(|number| admit(&clients, number == 0).unwrap()).collect();
        all.push(admit(&clients, false).unwrap());
        let open: Vec<_> = all.iter_mut().map(is_open).collect();
        assert!(open.iter().enumerate().all(|(client, open)| *open == (client != 1)), "{open:?}");
        assert_eq!(clients.list().served.len(), MAX_CLIENTS);
    }

    #[test]
    fn while_all_clients_are_busy_another_one_is_refused() {
        let clients = Arc::new(Clients::default());
        let mut all: Vec<_> = (0..MAX_CLIENTS).map(|_| admit(&clients, true).unwrap()).collect();
        assert!(admit(&clients, false).is_none());
        assert!(all.iter_mut().all(is_open));
        all[0].begin = None;
        while clients.list().served.len() == MAX_CLIENTS {
            thread::yield_now();
        }
        all.push(admit(&clients, false).unwrap());
    }

    #[test]
    fn disconnected_clients_are_closed_before_silent_ones_and_unread_requests() {
        let (clients, mut theirs) = (Arc::new(Clients::default()), Vec::new());
        let slots: Vec<_> = (0..3)
            .map(|_| {
                let (stream, ours) = UnixStream::pair().unwrap();
                theirs.push(Some(stream));
                clients.admit(ours).unwrap()
            })
            .collect();
        theirs[0].as_mut().unwrap().write_all(b"get=1\n").unwrap();
        theirs[2] = None;
        for wanted in [2, 1, 0] {
            clients.list().close_one().unwrap();
            let closed: Vec<_> = slots.iter().map(|slot| slot.begin().is_err()).collect();
            assert!(closed[wanted], "{closed:?}");
            let open = slots.iter().zip(&closed).filter(|(_, closed)| !**closed);
            open.for_each(|(slot, _)| slot.end().unwrap());
        }
        assert!(clients.list().close_one().is_none());
    }
}
