//! What a running peer may still ask of the kernel: the files, the ports and the calls that its
//! work takes, and nothing else, whatever code comes to run in it.
//!
//! ```text
//!   open all that takes rights -> confine_files -> threads, configuration -> confine_calls
//!                                 (landlock)                                 (seccomp)
//! ```
//!
//! Landlock holds for a thread and those it starts, so that it comes before the threads that
//! are to have it; the filter of calls holds for all threads, and comes when the start is over.
//! Both are for the life of the process and of its children.

mod calls;

use std::{collections::BTreeMap, io, path::PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

use calls::{
    ALLOWED, ALLOWED_HERE, CONTROLS, HANDED_OUT, HELPER, HELPER_HERE, HELPER_OPTIONS, MAKER,
    NETLINK, NOT_CODE, NOTES, OPTIONS, OWN_PROTOCOL, REQUESTS, SPLICES, STREAM_OPTIONS, TCP,
    THREAD, UDP, UDP_OPTIONS, UNIX, UNKNOWN, UNLINKS,
};

/// The landlock that files are confined by where the kernel has it (Linux 6.12); an older one
/// does what it knows of it: TCP from 6.7, devices from 6.10, abstract names from 6.12.
const LANDLOCK: ABI = ABI::V6;
/// The bits of a socket's type that are the type; the others are flags.
const SOCK_TYPE_MASK: u64 = 0xf;

/// Why the process is not confined although the kernel could: it should end.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Landlock's answer.
    #[error("landlock: {0}")]
    Landlock(#[from] RulesetError),
    /// The filter could not be made.
    #[error("seccomp: {0}")]
    Filter(#[from] BackendError),
    /// The filter was not taken.
    #[error("seccomp: {0}")]
    Seccomp(seccompiler::Error),
}

/// How much of it this kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confined {
    /// All that was asked for.
    Wholly,
    /// What it knows; it is older.
    Partly,
    /// Nothing: it does not know this.
    Not,
}

/// Files that stay in reach: themselves, or with all that is below. Those that are not there
/// are left out. And ports.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// To read.
    pub read: Vec<PathBuf>,
    /// To write to, where they are.
    pub write: Vec<PathBuf>,
    /// Folders in which files are removed.
    pub remove: Vec<PathBuf>,
    /// Where TCP connects to. It is bound to no port.
    pub connect: Ports,
}

/// Ports of TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// These.
    Only(Vec<u16>),
    /// Any.
    Any,
}

/// None.
impl Default for Ports {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

/// What a process does beside being a peer, and takes calls of its own for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// It makes UDP sockets.
    pub udp: bool,
    /// It serves streams of TCP.
    pub streams: bool,
    /// It removes the files of its sockets.
    pub unlinks: bool,
    /// It connects by TCP.
    pub tcp: bool,
    /// It connects to Unix sockets.
    pub unix: bool,
    /// It carries bytes by splice(2).
    pub splice: bool,
}

/// Leaves only these files and ports to this thread and to the threads and processes that it starts from
/// now on. What is open stays open.
///
/// # Errors
/// The kernel knows landlock, and refused.
pub fn confine_files(reach: &Reach) -> Result<Confined, SandboxError> {
    let remove = AccessFs::RemoveFile.into();
    let mut net: BitFlags<_> = AccessNet::BindTcp.into();
    let mut ports = &[][..];
    if let Ports::Only(only) = &reach.connect {
        net |= AccessNet::ConnectTcp;
        ports = only;
    }
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(LANDLOCK))?;
    let ruleset = ruleset.handle_access(net)?.scope(Scope::AbstractUnixSocket)?.create()?;
    let connect = |&port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp));
    let ruleset = ruleset.add_rules(ports.iter().map(connect))?;
    let ruleset = allow(ruleset, &reach.read, AccessFs::ReadFile | AccessFs::ReadDir)?;
    let ruleset = allow(ruleset, &reach.write, AccessFs::WriteFile.into())?;
    let ruleset = allow(ruleset, &reach.remove, remove)?;
    Ok(match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Confined::Wholly,
        RulesetStatus::PartiallyEnforced => Confined::Partly,
        RulesetStatus::NotEnforced => Confined::Not,
    })
}

