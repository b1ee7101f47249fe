//! A stack in memory for tests.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{DuplexStream, duplex},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
    time::sleep,
};

use super::stack::{Accept, Stack};

/// The behavior of a host when it is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostBehavior {
    /// It accepts at once.
    Open,
    /// It accepts after a second.
    Late,
    /// It does not answer.
    Silent,
    /// It refuses.
    Closed,
}

/// A stack with a fixed set of hosts. Others are unreachable.
#[derive(Debug, Default)]
pub(super) struct MemoryStack {
    pub hosts: HashMap<IpAddr, HostBehavior>,
    /// The other ends of the connections, in order, with the address.
    pub ends: Mutex<Vec<(SocketAddr, DuplexStream)>>,
    dialing: Arc<AtomicUsize>,
}

impl MemoryStack {
    pub(crate) fn new(hosts: &[(&str, HostBehavior)]) -> Self {
        let hosts = hosts.iter().map(|(ip, host)| (ip.parse().unwrap(), *host)).collect();
        Self { hosts, ..Self::default() }
    }

    /// The number of dials in progress.
    pub(crate) fn dialing(&self) -> usize {
        self.dialing.load(Ordering::Relaxed)
    }
}

struct Dialing(Arc<AtomicUsize>);

impl Drop for Dialing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Stack for MemoryStack {
    type Stream = DuplexStream;
    type Listener = SilentListener;
    type Datagrams = UdpSocket;

    const CONNECTION: usize = 1;
    const ASSOCIATION: usize = 2;

    fn name(&self) -> &'static str {
        "memory"
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<DuplexStream> {
        self.dialing.fetch_add(1, Ordering::Relaxed);
        let _dialing = Dialing(self.dialing.clone());
        let host = self.hosts.get(&to.ip());
        if host == Some(&HostBehavior::Late) {
            sleep(Duration::from_secs(1)).await;
        }
        match host {
            Some(HostBehavior::Open | HostBehavior::Late) => {
                let (near, far) = duplex(1024);
                self.ends.lock().unwrap().push((to, far));
                Ok(near)
            }
            Some(HostBehavior::Silent) => std::future::pending().await,
            Some(HostBehavior::Closed) => Err(io::ErrorKind::ConnectionRefused.into()),
            None => Err(io::ErrorKind::NetworkUnreachable.into()),
        }
    }

    async fn listen(&self, _: SocketAddr) -> io::Result<SilentListener> {
        Ok(SilentListener)
    }

    async fn bind(&self, at: SocketAddr) -> io::Result<UdpSocket> {
        UdpSocket::bind(at).await
    }

    async fn ping(&self, _: IpAddr, _: &[u8]) -> io::Result<()> {
        std::future::pending().await
    }

    fn enable_keepalive(_: &DuplexStream) {}

    fn reset(_: DuplexStream) {}
}

/// A listener without clients.
#[derive(Debug)]
pub(super) struct SilentListener;

impl Accept for SilentListener {
    type Stream = DuplexStream;

    async fn accept(&self) -> io::Result<(DuplexStream, SocketAddr)> {
        std::future::pending().await
    }
}

/// Both ends of a TCP connection over loopback. The first has a receive buffer of about `room` bytes.
pub(super) async fn connected(room: u32) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(room).unwrap();
    let near = socket.connect(listener.local_addr().unwrap()).await.unwrap();
    (near, listener.accept().await.unwrap().0)
}
