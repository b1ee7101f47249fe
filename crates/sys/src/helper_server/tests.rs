use std::{
    net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket as StdUdpSocket},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use nix::{errno::Errno, sys::wait::waitpid, unistd::Pid};

use super::*;
use crate::{
    BindError, Tun, UdpSocket,
    netlink::{Family, MAIN_TABLE, Route},
    process::{Helper, helper::GONE},
    testing::{forked, in_namespace, skip},
};

/// A network for documentation (RFC 5737).
const NET: &str = "198.51.100.0/24";

static FORK: Mutex<()> = Mutex::new(());

/// A forked helper, as the test program cannot be executed as a helper.
fn helper(job: &Job) -> (io::Result<Helper>, Pid) {
    // A child also inherits the channels of other tests' helpers. It must inherit only those of
    // older children, as otherwise two children could wait for each other to close them.
    let _one_at_a_time = FORK.lock().unwrap_or_else(PoisonError::into_inner);
    let (ours, theirs) = channel::pair().unwrap();
    // The child must not keep the peer's end open, or it would never be closed.
    let ours = std::cell::Cell::new(Some(ours));
    let child = forked(|| {
        drop(ours.take());
        let _ = serve(theirs.as_fd());
    });
    drop(theirs);
    (Helper::assign(ours.take().unwrap(), job), child)
}

fn test_job() -> Job {
    Job { sockets: true, sandbox: true, ..Job::default() }
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| crate::errno::errno(&error))
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn sockets_have_their_port_mark_and_buffers_and_can_be_marked_again() {
    in_namespace(|_| {
        let (helper, child) = helper(&test_job());
        let helper = Arc::new(helper.unwrap());
        let (socket, _receiver) =
            UdpSocket::unbound_with_helper(&Arc::default(), Some(helper)).unwrap();
        for (port, mark) in [(900, 7), (901, 0), (901, 9), (0, 0)] {
            let bound = socket.bind(port, mark).unwrap();
            assert!(port == 0 && bound != 0 || bound == port, "{bound}");
            let buffers = socket.buffers().unwrap();
            assert_eq!(buffers.receive, buffers.wanted, "above the system's limit");
        }
        let taken = StdUdpSocket::bind("[::]:902").unwrap();
        assert!(matches!(socket.bind(902, 0), Err(BindError::InUse)));
        drop((taken, socket, _receiver));
        waitpid(child, None).unwrap();
    });
}

#[test]
fn only_udp_sockets_are_marked() {
    let (helper, child) = helper(&test_job());
    let helper = helper.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (unix, _other) = UnixStream::pair().unwrap();
    for other in [listener.as_fd(), unix.as_fd(), std::fs::File::open("/").unwrap().as_fd()] {
        let refused = errno(helper.mark(other, 7));
        assert!(matches!(refused, Some(Errno::EPERM | Errno::ENOTSOCK)), "{refused:?}");
    }
    assert_eq!(errno(helper.run(Command::Mark { fwmark: 7 }, None)), Some(Errno::EBADF));
    drop(helper);
    waitpid(child, None).unwrap();
}

#[test]
fn only_the_interface_and_registered_routes_and_rules_are_changed() {
    in_namespace(|netlink| {
        let Ok(tun) = Tun::create("helped0", 1420, &Arc::default()) else {
            return skip("/dev/net/tun");
        };
        let index = tun.2.index;
        netlink.set_up(index).unwrap();
        let rule = Rule {
            family: Family::V4,
            fwmark: None,
            invert: false,
            table: 7,
            priority: Some(1000),
            suppress_prefix_length: None,
        };
        let (helper, child) = helper(&Job { index, ..test_job() });
        let helper = helper.unwrap();
        let net: IpNet = NET.parse().unwrap();
        assert_eq!(errno(helper.route(0, true)), Some(Errno::EPERM), "before the registration");
        helper.register(&[net], &[rule]).unwrap();
        assert_eq!(
            errno(helper.register(&[net], &[])),
            Some(Errno::EPERM),
            "a second registration"
        );

        let route = Route { destination: net, device: index, table: MAIN_TABLE, metric: None };
        let has_route = || netlink.routes(Family::V4, MAIN_TABLE).unwrap().contains(&route);
        helper.route(0, true).unwrap();
        assert!(has_route());
        assert_eq!(errno(helper.route(0, true)), Some(Errno::EEXIST));
        helper.route(0, false).unwrap();
        assert!(!has_route());
        helper.add_rule(0).unwrap();
        assert!(netlink.rules(Family::V4).unwrap().contains(&rule));
        for position in [1, 2, u32::MAX as usize] {
            assert_eq!(errno(helper.route(position, true)), Some(Errno::EPERM), "{position}");
            assert_eq!(errno(helper.add_rule(position)), Some(Errno::EPERM), "{position}");
        }
        helper.set_down().unwrap();
        assert!(!netlink.link(index).unwrap().unwrap().up);
        helper.delete_link().unwrap();
        assert_eq!(netlink.link(index).unwrap(), None);
        assert_eq!(errno(helper.delete_link()), Some(Errno::EPERM), "its index may be reused");
        assert!(netlink.link(1).unwrap().unwrap().up, "lo changed");
        drop(helper);
        waitpid(child, None).unwrap();
    });
}

#[test]
fn link_with_a_reused_index_is_not_changed() {
    in_namespace(|netlink| {
        let lo = netlink.link_by_name("lo").unwrap().unwrap();
        netlink.set_up(lo.index).unwrap();
        for order in [Helper::set_down, Helper::delete_link] {
            let (helper, child) = helper(&Job { index: lo.index, ..test_job() });
            let helper = helper.unwrap();
            assert_eq!(errno(order(&helper)), Some(Errno::ENODEV));
            assert!(netlink.link(lo.index).unwrap().unwrap().up);
            drop(helper);
            waitpid(child, None).unwrap();
        }
    });
}

