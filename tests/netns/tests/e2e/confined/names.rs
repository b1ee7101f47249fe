//! Names of numeric constants.

use nix::libc;

macro_rules! named {
    ($($name:ident)+) => {
        &[$((libc::$name as u64, stringify!($name))),+]
    };
}

type Names = &'static [(u64, &'static str)];

const CALLS: Names = named! {
    SYS_read SYS_write SYS_open SYS_close SYS_stat SYS_fstat SYS_lstat SYS_poll SYS_lseek
    SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn
    SYS_ioctl SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_access SYS_pipe SYS_select
    SYS_sched_yield SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_dup SYS_dup2 SYS_pause
    SYS_nanosleep SYS_getitimer SYS_alarm SYS_setitimer SYS_getpid SYS_sendfile SYS_socket
    SYS_connect SYS_accept SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_bind
    SYS_listen SYS_getsockname SYS_getpeername SYS_socketpair SYS_setsockopt SYS_getsockopt
    SYS_clone SYS_fork SYS_vfork SYS_execve SYS_exit SYS_wait4 SYS_kill SYS_uname SYS_fcntl
    SYS_flock SYS_fsync SYS_fdatasync SYS_truncate SYS_ftruncate SYS_getdents SYS_getcwd
    SYS_chdir SYS_fchdir SYS_rename SYS_mkdir SYS_rmdir SYS_creat SYS_link SYS_unlink SYS_symlink
    SYS_readlink SYS_chmod SYS_fchmod SYS_chown SYS_umask SYS_gettimeofday SYS_getrlimit
    SYS_getrusage SYS_sysinfo SYS_times SYS_ptrace SYS_getuid SYS_syslog SYS_getgid SYS_setuid
    SYS_setgid SYS_geteuid SYS_getegid SYS_setpgid SYS_getppid SYS_setsid SYS_capget SYS_capset
    SYS_sigaltstack SYS_prctl SYS_arch_prctl SYS_setrlimit SYS_chroot SYS_mount SYS_umount2
    SYS_gettid SYS_tkill SYS_time SYS_futex SYS_sched_setaffinity SYS_sched_getaffinity
    SYS_epoll_create SYS_getdents64 SYS_set_tid_address SYS_restart_syscall SYS_clock_gettime
    SYS_clock_getres SYS_clock_nanosleep SYS_exit_group SYS_epoll_wait SYS_epoll_ctl SYS_tgkill
    SYS_inotify_init SYS_openat SYS_mkdirat SYS_mknodat SYS_fchownat SYS_newfstatat SYS_unlinkat
    SYS_renameat SYS_linkat SYS_symlinkat SYS_readlinkat SYS_fchmodat SYS_faccessat SYS_pselect6
    SYS_ppoll SYS_unshare SYS_set_robust_list SYS_splice SYS_tee SYS_vmsplice SYS_epoll_pwait
    SYS_signalfd SYS_timerfd_create SYS_eventfd SYS_signalfd4 SYS_eventfd2 SYS_epoll_create1
    SYS_dup3 SYS_pipe2 SYS_inotify_init1 SYS_preadv SYS_pwritev SYS_recvmmsg SYS_accept4
    SYS_prlimit64 SYS_open_by_handle_at SYS_setns SYS_sendmmsg SYS_process_vm_readv
    SYS_process_vm_writev SYS_sched_setattr SYS_sched_getattr SYS_renameat2 SYS_seccomp
    SYS_getrandom SYS_memfd_create SYS_bpf SYS_execveat SYS_userfaultfd SYS_membarrier SYS_mlock2
    SYS_copy_file_range SYS_statx SYS_rseq SYS_pidfd_send_signal SYS_io_uring_setup SYS_clone3
    SYS_close_range SYS_openat2 SYS_pidfd_getfd SYS_faccessat2
};
const DOMAINS: Names = named! {
    AF_UNSPEC AF_UNIX AF_INET AF_INET6 AF_NETLINK AF_PACKET AF_VSOCK AF_XDP
};
const KINDS: Names = named! {
    SOCK_STREAM SOCK_DGRAM SOCK_RAW SOCK_SEQPACKET
};
const LEVELS: Names = named! {
    SOL_SOCKET SOL_TCP SOL_UDP SOL_IP SOL_IPV6 SOL_NETLINK
};
/// The options of these levels, in the same order.
const OPTIONS: [Names; 6] = [
    named! {
        SO_REUSEADDR SO_SNDBUF SO_RCVBUF SO_KEEPALIVE SO_LINGER SO_RCVTIMEO SO_SNDTIMEO
        SO_SNDBUFFORCE SO_RCVBUFFORCE SO_TIMESTAMPNS SO_MARK SO_RXQ_OVFL SO_BINDTODEVICE
    },
    named! {
        TCP_NODELAY TCP_KEEPIDLE TCP_KEEPINTVL TCP_KEEPCNT TCP_USER_TIMEOUT
    },
    named! {
        UDP_SEGMENT UDP_GRO
    },
    named! {
        IP_PKTINFO IP_RECVTOS IP_MTU_DISCOVER IP_RECVERR IP_TOS IP_TTL
    },
    named! {
        IPV6_V6ONLY IPV6_RECVPKTINFO IPV6_RECVTCLASS IPV6_MTU_DISCOVER IPV6_RECVERR
        IPV6_AUTOFLOWLABEL
    },
    named! {
        NETLINK_ADD_MEMBERSHIP NETLINK_LISTEN_ALL_NSID
    },
];

fn name(names: Names, number: u64) -> String {
    let found = names.iter().find(|(known, _)| *known == number);
    found.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}

/// A system call.
pub(super) fn call(number: i64) -> String {
    name(CALLS, number.cast_unsigned()).replace("SYS_", "")
}

/// A family of sockets.
pub(super) fn domain(number: u64) -> String {
    name(DOMAINS, number)
}

/// A type of sockets.
pub(super) fn kind(number: u64) -> String {
    name(KINDS, number)
}

/// A socket option with its level.
pub(super) fn option(level: u64, number: u64) -> String {
    let known = LEVELS.iter().position(|(known, _)| *known == level);
    let option = known.map_or_else(|| number.to_string(), |at| name(OPTIONS[at], number));
    format!("{} {option}", name(LEVELS, level))
}
