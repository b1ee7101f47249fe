//! The helper itself.

use std::{
    ffi::OsString,
    io::{self, ErrorKind},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use ipnet::IpNet;
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, open},
    getsockopt_impl, sockopt_impl,
    sys::{
        socket::{getsockopt, setsockopt, sockopt},
        stat::{FileStat, Mode, SFlag, fstatat},
    },
    unistd::{UnlinkatFlags, unlinkat},
};

use super::wire::{Charge, Entry, MAX, Message, Verb};
use crate::{
    line,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route, Rule},
    process::{
        Rights, Signals, harden, keep_rights, owns, release_code, rename,
        sandbox::{Reach, confine_files, confine_helper},
    },
    udp::{BindError, bound_socket},
};

/// Does what the line on standard input says, until it is cut.
///
/// # Errors
/// It is no line to a peer, or this process could not be confined.
pub fn serve_standard_input() -> io::Result<()> {
    let _signals = Signals::block()?;
    harden()?;
    rename(super::NAME)?;
    serve(io::stdin().as_fd())
}

/// Hears its charge, confines itself, and does what it is asked for.
pub(super) fn serve(line: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = vec![0; MAX];
    let (length, _) = line::receive(line, &mut room)?;
    let begun = Charge::parse(&room[..length]).ok_or_else(|| ErrorKind::InvalidData.into());
    let mut duty = begun.and_then(|charge| Duty::begin(&charge)).inspect_err(|error| {
        // Where nobody hears it, nobody waits for it.
        let _ = answer(line, &Err(errno_of(error)));
    })?;
    answer(line, &Ok(None))?;
    loop {
        // Also where what was said cannot be read.
        let (length, with) = line::receive(line, &mut room).unwrap_or_default();
        if length == 0 {
            return duty.end();
        }
        let done = match Message::parse(&room[..length]) {
            Some(message) => duty.handle(message, with),
            None => Err(Errno::EINVAL),
        };
        answer(line, &done)?;
    }
}

fn answer(line: BorrowedFd<'_>, done: &Result<Option<OwnedFd>, Errno>) -> io::Result<()> {
    let (errno, fd) = match done {
        Ok(fd) => (0, fd.as_ref()),
        Err(errno) => (*errno as i32, None),
    };
    line::send(line, &errno.to_le_bytes(), fd.map(AsFd::as_fd))
}

/// What it does, for whom.
struct Duty {
    sockets: bool,
    removes_at_end: bool,
    /// The interface, until it is deleted.
    index: Option<u32>,
    files: Vec<SocketFile>,
    routes: Vec<IpNet>,
    rules: Vec<Rule>,
    /// Whether all routes and rules were told.
    told: bool,
}

impl Duty {
    fn begin(charge: &Charge) -> io::Result<Self> {
        let files = charge.files.iter().map(|path| SocketFile::find(path));
        let files = files.collect::<io::Result<_>>()?;
        // What cannot be let go of stays resident.
        let _ = release_code();
        if charge.sandbox {
            confine(charge)?;
        }
        Ok(Self {
            sockets: charge.sockets,
            removes_at_end: charge.removes_at_end,
            index: Some(charge.index).filter(|&index| index != 0),
            files,
            routes: Vec::new(),
            rules: Vec::new(),
            told: false,
        })
    }

    fn handle(
        &mut self,
        message: Message,
        with: Option<OwnedFd>,
    ) -> Result<Option<OwnedFd>, Errno> {
        match message {
            Message::Entries(_) | Message::End if self.told => Err(Errno::EPERM),
            Message::Entries(entries) => {
                for entry in entries {
                    match entry {
                        Entry::Route(net) => self.routes.push(net),
                        Entry::Rule(rule) => self.rules.push(rule),
                    }
                }
                Ok(None)
            }
            Message::End => {
                self.told = true;
                Ok(None)
            }
            Message::Verb(Verb::Socket { port, fwmark }) if self.sockets => {
                bound_socket(port, fwmark).map(Some).map_err(|error| match error {
                    BindError::InUse => Errno::EADDRINUSE,
                    BindError::Permission => Errno::EACCES,
                    BindError::Os(error) => errno_of(&error),
                })
            }
            Message::Verb(verb) => self.carry_out(verb, with).map(|()| None),
        }
    }

