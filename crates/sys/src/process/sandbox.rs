//! The sandbox of a running peer. It restricts the peer to the files, ports and system calls that
//! it needs, even if an attacker's code runs in it.
//!
//! ```text
//!   open privileged resources -> confine_files -> threads, configuration -> confine_calls
//!                                 (landlock)                                (seccomp)
//! ```
//!
//! Landlock applies to a thread and to threads that it starts later, so it is enabled before other
//! threads are started. The seccomp filter applies to all threads, and is enabled at the end of
//! the start. Neither can be removed, and child processes inherit both.

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

use crate::errno::{Errno, errno};
use calls::{
    AGENT, AGENT_OPTIONS, ALLOWED, ALLOWED_X86_64, DEFAULT_PROTOCOL, FCNTL_COMMANDS, FCNTL_LOCKS,
    FILTER_OPTIONS, HELPER, HELPER_OPTIONS, IOCTL_REQUESTS, NETLINK, NO_EXEC, OPTIONS,
    PRCTL_OPTIONS, RENAMES, REPORTED_MISSING, RESOLVER_OPTIONS, SERVER, SERVER_NEVER,
    SERVER_SOCKETS, SERVER_X86_64, SOCKET_SERVER, SOCKET_SERVER_SOCKETS, SPLICES, STREAM_OPTIONS,
    SYNCS, TCP, THREAD, UDP, UDP_OPTIONS, UNIX, UNLINKS,
};

/// The requested landlock version (Linux 6.12). An older kernel enforces a part: TCP from 6.7,
/// devices from 6.10, abstract sockets from 6.12.
const LANDLOCK: ABI = ABI::V6;
/// Files and folders that every process reads: to resolve names, for the allocator, and to start
/// threads.
pub const ALWAYS_READABLE: [&str; 14] = [
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/proc/self",
    "/proc/sys/vm/overcommit_memory",
    "/sys/devices/system/cpu",
];

/// The bits of socket(2)'s type argument that are not flags.
const SOCK_TYPE_MASK: u64 = 0xf;

/// An error of a kernel that supports the sandbox. The process should exit.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("landlock: {0}")]
    Landlock(#[from] RulesetError),
    /// The filter could not be compiled.
    #[error("seccomp: {0}")]
    Filter(#[from] BackendError),
    /// The kernel refused the filter.
    #[error("seccomp: {0}")]
    Seccomp(seccompiler::Error),
}

/// How much of the sandbox this kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Everything.
    Full,
    /// A part: the kernel is too old for the rest.
    Partial,
    /// Nothing: the kernel lacks it.
    None,
}

impl Enforcement {
    /// Logs how much of `what` is enforced.
    pub fn log(self, what: &str) {
        match self {
            Self::Full => tracing::info!("sandbox: {what}"),
            Self::Partial => tracing::info!("sandbox: {what}, as far as this kernel supports it"),
            Self::None => tracing::warn!("sandbox: this kernel cannot confine {what}"),
        }
    }
}

/// Ports, files and folders that stay accessible after [`confine_files`]. Folders include
/// everything below them. Paths that do not exist are skipped.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    /// Files and folders to read.
    pub read: Vec<PathBuf>,
    /// Existing files to write to.
    pub write: Vec<PathBuf>,
    /// Folders in which files may be removed.
    pub remove: Vec<PathBuf>,
    /// Folders in which files may be created, replaced and removed.
    pub own: Vec<PathBuf>,
    /// Local TCP ports for listeners.
    pub listen: Vec<u16>,
    /// Remote TCP ports for connections.
    pub connect: Ports,
}

/// TCP ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    Only(Vec<u16>),
    Any,
}

