//! Rights: as few as will do.

use std::{
    collections::HashSet,
    ffi::CString,
    fs, io,
    os::unix::{fs::MetadataExt as _, net::UnixStream},
    path::Path,
};

use caps::{CapSet, Capability, errors::CapsError};
use nix::{
    errno::Errno,
    sys::{
        prctl,
        resource::{Resource, getrlimit, setrlimit},
        socket::{getsockopt, sockopt},
    },
    unistd::{AccessFlags, User, access, geteuid, setgroups, setresgid, setresuid},
};

/// What a running peer still needs, or its helper for it: to change its mark and the interface's
/// configuration, and to move to a port below 1024.
const KEPT: [Capability; 2] = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];

/// Open files where `/proc` does not tell of them.
const FILES_AT_LEAST: usize = 64;

/// Why the process has its rights still, or only some of them: it should end.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegesError {
    /// There is no user of that name.
    #[error("no such user")]
    NoSuchUser,
    /// The user database, or a call that gives rights up, failed.
    #[error("{call}: {error}")]
    Call {
        /// The call.
        call: &'static str,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The capabilities could not be set.
    #[error("capabilities: {0}")]
    Capabilities(#[from] CapsError),
}

/// Becomes `user`, with the user's group alone, and keeps of root's rights only
/// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE`.
///
/// Capabilities are each thread's own: call it before any thread is started.
///
/// # Errors
/// See [`PrivilegesError`].
pub fn drop_privileges(user: &str) -> Result<(), PrivilegesError> {
    let user =
        User::from_name(user).map_err(failed("getpwnam"))?.ok_or(PrivilegesError::NoSuchUser)?;
    prctl::set_keepcaps(true).map_err(failed("PR_SET_KEEPCAPS"))?;
    setgroups(&[]).map_err(failed("setgroups"))?;
    setresgid(user.gid, user.gid, user.gid).map_err(failed("setresgid"))?;
    setresuid(user.uid, user.uid, user.uid).map_err(failed("setresuid"))?;
    prctl::set_keepcaps(false).map_err(failed("PR_SET_KEEPCAPS"))?;
    let kept = HashSet::from(KEPT);
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    // Effective first: it may hold nothing that is not permitted. The change of
    // the user has emptied it.
    caps::set(None, CapSet::Effective, &kept)?;
    caps::set(None, CapSet::Permitted, &kept)?;
    // The change of the user has also set it to the system's default.
    harden().map_err(|error| PrivilegesError::Call { call: "PR_SET_DUMPABLE", error })
}

/// Of what root may, what a thread keeps where it has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// `CAP_NET_ADMIN` and `CAP_NET_BIND_SERVICE`.
    pub network: bool,
    /// `CAP_DAC_OVERRIDE`: files of other users.
    pub files: bool,
}

/// Whether this thread has rights to the network that [`Rights::network`] stands for.
pub fn administers_network() -> bool {
    KEPT.iter().any(|&right| caps::has_cap(None, CapSet::Permitted, right).unwrap_or(false))
}

/// Gives up all that this thread may beyond `rights`, for good. Threads that it starts from now
/// on may no more.
///
/// # Errors
/// The kernel's answer.
pub fn keep_rights(rights: Rights) -> Result<(), PrivilegesError> {
    let network = KEPT.into_iter().filter(|_| rights.network);
    let files = [Capability::CAP_DAC_OVERRIDE].into_iter().filter(|_| rights.files);
    let wanted: HashSet<_> = network.chain(files).collect();
    let kept = &caps::read(None, CapSet::Permitted)? & &wanted;
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &kept)?;
    Ok(caps::set(None, CapSet::Permitted, &kept)?)
}

/// The process that listened at the other end when this was connected; 0 where it is in a pid
/// namespace of its own.
///
/// # Errors
/// The kernel's refusal.
pub fn listener(stream: &UnixStream) -> io::Result<u32> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials)?;
    Ok(credentials.pid().unsigned_abs())
}

/// Whether a file or folder is this user's.
pub fn owns(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.uid() == geteuid().as_raw())
}

/// Whether this user may make files and folders in a folder.
pub fn may_make_in(folder: &Path) -> bool {
    access(folder, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Forbids core dumps and other processes of the same user to look into this
/// one: its memory holds private keys.
///
/// # Errors
/// The kernel's answer.
pub fn harden() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Changes what ps(1) and the like call this process; of a name they know 15 bytes.
///
/// # Errors
/// There is a zero in it.
pub fn rename(name: &str) -> io::Result<()> {
    Ok(prctl::set_name(&CString::new(name)?)?)
}

/// Raises the limit of open files as far as this user may.
///
/// # Errors
/// The kernel's answer.
pub fn raise_file_limit() -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    Ok(setrlimit(Resource::RLIMIT_NOFILE, most, most)?)
}

/// How many files this process may have open, and how many are.
///
/// # Errors
/// The kernel's answer.
pub fn file_limit() -> io::Result<(usize, usize)> {
    let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let open = fs::read_dir("/proc/self/fd").map_or(FILES_AT_LEAST, Iterator::count);
    Ok((usize::try_from(limit).unwrap_or(usize::MAX), open))
}

fn failed(call: &'static str) -> impl Fn(Errno) -> PrivilegesError {
    move |errno| PrivilegesError::Call { call, error: errno.into() }
}
