//! The UAPI socket: `/var/run/wireguard/NAME.sock`, by which `wg` and our own
//! commands talk to a running peer.

use std::{
    fs,
    io::{self, BufRead, Read, Write},
    net::IpAddr,
    os::unix::{
        fs::{DirBuilderExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use sys::{netlink::Netlink, process::Janitor};
use zeroize::{Zeroize, Zeroizing};

pub use crate::socket_file::SocketFile;
use crate::{
    Node, capture, sandbox,
    uapi::{Request, write_errno, write_state},
    wiping_reader::WipingReader,
};

/// Where the sockets of all userspace implementations are.
const FOLDER: &str = "/var/run/wireguard";
/// Where they are in a user's own folder for what runs.
const OWN_FOLDER: &str = "wireguard";
/// The longest request: a million peers with a few networks each.
const MAX_REQUEST: u64 = 512 << 20;
/// Room for a request and for a line at first, in bytes; no line with a key is longer.
const FIRST_ROOM: usize = 4096;
/// Clients served at one time.
const MAX_CLIENTS: usize = 64;
/// How long the server rests when it cannot accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// `EINVAL` of Linux.
const EINVAL: i32 = 22;
/// `EPROTO` of Linux.
const EPROTO: i32 = 71;
/// `EOPNOTSUPP` of Linux.
const EOPNOTSUPP: i32 = 95;

/// The path of an interface's socket.
pub fn socket_path(name: &str) -> PathBuf {
    Path::new(FOLDER).join(format!("{name}.sock"))
}

/// Where the socket of a running peer is: with all others, or in the user's own folder.
pub fn find_socket(name: &str) -> PathBuf {
    let mut places = folders().map(|folder| folder.join(format!("{name}.sock")));
    places.find(|path| path.exists()).unwrap_or_else(|| socket_path(name))
}

/// Where sockets are: the folder of all, and that of a user without rights.
pub fn folders() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join(OWN_FOLDER));
    [PathBuf::from(FOLDER)].into_iter().chain(own)
}

/// A listening socket, whose file goes when it is dropped.
#[derive(Debug)]
pub struct UapiSocket {
    listener: UnixListener,
    file: SocketFile,
}

impl UapiSocket {
    /// Makes the socket, mode 0600 in a folder of mode 0700. A file that is left
    /// of a process that is gone makes room.
    ///
    /// # Errors
    /// `AddrInUse` where somebody listens there.
    pub fn bind(name: &str) -> io::Result<Self> {
        Self::bind_in(Path::new(FOLDER), name)
    }

    /// Makes the socket in the first folder where this user may.
    ///
    /// # Errors
    /// `AddrInUse` where somebody listens there, else that of the last folder.
    pub fn bind_own(name: &str) -> io::Result<Self> {
        let mut last = Err(io::ErrorKind::NotFound.into());
        for folder in folders() {
            last = Self::bind_in(&folder, name);
            match &last {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {}
                _ => break,
            }
        }
        last
    }

    fn bind_in(folder: &Path, name: &str) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Other implementations leave it open to all.
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        let path = folder.join(format!("{name}.sock"));
        let (listener, file) = SocketFile::listen(&path).map_err(|error| match error.kind() {
            // What it is does not matter: the name is taken.
            io::ErrorKind::AlreadyExists => io::ErrorKind::AddrInUse.into(),
            _ => error,
        })?;
        Ok(Self { listener, file })
    }

    /// Leaves the removal of the file to `janitor`.
    ///
    /// # Errors
    /// The janitor is gone.
    pub fn hand_over(&mut self, janitor: Arc<Janitor>) -> io::Result<()> {
        self.file.hand_over(janitor)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Serves clients, each in a thread of its own, by `node` and `beside`. `down` is called
    /// when one of them asks to go down. The file stays the caller's.
    ///
    /// # Errors
    /// The system starts no more threads.
    pub fn serve(
        self,
        node: Arc<Node>,
        beside: Arc<dyn Beside>,
        down: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<SocketFile> {
        let Self { listener, file } = self;
        let down: Arc<dyn Fn() + Send + Sync> = Arc::new(down);
        let clients = Arc::new(AtomicUsize::new(0));
        thread::Builder::new().name("uapi".into()).spawn(move || {
            for client in listener.incoming() {
                let client = match client {
                    Ok(client) => client,
                    Err(error) => {
                        // No file descriptor is left: it will not be better at once.
                        tracing::error!(%error, "a client of the socket could not be served");
                        thread::sleep(ACCEPT_PAUSE);
                        continue;
                    }
                };
                let (node, beside, down) = (node.clone(), beside.clone(), down.clone());
                let Some(place) = Place::take(&clients) else { continue };
                let served = thread::Builder::new().name("uapi client".into()).spawn(move || {
                    if let Err(error) = serve_client(&client, &node, &*beside, &*down) {
                        tracing::debug!(%error, "a client of the socket went away");
                    }
                    drop(place);
                });
                if let Err(error) = served {
                    tracing::error!(%error, "no thread for a client of the socket");
                }
            }
        })?;
        Ok(file)
    }
}

/// What a process does beside being a peer.
pub trait Beside: Send + Sync {
    /// Appends what `linerate show` is to tell of it, as lines `key=value`.
    fn describe(&self, lines: &mut String);

    /// Offloads were switched on or off.
    fn offloads_changed(&self) {}

    /// Sends one ICMP echo request through the tunnel; who answered, and after how long.
    ///
    /// # Errors
    /// Nobody did, or there is no stack to send it.
    fn ping(&self, host: &str) -> io::Result<(IpAddr, Duration)>;
}

/// Nothing.
impl Beside for () {
    fn describe(&self, _lines: &mut String) {}

    fn ping(&self, _host: &str) -> io::Result<(IpAddr, Duration)> {
        Err(io::Error::from_raw_os_error(EOPNOTSUPP))
    }
}

/// One of the places for clients, given back when it is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(clients: &Arc<AtomicUsize>) -> Option<Self> {
        let place = Self(clients.clone());
        (clients.fetch_add(1, Ordering::Relaxed) < MAX_CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers one request after the other.
fn serve_client(
    client: &UnixStream,
    node: &Node,
    beside: &dyn Beside,
    down: &dyn Fn(),
) -> io::Result<()> {
    let mut reader = WipingReader::new(client.take(MAX_REQUEST));
    while let Some(text) = read_request(&mut reader)? {
        let mut answer = Zeroizing::new(String::new());
        let request = Request::parse(&number_scopes(text));
        let ends = matches!(request, Ok(Request::Down));
        let errno = match request {
            Ok(Request::Capture(wanted)) => return capture::serve(client, node, wanted),
            Ok(request) => answer_request(request, (node, beside), &mut answer),
            Err(error) => {
                tracing::warn!(%error, "a request was refused");
                error.errno()
            }
        };
        // wg(8) takes the number by its kernel sign.
        write_errno(&mut answer, -errno);
        let mut client = client;
        client.write_all(answer.as_bytes())?;
        drop(answer);
        // The system keeps the stacks of threads that ended, for the next ones.
        wg::stack::wipe();
        // Not before its answer, as the process may be gone at once.
        if ends {
            down();
        }
        reader.get_mut().set_limit(MAX_REQUEST);
    }
    Ok(())
}

fn answer_request(
    request: Request,
    (node, beside): (&Node, &dyn Beside),
    answer: &mut String,
) -> i32 {
    match request {
        Request::Get => write_state(answer, &node.state()),
        Request::Stats => {
            let (version, aead) = (env!("CARGO_PKG_VERSION"), aead::variant());
            answer.push_str(&format!("version={version}\naead={aead}\n"));
            for (name, value) in node.counters().chain(node.loads()) {
                answer.push_str(&format!("{name}={value}\n"));
            }
            for (name, switch) in node.offloads().all() {
                let wanted = if switch.wanted() { "on" } else { "off" };
                let demotions = switch.demotions();
                answer
                    .push_str(&format!("offload_{name}={wanted}\ndemotions_{name}={demotions}\n"));
            }
            for peer in node.state().peers {
                if let Some(mtu) = peer.path_mtu {
                    let key = peer.public_key.to_base64();
                    answer.push_str(&format!("path_mtu={key} {mtu}\n"));
                }
            }
            sandbox::describe(answer);
            beside.describe(answer);
        }
        Request::Ping(host) => return ping(beside, &host, answer),
        // It is done behind the answer.
        Request::Down => {}
        // Its answer is no text, and was given already.
        Request::Capture(_) => return EINVAL,
        Request::Offload(wanted) => {
            if let Err(error) = node.want_offloads(&wanted) {
                tracing::error!(%error, "a change was refused");
                return error.errno();
            }
            beside.offloads_changed();
        }
        Request::Set(change) => {
            if let Err(error) = node.apply(change) {
                tracing::error!(%error, "a change was refused");
                return error.errno();
            }
        }
    }
    0
}

/// Answers with the time in nanoseconds, or with nothing where no echo came.
fn ping(beside: &dyn Beside, host: &str, answer: &mut String) -> i32 {
    match beside.ping(host) {
        Ok((from, after)) => {
            answer.push_str(&format!("address={from}\nnanoseconds={}\n", after.as_nanos()));
        }
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
        Err(error) => match error.raw_os_error() {
            Some(EOPNOTSUPP) => return EOPNOTSUPP,
            _ => answer.push_str(&format!("error={}\n", error.to_string().replace('\n', " "))),
        },
    }
    0
}

/// Puts numbers for the interfaces' names in link-local endpoints: wg(8) sends
/// names, and the pure parser knows none.
fn number_scopes(text: Zeroizing<String>) -> Zeroizing<String> {
    if !text.contains('%') {
        return text;
    }
    let mut numbered = Zeroizing::new(String::with_capacity(2 * text.len()));
    for line in text.split_inclusive('\n') {
        match line.starts_with("endpoint=").then(|| numbered_scope(line)).flatten() {
            Some(line) => numbered.push_str(&line),
            None => numbered.push_str(line),
        }
    }
    numbered
}

fn numbered_scope(line: &str) -> Option<String> {
    let (address, rest) = line.split_once('%')?;
    let (scope, rest) = rest.split_once(']')?;
    let link = Netlink::open().and_then(|netlink| netlink.link_by_name(scope)).ok()??;
    Some(format!("{address}%{}]{rest}", link.index))
}

/// Reads up to the empty line. `None` where the client has no more requests. The
/// text holds keys: where it grows, what it leaves behind is wiped.
fn read_request(reader: &mut impl BufRead) -> io::Result<Option<Zeroizing<String>>> {
    let mut text = Zeroizing::new(String::with_capacity(FIRST_ROOM));
    let mut line = Zeroizing::new(String::with_capacity(FIRST_ROOM));
    loop {
        line.zeroize();
        match reader.read_line(&mut line)? {
            0 if text.is_empty() => return Ok(None),
            0 => return Err(io::Error::from_raw_os_error(EPROTO)),
            1 => return Ok(Some(text)),
            len if text.len() + len > text.capacity() => {
                let mut larger = String::with_capacity(2 * text.capacity() + len);
                larger.push_str(&text);
                text = Zeroizing::new(larger);
            }
            _ => {}
        }
        text.push_str(&line);
    }
}
