use std::{
    collections::HashSet,
    fs::{self, File},
    io::{self, Read as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::{
        fd::AsRawFd as _,
        linux::net::SocketAddrExt as _,
        unix::fs::PermissionsExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
    },
    path::Path,
    process::Command,
    sync::mpsc::channel,
    thread,
};

use caps::{CapSet, Capability};
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, raise},
        socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket},
        wait::waitpid,
    },
    unistd::{ForkResult, Pid, fork, getppid},
};

use super::*;
use crate::{
    process::{RetainedCapabilities, retain_capabilities},
    splice::Pipe,
    testing::{exit, forked, skip, succeeded},
};

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| crate::errno::errno(&error))
}

/// A program for x86-64 that exits. It is static, because the sandbox forbids the dynamic linker.
fn static_program() -> Vec<u8> {
    const CODE: [u8; 9] = [0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05]; // exit(0)
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    for field in [2_u16, 62] {
        elf.extend(field.to_le_bytes());
    }
    elf.extend(1_u32.to_le_bytes());
    for field in [0x40_0078_u64, 64, 0] {
        elf.extend(field.to_le_bytes());
    }
    elf.extend(0_u32.to_le_bytes());
    for field in [64_u16, 56, 1, 0, 0, 0] {
        elf.extend(field.to_le_bytes());
    }
    for field in [1_u32, 5] {
        elf.extend(field.to_le_bytes());
    }
    let length = (64 + 56 + CODE.len()) as u64;
    for field in [0, 0x40_0000, 0x40_0000, length, length, 0x1000] {
        elf.extend(field.to_le_bytes());
    }
    [&elf[..], &CODE].concat()
}

/// Whether a program runs. A fork of another test may have its file open for writing for a moment.
fn executed(program: &Path) -> bool {
    loop {
        match Command::new(program).status() {
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => thread::yield_now(),
            status => break status.is_ok_and(|status| status.success()),
        }
    }
}

#[test]
fn only_files_in_the_rules_are_accessible() {
    let folder = std::env::temp_dir().join(format!("linerate-sandbox-{}", std::process::id()));
    let [read, remove] = ["read", "remove"].map(|name| folder.join(name));
    for folder in [&read, &remove] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("file"), "text").unwrap();
    }
    let write = folder.join("write");
    fs::write(&write, "secret").unwrap();
    let own = folder.join("own");
    fs::create_dir_all(&own).unwrap();
    let program = own.join("program");
    fs::write(&program, static_program()).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    if cfg!(target_arch = "x86_64") {
        assert!(executed(&program));
    }
    let access = AccessRules {
        own: vec![own.clone()],
        listen: Vec::new(),
        read: vec![read.clone(), "/not/there".into()],
        write: vec!["/dev/null".into(), write.clone()],
        remove: vec![remove.clone()],
        connect: Ports::default(),
    };
    let child = forked(|| {
        if confine_files(&access).unwrap() == Enforcement::None {
            return skip("landlock");
        }
        // A thread that is started later is confined too.
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(fs::read_to_string(read.join("file")).unwrap(), "text");
                assert_eq!(errno(File::create(read.join("file"))), Some(Errno::EACCES));
                assert_eq!(errno(fs::remove_file(read.join("file"))), Some(Errno::EACCES));
                assert_eq!(errno(File::open("/etc/passwd")), Some(Errno::EACCES));
                for program in [Path::new("/bin/true"), &program] {
                    assert_eq!(errno(Command::new(program).status()), Some(Errno::EACCES));
                }
                fs::write(own.join("new"), "text").unwrap();
                assert!(File::options().write(true).open("/dev/null").is_ok());
                assert!(File::options().write(true).open(&write).is_ok());
                assert_eq!(errno(fs::read(&write)), Some(Errno::EACCES));
                assert_eq!(errno(fs::read(remove.join("file"))), Some(Errno::EACCES));
                fs::remove_file(remove.join("file")).unwrap();
                assert_eq!(errno(fs::write(remove.join("new"), "text")), Some(Errno::EACCES));
                assert_eq!(errno(fs::create_dir(remove.join("folder"))), Some(Errno::EACCES));
            });
        });
    });
    assert!(succeeded(child));
    fs::remove_dir_all(folder).unwrap();
}

#[expect(unsafe_code, reason = "fork")]
fn forks() -> Result<(), Errno> {
    // SAFETY: the child exits at once.
    match unsafe { fork() }? {
        ForkResult::Child => exit(0),
        ForkResult::Parent { child } => waitpid(child, None).map(drop),
    }
}

