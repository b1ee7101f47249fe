//! A process that resolves endpoint names for a confined peer.
//!
//! ```text
//!   peer, before its sandbox -- its job --> resolver: this program, executed again
//!     | a name  ------------------------->  | the host's own servers, past the tunnel (`direct`)
//!     |                                     | else the resolver of the system (getaddrinfo)
//!     | <------------- addresses, or why not
//!     x  exits -------------------------->  x  exits
//! ```
//!
//! While an endpoint is wrong, the tunnel does not work. If the system's queries use the tunnel,
//! because of its routes or name servers, they are not answered either.

mod direct;

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, ToSocketAddrs as _},
    os::fd::AsFd as _,
    path::PathBuf,
};

use anyhow::{Context, anyhow, bail};
use config::EndpointName;
use mesh::permitted_addresses::addresses_in;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sys::{
    Channel,
    process::{
        self,
        sandbox::{ALWAYS_READABLE, AccessRules, CallGroups, Ports, confine_calls, confine_files},
    },
};

use crate::{
    children::{self, Role, unprivileged_user},
    events::release_unused,
    lifecycle::LogStyle,
};

/// The name of this program as a resolver, which is its first argument.
pub(crate) const NAME: &str = "linerate-resolver";
/// Bytes of the longest message: the longest name, or the addresses of a name.
const MESSAGE: usize = 4096;
/// The most addresses in a reply.
const ADDRESSES: usize = 16;

/// Its system calls: it queries name servers by UDP and TCP.
const CALLS: CallGroups = CallGroups {
    udp: true,
    tcp: true,
    agent: true,
    streams: false,
    unlinks: false,
    unix: false,
    splice: false,
    syncs: false,
    filters_floods: false,
};
/// Folders of programs that write `/etc/resolv.conf`. That may be a link into them.
const RESOLVERS: [&str; 4] =
    ["/run/NetworkManager", "/run/connman", "/run/resolvconf", "/run/systemd/resolve"];
const REFUSED: &str = "the kernel refused the sandbox";

/// The input of a resolver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// The peer's name.
    pub name: String,
    /// The name servers of the interface, which are reached through the tunnel.
    pub own_servers: Vec<IpAddr>,
    /// The name servers of this host before the interface came up.
    pub servers: Vec<IpAddr>,
    /// Whether it runs in a sandbox.
    pub sandbox: bool,
}

/// A request for the addresses of a name.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    host: String,
    port: u16,
    /// The mark of datagrams that are routed outside the tunnel; 0 means no mark.
    mark: u32,
}

/// A reply, or the reason of a failure. The first one confirms the start of the process.
type Reply<T> = Result<T, String>;

/// The connection to a resolver.
#[derive(Debug)]
pub(crate) struct Resolver(Channel);

impl Resolver {
    /// Starts a resolver with this job. Signals that this thread blocks are blocked there, too.
    ///
    /// # Errors
    /// The process cannot be started or not be confined.
    pub(crate) fn start(job: &Job, log_style: LogStyle) -> anyhow::Result<Self> {
        let (line, theirs) = Channel::pair()?;
        children::start(NAME, log_style, theirs)?;
        line.send(&postcard::to_stdvec(job)?)?;
        let started = Self(line);
        started.receive::<()>()?;
        Ok(started)
    }

    /// Resolves a name; the best address comes first. `mark` is that of datagrams outside the
    /// tunnel.
    ///
    /// # Errors
    /// The name does not resolve, or the resolver has exited.
    pub(crate) fn resolve(
        &self,
        name: &EndpointName,
        mark: u32,
    ) -> anyhow::Result<Vec<SocketAddr>> {
        let request = Request { host: name.host.clone(), port: name.port, mark };
        self.0.send(&postcard::to_stdvec(&request)?)?;
        self.receive()
    }

    fn receive<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        let mut buffer = [0; MESSAGE];
        match self.0.receive(&mut buffer)? {
            0 => bail!("the resolver has exited"),
            len => postcard::from_bytes::<Reply<T>>(&buffer[..len])?.map_err(|why| anyhow!(why)),
        }
    }
}

