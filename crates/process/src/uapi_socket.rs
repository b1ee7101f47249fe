//! The UAPI socket `/var/run/wireguard/NAME.sock`, through which `wg` and our commands control a
//! running peer.
//!
//! ```text
//!   accept -> Clients: a free slot, or the one idle longest -> a thread: Requests -> answers
//! ```

mod clients;
mod requests;

use std::{
    fs,
    io::{self, Write},
    net::IpAddr,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use config::uapi::{Request, Stats, write_errno, write_state};
use host::{resolve_scopes, sockets};
use node::Node;
use sys::{ACCEPT_PAUSE, Errno, SocketFile, errno::errno, process::Helper};
use zeroize::Zeroizing;

use clients::{ClientSlot, Clients};
use requests::{Requests, SharedBudget};

use crate::{capture, sandbox};

/// The time in which a client must read its answer.
const ANSWER_TIME: Duration = Duration::from_secs(30);

/// A listening socket. Its file is removed when it is dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    file: SocketFile,
}

impl ControlSocket {
    /// Creates the socket with mode 0600 in a folder with mode 0700. A stale socket file of a
    /// killed process is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there.
    pub(crate) fn bind(name: &str) -> io::Result<Self> {
        let path = sockets::socket_path(name);
        Self::bind_at(&path)
    }

    /// Creates the socket in the first folder in which this user may.
    ///
    /// # Errors
    /// `AddrInUse` if a process listens there, else the error for the last folder.
    pub(crate) fn bind_own(name: &str) -> io::Result<Self> {
        let mut last = Err(io::ErrorKind::NotFound.into());
        for folder in sockets::folders() {
            last = Self::bind_at(&folder.join(format!("{name}.sock")));
            match &last {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {}
                _ => break,
            }
        }
        last
    }

    fn bind_at(path: &Path) -> io::Result<Self> {
        let folder = path.parent().expect("a socket is in a folder");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Other implementations may have created it with access for all users.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        let (listener, file) = SocketFile::listen(path).map_err(|error| match error.kind() {
            // The kind of the existing file does not matter: the name is in use.
            io::ErrorKind::AlreadyExists => io::ErrorKind::AddrInUse.into(),
            _ => error,
        })?;
        Ok(Self { listener, file })
    }

    /// Leaves the removal of the file to `helper`.
    pub(crate) fn delegate_removal(&mut self, helper: Arc<Helper>) {
        self.file.delegate_removal(helper);
    }