#[test]
fn only_the_calls_of_a_peer_are_allowed_in_all_threads() {
    let child = forked(|| {
        let (go, wait) = channel::<()>();
        let done = thread::scope(|scope| {
            let before = scope.spawn(move || {
                wait.recv().unwrap();
                errno(Command::new("/bin/true").status())
            });
            let confined =
                confine_calls(CallGroups { udp: true, ..CallGroups::default() }).unwrap();
            go.send(()).unwrap();
            let refused = before.join().unwrap();
            (confined != Enforcement::None).then_some(refused)
        });
        let Some(refused) = done else { return skip("seccomp") };
        assert_eq!(refused, Some(Errno::EPERM), "in a thread that was started before");
        assert_eq!(errno(TcpListener::bind("127.0.0.1:0")), Some(Errno::EPERM));
        let dumpable = nix::sys::prctl::set_dumpable(true);
        assert_eq!(dumpable, Err(Errno::EPERM));
        assert_eq!(nix::unistd::setsid(), Err(Errno::EPERM));
        assert_eq!(forks(), Err(Errno::EPERM), "a new process could create a user namespace");
        let netlink = |protocol| {
            socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, protocol)
        };
        assert!(netlink(SockProtocol::NetlinkRoute).is_ok());
        let filter = netlink(SockProtocol::NetlinkNetFilter);
        assert_eq!(filter.map(drop), Err(Errno::EPERM), "access to the packet filter");

        let [one, other] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        one.send_to(b"datagram", other.local_addr().unwrap()).unwrap();
        assert_eq!(other.recv(&mut [0; 16]).unwrap(), 8);
        assert!(Path::new("/").metadata().is_ok());
        // Threads, memory and clocks.
        let sum = || vec![1u8; 64 << 20].iter().map(|&byte| u64::from(byte)).sum::<u64>();
        let sum = thread::scope(|scope| scope.spawn(sum).join().unwrap());
        assert_eq!(sum, 64 << 20);
        thread::sleep(std::time::Duration::from_millis(1));
    });
    assert!(succeeded(child));
}

/// The errors of five ways to send a signal to another process of the same user.
#[expect(unsafe_code, reason = "calls that have no wrapper")]
fn signals(other: Pid, socket: &UdpSocket) -> [Option<Errno>; 5] {
    let (other, socket) = (other.as_raw(), socket.as_raw_fd());
    // `struct f_owner_ex`: the type, here a process, and its id.
    let owner = [1, other];
    let answer = |answer: libc::c_long| (answer < 0).then(Errno::last);
    [
        // SAFETY: the call takes only numbers, and signal 0 is not delivered.
        answer(unsafe { libc::syscall(libc::SYS_tgkill, other, other, 0) }),
        // SAFETY: the request takes a number, and the socket is open.
        answer(unsafe { libc::fcntl(socket, libc::F_SETOWN, other) }.into()),
        // SAFETY: the request reads two numbers, and the socket is open.
        answer(unsafe { libc::fcntl(socket, 15, owner.as_ptr()) }.into()),
        // SAFETY: the request reads a number, and the socket is open.
        answer(unsafe { libc::ioctl(socket, 0x8901, &other) }.into()),
        // SAFETY: the request reads a number, and the socket is open.
        answer(unsafe { libc::ioctl(socket, 0x8902, &other) }.into()),
    ]
}

#[test]
fn signals_to_other_processes_of_the_same_user_are_forbidden() {
    let child = forked(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(signals(getppid(), &socket), [None; 5], "before the sandbox");
        if confine_calls(CallGroups::default()).unwrap() == Enforcement::None {
            return skip("seccomp");
        }
        assert_eq!(signals(getppid(), &socket), [Some(Errno::EPERM); 5]);
        raise(Signal::SIGURG).unwrap();
        socket.set_nonblocking(true).unwrap();
        assert!(socket.try_clone().is_ok());
    });
    assert!(succeeded(child));
}

#[test]
fn tcp_connects_to_allowed_ports_and_listens_on_none() {
    let [one, other] = [0; 2].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let ports = [&one, &other].map(|listener| listener.local_addr().unwrap().port());
    for (connect, refused) in
        [(Ports::Only(vec![ports[0]]), Some(Errno::EACCES)), (Ports::Any, None)]
    {
        let child = forked(|| {
            let confined =
                confine_files(&AccessRules { connect, ..AccessRules::default() }).unwrap();
            if confined != Enforcement::Full {
                return skip("landlock of Linux 6.12");
            }
            let [one, other] = ports.map(|port| TcpStream::connect(("127.0.0.1", port)));
            assert_eq!((errno(one), errno(other)), (None, refused));
            assert_eq!(errno(TcpListener::bind("127.0.0.1:0")), Some(Errno::EACCES));
        });
        assert!(succeeded(child));
    }
}

#[test]
fn abstract_names_are_reachable_only_by_earlier_connections() {
    let name = format!("linerate-sandbox-{}", std::process::id());
    let name = SocketAddr::from_abstract_name(name).unwrap();
    let manager = UnixDatagram::bind_addr(&name).unwrap();
    let child = forked(|| {
        let [before, after] = [0; 2].map(|_| UnixDatagram::unbound().unwrap());
        before.connect_addr(&name).unwrap();
        if confine_files(&AccessRules::default()).unwrap() != Enforcement::Full {
            return skip("landlock of Linux 6.12");
        }
        assert_eq!(before.send(b"alive").unwrap(), 5);
        assert_eq!(errno(after.connect_addr(&name)), Some(Errno::EPERM));
    });
    assert!(succeeded(child));
    drop(manager);
}