    fn carry_out(&mut self, verb: Verb, with: Option<OwnedFd>) -> Result<(), Errno> {
        match verb {
            Verb::Mark { fwmark } if self.sockets => mark(&with.ok_or(Errno::EBADF)?, fwmark),
            Verb::Remove => self.files.iter().try_for_each(SocketFile::remove),
            Verb::Down => self.by_index(Netlink::set_down),
            Verb::Delete => {
                let deleted = self.by_index(Netlink::delete_link);
                if let Ok(()) | Err(Errno::ENODEV) = deleted {
                    // Whoever has its number next is another.
                    self.index = None;
                }
                deleted
            }
            Verb::Route { place, there } => {
                let destination = of(&self.routes, place)?;
                self.by_index(|netlink, device| {
                    let route = Route { destination, device, table: MAIN_TABLE, metric: None };
                    if there { netlink.add_route(&route) } else { netlink.delete_route(&route) }
                })
            }
            Verb::Rule { place } => {
                let rule = of(&self.rules, place)?;
                by_netlink(|netlink| netlink.add_rule(&rule))
            }
            Verb::Socket { .. } | Verb::Mark { .. } => Err(Errno::EPERM),
        }
    }

    /// Changes the interface. Where it was moved to another network namespace, or is gone, another
    /// link may have its index: it is not touched, and neither is any later one.
    fn by_index(
        &mut self,
        change: impl FnOnce(&Netlink, u32) -> Result<(), NetlinkError>,
    ) -> Result<(), Errno> {
        let index = self.index.ok_or(Errno::EPERM)?;
        let mut is_there = true;
        let changed = by_netlink(|netlink| {
            is_there = netlink.link(index)?.is_some_and(|link| link.is_tun);
            if is_there { change(netlink, index) } else { Ok(()) }
        });
        if !is_there {
            self.index = None;
            return Err(Errno::ENODEV);
        }
        changed
    }

    /// The peer is gone.
    fn end(&self) -> io::Result<()> {
        let files = self.files.iter().filter(|_| self.removes_at_end);
        Ok(files.map(SocketFile::remove).fold(Ok(()), Result::and)?)
    }
}

fn by_netlink(change: impl FnOnce(&Netlink) -> Result<(), NetlinkError>) -> Result<(), Errno> {
    let changed = Netlink::open().and_then(|netlink| change(&netlink));
    changed.map_err(|error| errno_of(&error.into()))
}

fn of<T: Copy>(told: &[T], place: u32) -> Result<T, Errno> {
    told.get(place as usize).copied().ok_or(Errno::EPERM)
}

fn errno_of(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn confine(charge: &Charge) -> io::Result<()> {
    let folders = charge.files.iter().filter_map(|path| path.parent()).map(Path::to_owned);
    let remove: Vec<PathBuf> = folders.collect();
    let files = !remove.iter().all(|folder| owns(folder));
    let network = charge.sockets || charge.index != 0;
    keep_rights(Rights { network, files }).map_err(io::Error::other)?;
    confine_files(&Reach { remove, ..Reach::default() }).map_err(io::Error::other)?;
    confine_helper().map_err(io::Error::other)
}

/// The file of a socket, as it was at the start.
struct SocketFile {
    folder: OwnedFd,
    name: OsString,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn find(path: &Path) -> io::Result<Self> {
        let (folder, name) = (path.parent(), path.file_name());
        let (folder, name) = folder.zip(name).ok_or(ErrorKind::InvalidInput)?;
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = open(folder, flags, Mode::empty())?;
        let mut this = Self { folder, name: name.to_owned(), device: 0, inode: 0 };
        let status = this.status()?;
        if SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT != SFlag::S_IFSOCK {
            return Err(Errno::ENOTSOCK.into());
        }
        (this.device, this.inode) = (status.st_dev, status.st_ino);
        Ok(this)
    }

    fn status(&self) -> Result<FileStat, Errno> {
        fstatat(&self.folder, &*self.name, AtFlags::AT_SYMLINK_NOFOLLOW)
    }

    /// Removes it where it is the one that it was. What somebody else put in its place is left.
    fn remove(&self) -> Result<(), Errno> {
        match self.status() {
            Ok(status) if (status.st_dev, status.st_ino) == (self.device, self.inode) => {
                unlinkat(&self.folder, &*self.name, UnlinkatFlags::NoRemoveDir)
            }
            Ok(_) | Err(Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}

/// Marks a socket that is one for UDP, and no other.
fn mark(socket: &OwnedFd, fwmark: u32) -> Result<(), Errno> {
    let is_ip = [libc::AF_INET, libc::AF_INET6].contains(&getsockopt(socket, Domain)?);
    if !is_ip || getsockopt(socket, Protocol)? != libc::IPPROTO_UDP {
        return Err(Errno::EPERM);
    }
    setsockopt(socket, sockopt::Mark, &fwmark)
}

sockopt_impl!(
    /// The family of a socket.
    Domain,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_DOMAIN,
    libc::c_int
);
sockopt_impl!(
    /// Its protocol.
    Protocol,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_PROTOCOL,
    libc::c_int
);