/// Serves the peer on standard input, until that closes the connection.
///
/// # Errors
/// Standard input is not a connection to a peer, or the kernel refuses the sandbox.
pub(crate) fn run(_: LogStyle) -> anyhow::Result<()> {
    // Signals may end this process without cleanup, also during a query.
    process::unblock_signals().context("signals")?;
    process::set_process_name(NAME).context("its name")?;
    process::harden().context("core dumps")?;
    let line = Channel::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut buffer = vec![0; MESSAGE];
    let len = line.receive(&mut buffer)?;
    let job: Job = postcard::from_bytes(&buffer[..len]).context("invalid job")?;
    let confined = if job.sandbox { confine(&job) } else { Ok(()) };
    let started: Reply<()> = confined.map_err(|error| format!("{error:#}"));
    line.send(&postcard::to_stdvec(&started)?)?;
    release_unused();
    loop {
        let len = line.receive(&mut buffer)?;
        if len == 0 {
            return Ok(());
        }
        let request =
            postcard::from_bytes(&buffer[..len]).context("invalid request of the peer")?;
        line.send(&postcard::to_stdvec(&job.answer(&request))?)?;
    }
}

/// Confines the process. A separate user may read all files that are open to all users, because
/// the system's resolver has many files. Otherwise the user may have secrets, so only the usual
/// files are readable.
fn confine(job: &Job) -> anyhow::Result<()> {
    let user = unprivileged_user(&job.name, Role::Resolver);
    let has_own_user =
        process::retain_mark_capability(user).context("becoming the resolver's user")?;
    let read = match has_own_user {
        true => vec!["/".into()],
        false => ALWAYS_READABLE.iter().chain(&RESOLVERS).map(PathBuf::from).collect(),
    };
    confine_files(&AccessRules { read, connect: Ports::Any, ..AccessRules::default() })
        .context(REFUSED)?;
    confine_calls(CALLS).context(REFUSED)?;
    Ok(())
}

impl Job {
    fn answer(&self, request: &Request) -> Reply<Vec<SocketAddr>> {
        let Request { host, port, mark } = request;
        let mut found = self.resolve_outside_tunnel(host, *mark);
        if found.is_empty() {
            let system = (host.as_str(), *port).to_socket_addrs();
            found = system.map_err(|error| error.to_string())?.map(|at| at.ip()).collect();
        }
        found.retain(|address| direct::is_routed(*address, *mark));
        found.truncate(ADDRESSES);
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip, *port)).collect())
    }

    /// The answers of the host's name servers; empty if the system's queries do not depend on the
    /// tunnel.
    fn resolve_outside_tunnel(&self, host: &str, mark: u32) -> Vec<IpAddr> {
        if mark == 0 && self.own_servers.is_empty() {
            return Vec::new();
        }
        // Like the system, which reads this file before it queries servers.
        let hosts = fs::read("/etc/hosts").unwrap_or_default();
        let pinned: Vec<_> = addresses_in(&String::from_utf8_lossy(&hosts), host).collect();
        if !pinned.is_empty() {
            return pinned;
        }
        let mut servers = host::dns::other_servers(&self.name, &self.own_servers);
        if servers.is_empty() {
            servers.clone_from(&self.servers);
        }
        direct::addresses(host, &servers, mark)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn longest_name_and_most_addresses_fit_a_message() {
        let request = Request { host: "a".repeat(3_000), port: u16::MAX, mark: u32::MAX };
        assert!(postcard::to_stdvec(&request).unwrap().len() <= MESSAGE);
        let v6 = SocketAddr::new([0xffff; 8].into(), u16::MAX);
        let reply: Reply<_> = Ok(vec![v6; ADDRESSES]);
        assert!(postcard::to_stdvec(&reply).unwrap().len() <= MESSAGE);
    }

    #[test]
    fn name_in_the_hosts_file_is_resolved_without_a_tunnel() {
        let request = Request { host: "localhost".into(), port: 7, mark: 0 };
        let found = Job::default().answer(&request).unwrap();
        assert!(
            found.contains(&(Ipv4Addr::LOCALHOST, 7).into()) || found[0].is_ipv6(),
            "{found:?}"
        );
        let unknown = Request { host: "no such name".into(), ..request };
        assert!(Job::default().answer(&unknown).is_err());
    }
}
