//! The server's side of SOCKS5 (RFC 1928) with user names and passwords (RFC 1929), without I/O.
//!
//! ```text
//!   client                          Negotiation
//!   05 methods            ------>   handle_input
//!              <---- 05 method      poll_output
//!   01 name password      ------>   (if users are configured)
//!              <---- 01 status
//!   05 command address    ------>
//!                                   request -> the caller dials
//!              <---- reply()
//! ```
//!
//! Call order: `handle_input` with the bytes that were read; `poll_output` until it returns `None`,
//! sending each output; then `state`.

pub mod datagram;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use super::users::Users;
use config::target::{Host, Target};

const VERSION: u8 = 5;
/// The version of the sub-negotiation (RFC 1929).
const PASSWORD_VERSION: u8 = 1;
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
const NO_METHOD: u8 = 0xff;

const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;

const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// The request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A TCP connection.
    Connect(Target),
    /// A UDP association. The client sends datagrams from this address, if it is specified.
    UdpAssociate(Target),
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Reply {
    /// The client is connected.
    Succeeded = 0,
    /// Any other failure.
    GeneralFailure = 1,
    /// The target is not allowed.
    NotAllowed = 2,
    /// No route to the target.
    NetworkUnreachable = 3,
    /// The name does not exist, or the host does not answer.
    HostUnreachable = 4,
    /// The port is closed.
    ConnectionRefused = 5,
    /// BIND, or an unknown command.
    CommandNotSupported = 7,
    /// An unknown or invalid address type.
    AddressNotSupported = 8,
}

impl Reply {
    /// The reply after a failed dial.
    pub fn of_error(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable => Self::NetworkUnreachable,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NotFound | io::ErrorKind::TimedOut => {
                Self::HostUnreachable
            }
            io::ErrorKind::PermissionDenied => Self::NotAllowed,
            _ => Self::GeneralFailure,
        }
    }

    /// The encoded reply, with the bound address.
    pub fn encode(self, bound: SocketAddr) -> Vec<u8> {
        let mut text = vec![VERSION, self as u8, 0];
        put_address(&mut text, bound);
        text
    }
}

/// The state of a negotiation.
#[derive(Debug, PartialEq, Eq)]
pub enum State {
    /// The client must send more.
    Negotiating,
    /// The client has sent its request and waits for a [`Reply`].
    Requested(Request),
    /// The client was refused; the output says so.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Methods,
    Password,
    Request,
    Over,
}

/// The negotiation up to the request.
pub struct Negotiation<'a> {
    users: &'a Users,
    phase: Phase,
    input: Vec<u8>,
    output: Vec<u8>,
    state: State,
}

impl<'a> Negotiation<'a> {
    /// The negotiation with a client that has sent nothing yet.
    pub fn new(users: &'a Users) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        Self { users, phase: Phase::Methods, input, output, state: State::Negotiating }
    }

    /// Takes bytes from the client.
    pub fn handle_input(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        loop {
            let step = match self.phase {
                Phase::Methods => self.methods(),
                Phase::Password => self.password(),
                Phase::Request => self.request(),
                Phase::Over => return,
            };
            match step {
                Some(len) => {
                    self.input.drain(..len);
                }
                None => return,
            }
        }
    }

    /// The next bytes to send to the client.
    pub fn poll_output(&mut self) -> Option<Vec<u8>> {
        (!self.output.is_empty()).then(|| std::mem::take(&mut self.output))
    }

    /// The state of the negotiation.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The bytes after the request: the first ones for the target.
    pub fn into_rest(self) -> Vec<u8> {
        self.input
    }

    fn refuse(&mut self, output: &[u8]) {
        self.output.extend_from_slice(output);
        self.state = State::Refused;
        self.phase = Phase::Over;
    }

    /// Handles the list of methods. Each step returns the length of its message once it is complete.
    fn methods(&mut self) -> Option<usize> {
        if *self.input.first()? != VERSION {
            // Another protocol: its client could not read an answer.
            self.refuse(&[]);
            return None;
        }
        let count = usize::from(*self.input.get(1)?);
        let methods = self.input.get(2..2 + count)?;
        let wanted = if self.users.are_required() { PASSWORD } else { NO_AUTHENTICATION };
        if methods.contains(&wanted) {
            self.phase = if wanted == PASSWORD { Phase::Password } else { Phase::Request };
            self.output.extend_from_slice(&[VERSION, wanted]);
        } else {
            self.refuse(&[VERSION, NO_METHOD]);
        }
        Some(2 + count)
    }

    fn password(&mut self) -> Option<usize> {
        if *self.input.first()? != PASSWORD_VERSION {
            self.refuse(&[PASSWORD_VERSION, 1]);
            return None;
        }
        let name_end = 2 + usize::from(*self.input.get(1)?);
        let end = name_end + 1 + usize::from(*self.input.get(name_end)?);
        let password = self.input.get(name_end + 1..end)?;
        if self.users.admit(&self.input[2..name_end], password) {
            self.output.extend_from_slice(&[PASSWORD_VERSION, 0]);
            self.phase = Phase::Request;
        } else {
            self.refuse(&[PASSWORD_VERSION, 1]);
        }
        Some(end)
    }

    fn request(&mut self) -> Option<usize> {
        let unspecified_address = super::namespace::unspecified(true);
        if *self.input.first()? != VERSION {
            self.refuse(&Reply::GeneralFailure.encode(unspecified_address));
            return None;
        }
        let command = *self.input.get(1)?;
        let (target, len) = match address(self.input.get(3..)?) {
            Address::Short => return None,
            Address::Bad => {
                self.refuse(&Reply::AddressNotSupported.encode(unspecified_address));
                return None;
            }
            Address::Whole(target, len) => (target, len),
        };
        self.phase = Phase::Over;
        match command {
            CONNECT => self.state = State::Requested(Request::Connect(target)),
            UDP_ASSOCIATE => self.state = State::Requested(Request::UdpAssociate(target)),
            // BIND, which is not supported, and unknown commands.
            _ => self.refuse(&Reply::CommandNotSupported.encode(unspecified_address)),
        }
        Some(3 + len)
    }
}

/// The result of parsing an address of a request or a datagram.
enum Address {
    Short,
    Bad,
    /// With its length.
    Whole(Target, usize),
}

fn address(text: &[u8]) -> Address {
    let Some((&kind, rest)) = text.split_first() else { return Address::Short };
    let host_len = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => match rest.first() {
            Some(&len) => 1 + usize::from(len),
            None => return Address::Short,
        },
        _ => return Address::Bad,
    };
    let Some((host, rest)) = rest.split_at_checked(host_len) else { return Address::Short };
    let Some(&port) = rest.first_chunk() else { return Address::Short };
    let host = match kind {
        NAME => std::str::from_utf8(&host[1..]).ok().and_then(Host::parse),
        _ => ip(host).map(Host::Ip),
    };
    match host {
        Some(host) => {
            let port = u16::from_be_bytes(port);
            Address::Whole(Target { host, port }, 1 + host_len + 2)
        }
        None => Address::Bad,
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = || bytes.try_into().ok().map(|v4: [u8; 4]| Ipv4Addr::from(v4).into());
    let v6 = || bytes.try_into().ok().map(|v6: [u8; 16]| Ipv6Addr::from(v6).to_canonical());
    v4().or_else(v6)
}

fn put_address(text: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(v4) => {
            text.push(IPV4);
            text.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            text.push(IPV6);
            text.extend_from_slice(&v6.octets());
        }
    }
    text.extend_from_slice(&address.port().to_be_bytes());
}

#[cfg(test)]
mod tests;