impl Default for Ports {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

/// Tasks of a process in addition to running a peer. Each needs further system calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallGroups {
    /// It creates UDP sockets.
    pub udp: bool,
    /// It serves TCP streams.
    pub streams: bool,
    /// It removes its socket files.
    pub unlinks: bool,
    /// It connects by TCP.
    pub tcp: bool,
    /// It connects to Unix sockets.
    pub unix: bool,
    /// It relays with splice(2).
    pub splice: bool,
    /// It writes a file that must survive a loss of power.
    pub syncs: bool,
    /// It filters floods at its UDP socket.
    pub filters_floods: bool,
    /// It is the agent of a member: it listens, writes files, and marks its sockets.
    pub agent: bool,
}

/// Confines this thread, and threads and processes that it starts later, to these files and ports.
/// Open files stay usable.
pub fn confine_files(access: &AccessRules) -> Result<Enforcement, SandboxError> {
    let remove = AccessFs::RemoveFile.into();
    let mut net: BitFlags<_> = AccessNet::BindTcp.into();
    let mut ports = &[][..];
    if let Ports::Only(only) = &access.connect {
        net |= AccessNet::ConnectTcp;
        ports = only;
    }
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(LANDLOCK))?;
    let ruleset = ruleset.handle_access(net)?.scope(Scope::AbstractUnixSocket)?.create()?;
    let connect = |&port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::ConnectTcp));
    let ruleset = ruleset.add_rules(ports.iter().map(connect))?;
    let listen = |&port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::BindTcp));
    let ruleset = ruleset.add_rules(access.listen.iter().map(listen))?;
    let ruleset = allow(ruleset, &access.own, AccessFs::from_all(LANDLOCK) & !AccessFs::Execute)?;
    let ruleset = allow(ruleset, &access.read, AccessFs::ReadFile | AccessFs::ReadDir)?;
    let ruleset = allow(ruleset, &access.write, AccessFs::WriteFile.into())?;
    let ruleset = allow(ruleset, &access.remove, remove)?;
    Ok(match ruleset.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Enforcement::Full,
        RulesetStatus::PartiallyEnforced => Enforcement::Partial,
        RulesetStatus::NotEnforced => Enforcement::None,
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

/// Confines all threads to the system calls of a running peer with these groups. Others fail with
/// `EPERM`.
pub fn confine_calls(groups: CallGroups) -> Result<Enforcement, SandboxError> {
    apply(rules(groups)?)
}

/// Confines all threads to the system calls of a server with a database, which answers on open
/// TCP, UDP and Unix sockets. With `connects` it may also resolve names and connect by TCP, and
/// with `unix` connect to Unix sockets. Others fail with `EPERM`.
pub fn confine_server(connects: bool, unix: bool) -> Result<Enforcement, SandboxError> {
    apply(server_rules(connects, unix)?)
}

/// Confines a process with one thread to creating sockets for another process, without file
/// access.
pub(crate) fn confine_socket_server() -> Result<(), SandboxError> {
    confine_files(&AccessRules::default())?;
    apply(socket_server_rules()?).map(drop)
}

/// Confines a process with one thread to the system calls of a helper.
pub(crate) fn confine_helper() -> Result<(), SandboxError> {
    apply(helper_rules()?).map(drop)
}

/// The allowed system calls. Calls with an empty list are always allowed, others if a rule
/// matches.
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn apply(rules: Rules) -> Result<Enforcement, SandboxError> {
    let unknown = REPORTED_MISSING.map(|call| (call, Vec::new())).into();
    let filters = [
        // In this order the first filter still allows the calls that install the second.
        (unknown, SeccompAction::Allow, SeccompAction::Errno(Errno::ENOSYS as u32)),
        (rules, SeccompAction::Errno(Errno::EPERM as u32), SeccompAction::Allow),
    ];
    let arch = std::env::consts::ARCH.try_into()?;
    for (rules, others, these) in filters {
        let filter = SeccompFilter::new(rules, others, these, arch)?;
        match seccompiler::apply_filter_all_threads(&BpfProgram::try_from(filter)?) {
            Ok(()) => {}
            Err(seccompiler::Error::Seccomp(error)) if is_unsupported(&error) => {
                return Ok(Enforcement::None);
            }
            Err(error) => return Err(SandboxError::Seccomp(error)),
        }
    }
    Ok(Enforcement::Full)
}

/// Whether the kernel lacks seccomp or its filters.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(errno(error), Some(Errno::ENOSYS | Errno::EINVAL))
}

