//! Drops privileges.

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

/// Capabilities of a running peer or its helper: to change the mark, the interface's
/// configuration, and the port to one below 1024.
const NETWORK: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];

/// Capabilities of the agent of a tailnet.
const AGENT: [Capability; 2] = [Capability::CAP_NET_RAW, Capability::CAP_NET_BIND_SERVICE];

/// The assumed number of open files if `/proc` is not mounted.
const ASSUMED_OPEN_FILES: usize = 64;

/// An error of dropping privileges. Some may be dropped already, so the process should exit.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// The user does not exist.
    #[error("no such user")]
    NoSuchUser,
    /// The user database or a system call failed.
    #[error("{call}: {error}")]
    Call {
        /// The name of the call.
        call: &'static str,
        error: io::Error,
    },
    /// The capabilities could not be set.
    #[error("capabilities: {0}")]
    Capabilities(#[from] CapsError),
}

/// Changes to `user`, with only the user's main group, and retains only the capabilities
/// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE`.
///
/// Capabilities belong to threads, so call this before any thread is started.
pub fn drop_privileges(user: &str) -> Result<(), PrivilegesError> {
    let user =
        User::from_name(user).map_err(failed("getpwnam"))?.ok_or(PrivilegesError::NoSuchUser)?;
    change_user(user.uid, user.gid, &NETWORK)
}

/// Changes to the user and group with this number, which may lack names. Retains only the
/// capabilities of a tailnet agent: `CAP_NET_RAW` to mark its sockets (socket(7), `SO_MARK`, since
/// Linux 5.17), and `CAP_NET_BIND_SERVICE` to answer DNS queries.
///
/// Capabilities belong to threads, so call this before any thread is started.
pub fn become_agent(number: u32) -> Result<(), PrivilegesError> {
    change_user(Uid::from_raw(number), Gid::from_raw(number), &AGENT)
}

/// Retains only a capability to mark sockets, if this process has it, and changes to the user and
/// group with this number, which may lack names. Without the capabilities for that, as in a
/// service that lacks `CAP_SETUID`, the user does not change. Returns whether it changed.
///
/// Capabilities belong to threads, so call this before any thread is started.
pub fn retain_mark_capability(number: Option<u32>) -> Result<bool, PrivilegesError> {
    // Only one of the two, as `CAP_NET_ADMIN` also permits changes of routes.
    let capability =
        if raw_is_enough_to_mark() { Capability::CAP_NET_RAW } else { Capability::CAP_NET_ADMIN };
    if let Some(number) = number
        && [Capability::CAP_SETUID, Capability::CAP_SETGID].into_iter().all(has)
    {
        change_user(Uid::from_raw(number), Gid::from_raw(number), &[capability])?;
        return Ok(true);
    }
    retain_only(&[capability].into())?;
    Ok(false)
}

fn has(capability: Capability) -> bool {
    caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false)
}

/// Whether `CAP_NET_RAW` is enough to mark a socket, as since Linux 5.17 (socket(7), `SO_MARK`).
/// This is tested by a thread with only that capability.
fn raw_is_enough_to_mark() -> bool {
    let mark = || -> Option<()> {
        retain_only(&[Capability::CAP_NET_RAW].into()).ok()?;
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
        mark_socket(socket.as_fd(), 1).ok()
    };
    std::thread::scope(|scope| scope.spawn(mark).join()).is_ok_and(|marked| marked.is_some())
}

/// Changes to the user and group with this number, which may lack names, and drops all
/// capabilities.
///
/// Capabilities belong to threads, so call this before any thread is started.
pub fn become_user(number: u32) -> Result<(), PrivilegesError> {
    change_user(Uid::from_raw(number), Gid::from_raw(number), &[])
}

fn change_user(uid: Uid, gid: Gid, retained: &[Capability]) -> Result<(), PrivilegesError> {
    prctl::set_keepcaps(true).map_err(failed("PR_SET_KEEPCAPS"))?;
    setgroups(&[]).map_err(failed("setgroups"))?;
    setresgid(gid, gid, gid).map_err(failed("setresgid"))?;
    setresuid(uid, uid, uid).map_err(failed("setresuid"))?;
    prctl::set_keepcaps(false).map_err(failed("PR_SET_KEEPCAPS"))?;
    retain_only(&retained.iter().copied().collect())?;
    // The change of the user has reset this too.
    harden().map_err(|error| PrivilegesError::Call { call: "PR_SET_DUMPABLE", error })
}

