//! Privileges: as few as possible.

use std::{
    collections::HashSet,
    ffi::CString,
    fs, io,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::{
            fs::{MetadataExt as _, lchown},
            net::UnixStream,
        },
    },
    path::Path,
};

use caps::{CapSet, Capability, errors::CapsError};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        socket::{getsockopt, setsockopt, sockopt},
    },
    unistd::{
        AccessFlags, Gid, Uid, User, access, geteuid, gethostname, setgroups, setresgid, setresuid,
    },
};

/// What a running peer or its helper still needs: to change its mark, its interface's
/// configuration, and to a port below 1024.
const KEPT: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];

/// What the agent of a tailnet needs.
const AGENTS: [Capability; 2] = [Capability::CAP_NET_RAW, Capability::CAP_NET_BIND_SERVICE];

/// The assumed number of open files if `/proc` is not mounted.
const ASSUMED_OPEN_FILES: usize = 64;

/// Why privileges could not be dropped. Some may be gone already, so the process should exit.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// There is no user of that name.
    #[error("no such user")]
    NoSuchUser,
    /// The user database or a system call failed.
    #[error("{call}: {error}")]
    Call {
        /// Which call.
        call: &'static str,
        error: io::Error,
    },
    /// The capabilities could not be set.
    #[error("capabilities: {0}")]
    Capabilities(#[from] CapsError),
}

/// Becomes `user`, with only the user's own group, and keeps only the capabilities `CAP_NET_ADMIN`
/// and `CAP_NET_BIND_SERVICE`.
///
/// Each thread has its own capabilities: call this before any thread is started.
pub fn drop_privileges(user: &str) -> Result<(), PrivilegesError> {
    let user =
        User::from_name(user).map_err(failed("getpwnam"))?.ok_or(PrivilegesError::NoSuchUser)?;
    change_user(user.uid, user.gid, &KEPT)
}

/// Becomes the user and group of this number, which need no name, and keeps only what the agent of
/// a tailnet needs: `CAP_NET_RAW`, to mark its sockets (socket(7), `SO_MARK`, since Linux 5.17), and
/// `CAP_NET_BIND_SERVICE`, to answer questions about names.
///
/// Each thread has its own capabilities: call this before any thread is started.
pub fn become_agent(number: u32) -> Result<(), PrivilegesError> {
    change_user(Uid::from_raw(number), Gid::from_raw(number), &AGENTS)
}

/// Keeps only the right to mark sockets, if this process has it, and becomes the user and group of
/// this number, which need no name. Without the rights to do so, as in a service that lacks
/// `CAP_SETUID`, it stays the user that it is. Returns whether it is that user now.
///
/// Each thread has its own capabilities: call this before any thread is started.
pub fn retain_mark_capability(number: Option<u32>) -> Result<bool, PrivilegesError> {
    // Not both: `CAP_NET_ADMIN` also changes routes.
    let right = if raw_marks() { Capability::CAP_NET_RAW } else { Capability::CAP_NET_ADMIN };
    if let Some(number) = number
        && [Capability::CAP_SETUID, Capability::CAP_SETGID].into_iter().all(has)
    {
        change_user(Uid::from_raw(number), Gid::from_raw(number), &[right])?;
        return Ok(true);
    }
    keep(&[right].into())?;
    Ok(false)
}

fn has(right: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, right).unwrap_or(false)
}

/// Whether `CAP_NET_RAW` is enough to mark a socket, as since Linux 5.17 (socket(7), `SO_MARK`). Tried
/// by a thread that has no other right.
fn raw_marks() -> bool {
    let mark = || -> Option<()> {
        keep(&[Capability::CAP_NET_RAW].into()).ok()?;
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
        mark_socket(socket.as_fd(), 1).ok()
    };
    std::thread::scope(|scope| scope.spawn(mark).join()).is_ok_and(|marked| marked.is_some())
}

/// Becomes the user and group of this number, which need no name, and keeps no right at all.
///
/// Each thread has its own capabilities: call this before any thread is started.
pub fn become_user(number: u32) -> Result<(), PrivilegesError> {
    change_user(Uid::from_raw(number), Gid::from_raw(number), &[])
}

fn change_user(uid: Uid, gid: Gid, kept: &[Capability]) -> Result<(), PrivilegesError> {
    prctl::set_keepcaps(true).map_err(failed("PR_SET_KEEPCAPS"))?;
    setgroups(&[]).map_err(failed("setgroups"))?;
    setresgid(gid, gid, gid).map_err(failed("setresgid"))?;
    setresuid(uid, uid, uid).map_err(failed("setresuid"))?;
    prctl::set_keepcaps(false).map_err(failed("PR_SET_KEEPCAPS"))?;
    keep(&kept.iter().copied().collect())?;
    // The change of user has reset it as well.
    harden().map_err(|error| PrivilegesError::Call { call: "PR_SET_DUMPABLE", error })
}