fn rules(groups: CallGroups) -> Result<Rules, BackendError> {
    let splices = SPLICES.iter().filter(|_| groups.splice);
    let unlinks = UNLINKS.iter().filter(|_| groups.unlinks);
    let syncs = SYNCS.iter().filter(|_| groups.syncs);
    let agent = AGENT.iter().chain(RENAMES).filter(|_| groups.agent);
    let always = ALLOWED.iter().chain(ALLOWED_X86_64).chain(splices).chain(unlinks).chain(syncs);
    let always = always.chain(agent);
    let mut rules: Rules = always.map(|&call| (call, Vec::new())).collect();
    insert_no_exec(&mut rules)?;
    let options = PRCTL_OPTIONS.iter().map(|&option| rule(&[(0, SeccompCmpOp::Eq, option)]));
    rules.insert(libc::SYS_prctl, options.collect::<Result<_, _>>()?);
    insert_ioctl_and_fcntl(&mut rules, &[])?;
    insert_tgkill(&mut rules)?;
    let of_udp = UDP_OPTIONS.iter().filter(|_| groups.udp);
    let of_streams = STREAM_OPTIONS.iter().filter(|_| groups.streams || groups.tcp);
    let of_filters = FILTER_OPTIONS.iter().filter(|_| groups.filters_floods);
    let of_agent = AGENT_OPTIONS.iter().filter(|_| groups.agent);
    insert_options(
        &mut rules,
        OPTIONS.iter().chain(of_udp).chain(of_streams).chain(of_filters).chain(of_agent),
    )?;
    let udp = UDP.iter().filter(|_| groups.udp);
    let tcp = TCP.iter().filter(|_| groups.tcp);
    let unix = UNIX.iter().filter(|_| groups.unix);
    let sockets = NETLINK.iter().chain(udp).chain(tcp).chain(unix);
    insert_sockets(&mut rules, sockets, Some((2, SeccompCmpOp::Eq, DEFAULT_PROTOCOL)))?;
    let by_name = TCP.iter().filter(|_| groups.agent);
    insert_sockets(&mut rules, by_name, Some((2, SeccompCmpOp::Eq, libc::IPPROTO_TCP)))?;
    let is_thread = SeccompCmpOp::MaskedEq(THREAD as u64);
    rules.insert(libc::SYS_clone, vec![rule(&[(0, is_thread, THREAD)])?]);
    Ok(rules)
}

fn server_rules(connects: bool, unix: bool) -> Result<Rules, BackendError> {
    let always = ALLOWED.iter().chain(ALLOWED_X86_64).chain(UNLINKS).chain(SYNCS);
    let always = always.chain(AGENT).chain(RENAMES).chain(SERVER).chain(SERVER_X86_64);
    // It opens listeners only at its start.
    let always = always.filter(|call| !SERVER_NEVER.contains(call));
    let mut rules: Rules = always.map(|&call| (call, Vec::new())).collect();
    insert_no_exec(&mut rules)?;
    let options = PRCTL_OPTIONS.iter().map(|&option| rule(&[(0, SeccompCmpOp::Eq, option)]));
    rules.insert(libc::SYS_prctl, options.collect::<Result<_, _>>()?);
    insert_ioctl_and_fcntl(&mut rules, FCNTL_LOCKS)?;
    insert_tgkill(&mut rules)?;
    let of_names = AGENT_OPTIONS.iter().filter(|option| RESOLVER_OPTIONS.contains(option));
    insert_options(&mut rules, STREAM_OPTIONS.iter().chain(of_names.filter(|_| connects)))?;
    let of_unix = UNIX.iter().filter(|_| unix);
    let sockets = SERVER_SOCKETS.iter().filter(|_| connects).chain(of_unix);
    insert_sockets(&mut rules, sockets, Some((2, SeccompCmpOp::Eq, DEFAULT_PROTOCOL)))?;
    let by_name = TCP.iter().filter(|_| connects);
    insert_sockets(&mut rules, by_name, Some((2, SeccompCmpOp::Eq, libc::IPPROTO_TCP)))?;
    let is_thread = SeccompCmpOp::MaskedEq(THREAD as u64);
    rules.insert(libc::SYS_clone, vec![rule(&[(0, is_thread, THREAD)])?]);
    Ok(rules)
}

