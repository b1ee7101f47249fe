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
    // Sockets; what they are for is in `SOCKETS`.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
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
    libc::SYS_unlinkat,
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
    libc::SYS_unlink,
];
/// What newer architectures have no call of their own for.
#[cfg(not(target_arch = "x86_64"))]
pub(super) const ALLOWED_HERE: &[i64] = &[];

/// Calls that map memory or change what it is for: it must not become code.
pub(super) const NOT_CODE: [i64; 2] = [libc::SYS_mmap, libc::SYS_mprotect];

/// What ioctl(2) is not for: to type into the terminal that the process was started from.
pub(super) const TYPING: [libc::c_ulong; 2] = [libc::TIOCSTI, libc::TIOCLINUX as libc::c_ulong];

/// What fcntl(2) is not for: to have the kernel send signals to other processes.
pub(super) const OWNERS: [i32; 2] = [libc::F_SETOWN, F_SETOWN_EX];
/// Of Linux, `include/uapi/asm-generic/fcntl.h`.
const F_SETOWN_EX: i32 = 15;

/// What ioctl(2) is not for on sockets: the same. FIOSETOWN and SIOCSPGRP of Linux,
/// `include/uapi/asm-generic/sockios.h`.
pub(super) const SOCKET_OWNERS: [libc::c_ulong; 2] = [0x8901, 0x8902];

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

/// Domain and type of the sockets that are still made, of the protocol that goes with these: for
/// datagrams, after another port; and of netlink's for links, addresses, routes and rules, and no
/// packet filter.
pub(super) const SOCKETS: [(i32, i32); 3] = [
    (libc::AF_INET, libc::SOCK_DGRAM),
    (libc::AF_INET6, libc::SOCK_DGRAM),
    (libc::AF_NETLINK, libc::SOCK_DGRAM),
];
/// That protocol. Landlock knows TCP alone by its ports, and no other that makes streams.
pub(super) const OWN_PROTOCOL: i32 = 0;

/// Those that connect by TCP.
pub(super) const TCP: [(i32, i32); 2] =
    [(libc::AF_INET, libc::SOCK_STREAM), (libc::AF_INET6, libc::SOCK_STREAM)];

/// That which connects to a Unix socket.
pub(super) const UNIX: [(i32, i32); 1] = [(libc::AF_UNIX, libc::SOCK_STREAM)];

/// Those that the process in a private namespace makes for another, of any protocol.
pub(super) const HANDED_OUT: [(i32, i32); 4] = [
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
