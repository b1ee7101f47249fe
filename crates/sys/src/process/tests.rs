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
    testing::{ended_well, exit, forked, skip},
};

/// The user to become.
const NOBODY: &str = "nobody";

#[test]
fn a_ready_child_lets_the_parent_exit_and_has_a_session_of_its_own() {
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
    assert!(ended_well(main));
    drop(writer);
    let mut told = String::new();
    reader.read_to_string(&mut told).unwrap();
    assert_eq!(told, "true /dev/null /\n");
}

#[test]
fn the_parent_reports_why_its_child_failed() {
    let main = forked(|| match background().unwrap() {
        Fork::Parent(starting) => match starting.wait() {
            Err(StartError::Reported(why)) => assert_eq!(why, "the port is in use"),
            other => panic!("{other:?}"),
        },
        Fork::Child(readiness) => {
            readiness.failed("the port is in use");
            exit(1)
        }
    });
    assert!(ended_well(main));
}

#[test]
fn a_child_that_dies_without_a_report_is_noticed_with_its_status() {
    for (die, told) in [
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
                    assert_eq!(error.to_string(), format!("the background process died: {told}"));
                }
                other => panic!("{other:?}"),
            },
            Fork::Child(_readiness) => match die() {},
        });
        assert!(ended_well(main));
    }
}

#[test]
fn a_process_with_threads_is_not_forked() {
    let refused = background().map(|_| ());
    assert!(matches!(refused, Err(BackgroundError::Threads)), "{refused:?}");
}

#[test]
fn without_privileges_the_mark_and_a_low_port_still_change_and_root_is_closed() {
    if !getuid().is_root() || nix::unistd::setgroups(&nix::unistd::getgroups().unwrap()).is_err() {
        return skip("the right to change the user");
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
    assert!(ended_well(child));
}

#[test]
fn a_user_who_is_not_there_is_named_as_the_fault() {
    let refused = drop_privileges("no-such-user-here");
    assert!(matches!(refused, Err(PrivilegesError::NoSuchUser)), "{refused:?}");
}

#[test]
fn every_signal_that_ends_a_process_is_read_or_discarded() {
    /// Of faults, or not to be blocked, or ignored by Rust; 32 and 33 are the C library's own.
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
    assert!(ended_well(child));
}

#[test]
fn a_blocked_signal_waits_to_be_read() {
    let child = forked(|| {
        let signals = Signals::block().unwrap();
        assert_eq!(signals.try_wait().unwrap(), None);
        let brief = Some(Duration::from_millis(1));
        assert_eq!(poll::readable([signals.as_fd()], brief).unwrap(), [false]);
        for (sent, heard) in [
            (signal::Signal::SIGTERM, Signal::Terminate),
            (signal::Signal::SIGINT, Signal::Interrupt),
            (signal::Signal::SIGHUP, Signal::HangUp),
        ] {
            kill(Pid::this(), sent).unwrap();
            assert_eq!(poll::readable([signals.as_fd()], None).unwrap(), [true]);
            assert_eq!(signals.wait().unwrap(), heard);
        }
    });
    assert!(ended_well(child));
}

#[test]
fn a_hardened_process_leaves_no_core() {
    let child = forked(|| {
        harden().unwrap();
        assert!(!nix::sys::prctl::get_dumpable().unwrap());
    });
    assert!(ended_well(child));
}
