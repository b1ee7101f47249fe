//! Messages to a helper. An attacker may control the peer that sends them. Therefore each message
//! has exactly one encoding, and all other bytes are rejected.

use std::{
    ffi::OsStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use ipnet::IpNet;

use crate::netlink::{Family, FwMark, Rule};

/// The maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = MAX_ENTRIES * ENTRY_LEN;
/// The maximum number of entries in a message.
pub const MAX_ENTRIES: usize = 512;
const ENTRY_LEN: usize = 28;
const COMMAND_LEN: usize = 8;
/// The maximum number of socket files: those of wg(8) and of the metrics, and two spare ones.
const FILES: usize = 4;

const V4: u8 = 4;
const V6: u8 = 6;

/// The permitted actions of a helper. This is the first message, sent before the peer reads from
/// the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Job {
    /// The interface's index; 0 if the helper must not change interfaces.
    pub index: u32,
    /// Whether it creates and marks UDP sockets.
    pub sockets: bool,
    /// Whether it removes the socket files when the peer exits without requesting it.
    pub removes_on_exit: bool,
    /// Whether the helper runs in a sandbox.
    pub sandbox: bool,
    /// The socket files to remove.
    pub files: Vec<PathBuf>,
}

impl Job {
    /// # Errors
    /// The job has too many files, or a path is relative or contains a zero byte.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let flags = [self.sockets, self.removes_on_exit, self.sandbox];
        let mut message = self.index.to_le_bytes().to_vec();
        message.extend(flags.map(u8::from));
        for path in &self.files {
            message.extend_from_slice(path.as_os_str().as_bytes());
            message.push(0);
        }
        match Self::parse(&message) {
            Some(parsed) if parsed == *self => Ok(message),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub fn parse(message: &[u8]) -> Option<Self> {
        let (index, rest) = message.split_first_chunk()?;
        let ([sockets, removes_on_exit, sandbox], paths) = rest.split_first_chunk()?;
        let flag = |byte: &u8| [false, true].get(usize::from(*byte)).copied();
        let mut files = Vec::new();
        for path in paths.split_inclusive(|&byte| byte == 0) {
            let path = PathBuf::from(OsStr::from_bytes(path.strip_suffix(&[0])?));
            files.push(Some(path).filter(|path| path.is_absolute())?);
        }
        (message.len() <= MAX_MESSAGE && files.len() <= FILES).then_some(Self {
            index: u32::from_le_bytes(*index),
            sockets: flag(sockets)?,
            removes_on_exit: flag(removes_on_exit)?,
            sandbox: flag(sandbox)?,
            files,
        })
    }
}

/// A message after the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Routes and rules that commands may change.
    Entries(Vec<Entry>),
    /// The end of the entries.
    End,
    Command(Command),
}

impl Message {
    /// The encoding of [`Message::End`].
    pub const END: [u8; 1] = [0];

    pub fn parse(message: &[u8]) -> Option<Self> {
        if message == Self::END {
            return Some(Self::End);
        }
        if message.len() == COMMAND_LEN {
            return Command::parse(message).map(Self::Command);
        }
        let (entries, rest) = message.as_chunks();
        let is_list = rest.is_empty() && (1..=MAX_ENTRIES).contains(&entries.len());
        let read = || entries.iter().map(Entry::parse).collect::<Option<_>>();
        is_list.then(read).flatten().map(Self::Entries)
    }
}

/// A privileged operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Creates a UDP socket bound to all addresses, and sends it back.
    Socket {
        /// Its port; 0 lets the kernel choose.
        port: u16,
        /// Its mark; 0 for none.
        fwmark: u32,
    },
    /// Sets the mark of the attached UDP socket.
    Mark { fwmark: u32 },
    /// Takes the interface down.
    Down,
    /// Deletes the interface.
    Delete,
    /// Adds or deletes a route of the main table to the interface.
    Route {
        /// Its position among the registered routes.
        position: u32,
        /// Whether to add it; otherwise it is deleted.
        add: bool,
    },
    /// Adds a policy rule.
    Rule {
        /// Its position among the registered rules.
        position: u32,
    },
    /// Removes the job's socket files.
    Remove,
}

