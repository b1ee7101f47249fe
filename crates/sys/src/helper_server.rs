//! The helper process: the other end of [`Helper`](crate::process::Helper).

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

use crate::{
    channel,
    errno::errno,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route, Rule},
    process::{
        RetainedCapabilities, Signals, harden,
        helper::{self, Command, Entry, Job, MAX_MESSAGE, Message},
        owns, release_code, retain_capabilities,
        sandbox::{AccessRules, confine_files, confine_helper},
        set_process_name,
    },
    udp::{BindError, bound_socket},
};

/// Serves the peer that is connected to standard input, until it closes the connection.
///
/// # Errors
/// Standard input is not a channel to a peer, or this process could not be confined.
pub fn serve_standard_input() -> io::Result<()> {
    let _signals = Signals::block()?;
    harden()?;
    set_process_name(helper::NAME)?;
    serve(io::stdin().as_fd())
}

/// Receives the job, confines this process, and executes commands.
fn serve(channel: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_MESSAGE];
    let (length, _) = channel::receive(channel, &mut buffer)?;
    let job = Job::parse(&buffer[..length]).ok_or_else(|| ErrorKind::InvalidData.into());
    let mut server = job.and_then(|job| Server::new(&job)).inspect_err(|error| {
        // This fails if the peer has exited, which does not matter.
        let _ = reply(channel, &Err(errno_of(error)));
    })?;
    reply(channel, &Ok(None))?;
    loop {
        // An error of the channel also ends it.
        let (length, fd) = channel::receive(channel, &mut buffer).unwrap_or_default();
        if length == 0 {
            return server.finish();
        }
        let result = match Message::parse(&buffer[..length]) {
            Some(message) => server.handle(message, fd),
            None => Err(Errno::EINVAL),
        };
        reply(channel, &result)?;
    }
}

fn reply(channel: BorrowedFd<'_>, result: &Result<Option<OwnedFd>, Errno>) -> io::Result<()> {
    let (errno, fd) = match result {
        Ok(fd) => (0, fd.as_ref()),
        Err(errno) => (*errno as i32, None),
    };
    channel::send(channel, &errno.to_le_bytes(), fd.map(AsFd::as_fd))
}

struct Server {
    sockets: bool,
    removes_on_exit: bool,
    /// The interface, until it is deleted or moved.
    index: Option<u32>,
    files: Vec<SocketFile>,
    routes: Vec<IpNet>,
    rules: Vec<Rule>,
    /// Whether all routes and rules have been received.
    is_complete: bool,
}

impl Server {
    fn new(job: &Job) -> io::Result<Self> {
        let files = job.files.iter().map(|path| SocketFile::find(path));
        let files = files.collect::<io::Result<_>>()?;
        // If it fails, the pages stay resident.
        let _ = release_code();
        if job.sandbox {
            confine(job)?;
        }
        Ok(Self {
            sockets: job.sockets,
            removes_on_exit: job.removes_on_exit,
            index: Some(job.index).filter(|&index| index != 0),
            files,
            routes: Vec::new(),
            rules: Vec::new(),
            is_complete: false,
        })
    }

    fn handle(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<Option<OwnedFd>, Errno> {
        match message {
            Message::Entries(_) | Message::End if self.is_complete => Err(Errno::EPERM),
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
                self.is_complete = true;
                Ok(None)
            }
            Message::Command(Command::Socket { port, fwmark }) if self.sockets => {
                bound_socket(port, fwmark).map(Some).map_err(|error| match error {
                    BindError::InUse => Errno::EADDRINUSE,
                    BindError::Permission => Errno::EACCES,
                    BindError::Os(error) => errno_of(&error),
                })
            }
            Message::Command(command) => self.execute(command, fd).map(|()| None),
        }
    }

