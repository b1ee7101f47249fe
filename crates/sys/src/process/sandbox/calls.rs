//! The system calls of a running peer: those that strace(1) shows in the end-to-end tests after
//! the start, those that glibc makes for threads and memory, and rare ones (a panic, a signal, a
//! restarted call).

/// Calls that are allowed with all arguments. They include those that transfer packets, so that
/// Linux (5.11) allows them without running the filter.
pub(super) const ALLOWED: &[i64] = &[
    // Packets, clients of the socket, netlink, logs.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_close,
    libc::SYS_dup3,
    libc::SYS_shutdown,
    // Sockets; socket(2) is in `NETLINK` and similar lists, setsockopt(2) in `OPTIONS`.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    // Waiting.
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_restart_syscall,
    // Clocks that the vDSO does not serve, and randomness.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // Files, within landlock: to remove sockets, and for the allocator, which reads in /proc.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_lseek,
    // Memory; mmap and mprotect are in `NO_EXEC`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads: start and end, scheduling, signals; prctl is in `PRCTL_OPTIONS`, clone in `THREAD`;
    // tgkill is allowed for this process only.
    libc::SYS_clone3,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setattr,
    libc::SYS_sched_yield,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Old calls that newer architectures lack.
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_X86_64: &[i64] = &[
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ALLOWED_X86_64: &[i64] = &[];

/// Calls that map or protect memory, but must not make it executable.
pub(super) const NO_EXEC: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Calls that remove files.
#[cfg(target_arch = "x86_64")]
pub(super) const UNLINKS: &[i64] = &[libc::SYS_unlinkat, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const UNLINKS: &[i64] = &[libc::SYS_unlinkat];

/// The call that protects an open file, such as the node key of a member, against a loss of power.
pub(super) const SYNCS: &[i64] = &[libc::SYS_fdatasync];

/// Further calls of a member's agent, which listens, and replaces files in its folder.
pub(super) const AGENT: &[i64] =
    &[libc::SYS_listen, libc::SYS_fsync, libc::SYS_getdents64, libc::SYS_uname, libc::SYS_geteuid];
#[cfg(target_arch = "x86_64")]
pub(super) const RENAMES: &[i64] = &[libc::SYS_rename];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const RENAMES: &[i64] = &[libc::SYS_renameat, libc::SYS_renameat2];

/// Further calls of a server. Its database reads and writes pages at offsets, and locks, truncates
/// and creates files. One of its libraries uses timers.
pub(super) const SERVER: &[i64] = &[
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_ftruncate,
    libc::SYS_fchmod,
    libc::SYS_getcwd,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_mkdirat,
    libc::SYS_epoll_pwait2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
];
#[cfg(target_arch = "x86_64")]
pub(super) const SERVER_X86_64: &[i64] = &[libc::SYS_access, libc::SYS_readlink, libc::SYS_mkdir];
#[cfg(not(target_arch = "x86_64"))]
pub(super) const SERVER_X86_64: &[i64] = &[];
/// Calls in the other lists that a server does not make, as its listeners are open from the start.
pub(super) const SERVER_NEVER: &[i64] = &[
    libc::SYS_listen,
    libc::SYS_recvmmsg,
    libc::SYS_dup3,
    libc::SYS_sched_getattr,
    libc::SYS_sched_setattr,
];
/// Commands of fcntl(2) that lock the files of a database.
pub(super) const FCNTL_LOCKS: &[i32] = &[libc::F_GETLK, libc::F_SETLK, libc::F_SETLKW];
/// Options without which glibc cannot query name servers.
pub(super) const RESOLVER_OPTIONS: &[(i32, i32)] =
    &[(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];

/// Requests of ioctl(2): blocking and close-on-exec, and a TUN's offloads.
pub(super) const IOCTL_REQUESTS: [libc::c_ulong; 3] =
    [libc::FIONBIO, libc::FIOCLEX, libc::TUNSETOFFLOAD];

/// Commands of fcntl(2): a descriptor's flags, duplicates, and the size of a pipe. `F_SETOWN` is
/// excluded, as it makes the kernel send signals to other processes.
pub(super) const FCNTL_COMMANDS: [i32; 6] = [
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_SETPIPE_SZ,
];

/// Level and name of the socket options of a running peer: those of the UDP socket, and time-outs
/// for clients of a Unix socket. Other options affect parts of the kernel that a peer must not
/// change, such as the packet filter (`IPT_SO_SET_REPLACE` of `SOL_IP`).
pub(super) const OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_UDP, libc::UDP_GRO),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
];

/// Options of a data plane that filters floods: a filter of its UDP socket. The filter affects
/// only that socket, and every user may set it (socket(7)).
pub(super) const FILTER_OPTIONS: &[(i32, i32)] =
    &[(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), (libc::SOL_SOCKET, libc::SO_DETACH_FILTER)];

/// Options of a new UDP socket.
pub(super) const UDP_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVBUF),
    (libc::SOL_SOCKET, libc::SO_SNDBUF),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_IP, libc::IP_PKTINFO),
    (libc::SOL_IP, libc::IP_RECVTOS),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_V6ONLY),
    (libc::SOL_IPV6, libc::IPV6_RECVPKTINFO),
    (libc::SOL_IPV6, libc::IPV6_RECVTCLASS),
    (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_AUTOFLOWLABEL),
];