fn socket_server_rules() -> Result<Rules, BackendError> {
    let mut rules: Rules = SOCKET_SERVER.iter().map(|&call| (call, Vec::new())).collect();
    insert_no_exec(&mut rules)?;
    insert_tgkill(&mut rules)?;
    insert_sockets(&mut rules, SOCKET_SERVER_SOCKETS.iter(), None)?;
    Ok(rules)
}

fn helper_rules() -> Result<Rules, BackendError> {
    let always = SOCKET_SERVER.iter().chain(HELPER);
    let mut rules: Rules = always.map(|&call| (call, Vec::new())).collect();
    insert_no_exec(&mut rules)?;
    insert_tgkill(&mut rules)?;
    insert_ioctl_and_fcntl(&mut rules, &[])?;
    insert_options(&mut rules, UDP_OPTIONS.iter().chain(HELPER_OPTIONS))?;
    let sockets = NETLINK.iter().chain(UDP);
    insert_sockets(&mut rules, sockets, Some((2, SeccompCmpOp::Eq, DEFAULT_PROTOCOL)))?;
    Ok(rules)
}

/// Allows ioctl(2) and fcntl(2) with these requests and commands.
fn insert_ioctl_and_fcntl(rules: &mut Rules, further: &[i32]) -> Result<(), BackendError> {
    let is = |value: i32| rule(&[(1, SeccompCmpOp::Eq, value)]);
    let requests = IOCTL_REQUESTS.iter().map(|&request| is(request as i32));
    rules.insert(libc::SYS_ioctl, requests.collect::<Result<_, _>>()?);
    let commands = FCNTL_COMMANDS.iter().chain(further).map(|&command| is(command));
    rules.insert(libc::SYS_fcntl, commands.collect::<Result<_, _>>()?);
    Ok(())
}

/// Allows setsockopt(2) with these levels and options.
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

/// Allows signals to this process, such as that of abort(3), but not to others of the same user.
fn insert_tgkill(rules: &mut Rules) -> Result<(), BackendError> {
    let own = std::process::id() as i32;
    rules.insert(libc::SYS_tgkill, vec![rule(&[(0, SeccompCmpOp::Eq, own)])?]);
    Ok(())
}

/// Allows mmap(2) and mprotect(2) except of executable memory.
fn insert_no_exec(rules: &mut Rules) -> Result<(), BackendError> {
    let no_exec = SeccompCmpOp::MaskedEq(libc::PROT_EXEC as u64);
    for call in NO_EXEC {
        rules.insert(call, vec![rule(&[(2, no_exec.clone(), 0)])?]);
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
    let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
    // A call without rules is allowed with all arguments.
    if !sockets.is_empty() {
        rules.entry(libc::SYS_socket).or_default().extend(sockets);
    }
    Ok(())
}

/// A rule that matches if all comparisons of arguments, given by position, hold.
fn rule(arguments: &[(u8, SeccompCmpOp, i32)]) -> Result<SeccompRule, BackendError> {
    let conditions = arguments.iter().map(|(position, operator, value)| {
        SeccompCondition::new(*position, SeccompCmpArgLen::Dword, operator.clone(), *value as u64)
    });
    SeccompRule::new(conditions.collect::<Result<_, _>>()?)
}

#[cfg(test)]
mod tests;
