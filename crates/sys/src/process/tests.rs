use std::sync::Arc;

use std::{
    io::{Read as _, Write as _},
    os::fd::AsFd as _,
    time::Duration,
};

use nix::{
    sys::signal::{self, kill},
    unistd::{Pid, getpid, getsid, getuid},
};

use super::*;
use crate::{
    BindError, UdpSocket, poll,
    testing::{exit, forked, skip, succeeded},
};

/// The unprivileged user.
const NOBODY: &str = "nobody";

#[test]
fn parent_exits_when_its_child_is_ready_in_a_new_session() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let main = forked(|| match background().unwrap() {
        Fork::Parent(starting) => starting.wait().unwrap(),
        Fork::Child(readiness) => {
            let session = getsid(None).unwrap() == getpid();
            let stdout = std::fs::read_link("/proc/self/fd/1").unwrap();
            let root = std::env::current_dir().unwrap();
            survive_parent().unwrap();
            readiness.ready();
            writeln!(writer, "{session} {} {}", stdout.display(), root.display()).unwrap();
            exit(0)
        }
    });
    assert!(succeeded(main));
    drop(writer);
    let mut expected = String::new();
    reader.read_to_string(&mut expected).unwrap();
    assert_eq!(expected, "true /dev/null /\n");
}

#[test]
fn parent_receives_the_reason_of_its_childs_failure() {
    let main = forked(|| match background().unwrap() {
        Fork::Parent(starting) => match starting.wait() {
            Err(StartError::Reported(reason)) => assert_eq!(reason, "the port is in use"),
            other => panic!("{other:?}"),
        },
        Fork::Child(readiness) => {
            readiness.failed("the port is in use");
            exit(1)
        }
    });
    assert!(succeeded(main));
}

#[test]
fn child_that_dies_without_a_report_is_detected_with_its_status() {
    for (die, expected) in [
        ((|| exit(3)) as fn() -> std::convert::Infallible, "exit status: 3"),
        (
            || {
                kill(getpid(), signal::Signal::SIGKILL).unwrap();
                exit(0)
            },
            "signal: 9 (SIGKILL)",
        ),
    ] {
        let main = forked(|| match background().unwrap() {
            Fork::Parent(starting) => match starting.wait() {
                Err(error @ StartError::Died(Some(_))) => {
                    assert_eq!(
                        error.to_string(),
                        format!("the background process died: {expected}")
                    );
                }
                other => panic!("{other:?}"),
            },
            Fork::Child(_readiness) => match die() {},
        });
        assert!(succeeded(main));
    }
}

#[test]
fn process_with_threads_cannot_be_forked() {
    let refused = background().map(|_| ());
    assert!(matches!(refused, Err(BackgroundError::Threads)), "{refused:?}");
}

#[test]
fn unprivileged_process_can_change_its_mark_and_low_port_but_not_read_root_files() {
    if !getuid().is_root() || nix::unistd::setgroups(&nix::unistd::getgroups().unwrap()).is_err() {
        return skip("the privilege to change the user");
    }
    let child = forked(|| {
        let (socket, _receiver) = UdpSocket::unbound(&Arc::default()).unwrap();
        socket.bind(0, 7).unwrap();
        drop_privileges(NOBODY).unwrap();
        assert!(!getuid().is_root());
        assert_eq!(nix::unistd::getgroups().unwrap(), []);
        let denied = std::fs::read_dir("/root").unwrap_err();
        assert_eq!(denied.kind(), std::io::ErrorKind::PermissionDenied);
        assert!(nix::unistd::setuid(nix::unistd::Uid::from_raw(0)).is_err());
        socket.set_fwmark(9).unwrap();
        match socket.bind(1, 10) {
            Ok(1) | Err(BindError::InUse) => {}
            other => panic!("{other:?}"),
        }
        for set in [caps::CapSet::Effective, caps::CapSet::Permitted] {
            assert_eq!(caps::read(None, set).unwrap().len(), 2);
        }
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    });
    assert!(succeeded(child));
}

#[test]
fn missing_user_is_reported() {
    let refused = drop_privileges("no-such-user-here");
    assert!(matches!(refused, Err(PrivilegesError::NoSuchUser)), "{refused:?}");
}

#[test]
fn all_signals_that_end_a_process_are_received_or_discarded() {
    /// Signals of faults, that cannot be blocked, or are ignored by Rust. The C library uses 32
    /// and 33.
    const OTHERS: [i32; 15] = [
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGSYS,
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGPIPE,
        32,
        33,
        // These stop it until SIGCONT.
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    let child = forked(|| {
        let signals = Signals::block().unwrap();
        let brief = Duration::from_millis(20);
        let mut ending = Vec::new();
        for number in 1..=64 {
            if OTHERS.contains(&number) {
                continue;
            }
            // nix cannot send real-time signals.
            let kill = format!("kill -{number} {}", getpid());
            assert!(
                std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success()
            );
            if signals.wait_for(brief).unwrap().is_some() {
                ending.push(number);
            }
        }
        let expected =
            [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGXCPU, libc::SIGPWR];
        assert_eq!(ending, expected);
    });
    assert!(succeeded(child));
}

#[test]
fn blocked_signal_is_pending_until_it_is_received() {
    let child = forked(|| {
        let signals = Signals::block().unwrap();
        assert_eq!(signals.try_wait().unwrap(), None);
        let brief = Some(Duration::from_millis(1));
        assert_eq!(poll::readable([signals.as_fd()], brief).unwrap(), [false]);
        for (sent, received) in [
            (signal::Signal::SIGTERM, Signal::Terminate),
            (signal::Signal::SIGINT, Signal::Interrupt),
            (signal::Signal::SIGHUP, Signal::HangUp),
        ] {
            kill(Pid::this(), sent).unwrap();
            assert_eq!(poll::readable([signals.as_fd()], None).unwrap(), [true]);
            assert_eq!(signals.wait().unwrap(), received);
        }
    });
    assert!(succeeded(child));
}

#[test]
fn hardened_process_does_not_dump_core() {
    let child = forked(|| {
        harden().unwrap();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    });
    assert!(succeeded(child));
}