fn allow(
    ruleset: RulesetCreated,
    paths: &[PathBuf],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    paths.iter().try_fold(ruleset, |ruleset, path| {
        let Ok(file) = PathFd::new(path) else { return Ok(ruleset) };
        let access = if path.is_dir() { access } else { access & AccessFs::from_file(LANDLOCK) };
        ruleset.add_rule(PathBeneath::new(file, access))
    })
}

/// Leaves only the calls of a running peer and of this work, to all threads. Others fail with
/// `EPERM`.
///
/// # Errors
/// The kernel knows filters, and refused this one.
pub fn confine_calls(work: Work) -> Result<Confined, SandboxError> {
    apply(rules(work)?)
}

/// Leaves no file to a process of one thread, and no call but those that make sockets for
/// another process.
///
/// # Errors
/// The kernel knows either, and refused it.
pub(crate) fn confine_maker() -> Result<(), SandboxError> {
    confine_files(&Reach::default())?;
    apply(maker_rules()?).map(drop)
}

/// Leaves only the calls of a helper to a process of one thread.
///
/// # Errors
/// The kernel knows filters, and refused this one.
pub(crate) fn confine_helper() -> Result<(), SandboxError> {
    apply(helper_rules()?).map(drop)
}

/// The calls that pass, always or by one of their rules.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn apply(rules: Rules) -> Result<Confined, SandboxError> {
    let unknown = UNKNOWN.map(|call| (call, Vec::new())).into();
    let filters = [
        // The first does not keep the second out.
        (unknown, SeccompAction::Allow, SeccompAction::Errno(libc::ENOSYS as u32)),
        (rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow),
    ];
    let arch = std::env::consts::ARCH.try_into()?;
    for (rules, others, these) in filters {
        let filter = SeccompFilter::new(rules, others, these, arch)?;
        match seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter)?) {
            Ok(()) => {}
            Err(seccompiler::Error::Seccomp(error)) if is_unknown(&error) => {
                return Ok(Confined::Not);
            }
            Err(error) => return Err(SandboxError::Seccomp(error)),
        }
    }
    Ok(Confined::Wholly)
}

/// Whether the kernel says that it has no such call, or none of this kind.
fn is_unknown(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL))
}

fn rules(work: Work) -> Result<Rules, BackendError> {
    let splices = SPLICES.iter().filter(|_| work.splice);
    let unlinks = UNLINKS.iter().filter(|_| work.unlinks);
    let always = ALLOWED.iter().chain(ALLOWED_HERE).chain(splices).chain(unlinks);
    let mut rules: Rules = always.map(|&call| (call, Vec::new())).collect();
    insert_memory(&mut rules)?;
    let notes = NOTES.iter().map(|&note| rule(&[(0, SeccompCmpOp::Eq, note)]));
    rules.insert(libc::SYS_prctl, notes.collect::<Result<_, _>>()?);
    insert_controls(&mut rules)?;
    insert_own_signals(&mut rules)?;
    let of_udp = UDP_OPTIONS.iter().filter(|_| work.udp);
    let of_streams = STREAM_OPTIONS.iter().filter(|_| work.streams || work.tcp);
    insert_options(&mut rules, OPTIONS.iter().chain(of_udp).chain(of_streams))?;
    let udp = UDP.iter().filter(|_| work.udp);
    let tcp = TCP.iter().filter(|_| work.tcp);
    let unix = UNIX.iter().filter(|_| work.unix);
    let sockets = NETLINK.iter().chain(udp).chain(tcp).chain(unix);
    insert_sockets(&mut rules, sockets, Some((2, SeccompCmpOp::Eq, OWN_PROTOCOL)))?;
    let is_thread = SeccompCmpOp::MaskedEq(THREAD as u64);
    rules.insert(libc::SYS_clone, vec![rule(&[(0, is_thread, THREAD)])?]);
    Ok(rules)
}