/// Capabilities that a thread retains, if it has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedCapabilities {
    /// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE`.
    pub network: bool,
    /// `CAP_DAC_OVERRIDE`: access to other users' files.
    pub files: bool,
}

/// Whether this thread has a capability of [`RetainedCapabilities::network`].
pub fn has_network_capabilities() -> bool {
    NETWORK
        .iter()
        .any(|&capability| caps::has_cap(None, CapSet::Permitted, capability).unwrap_or(false))
}

/// Drops all other capabilities of this thread, and of the threads that it starts from now on.
pub fn retain_capabilities(retained: RetainedCapabilities) -> Result<(), PrivilegesError> {
    let network = NETWORK.into_iter().filter(|_| retained.network);
    let files = [Capability::CAP_DAC_OVERRIDE].into_iter().filter(|_| retained.files);
    retain_only(&network.chain(files).collect())
}

/// Drops all capabilities of this thread except these.
fn retain_only(wanted: &HashSet<Capability>) -> Result<(), PrivilegesError> {
    // Root in a container may lack some.
    let kept = &caps::read(None, CapSet::Permitted)? & wanted;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    // Effective comes first, as it must be a subset of permitted. A change of the user clears it.
    caps::set(None, CapSet::Effective, &kept)?;
    Ok(caps::set(None, CapSet::Permitted, &kept)?)
}

/// The id of the process that was listening when this stream was connected; 0 if it is in another
/// pid namespace.
pub fn listener_pid(stream: &UnixStream) -> io::Result<u32> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
    Ok(credentials.pid().unsigned_abs())
}

/// The number of this process's user.
pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

/// The number of the user with this name; `None` if the user does not exist.
pub fn user_id(name: &str) -> Option<u32> {
    User::from_name(name).ok().flatten().map(|user| user.uid.as_raw())
}

/// This machine's name, without its domain.
pub fn hostname() -> String {
    let name = gethostname().unwrap_or_default().to_string_lossy().into_owned();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// Whether this process runs as root, though maybe without all capabilities.
pub fn is_root() -> bool {
    geteuid().is_root()
}

/// Changes the owner and group of a file or folder. Of a symbolic link, this changes the link
/// itself.
///
/// # Errors
/// This process may not change them.
pub fn change_owner(path: &Path, number: u32) -> io::Result<()> {
    lchown(path, Some(number), Some(number))
}

/// Marks packets sent by a socket.
///
/// # Errors
/// It requires `CAP_NET_ADMIN` or, since Linux 5.17, `CAP_NET_RAW`.
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

/// Forbids core dumps, and access to this process's memory by other processes of the same user, as
/// it contains private keys.
pub fn harden() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Sets the process's name in ps(1), truncated to 15 bytes.
///
/// # Errors
/// The name contains a zero byte.
pub fn set_process_name(name: &str) -> io::Result<()> {
    Ok(prctl::set_name(&CString::new(name)?)?)
}

/// Raises the limit of open files to this user's hard limit.
pub fn raise_file_limit() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// Limits the private writable memory of this process (`RLIMIT_DATA`), in bytes. Allocations
/// beyond the limit fail, which ends a Rust program. A lower limit is not raised.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_DATA)?;
    Ok(setrlimit(Resource::RLIMIT_DATA, bytes.min(soft), bytes.min(hard))?)
}

/// The files of this process.
#[derive(Clone, Copy, Debug)]
pub struct OpenFiles {
    /// The maximum number of open files.
    pub limit: usize,
    /// The number of open files.
    pub open: usize,
}

/// The limit and the number of open files.
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
    fn owner_of_a_link_is_changed_and_not_of_its_target() {
        let link = std::env::temp_dir().join(format!("linerate-link-{}", std::process::id()));
        std::os::unix::fs::symlink("/nothing/is/here", &link).unwrap();
        let changed = change_owner(&link, effective_user());
        fs::remove_file(&link).unwrap();
        // It does not fail because the target is missing. The user's group may have another
        // number.
        let is_forbidden = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        assert!(changed.map_or_else(is_forbidden, |()| true));
    }
}
