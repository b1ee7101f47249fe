//! The calls of a running peer: what strace(1) shows of the end-to-end tests behind the start,
//! what glibc does for threads and memory, and what the same code does on a bad day (a panic,
//! a signal, a call that is taken up again).

/// Calls that are let through whatever their arguments: those that carry packets among
/// them, which Linux (5.11) then lets through without running the filter.
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
    // Sockets; what is made is in `NETLINK` and the like, what is set in `OPTIONS`.
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
    // Clocks, where the vDSO does not answer, and randomness.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    // Files, as far as landlock lets: the socket's end, what memory asks of /proc.
    libc::SYS_openat,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_lseek,
    // Memory; mmap and mprotect are in `NOT_CODE`.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // Threads: their start and end, turns, signals; prctl is in `NOTES`, clone in `THREAD`;
    // tgkill is for this process alone.
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

/// What newer architectures have no call of their own for.
#[cfg(target_arch = "x86_64")]
pub(super) const ALLOWED_HERE: &[i64] = &[
    libc::SYS_dup2,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
];
/// What newer architectures have no call of their own for.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ALLOWED_HERE: &[i64] = &[];

/// Calls that map memory or change what it is for: it must not become code.
pub(super) const NOT_CODE: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// Calls that remove files.
#[cfg(target_arch = "x86_64")]
pub(super) const UNLINKS: &[i64] = &[libc::SYS_unlinkat, libc::SYS_unlink];
/// Calls that remove files.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const UNLINKS: &[i64] = &[libc::SYS_unlinkat];

/// What ioctl(2) is for: whether a descriptor waits, and is inherited; and what offloads a TUN has.
pub(super) const REQUESTS: [libc::c_ulong; 3] = [libc::FIONBIO, libc::FIOCLEX, libc::TUNSETOFFLOAD];

/// What fcntl(2) is for: the flags of a descriptor, another number for it, and the size of a pipe.
/// Not its owner, to whom the kernel sends signals.
pub(super) const CONTROLS: [i32; 6] = [
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD_CLOEXEC,
    libc::F_SETPIPE_SZ,
];

/// Level and number of what setsockopt(2) sets while a peer runs: how the UDP socket takes and sends
/// datagrams, and how long a client of a Unix socket is waited for. Other levels lead to parts of the
/// kernel that are no peer's, such as the packet filter (`IPT_SO_SET_REPLACE` of `SOL_IP`).
pub(super) const OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_UDP, libc::UDP_GRO),
    (libc::SOL_IP, libc::IP_MTU_DISCOVER),
    (libc::SOL_IPV6, libc::IPV6_MTU_DISCOVER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
];

/// What a UDP socket is given when it is made.
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

/// What takes CAP_NET_ADMIN beside, which a helper has.
pub(super) const HELPER_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
    (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE),
    (libc::SOL_SOCKET, libc::SO_MARK),
];

/// What a stream is given that a proxy carries.
pub(super) const STREAM_OPTIONS: &[(i32, i32)] = &[
    (libc::SOL_TCP, libc::TCP_NODELAY),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
];

/// What prctl(2) is for: names of threads and of memory.
pub(super) const NOTES: [i32; 2] = [libc::PR_SET_NAME, libc::PR_SET_VMA];

/// Calls that carry bytes between two sockets.
pub(super) const SPLICES: &[i64] = &[libc::SYS_splice, libc::SYS_pipe2];

/// What clone(2) is for: a thread. Such a one can have no user namespace of its own, in which it
/// would be root (user_namespaces(7)).
pub(super) const THREAD: i32 = libc::CLONE_THREAD;

/// Calls that are said to be unknown, for glibc to take an older one: the flags of clone3 are
/// in memory, where no filter looks.
pub(super) const UNKNOWN: [i64; 1] = [libc::SYS_clone3];

/// Domain and type of the sockets that are still made, of the protocol that goes with these: of
/// netlink's for links, addresses, routes and rules, and no packet filter.
pub(super) const NETLINK: &[(i32, i32)] = &[(libc::AF_NETLINK, libc::SOCK_DGRAM)];
/// Those for datagrams, after another port.
pub(super) const UDP: &[(i32, i32)] =
    &[(libc::AF_INET, libc::SOCK_DGRAM), (libc::AF_INET6, libc::SOCK_DGRAM)];
/// That protocol. Landlock knows TCP alone by its ports, and no other that makes streams.
pub(super) const OWN_PROTOCOL: i32 = 0;

/// Those that connect by TCP.
pub(super) const TCP: &[(i32, i32)] =
    &[(libc::AF_INET, libc::SOCK_STREAM), (libc::AF_INET6, libc::SOCK_STREAM)];

/// That which connects to a Unix socket.
pub(super) const UNIX: &[(i32, i32)] = &[(libc::AF_UNIX, libc::SOCK_STREAM)];

/// Those that the process in a private namespace makes for another, of any protocol.
pub(super) const HANDED_OUT: &[(i32, i32)] = &[
    (libc::AF_INET, libc::SOCK_DGRAM),
    (libc::AF_INET, libc::SOCK_STREAM),
    (libc::AF_INET6, libc::SOCK_DGRAM),
    (libc::AF_INET6, libc::SOCK_STREAM),
];

/// The calls of that process, whatever their arguments: a request, its answer, and the end, by a
/// panic too.
pub(super) const MAKER: &[i64] = &[
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

/// What newer architectures have no call of their own for.
#[cfg(target_arch = "x86_64")]
pub(super) const HELPER_HERE: &[i64] = &[libc::SYS_epoll_wait];
/// What newer architectures have no call of their own for.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const HELPER_HERE: &[i64] = &[];

/// The calls of a helper beside these: sockets, netlink by way of a runtime of its own, and what
/// became of the file of a socket.
pub(super) const HELPER: &[i64] = &[
    libc::SYS_read,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_newfstatat,
    libc::SYS_unlinkat,
    libc::SYS_madvise,
];