    pub(crate) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Serves clients, each in a separate thread. `down` is called with a client that requests to
    /// go down. The caller owns the returned file.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub(crate) fn serve(
        self,
        node: Arc<Node>,
        extras: Arc<dyn Extras>,
        down: impl Fn(Arc<UnixStream>) + Send + Sync + 'static,
    ) -> io::Result<SocketFile> {
        let Self { listener, file } = self;
        let down: Arc<dyn Fn(Arc<UnixStream>) + Send + Sync> = Arc::new(down);
        let (clients, budget) = (Arc::new(Clients::default()), SharedBudget::default());
        thread::Builder::new().name("uapi".into()).spawn(move || {
            for client in listener.incoming() {
                let client = match client {
                    Ok(client) => client,
                    Err(error) => {
                        // Probably all file descriptors are in use. That does not change at once.
                        tracing::error!(%error, "cannot accept a client of the control socket");
                        thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                let (node, extras, down) = (node.clone(), extras.clone(), down.clone());
                let budget = budget.clone();
                let Some(slot) = clients.admit(client) else {
                    tracing::warn!("a client of the control socket was refused: too many clients");
                    continue;
                };
                let served = thread::Builder::new().name("uapi client".into()).spawn(move || {
                    if let Err(error) = serve_client(&slot, budget, &node, &*extras, &*down) {
                        tracing::debug!(%error, "a client of the control socket disconnected");
                    }
                });
                if let Err(error) = served {
                    tracing::error!(%error, "cannot start a thread for a client of the control socket");
                }
            }
        })?;
        Ok(file)
    }
}

/// Answers of the control socket that do not come from the node.
pub(crate) trait Extras: Send + Sync {
    /// Adds statistics for `linerate show`.
    fn describe(&self, stats: &mut Stats);

    /// Handles a change of the enabled offloads.
    fn offloads_changed(&self) {}

    /// Whether a request to go down is refused with EBUSY.
    fn refuses_down(&self) -> bool {
        false
    }

    /// Sends an ICMP echo request through the tunnel. Returns the address that answered, and the
    /// round-trip time.
    ///
    /// # Errors
    /// No answer arrived, or the process cannot send such requests.
    fn ping(&self, _host: &str) -> io::Result<(IpAddr, Duration)> {
        Err(io::Error::from_raw_os_error(Errno::EOPNOTSUPP as i32))
    }
}

/// Answers the requests of a client.
fn serve_client(
    slot: &ClientSlot,
    budget: SharedBudget,
    node: &Node,
    extras: &dyn Extras,
    down: &dyn Fn(Arc<UnixStream>),
) -> io::Result<()> {
    let mut client = slot.stream();
    client.set_write_timeout(Some(ANSWER_TIME))?;
    let mut requests = Requests::new(client, budget);
    while let Some(text) = requests.next()? {
        slot.begin()?;
        let mut answer = Zeroizing::new(String::new());
        let request = text.map(|text| match resolve_scopes(text.as_str()) {
            Some(numbered) => Request::parse(&numbered),
            None => Request::parse(text.as_str()),
        });
        let ends = matches!(request, Ok(Ok(Request::Down))) && !extras.refuses_down();
        let errno = match request {
            Ok(Ok(Request::Capture(wanted))) => {
                // The client may read a capture slowly.
                client.set_write_timeout(None)?;
                return capture::serve(client, node, wanted);
            }
            Ok(Ok(request)) => answer_request(request, node, extras, &mut answer),
            Ok(Err(error)) => {
                tracing::warn!(%error, "a request was rejected");
                error.errno()
            }
            Err(errno) => {
                tracing::warn!(errno, "a request was rejected: it is too long");
                errno
            }
        };
        // wg(8) expects a negative number, like the kernel's.
        write_errno(&mut answer, -errno);
        if ends {
            client.write_all(answer.as_bytes())?;
            // After the answer, because the process may exit at once. The client waits for that
            // and occupies its slot.
            down(slot.shared_stream());
            return io::copy(&mut client, &mut io::sink()).map(drop);
        }
        slot.end()?;
        client.write_all(answer.as_bytes())?;
        drop(answer);
        // The C library reuses the stacks of threads that ended.
        wg::stack::wipe();
    }
    Ok(())
}

fn answer_request(request: Request, node: &Node, extras: &dyn Extras, answer: &mut String) -> i32 {
    match request {
        Request::Get => write_state(answer, &node.state()),
        Request::Stats => {
            let mut stats = Stats {
                version: Some(env!("CARGO_PKG_VERSION").to_owned()),
                aead: Some(crypto::aead::variant().to_string()),
                ..node.stats()
            };
            sandbox::describe(&mut stats);
            extras.describe(&mut stats);
            stats.write(answer);
        }
        Request::Ping(host) => return ping(extras, &host, answer),
        Request::Down if extras.refuses_down() => return Errno::EBUSY as i32,
        // `serve_client` goes down after the answer.
        Request::Down => {}
        // `serve_client` handles it, because the answer is not text.
        Request::Capture(_) => return Errno::EINVAL as i32,
        Request::Offload(wanted) => {
            if let Err(error) = node.switch_offloads(&wanted) {
                tracing::error!(%error, "a change was rejected");
                return error.errno();
            }
            extras.offloads_changed();
        }
        Request::EndpointNames(names) => {
            node.name_endpoints(names);
            answer.push_str(if node.follows_names() {
                "followed=true\n"
            } else {
                "followed=false\n"
            });
        }
        Request::Set(change) => {
            if let Err(error) = node.apply(change) {
                tracing::error!(%error, "a change was rejected");
                return error.errno();
            }
        }
    }
    0
}

/// Answers with the time in nanoseconds, or with an empty text if no echo reply arrived.
fn ping(extras: &dyn Extras, host: &str, answer: &mut String) -> i32 {
    match extras.ping(host) {
        Ok((from, after)) => {
            answer.push_str(&format!("address={from}\nnanoseconds={}\n", after.as_nanos()));
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
        Err(error) => match errno(&error) {
            Some(Errno::EOPNOTSUPP) => return Errno::EOPNOTSUPP as i32,
            _ => answer.push_str(&format!("error={}\n", error.to_string().replace('\n', " "))),
        },
    }
    0
}