#[test]
fn each_group_allows_only_its_calls() {
    let tcp = CallGroups { tcp: true, ..CallGroups::default() };
    let unix = CallGroups { unix: true, ..CallGroups::default() };
    let splice = CallGroups { splice: true, ..CallGroups::default() };
    let udp = CallGroups { udp: true, ..CallGroups::default() };
    let path = std::env::temp_dir().join(format!("linerate-group-{}", std::process::id()));
    let listener = UnixListener::bind(&path).unwrap();
    for group in [CallGroups::default(), tcp, unix, splice, udp] {
        let child = forked(|| {
            if confine_calls(group).unwrap() == Enforcement::None {
                return skip("seccomp");
            }
            let refused = |error: Option<Errno>| error == Some(Errno::EPERM);
            // No process listens on this port.
            assert_eq!(refused(errno(TcpStream::connect("127.0.0.1:1"))), !group.tcp, "{group:?}");
            assert_eq!(refused(errno(TcpStream::connect("[::1]:1"))), !group.tcp, "{group:?}");
            assert_eq!(refused(errno(UnixStream::connect(&path))), !group.unix, "{group:?}");
            assert_eq!(refused(errno(Pipe::new())), !group.splice, "{group:?}");
            assert_eq!(refused(errno(UdpSocket::bind("127.0.0.1:0"))), !group.udp, "{group:?}");
            // Landlock restricts only TCP, and not other streams.
            let sctp = Some(SockProtocol::Sctp);
            let sctp = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), sctp);
            assert_eq!(sctp.map(drop), Err(Errno::EPERM), "{group:?}");
            // Listening is never allowed.
            assert!(refused(errno(TcpListener::bind("127.0.0.1:0"))), "{group:?}");
        });
        assert!(succeeded(child), "{group:?}");
    }
    drop(listener);
    fs::remove_file(path).unwrap();
}

#[test]
fn socket_server_can_only_create_sockets() {
    let path = std::env::temp_dir().join(format!("linerate-socket-server-{}", std::process::id()));
    fs::write(&path, "text").unwrap();
    let mut open = File::open(&path).unwrap();
    let child = forked(|| {
        confine_socket_server().unwrap();
        let cloexec = SockFlag::SOCK_CLOEXEC;
        assert!(socket(AddressFamily::Inet6, SockType::Stream, cloexec, None).is_ok());
        assert_eq!(forks(), Err(Errno::EPERM));
        let mut text = [0; 4];
        for refused in [
            errno(File::open(&path)),
            errno(open.read(&mut text)),
            errno(TcpStream::connect("127.0.0.1:1")),
            errno(UnixStream::connect("/nowhere")),
            errno(Command::new("/bin/true").status()),
        ] {
            assert_eq!(refused, Some(Errno::EPERM));
        }
    });
    assert!(succeeded(child));
    fs::remove_file(path).unwrap();
}

#[test]
fn only_requested_capabilities_are_retained() {
    let child = forked(|| {
        let has = || caps::read(None, CapSet::Permitted).unwrap();
        let network = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];
        let before = has();
        for (retained, wanted) in [
            (RetainedCapabilities { network: true, files: true }, &network[..]),
            (RetainedCapabilities { network: true, files: false }, &network[..]),
            (RetainedCapabilities::default(), &[][..]),
        ] {
            retain_capabilities(retained).unwrap();
            let mut wanted: HashSet<_> = wanted.iter().copied().collect();
            if retained.files {
                wanted.insert(Capability::CAP_DAC_OVERRIDE);
            }
            assert_eq!(has(), &before & &wanted);
            assert_eq!(caps::read(None, CapSet::Effective).unwrap(), has());
        }
        // They cannot be regained.
        retain_capabilities(RetainedCapabilities { network: true, files: true }).unwrap();
        assert!(has().is_empty());
    });
    assert!(succeeded(child));
}

/// Linux skips the filter for calls that it allows with all arguments.
#[test]
fn calls_that_transfer_packets_are_allowed_with_all_arguments() {
    let all = CallGroups {
        udp: true,
        streams: true,
        unlinks: true,
        tcp: true,
        unix: true,
        splice: true,
        syncs: true,
        filters_floods: true,
        agent: true,
    };
    let rules = rules(all).unwrap();
    for call in [
        libc::SYS_read,
        libc::SYS_writev,
        libc::SYS_recvmmsg,
        libc::SYS_sendmmsg,
        libc::SYS_futex,
        libc::SYS_ppoll,
        libc::SYS_sched_yield,
        // Calls of a proxy.
        libc::SYS_recvfrom,
        libc::SYS_sendto,
        libc::SYS_epoll_pwait,
        libc::SYS_accept4,
        libc::SYS_splice,
        libc::SYS_pipe2,
    ] {
        assert!(rules[&call].is_empty(), "{call}");
    }
}
