//! The clients of the control socket. Their number is limited; the one that has been idle longest
//! is closed for another.

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

/// Clients served at one time.
const MAX_CLIENTS: usize = 64;
/// How long the thread of a client may take to end after its connection was closed.
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
    /// Since when it is idle, in nanoseconds since boot; `None` while its request is carried out.
    idle: Option<u64>,
    /// Whether its connection was closed for another client.
    closed: bool,
}

impl Clients {
    /// A slot for a client. If all are taken, the connection of the one that has been idle longest
    /// is closed; clients that disconnected or sent nothing come before those whose request is not
    /// read yet. `None` if none is idle.
    pub fn admit(self: &Arc<Self>, stream: UnixStream) -> Option<ClientSlot> {
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
    /// Closes the connection of an idle client; `None` if there is none.
    fn close_one(&mut self) -> Option<()> {
        let idle = self.served.iter_mut().filter(|client| !client.closed);
        let idle = idle.filter_map(|client| Some((client.idle?, client)));
        let (_, client) = idle.min_by_key(|(since, client)| {
            let ready = stream_state(client.stream.as_fd()).unwrap_or(StreamState::HungUp);
            (Reverse(ready == StreamState::HungUp), ready == StreamState::Readable, *since)
        })?;
        client.closed = true;
        tracing::debug!("a client of the socket makes room for another");
        // Where that fails it has left.
        let _ = client.stream.shutdown(Shutdown::Both);
        Some(())
    }
}

/// The slot of a client, given back when it is dropped.
#[derive(Debug)]
pub(super) struct ClientSlot {
    clients: Arc<Clients>,
    number: u64,
    stream: Arc<UnixStream>,
}

impl ClientSlot {
    /// The client.
    pub fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// The client, for another thread.
    pub fn shared_stream(&self) -> Arc<UnixStream> {
        self.stream.clone()
    }

    /// The client's request is carried out from now on: it keeps its slot.
    ///
    /// # Errors
    /// Its connection was closed for another client.
    pub fn begin(&self) -> io::Result<()> {
        self.set_idle(None)
    }

    /// What is left is the client's to do.
    ///
    /// # Errors
    /// Its connection was closed for another client.
    pub fn end(&self) -> io::Result<()> {
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

    /// A client whose thread carries out one request when it is told to, and else waits for one.
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
    fn the_longest_idle_client_makes_room_and_one_that_is_served_does_not() {
        let clients = Arc::new(Clients::default());
        let mut all: Vec<_> =
            (0..MAX_CLIENTS).map(|number| admit(&clients, number == 0).unwrap()).collect();
        all.push(admit(&clients, false).unwrap());
        let open: Vec<_> = all.iter_mut().map(is_open).collect();
        assert!(open.iter().enumerate().all(|(client, open)| *open == (client != 1)), "{open:?}");
        assert_eq!(clients.list().served.len(), MAX_CLIENTS);
    }

    #[test]
    fn where_all_are_served_no_other_is_until_one_leaves() {
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
    fn who_left_goes_before_who_says_nothing_and_a_request_that_waits_goes_last() {
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
