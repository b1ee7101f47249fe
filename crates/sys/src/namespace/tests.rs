use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::net::UnixStream,
    time::Duration,
};

use nix::sys::{
    signal::{Signal, kill},
    socket::{ControlMessage, sendmsg},
};

use super::*;
use crate::{
    netlink::Netlink,
    testing::{forked, skip, succeeded},
};

/// A name that other TUNs do not have.
const NAME: &str = "linerate-ns";

fn plan() -> Plan {
    Plan {
        name: NAME.into(),
        mtu: 1380,
        addresses: vec!["10.77.0.1/24".parse().unwrap(), "fd77::1/64".parse().unwrap()],
        sandbox: true,
    }
}

/// Runs `test` with a namespace in another process.
fn with_namespace(test: impl FnOnce(Namespace)) {
    let child = forked(|| open_namespace(test));
    assert!(succeeded(child));
}

/// Runs `test` with a namespace in this process, which must have a single thread.
fn open_namespace(test: impl FnOnce(Namespace)) {
    match Namespace::open(&plan(), || {}) {
        Ok((namespace, _tun, info)) => {
            assert_eq!((info.name.as_str(), info.mtu), (NAME, 1380));
            test(namespace);
        }
        Err(NamespaceError::Forbidden(_)) => skip("user namespaces"),
        Err(NamespaceError::Setup { step: Step::Tun, .. }) => skip("/dev/net/tun"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn sockets_are_in_the_namespace_but_this_process_is_not() {
    with_namespace(|namespace| {
        assert_eq!(Netlink::open().unwrap().link_by_name(NAME).unwrap(), None);
        for (kind, at) in [(Kind::Udp4, "10.77.0.1:53"), (Kind::Udp6, "[fd77::1]:53")] {
            let at: SocketAddr = at.parse().unwrap();
            assert!(UdpSocket::bind(at).is_err(), "{at} is an address of this machine");
            let socket = namespace.socket(kind).unwrap();
            bind(&socket, at).unwrap();
            assert_eq!(UdpSocket::from(socket).local_addr().unwrap(), at);
        }
        for (kind, to, from) in [
            (Kind::Udp4, "198.51.100.1:1", "10.77.0.1"),
            (Kind::Udp6, "[2001:db8::1]:1", "fd77::1"),
        ] {
            let socket = UdpSocket::from(namespace.socket(kind).unwrap());
            socket.connect(to).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip().to_string(), from);
        }
    });
}

#[test]
fn child_is_unprivileged_and_confined_and_exits_with_its_channel() {
    with_namespace(|namespace| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", namespace.pid())).unwrap();
        for line in [
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.lines().any(|found| found == line), "{line} is missing in {status}");
        }
        let child = namespace.child;
        drop(namespace);
        assert!(succeeded(child));
    });
}

#[test]
fn child_exits_with_its_parent_also_while_the_channel_is_open() {
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    let parent = forked(|| {
        open_namespace(|namespace| {
            kill(namespace.child, Signal::SIGSTOP).unwrap();
            theirs.write_all(&namespace.pid().to_ne_bytes()).unwrap();
            std::thread::sleep(Duration::from_secs(60));
        });
    });
    drop(theirs);
    let mut child = [0; size_of::<i32>()];
    if ours.read_exact(&mut child).is_err() {
        assert!(succeeded(parent), "the namespace was not created");
        return;
    }
    let stat = format!("/proc/{}/stat", i32::from_ne_bytes(child));
    let runs = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z"));
    assert!(runs());
    kill(parent, Signal::SIGKILL).unwrap();
    nix::sys::wait::waitpid(parent, None).unwrap();
    let gone = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        !runs()
    });
    assert!(gone, "the child outlives its parent");
}

#[test]
fn tcp_sockets_listen_and_connect_in_the_namespace() {
    with_namespace(|namespace| {
        let at: SocketAddr = "10.77.0.1:80".parse().unwrap();
        let listening = namespace.socket(Kind::Tcp4).unwrap();
        bind(&listening, at).unwrap();
        nix::sys::socket::listen(&listening, nix::sys::socket::Backlog::new(1).unwrap()).unwrap();
        let connecting = namespace.socket(Kind::Tcp4).unwrap();
        // The socket is non-blocking.
        let _ = nix::sys::socket::connect(connecting.as_raw_fd(), &SockaddrStorage::from(at));
        let listener = TcpListener::from(listening);
        listener.set_nonblocking(false).unwrap();
        let (_, from) = listener.accept().unwrap();
        let connected = TcpStream::from(connecting);
        assert_eq!(connected.local_addr().unwrap(), from);
        assert!(TcpListener::bind(at).is_err(), "{at} is an address of this machine");
    });
}

#[test]
fn process_with_other_threads_cannot_create_a_namespace() {
    std::thread::scope(|scope| {
        // The test does not run in the main thread.
        let opened = scope.spawn(|| Namespace::open(&plan(), || {})).join().unwrap();
        assert!(matches!(opened, Err(NamespaceError::Fork(_))));
    });
}

#[test]
fn one_descriptor_of_a_message_is_accepted_and_the_others_are_closed() {
    // In a separate process, so that other tests do not open descriptors.
    let child = forked(|| {
        let (ours, theirs) = channel::pair().unwrap();
        let open = || fs::read_dir("/proc/self/fd").unwrap().count();
        let before = open();
        let fds = [theirs.as_raw_fd(); channel::MAX_DESCRIPTORS];
        for (reply, count, taken) in [
            (&Reply::Socket.encode()[..], 1, true),
            (&Reply::Socket.encode()[..], 2, true),
            (&Reply::Socket.encode()[..], channel::MAX_DESCRIPTORS, true),
            (b"none", 3, false),
        ] {
            let rights = [ControlMessage::ScmRights(&fds[..count])];
            let slices = [io::IoSlice::new(reply)];
            sendmsg::<()>(theirs.as_raw_fd(), &slices, &rights, MsgFlags::empty(), None).unwrap();
            let heard = receive(&ours);
            assert_eq!(heard.is_ok_and(|(_, fd)| fd.is_some()), taken, "{count}");
            assert_eq!(open(), before, "{count}");
        }
    });
    assert!(succeeded(child));
}