impl Command {
    pub fn encode(self) -> [u8; COMMAND_LEN] {
        let (kind, flag, port, number) = match self {
            Self::Socket { port, fwmark } => (1, false, port, fwmark),
            Self::Mark { fwmark } => (2, false, 0, fwmark),
            Self::Down => (3, false, 0, 0),
            Self::Delete => (4, false, 0, 0),
            Self::Route { position, add } => (5, add, 0, position),
            Self::Rule { position } => (6, false, 0, position),
            Self::Remove => (7, false, 0, 0),
        };
        let ([low, high], [a, b, c, d]) = (port.to_le_bytes(), number.to_le_bytes());
        [kind, flag.into(), low, high, a, b, c, d]
    }

    fn parse(message: &[u8]) -> Option<Self> {
        let &[kind, flag, low, high, a, b, c, d] = message else { return None };
        let (port, number) = (u16::from_le_bytes([low, high]), u32::from_le_bytes([a, b, c, d]));
        let command = match kind {
            1 => Self::Socket { port, fwmark: number },
            2 => Self::Mark { fwmark: number },
            3 => Self::Down,
            4 => Self::Delete,
            5 => Self::Route { position: number, add: flag != 0 },
            6 => Self::Rule { position: number },
            7 => Self::Remove,
            _ => return None,
        };
        // Unused fields must be zero.
        (command.encode() == message).then_some(command)
    }
}

/// A route or a rule that commands may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A route to the interface in the main table.
    Route(IpNet),
    /// A policy rule.
    Rule(Rule),
}

impl Entry {
    pub fn encode_all(entries: &[Self]) -> Vec<u8> {
        entries.iter().flat_map(Self::encode).collect()
    }

    fn encode(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        match self {
            Self::Route(net) => {
                let (family, address) = match net.addr() {
                    IpAddr::V4(v4) => (V4, v4.to_ipv6_compatible()),
                    IpAddr::V6(v6) => (V6, v6),
                };
                bytes[..3].copy_from_slice(&[1, family, net.prefix_len()]);
                bytes[4..20].copy_from_slice(&address.octets());
            }
            Self::Rule(rule) => {
                let family = if rule.family == Family::V4 { V4 } else { V6 };
                let (mark, optional) = (rule.fwmark, [rule.priority, rule.suppress_prefix_length]);
                let flags = u8::from(mark.is_some())
                    | u8::from(rule.invert) << 1
                    | u8::from(optional[0].is_some()) << 2
                    | u8::from(optional[1].is_some()) << 3;
                bytes[..3].copy_from_slice(&[2, family, flags]);
                let mark = mark.unwrap_or(FwMark { value: 0, mask: 0 });
                let [priority, suppress] = optional.map(Option::unwrap_or_default);
                let numbers = [mark.value, mark.mask, rule.table, priority, suppress];
                let numbers = numbers.map(u32::to_le_bytes);
                bytes[4..24].copy_from_slice(numbers.as_flattened());
            }
        }
        bytes
    }

    fn parse(bytes: &[u8; ENTRY_LEN]) -> Option<Self> {
        let [kind, family, what, ..] = *bytes;
        let (v6, _) = bytes[4..].split_first_chunk::<16>()?;
        let v6 = Ipv6Addr::from(*v6);
        let entry = match (kind, family) {
            (1, V4) => {
                let [.., a, b, c, d] = v6.octets();
                Self::Route(IpNet::new(Ipv4Addr::new(a, b, c, d).into(), what).ok()?)
            }
            (1, V6) => Self::Route(IpNet::new(v6.into(), what).ok()?),
            (2, V4 | V6) => {
                let (numbers, _) = bytes[4..].as_chunks();
                let number = |at: usize| u32::from_le_bytes(numbers[at]);
                let has = |bit: u8| what & (1 << bit) != 0;
                Self::Rule(Rule {
                    family: if family == V4 { Family::V4 } else { Family::V6 },
                    fwmark: has(0).then(|| FwMark { value: number(0), mask: number(1) }),
                    invert: has(1),
                    table: number(2),
                    priority: has(2).then(|| number(3)),
                    suppress_prefix_length: has(3).then(|| number(4)),
                })
            }
            _ => return None,
        };
        (entry.encode() == *bytes).then_some(entry)
    }
}
