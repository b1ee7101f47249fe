//! Makes connections into the tunnel for clients.

use std::{io, net::IpAddr, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use sys::clock;
use tokio::{
    io::AsyncReadExt,
    sync::Semaphore,
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    eyeballs::Eyeballs,
    half_open::{Client, HalfOpen},
    local::Stream,
    namespace::unspecified,
    reach::Reach,
    resolver::{Resolver, dns_message::Record},
    stack::{Datagrams, Stack},
};
use config::conf::Dns;
use config::target::{Host, Target};

/// The time-out of a dial. SYNs are sent after 0, 1, 3, 7, 15 and 31 seconds.
const DIAL_TIMEOUT: Duration = Duration::from_secs(40);
/// Bytes that a client may send before it is connected.
const EARLY: usize = 16 * 1024;
/// The time-out of an echo request.
const ECHO_TIMEOUT: Duration = Duration::from_secs(2);
/// The contents of an echo request, as long as those of ping(8).
const ECHO: &[u8] = &[0x6c; 56];

/// Makes connections and resolves names.
pub(super) struct Dialer<S> {
    pub stack: Arc<S>,
    reach: Arc<Reach>,
    resolver: Resolver<S>,
    half_open: HalfOpen,
    /// Descriptors for attempts beyond the first of each connection.
    attempts: Arc<Semaphore>,
    /// Descriptors to watch clients. They are separate, so that clients that are watched for as
    /// long as a dial takes do not prevent second attempts.
    watches: Semaphore,
}

impl<S: Stack> Dialer<S> {
    /// Makes connections of a stack to what `reach` allows, and resolves names by `dns`. All dials
    /// together may use `spare` descriptors in addition to those of their connections: half for attempts,
    /// half to watch clients.
    pub(crate) fn new(stack: Arc<S>, reach: Reach, dns: Dns, spare: usize) -> Self {
        let reach = Arc::new(reach);
        let resolver = Resolver::new(stack.clone(), reach.clone(), dns);
        let half = || Semaphore::new((spare / 2).clamp(1, Semaphore::MAX_PERMITS));
        let (attempts, watches) = (Arc::new(half()), half());
        Self { stack, reach, resolver, half_open: HalfOpen::default(), attempts, watches }
    }

    /// Connects when it is the client's turn. Dropping the future cancels it.
    pub(crate) async fn dial(&self, client: Client, to: &Target) -> io::Result<S::Stream> {
        let dialing = async {
            let _slot = self.half_open.slot(client).await;
            let stream = self.connect(to).await?;
            S::enable_keepalive(&stream);
            Ok(stream)
        };
        timeout(DIAL_TIMEOUT, dialing).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Connects at once, with the stack's own time-out.
    pub(crate) async fn connect(&self, to: &Target) -> io::Result<S::Stream> {
        match &to.host {
            Host::Ip(ip) => {
                self.reach.check(*ip)?;
                self.stack.connect(SocketAddr::new(*ip, to.port)).await
            }
            Host::Name(name) => self.dial_name(name, to.port).await,
        }
    }

    /// Dials until the client is gone. Meanwhile its input is read into `early`. The end of the
    /// input is a half-close: the client still waits for an answer.
    pub(crate) async fn dial_for(
        &self,
        client: Client,
        stream: &mut Stream,
        early: &mut Vec<u8>,
        to: &Target,
    ) -> io::Result<S::Stream> {
        let mut dialing = pin!(self.dial(client, to));
        while let room = EARLY.saturating_sub(early.len())
            && room > 0
        {
            let mut taken = (&mut *stream).take(room as u64);
            tokio::select! {
                biased;
                dialed = &mut dialing => return dialed,
                read = taken.read_buf(early) => {
                    if read? == 0 {
                        break;
                    }
                }
            }
        }
        self.unless_gone(stream, dialing).await
    }

    /// Dials until the client is gone, without reading its input.
    pub(crate) async fn dial_unless_gone(
        &self,
        client: Client,
        stream: &Stream,
        to: &Target,
    ) -> io::Result<S::Stream> {
        self.unless_gone(stream, self.dial(client, to)).await
    }

    /// Runs `work` until the client is gone ([`Stream::gone`]).
    ///
    /// # Errors
    /// That of the work, or `ConnectionAborted`.
    async fn unless_gone(
        &self,
        stream: &Stream,
        work: impl Future<Output = io::Result<S::Stream>>,
    ) -> io::Result<S::Stream> {
        let gone = async {
            let _watch = self.watches.acquire().await;
            stream.gone().await
        };
        tokio::select! {
            biased;
            worked = work => worked,
            gone = gone => {
                gone?;
                Err(io::ErrorKind::ConnectionAborted.into())
            }
        }
    }

    /// All addresses of a name, IPv6 first.
    pub(crate) async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let (v6, v4) = tokio::join!(self.resolve(name, true), self.resolve(name, false));
        let mut failure = io::Error::new(io::ErrorKind::NotFound, format!("{name}: no address"));
        let addresses = [addresses_or(v6, &mut failure), addresses_or(v4, &mut failure)].concat();
        if addresses.is_empty() { Err(failure) } else { Ok(addresses) }
    }

    /// An address for datagrams that the tunnel reaches.
    pub(crate) async fn address(&self, to: &Target) -> io::Result<SocketAddr> {
        let name = match &to.host {
            Host::Ip(ip) => {
                self.reach.check(*ip)?;
                return Ok(SocketAddr::new(*ip, to.port));
            }
            Host::Name(name) => name,
        };
        let mut failure = io::ErrorKind::NotFound.into();
        for is_v6 in [false, true] {
            match self.resolve(name, is_v6).await {
                Ok(addresses) => {
                    for ip in addresses {
                        match self.reach.check(ip) {
                            Ok(()) => return Ok(SocketAddr::new(ip, to.port)),
                            Err(error) => failure = error,
                        }
                    }
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Like [`Self::address`], but waits for the client's turn before it resolves a name.
    pub(crate) async fn address_in_turn(
        &self,
        client: Client,
        to: &Target,
    ) -> io::Result<SocketAddr> {
        let _slot = self.half_open.slot(client).await;
        self.address(to).await
    }

    /// Returns a UDP socket that is connected to a target, and the target's address.
    pub(crate) async fn dial_datagrams(
        &self,
        client: Client,
        to: &Target,
    ) -> io::Result<(S::Datagrams, SocketAddr)> {
        let to = self.address_in_turn(client, to).await?;
        let socket = self.stack.bind(unspecified(to.is_ipv4())).await?;
        socket.connect(to).await?;
        Ok((socket, to))
    }

    /// Sends one echo request. Returns the address that answered, and the round-trip time.
    pub(crate) async fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)> {
        let host = Host::parse(host).ok_or(io::ErrorKind::InvalidInput)?;
        let to = self.address(&Target { host, port: 0 }).await?.ip();
        let began = clock::boottime_nanos();
        timeout(ECHO_TIMEOUT, self.stack.ping(to, ECHO)).await??;
        Ok((to, Duration::from_nanos(clock::boottime_nanos() - began)))
    }

    async fn resolve(&self, name: &str, is_v6: bool) -> io::Result<Vec<IpAddr>> {
        if !self.reach.has_family(is_v6) {
            return Ok(Vec::new());
        }
        self.resolver.addresses(name, if is_v6 { Record::Aaaa } else { Record::A }).await
    }

    async fn dial_name(&self, name: &str, port: u16) -> io::Result<S::Stream> {
        let began = clock::boottime_nanos();
        let now = || Duration::from_nanos(clock::boottime_nanos() - began);
        let mut eyeballs = Eyeballs::default();
        let mut attempts = JoinSet::new();
        let mut failure = io::Error::new(io::ErrorKind::NotFound, format!("{name}: no address"));
        let mut v6 = pin!(self.resolve(name, true));
        let mut v4 = pin!(self.resolve(name, false));
        let (mut has_v6, mut has_v4) = (false, false);
        loop {
            while let Some(ip) = eyeballs.poll_attempt(now()) {
                let (stack, reach) = (self.stack.clone(), self.reach.clone());
                let is_first = attempts.is_empty();
                let spare = self.attempts.clone();
                attempts.spawn(async move {
                    reach.check(ip)?;
                    let _spare = if is_first { None } else { spare.acquire_owned().await.ok() };
                    stack.connect(SocketAddr::new(ip, port)).await
                });
            }
            if eyeballs.is_over() {
                return Err(failure);
            }
            let next = eyeballs.poll_timeout().map(|at| at.saturating_sub(now()));
            tokio::select! {
                answer = &mut v6, if !has_v6 => {
                    has_v6 = true;
                    eyeballs.handle_addresses(true, addresses_or(answer, &mut failure), now());
                }
                answer = &mut v4, if !has_v4 => {
                    has_v4 = true;
                    eyeballs.handle_addresses(false, addresses_or(answer, &mut failure), now());
                }
                Some(attempt) = attempts.join_next() => match attempt {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => {
                        failure = error;
                        eyeballs.handle_failure(now());
                    }
                    Err(error) => return Err(io::Error::other(error)),
                },
                () = sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
        }
    }
}

/// Returns the addresses of an answer. Stores an error in `failure`.
fn addresses_or(answer: io::Result<Vec<IpAddr>>, failure: &mut io::Error) -> Vec<IpAddr> {
    answer.unwrap_or_else(|error| {
        *failure = error;
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::{io::AsyncWriteExt, net::UnixStream, runtime::Builder, time::Instant};

    use super::{
        super::{
            identity::Identity,
            test_stack::{HostBehavior, MemoryStack, connected},
        },
        *,
    };

    const CLIENT: Client = Client::User(1);

    fn dialer(hosts: &[(&str, HostBehavior)]) -> Dialer<MemoryStack> {
        let reach = Reach::new(Arc::new(Identity::new(vec![[10, 0, 0, 9].into()])), |_| true);
        Dialer::new(Arc::new(MemoryStack::new(hosts)), reach, Dns::default(), 9)
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap()
            .block_on(work)
    }

    fn target(text: &str) -> Target {
        Target::parse(text, None).unwrap()
    }

    #[test]
    fn dial_ends_when_the_client_disconnects() {
        run(async {
            let dialer = dialer(&[("10.0.0.1", HostBehavior::Silent)]);
            let (client, here) = UnixStream::pair().unwrap();
            let mut here = Stream::Unix(here);
            let mut early = Vec::new();
            let target = target("10.0.0.1:80");
            {
                let mut dialing = pin!(dialer.dial_for(CLIENT, &mut here, &mut early, &target));
                tokio::select! {
                    _ = &mut dialing => panic!("the host does not answer"),
                    () = sleep(Duration::from_secs(5)) => {}
                }
                assert_eq!(dialer.stack.dialing(), 1);
                drop(client);
                let error = dialing.await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
            }
            assert_eq!(dialer.stack.dialing(), 0);
        });
    }

    #[test]
    fn input_during_a_dial_is_stored_up_to_a_limit() {
        run(async {
            let dialer = dialer(&[("10.0.0.1", HostBehavior::Silent)]);
            let (mut client, here) = UnixStream::pair().unwrap();
            let mut here = Stream::Unix(here);
            client.write_all(&vec![7; 2 * EARLY]).await.unwrap();
            let mut early = Vec::new();
            let target = target("10.0.0.1:80");
            let dialed = dialer.dial_for(CLIENT, &mut here, &mut early, &target).await;
            assert_eq!(dialed.unwrap_err().kind(), io::ErrorKind::TimedOut);
            assert_eq!(early, vec![7; EARLY]);
        });
    }

    #[test]
    fn watched_clients_do_not_use_the_descriptors_of_second_attempts() {
        run(async {
            let dialer = Arc::new(dialer(&[("10.0.0.1", HostBehavior::Silent)]));
            let mut dialing = JoinSet::new();
            let mut clients = Vec::new();
            for number in 0..20 {
                let (mut client, here) = UnixStream::pair().unwrap();
                client.write_all(&vec![7; 2 * EARLY]).await.unwrap();
                clients.push(client);
                let dialer = dialer.clone();
                dialing.spawn(async move {
                    let (mut here, mut early) = (Stream::Unix(here), Vec::new());
                    let to = target("10.0.0.1:80");
                    dialer.dial_for(Client::User(number), &mut here, &mut early, &to).await
                });
            }
            sleep(Duration::from_secs(5)).await;
            assert_eq!(dialer.stack.dialing(), 20);
            assert_eq!(dialer.watches.available_permits(), 0);
            assert_eq!(dialer.attempts.available_permits(), 4);
        });
    }

    /// A reset; a Unix socket is closed.
    fn leave(client: Stream) {
        client.reset();
    }

    /// RFC 9293, section 3.6: a side that has ended its output may still read.
    #[test]
    fn dial_continues_after_the_client_half_closes() {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let dialer = dialer(&[("10.0.0.1", HostBehavior::Late)]);
            let target = target("10.0.0.1:80");
            let (tcp, tcp_here) = connected(1 << 20).await;
            let (unix, unix_here) = UnixStream::pair().unwrap();
            for (mut client, mut here) in [
                (Stream::Tcp(tcp), Stream::Tcp(tcp_here)),
                (Stream::Unix(unix), Stream::Unix(unix_here)),
            ] {
                client.write_all(b"request").await.unwrap();
                client.shutdown().await.unwrap();
                let mut early = Vec::new();
                dialer.dial_for(CLIENT, &mut here, &mut early, &target).await.unwrap();
                assert_eq!(early, b"request");
                assert_eq!(here.read(&mut [0]).await.unwrap(), 0, "its end is still seen");
                dialer.dial_unless_gone(CLIENT, &here, &target).await.unwrap();
            }
        });
    }

    #[test]
    fn dial_ends_when_a_half_closed_client_disconnects() {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let dialer = dialer(&[("10.0.0.1", HostBehavior::Silent)]);
            let target = target("10.0.0.1:80");
            for reads in [true, false] {
                let (tcp, tcp_here) = connected(1 << 20).await;
                let (unix, unix_here) = UnixStream::pair().unwrap();
                for (mut client, mut here) in [
                    (Stream::Tcp(tcp), Stream::Tcp(tcp_here)),
                    (Stream::Unix(unix), Stream::Unix(unix_here)),
                ] {
                    client.shutdown().await.unwrap();
                    // A reset follows a FIN only if some of the received bytes were not read.
                    here.write_all(b"!").await.unwrap();
                    let mut early = Vec::new();
                    let dialing = async {
                        if reads {
                            dialer.dial_for(CLIENT, &mut here, &mut early, &target).await
                        } else {
                            dialer.dial_unless_gone(CLIENT, &here, &target).await
                        }
                    };
                    let mut dialing = pin!(dialing);
                    let waited = timeout(Duration::from_millis(50), &mut dialing).await;
                    assert!(waited.is_err(), "it reads");
                    leave(client);
                    let dialed = timeout(Duration::from_secs(10), dialing).await;
                    let error = dialed.expect("it is gone").err().unwrap();
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
                }
            }
        });
    }

    /// Unread input neither hides the disconnect nor is lost.
    #[test]
    fn dial_ends_when_a_client_with_unread_input_disconnects() {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let dialer = dialer(&[("10.0.0.1", HostBehavior::Silent)]);
            let target = target("10.0.0.1:80");
            let (tcp, tcp_here) = connected(1 << 20).await;
            let (unix, unix_here) = UnixStream::pair().unwrap();
            for (client, mut here) in [
                (Stream::Tcp(tcp), Stream::Tcp(tcp_here)),
                (Stream::Unix(unix), Stream::Unix(unix_here)),
            ] {
                let (mut client, mut early) = (client, Vec::new());
                client.write_all(&vec![7; 2 * EARLY]).await.unwrap();
                {
                    let mut dialing = pin!(dialer.dial_for(CLIENT, &mut here, &mut early, &target));
                    for _ in 0..3 {
                        let waited = timeout(Duration::from_millis(50), &mut dialing).await;
                        assert!(waited.is_err(), "it is there");
                        client.write_all(b"more").await.unwrap();
                    }
                    leave(client);
                    let dialed = timeout(Duration::from_secs(10), dialing).await;
                    let error = dialed.expect("it is gone").unwrap_err();
                    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
                }
                let mut rest = Vec::new();
                // The reset ends it with an error.
                let _ = here.read_to_end(&mut rest).await;
                assert_eq!(early.len() + rest.len(), 2 * EARLY + 3 * 4);
            }
        });
    }

    #[test]
    fn dial_outside_the_allowed_ips_fails_at_once_and_works_once_they_change() {
        run(async {
            let is_allowed = Arc::new(AtomicBool::new(false));
            let allowed = is_allowed.clone();
            let server = IpAddr::from([10, 0, 0, 53]);
            let reach =
                Reach::new(Arc::new(Identity::new(vec![[10, 0, 0, 9].into()])), move |_| {
                    allowed.load(Ordering::Relaxed)
                });
            let dns = Dns { servers: vec![server.into()], search_domains: Vec::new() };
            let stack = Arc::new(MemoryStack::new(&[
                ("10.0.0.1", HostBehavior::Open),
                ("10.0.0.9", HostBehavior::Open),
            ]));
            let dialer = Dialer::new(stack, reach, dns, 9);
            let began = Instant::now();
            for text in ["10.0.0.1:80", "a.example:80"] {
                let to = target(text);
                let error = dialer.dial(CLIENT, &to).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable, "{text}");
                let error = dialer.address(&to).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::NetworkUnreachable, "{text}");
            }
            assert_eq!(began.elapsed(), Duration::ZERO);
            dialer.dial(CLIENT, &target("10.0.0.9:80")).await.unwrap();
            is_allowed.store(true, Ordering::Relaxed);
            dialer.dial(CLIENT, &target("10.0.0.1:80")).await.unwrap();
        });
    }

    #[test]
    fn dial_reports_the_reason_of_a_failure_and_connects_to_an_open_port() {
        run(async {
            let dialer =
                dialer(&[("10.0.0.1", HostBehavior::Closed), ("fd00::1", HostBehavior::Open)]);
            for (text, kind) in [
                ("10.0.0.1:80", io::ErrorKind::ConnectionRefused),
                ("10.0.0.2:80", io::ErrorKind::NetworkUnreachable),
                ("a.example:80", io::ErrorKind::NotFound),
            ] {
                let error = dialer.dial(CLIENT, &target(text)).await.unwrap_err();
                assert_eq!(error.kind(), kind, "{text}");
            }
            dialer.dial(CLIENT, &target("[fd00::1]:80")).await.unwrap();
            assert_eq!(dialer.stack.ends.lock().unwrap()[0].0.to_string(), "[fd00::1]:80");
        });
    }
}