/// Capabilities that a thread keeps, if it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedCapabilities {
    /// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE`.
    pub network: bool,
    /// `CAP_DAC_OVERRIDE`: access to other users' files.
    pub files: bool,
}

/// Whether this thread has a capability of [`RetainedCapabilities::network`].
pub fn has_network_capabilities() -> bool {
    KEPT.iter().any(|&right| caps::has_cap(None, CapSet::Permitted, right).unwrap_or(false))
}

/// Drops all other capabilities of this thread, and of the threads that it starts from now on.
pub fn retain_capabilities(rights: RetainedCapabilities) -> Result<(), PrivilegesError> {
    let network = KEPT.into_iter().filter(|_| rights.network);
    let files = [Capability::CAP_DAC_OVERRIDE].into_iter().filter(|_| rights.files);
    keep(&network.chain(files).collect())
}

/// Drops all capabilities of this thread but these.
fn keep(wanted: &HashSet<Capability>) -> Result<(), PrivilegesError> {
    // Root in a container may lack some.
    let kept = &caps::read(None, CapSet::Permitted)? & wanted;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    // Effective first: it must be within permitted. A change of user has emptied it.
    caps::set(None, CapSet::Effective, &kept)?;
    Ok(caps::set(None, CapSet::Permitted, &kept)?)
}

/// The id of the process that was listening when this was connected; 0 if it is in another pid
/// namespace.
pub fn listener_pid(stream: &UnixStream) -> io::Result<u32> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
    Ok(credentials.pid().unsigned_abs())
}

/// The number of this process's user.
pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

/// The number of a user with this name, if there is one.
pub fn user_id(name: &str) -> Option<u32> {
    User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
}

/// This machine's name, without its domain.
pub fn hostname() -> String {
    let name = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Whether this process is root, though maybe without all rights.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Gives a file or folder to the user and group of this number; of a symbolic link, not what it
/// leads to.
///
/// # Errors
/// This process may not.
pub fn change_owner(path: &Path, number: u32) -> io::Result<()> {
    lchown(path, Some(number), Some(number))
}

/// Marks what a socket sends.
///
/// # Errors
/// It takes `CAP_NET_ADMIN` or, since Linux 5.17, `CAP_NET_RAW`.
pub fn mark_socket(socket: BorrowedFd<'_>, mark: u32) -> io::Result<()> {
    Ok(setsockopt(&socket, sockopt::Mark, &mark)?)
}

/// Whether this user owns a file or folder.
pub fn owns(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.uid() == geteuid().as_raw())
}

/// Whether this user may create files in a folder.
pub fn can_create_in(folder: &Path) -> bool {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Forbids core dumps, and access by other processes of the same user: the memory holds private
/// keys.
pub fn harden() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Sets the process's name in ps(1), cut to 15 bytes.
///
/// # Errors
/// The name has a zero byte.
pub fn set_process_name(name: &str) -> io::Result<()> {
    Ok(prctl::set_name(&CString::new(name)?)?)
}

/// Raises the limit of open files to this user's hard limit.
pub fn raise_file_limit() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Limits the private writable memory of this process (`RLIMIT_DATA`), in bytes: an allocation beyond it
/// fails, which ends a program in Rust. A limit that is lower already stays.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_DATA)?;
    Ok(setrlimit(Resource::RLIMIT_DATA, bytes.min(soft), bytes.min(hard))?)
}

/// The files of this process.
#[derive(Clone, Copy, Debug)]
pub struct OpenFiles {
    /// How many may be open.
    pub limit: usize,
    /// How many are open.
    pub open: usize,
}

/// The limit of open files, and how many are open.
pub fn open_files() -> io::Result<OpenFiles> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let open = fs::read_dir("/proc/self/fd").map_or(ASSUMED_OPEN_FILES, Iterator::count);
    Ok(OpenFiles { limit: usize::try_from(limit).unwrap_or(usize::MAX), open })
}

fn failed(call: &'static str) -> impl Fn(Errno) -> PrivilegesError {
    move |errno| PrivilegesError::Call { call, error: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_given_and_not_what_it_leads_to() {
        let link = std::env::temp_dir().join(format!("linerate-link-{}", std::process::id()));
        std::os::unix::fs::symlink("/nothing/is/here", &link).unwrap();
        let given = change_owner(&link, effective_user());
        fs::remove_file(&link).unwrap();
        // Not: there is no such file. The user's group may have another number.
        let is_given = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        assert!(given.map_or_else(is_given, |()| true));
    }
}
