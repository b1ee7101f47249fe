use std::{
    fs::{self, File},
    io,
    net::{TcpListener, UdpSocket},
    path::Path,
    process::Command,
    sync::mpsc::channel,
    thread,
};

use super::*;
use crate::testing::{ended_well, forked, skip};

/// What is refused by landlock, and by the filter of calls.
fn errno<T>(result: io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

#[test]
fn files_out_of_reach_are_refused_and_those_in_reach_are_not() {
    let folder = std::env::temp_dir().join(format!("linerate-sandbox-{}", std::process::id()));
    let [read, change, remove] = ["read", "change", "remove"].map(|name| folder.join(name));
    for folder in [&read, &change, &remove] {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("file"), "text").unwrap();
    }
    let reach = Reach {
        read: vec![read.clone(), "/not/there".into()],
        write: vec!["/dev/null".into()],
        remove: vec![remove.clone()],
        change: vec![change.clone()],
    };
    let child = forked(|| {
        if confine_files(&reach).unwrap() == Confined::Not {
            return skip("landlock");
        }
        // A thread that was started behind it is confined as well.
        thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(fs::read_to_string(read.join("file")).unwrap(), "text");
                assert_eq!(errno(File::create(read.join("file"))), Some(libc::EACCES));
                assert_eq!(errno(File::open("/etc/passwd")), Some(libc::EACCES));
                assert_eq!(errno(Command::new("/bin/true").status()), Some(libc::EACCES));
                assert!(File::options().write(true).open("/dev/null").is_ok());
                assert_eq!(errno(fs::read(remove.join("file"))), Some(libc::EACCES));
                fs::remove_file(remove.join("file")).unwrap();
                fs::write(change.join("new"), "text").unwrap();
                fs::rename(change.join("new"), change.join("file")).unwrap();
                assert_eq!(errno(fs::create_dir(change.join("folder"))), Some(libc::EACCES));
            });
        });
    });
    assert!(ended_well(child));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn calls_that_a_peer_has_no_need_for_are_refused_in_all_threads_and_the_others_go_on() {
    let child = forked(|| {
        let (go, wait) = channel::<()>();
        let done = thread::scope(|scope| {
            let before = scope.spawn(move || {
                wait.recv().unwrap();
                errno(Command::new("/bin/true").status())
            });
            let confined = confine_calls().unwrap();
            go.send(()).unwrap();
            let refused = before.join().unwrap();
            (confined != Confined::Not).then_some(refused)
        });
        let Some(refused) = done else { return skip("seccomp") };
        assert_eq!(refused, Some(libc::EPERM), "of a thread that ran before");
        assert_eq!(errno(TcpListener::bind("127.0.0.1:0")), Some(libc::EPERM));
        let dumpable = nix::sys::prctl::set_dumpable(true);
        assert_eq!(dumpable, Err(nix::errno::Errno::EPERM));
        assert_eq!(nix::unistd::setsid(), Err(nix::errno::Errno::EPERM));

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
    assert!(ended_well(child));
}

/// The filter costs the data plane nothing where Linux knows without running it that a call
/// passes: where its number alone decides.
#[test]
fn what_carries_packets_passes_by_its_number_alone() {
    for call in [
        libc::SYS_read,
        libc::SYS_writev,
        libc::SYS_recvmmsg,
        libc::SYS_sendmmsg,
        libc::SYS_futex,
        libc::SYS_ppoll,
        libc::SYS_sched_yield,
    ] {
        assert!(rules().unwrap()[&call].is_empty(), "{call}");
    }
}