#[test]
fn commands_outside_the_job_are_rejected() {
    let (helper, child) = helper(&Job { sandbox: true, ..Job::default() });
    let helper = helper.unwrap();
    for refused in [
        errno(helper.socket(0, 0)),
        errno(helper.mark(io::stdin().as_fd(), 1)),
        errno(helper.set_down()),
        errno(helper.delete_link()),
    ] {
        assert_eq!(refused, Some(Errno::EPERM));
    }
    for nonsense in [&[1; 3][..], &[9; 8], &[3, 0, 0, 0, 1, 0, 0, 0], &[0; 28], &[0xff; 4096]] {
        assert_eq!(errno(helper.request(nonsense, None)), Some(Errno::EINVAL), "{nonsense:?}");
    }
    drop(helper);
    waitpid(child, None).unwrap();
}

#[test]
fn original_sockets_are_removed_but_not_their_replacements() {
    let folder = folder("helper-files");
    let path = |name: &str| folder.join(name);
    let bind = |name: &str| UnixListener::bind(path(name)).unwrap();
    for removes_on_exit in [false, true] {
        let _listeners = ["own", "replaced", "removed", "other"].map(bind);
        let files = ["own", "replaced", "removed"].map(path).to_vec();
        let (started, child) = helper(&Job { removes_on_exit, files, ..test_job() });
        let helper = started.unwrap();
        std::fs::write(path("new"), "another file").unwrap();
        std::fs::rename(path("new"), path("replaced")).unwrap();
        std::fs::remove_file(path("removed")).unwrap();
        if !removes_on_exit {
            helper.remove_sockets().unwrap();
            assert!(!path("own").exists());
        }
        drop(helper);
        waitpid(child, None).unwrap();
        let exist = ["own", "replaced", "removed", "other"].map(|name| path(name).exists());
        assert_eq!(exist, [false, true, false, true], "{removes_on_exit}");
        std::fs::remove_file(path("replaced")).unwrap();
        std::fs::remove_file(path("other")).unwrap();
    }
    let _listener = bind("own");
    let (started, child) = helper(&Job { files: vec![path("own")], ..test_job() });
    drop(started.unwrap());
    waitpid(child, None).unwrap();
    assert!(path("own").exists(), "it was removed without a request");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_is_not_a_socket_is_refused_in_test_job() {
    let folder = folder("helper-refused");
    let file = folder.join("file");
    std::fs::write(&file, "text").unwrap();
    std::os::unix::fs::symlink(&file, folder.join("link")).unwrap();
    for (name, refusal) in
        [("file", Errno::ENOTSOCK), ("link", Errno::ENOTSOCK), ("none", Errno::ENOENT)]
    {
        let (started, child) = helper(&Job { files: vec![folder.join(name)], ..test_job() });
        assert_eq!(errno(started), Some(refusal), "{name}");
        waitpid(child, None).unwrap();
    }
    let relative = Job { files: vec!["a.sock".into()], ..test_job() };
    assert_eq!(relative.encode().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn exit_of_the_helper_is_reported() {
    let (started, child) = helper(&test_job());
    let helper = started.unwrap();
    nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL).unwrap();
    waitpid(child, None).unwrap();
    for error in [helper.socket(0, 0).unwrap_err(), helper.remove_sockets().unwrap_err()] {
        assert_eq!(error.to_string(), GONE);
    }
}

#[test]
fn messages_round_trip_and_other_bytes_are_rejected() {
    let rule = |mark: Option<u32>, suppress| Rule {
        family: Family::V6,
        fwmark: mark.map(|value| crate::netlink::FwMark { value, mask: 0xff }),
        invert: mark.is_some(),
        table: 51_820,
        priority: mark,
        suppress_prefix_length: suppress,
    };
    let v4 = IpNet::from(IpAddr::from(Ipv4Addr::new(192, 0, 2, 1)));
    let entries = [
        Entry::Route(v4),
        Entry::Route("fd00::/8".parse().unwrap()),
        Entry::Rule(rule(None, Some(0))),
        Entry::Rule(rule(Some(0), None)),
    ];
    let message = Entry::encode_all(&entries);
    assert_eq!(Message::parse(&message), Some(Message::Entries(entries.to_vec())));
    for at in 0..message.len() {
        let mut other = message.clone();
        other[at] ^= 0x40;
        assert_ne!(Message::parse(&other), Some(Message::Entries(entries.to_vec())), "{at}");
    }
    let commands = [
        Command::Socket { port: 51_820, fwmark: 0xffff_fff0 },
        Command::Mark { fwmark: 1 },
        Command::Down,
        Command::Delete,
        Command::Route { position: 3, add: true },
        Command::Rule { position: u32::MAX },
        Command::Remove,
    ];
    for command in commands {
        assert_eq!(Message::parse(&command.encode()), Some(Message::Command(command)));
        assert_eq!(Message::parse(&command.encode()[..7]), None, "{command:?}");
    }
    let job = Job {
        index: 70_000,
        removes_on_exit: true,
        files: vec![Path::new("/run/wireguard/wg0.sock").into()],
        ..test_job()
    };
    let message = job.encode().unwrap();
    assert_eq!(Job::parse(&message), Some(job.clone()));
    assert_eq!(Job::parse(&message[..message.len() - 1]), None, "truncated");
    let many = Job { files: vec!["/a".into(); 5], ..job };
    assert!(many.encode().is_err(), "more files than allowed");
}