/// Further options that require CAP_NET_ADMIN, which a helper has.
pub(super) const HELPER_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
    (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE),
    (libc::SOL_SOCKET, libc::SO_MARK),
];

/// Options of a proxy's TCP streams.
pub(super) const STREAM_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
];

/// Options of the sockets of a member's agent. The last two are needed for glibc to query name
/// servers.
pub(super) const AGENT_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_MARK),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::SOL_IP, libc::IP_RECVERR),
    (libc::SOL_IPV6, libc::IPV6_RECVERR),
];

/// Options of prctl(2): names of threads and of memory.
pub(super) const PRCTL_OPTIONS: [i32; 2] = [libc::PR_SET_NAME, libc::PR_SET_VMA];

/// Calls that relay bytes between two sockets.
pub(super) const SPLICES: &[i64] = &[libc::SYS_splice, libc::SYS_pipe2];

/// The required flag of clone(2). A thread cannot be in a new user namespace, in which it would be
/// root (user_namespaces(7)).
pub(super) const THREAD: i32 = libc::CLONE_THREAD;

/// Calls that fail with `ENOSYS`, so that glibc uses older ones. The flags of clone3 are in
/// memory, which a filter cannot read.
pub(super) const REPORTED_MISSING: [i64; 1] = [libc::SYS_clone3];

/// Domain and type of the netlink sockets of a running peer. Protocol 0 gives access to links,
/// addresses, routes and rules, but not to the packet filter.
pub(super) const NETLINK: &[(i32, i32)] = &[(libc::AF_NETLINK, libc::SOCK_DGRAM)];
/// UDP sockets, for changes of the port.
pub(super) const UDP: &[(i32, i32)] =
    &[(libc::AF_INET, libc::SOCK_DGRAM), (libc::AF_INET6, libc::SOCK_DGRAM)];
/// The protocol argument of these sockets. Other protocols would bypass landlock, which restricts
/// only TCP ports.
pub(super) const DEFAULT_PROTOCOL: i32 = 0;

/// Sockets that connect by TCP.
pub(super) const TCP: &[(i32, i32)] =
    &[(libc::AF_INET, libc::SOCK_STREAM), (libc::AF_INET6, libc::SOCK_STREAM)];

/// Sockets of a server that resolves names and connects. glibc uses netlink to list this machine's
/// addresses.
pub(super) const SERVER_SOCKETS: &[(i32, i32)] = &[
    (libc::AF_NETLINK, libc::SOCK_RAW),
    (libc::AF_INET, libc::SOCK_DGRAM),
    (libc::AF_INET6, libc::SOCK_DGRAM),
    (libc::AF_INET, libc::SOCK_STREAM),
    (libc::AF_INET6, libc::SOCK_STREAM),
];

/// Sockets that connect to a Unix socket.
pub(super) const UNIX: &[(i32, i32)] = &[(libc::AF_UNIX, libc::SOCK_STREAM)];

/// Sockets that the process in a private namespace creates for another, with any protocol.
pub(super) const SOCKET_SERVER_SOCKETS: &[(i32, i32)] = &[
    (libc::AF_INET, libc::SOCK_DGRAM),
    (libc::AF_INET, libc::SOCK_STREAM),
    (libc::AF_INET6, libc::SOCK_DGRAM),
    (libc::AF_INET6, libc::SOCK_STREAM),
];

/// The calls of that process, with all arguments: to receive, reply and exit, with or without a
/// panic.
pub(super) const SOCKET_SERVER: &[i64] = &[
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_close,
    libc::SYS_write,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Further calls of a helper: sockets, netlink, and socket files.
pub(super) const HELPER: &[i64] = &[
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_newfstatat,
    libc::SYS_unlinkat,
    libc::SYS_madvise,
];