    fn execute(&mut self, command: Command, fd: Option<OwnedFd>) -> Result<(), Errno> {
        match command {
            Command::Mark { fwmark } if self.sockets => mark(&fd.ok_or(Errno::EBADF)?, fwmark),
            Command::Remove => self.files.iter().try_for_each(SocketFile::remove),
            Command::Down => self.change_link(Netlink::set_down),
            Command::Delete => {
                let deleted = self.change_link(Netlink::delete_link);
                if let Ok(()) | Err(Errno::ENODEV) = deleted {
                    // The index may be reused for another link.
                    self.index = None;
                }
                deleted
            }
            Command::Route { position, add } => {
                let destination = registered(&self.routes, position)?;
                self.change_link(|netlink, device| {
                    let route = Route { destination, device, table: MAIN_TABLE, metric: None };
                    if add { netlink.add_route(&route) } else { netlink.delete_route(&route) }
                })
            }
            Command::Rule { position } => {
                let rule = registered(&self.rules, position)?;
                let others = &self.rules[position as usize + 1..];
                with_netlink(|netlink| netlink.add_rule_before(&rule, others))
            }
            Command::Socket { .. } | Command::Mark { .. } => Err(Errno::EPERM),
        }
    }

    /// Changes the interface. After the interface has left this network namespace, every change is
    /// refused, because its index may belong to another link.
    fn change_link(
        &mut self,
        change: impl FnOnce(&Netlink, u32) -> Result<(), NetlinkError>,
    ) -> Result<(), Errno> {
        let index = self.index.ok_or(Errno::EPERM)?;
        let changed = with_netlink(|netlink| match netlink.link(index)? {
            Some(link) if link.is_tun => change(netlink, index).map(Some),
            _ => Ok(None),
        })?;
        changed.ok_or_else(|| {
            self.index = None;
            Errno::ENODEV
        })
    }

    /// Cleans up after the peer.
    fn finish(&self) -> io::Result<()> {
        let files = self.files.iter().filter(|_| self.removes_on_exit);
        Ok(files.map(SocketFile::remove).fold(Ok(()), Result::and)?)
    }
}

fn with_netlink<T>(change: impl FnOnce(&Netlink) -> Result<T, NetlinkError>) -> Result<T, Errno> {
    let changed = Netlink::open().and_then(|netlink| change(&netlink));
    changed.map_err(|error| errno_of(&error.into()))
}

fn registered<T: Copy>(entries: &[T], position: u32) -> Result<T, Errno> {
    entries.get(position as usize).copied().ok_or(Errno::EPERM)
}

fn errno_of(error: &io::Error) -> Errno {
    errno(error).unwrap_or(Errno::EIO)
}

fn confine(job: &Job) -> io::Result<()> {
    let folders = job.files.iter().filter_map(|path| path.parent()).map(Path::to_owned);
    let remove: Vec<PathBuf> = folders.collect();
    let files = !remove.iter().all(|folder| owns(folder));
    let network = job.sockets || job.index != 0;
    retain_capabilities(RetainedCapabilities { network, files }).map_err(io::Error::other)?;
    confine_files(&AccessRules { remove, ..AccessRules::default() }).map_err(io::Error::other)?;
    confine_helper().map_err(io::Error::other)
}

/// A socket's file, with its identity at the start.
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

    /// Removes the file, unless it was replaced.
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

/// Marks a UDP socket. Other files are rejected.
fn mark(socket: &OwnedFd, fwmark: u32) -> Result<(), Errno> {
    let is_ip = [libc::AF_INET, libc::AF_INET6].contains(&getsockopt(socket, Domain)?);
    if !is_ip || getsockopt(socket, Protocol)? != libc::IPPROTO_UDP {
        return Err(Errno::EPERM);
    }
    setsockopt(socket, sockopt::Mark, &fwmark)
}

sockopt_impl!(
    /// A socket's address family.
    Domain,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_DOMAIN,
    libc::c_int
);
sockopt_impl!(
    /// A socket's protocol.
    Protocol,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_PROTOCOL,
    libc::c_int
);

#[cfg(test)]
mod tests;
