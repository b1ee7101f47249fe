//! Queries to the host's name servers from sockets with a mark that is routed outside the tunnel.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsFd as _,
    time::Duration,
};

use getrandom::{SysRng, rand_core::TryRng as _};
use proxy::dns::{Answer, Query, Record};
use sys::{clock, process::mark_socket};

/// The port of name servers.
const PORT: u16 = 53;
/// The time limit of an answer. Each server is queried twice.
const PATIENCE: Duration = Duration::from_secs(2);
const ROUNDS: usize = 2;
/// The longest answer over UDP (RFC 1035, section 2.3.4).
const DATAGRAM: usize = 512;

/// The addresses of a name, IPv6 first; empty if no server returned any.
pub(super) fn addresses(name: &str, servers: &[IpAddr], mark: u32) -> Vec<IpAddr> {
    let records = [Record::Aaaa, Record::A];
    records.into_iter().flat_map(|record| of_kind(name, record, servers, mark)).collect()
}

fn of_kind(name: &str, record: Record, servers: &[IpAddr], mark: u32) -> Vec<IpAddr> {
    for server in servers.iter().cycle().take(ROUNDS * servers.len()) {
        match query(name, record, (*server, PORT).into(), mark) {
            Ok(Answer::Addresses(addresses, _)) => return addresses,
            Ok(Answer::NoSuchName) => return Vec::new(),
            Ok(Answer::Failed | Answer::Truncated) => {}
            Err(error) => tracing::debug!(%server, %error, "a name server does not answer"),
        }
    }
    Vec::new()
}

fn query(name: &str, record: Record, server: SocketAddr, mark: u32) -> io::Result<Answer> {
    let mut id = [0; 2];
    SysRng.try_fill_bytes(&mut id).map_err(io::Error::other)?;
    let question = Query::new(u16::from_ne_bytes(id), name, record);
    let question = question.ok_or(io::ErrorKind::InvalidInput)?;
    // Each query uses a new port, which a forged answer would have to guess.
    let socket = connected(server, mark)?;
    socket.send(question.as_bytes())?;
    let deadline = clock::boottime() + PATIENCE;
    let mut message = [0; DATAGRAM];
    loop {
        let left = deadline.saturating_sub(clock::boottime());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let len = socket.recv(&mut message)?;
        if let Some(answer) = question.answer(&message[..len]) {
            return Ok(answer);
        }
    }
}

/// Whether this host has a route to an address outside the tunnel.
pub(super) fn is_routed(address: IpAddr, mark: u32) -> bool {
    connected((address, PORT).into(), mark).is_ok()
}

fn connected(to: SocketAddr, mark: u32) -> io::Result<UdpSocket> {
    let any: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    if mark != 0 {
        mark_socket(socket.as_fd(), mark)?;
    }
    socket.connect(to)?;
    Ok(socket)
}