fn maker_rules() -> Result<Rules, BackendError> {
    let mut rules: Rules = MAKER.iter().map(|&call| (call, Vec::new())).collect();
    insert_memory(&mut rules)?;
    insert_own_signals(&mut rules)?;
    insert_sockets(&mut rules, HANDED_OUT.iter(), None)?;
    Ok(rules)
}

fn helper_rules() -> Result<Rules, BackendError> {
    let always = MAKER.iter().chain(HELPER).chain(HELPER_HERE);
    let mut rules: Rules = always.map(|&call| (call, Vec::new())).collect();
    insert_memory(&mut rules)?;
    insert_own_signals(&mut rules)?;
    insert_controls(&mut rules)?;
    insert_options(&mut rules, UDP_OPTIONS.iter().chain(HELPER_OPTIONS))?;
    let sockets = NETLINK.iter().chain(UDP);
    insert_sockets(&mut rules, sockets, Some((2, SeccompCmpOp::Eq, OWN_PROTOCOL)))?;
    Ok(rules)
}

/// What is asked of descriptors beside reading and writing.
fn insert_controls(rules: &mut Rules) -> Result<(), BackendError> {
    let is = |value: i32| rule(&[(1, SeccompCmpOp::Eq, value)]);
    let requests = REQUESTS.iter().map(|&request| is(request as i32));
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    let controls = CONTROLS.iter().map(|&control| is(control));
    rules.insert(libc::SYS_fcntl, controls.collect::<Result<_, _>>()?);
    Ok(())
}

/// Options of sockets, each by its level and number.
fn insert_options<'a>(
    rules: &mut Rules,
    options: impl Iterator<Item = &'a (i32, i32)>,
) -> Result<(), BackendError> {
    let eq = SeccompCmpOp::Eq;
    let options =
        options.map(|&(level, option)| rule(&[(1, eq.clone(), level), (2, eq.clone(), option)]));
    rules.insert(libc::SYS_setsockopt, options.collect::<Result<_, _>>()?);
    Ok(())
}

/// Signals to this process, such as that of abort(3), and to no other of its user.
fn insert_own_signals(rules: &mut Rules) -> Result<(), BackendError> {
    let own = std::process::id() as i32;
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, SeccompCmpOp::Eq, own)])?]);
    Ok(())
}

/// Memory that does not become code.
fn insert_memory(rules: &mut Rules) -> Result<(), BackendError> {
    let no_code = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    for call in NOT_CODE {
        rules.insert(call, vec![rule(&[(2, no_code.clone(), 0)])?]);
    }
    Ok(())
}

fn insert_sockets<'a>(
    rules: &mut Rules,
    sockets: impl Iterator<Item = &'a (i32, i32)>,
    protocol: Option<(u8, SeccompCmpOp, i32)>,
) -> Result<(), BackendError> {
    let sockets = sockets.map(|&(domain, kind)| {
        let kind = (1, SeccompCmpOp::MaskedEq(SOCK_TYPE_MASK), kind);
        let arguments = [(0, SeccompCmpOp::Eq, domain), kind].into_iter().chain(protocol.clone());
        rule(&arguments.collect::<Vec<_>>())
    });
    rules.insert(libc::SYS_socket, sockets.collect::<Result<_, _>>()?);
    Ok(())
}

/// A call all of whose arguments here, each by its place, compare like this.
fn rule(arguments: &[(u8, SeccompCmpOp, i32)]) -> Result<SeccompRule, BackendError> {
    let conditions = arguments.iter().map(|(place, operator, value)| {
        SeccompCondition::new(*place, SeccompCmpArgLen::Dword, operator.clone(), *value as u64)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests;
