//! Forbidden operations of a confined peer.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixListener;
use std::{fs, io};

use netns::{Injected, eventually, lacks_users};
use nix::errno::Errno;
use nix::libc;

use super::lives::{Life, PATIENCE};

/// `include/uapi/linux/netlink.h`: a request with an answer.
const REQUEST: u16 = 0x1 | 0x4;
/// It creates an object that does not exist yet.
const CREATE: u16 = 0x400 | 0x200;
/// From `include/uapi/linux/rtnetlink.h`: the first kind of message, and one past the last.
const KINDS: std::ops::Range<u16> = 16..128;
/// `RTM_NEWQDISC`.
const NEW_QDISC: u16 = 36;
/// `IPT_SO_SET_REPLACE` of `include/uapi/linux/netfilter_ipv4/ip_tables.h`, at the level of IP.
const REPLACE_TABLE: u64 = 64;

/// Both kinds of processes with an interface.
fn lives() -> [Life; 2] {
    [Life::interface("wg0"), Life::up()]
}

fn datagram_socket(injected: &mut Injected, family: i32) -> Result<u64, Errno> {
    let of_type = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    let made = injected.call(libc::SYS_socket, [family as u64, of_type, 0, 0, 0, 0]);
    made.map(i64::cast_unsigned)
}

/// A message to the kernel's network configuration.
fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let length = 16 + body.len() as u32;
    let (kind, flags) = (kind.to_ne_bytes(), flags.to_ne_bytes());
    [&length.to_ne_bytes()[..], &kind, &flags, &[1, 0, 0, 0, 0, 0, 0, 0], body].concat()
}

/// Sends it and returns the kernel's error, or 0.
fn configure(injected: &mut Injected, socket: u64, message: &[u8]) -> i32 {
    injected.clear();
    let (at, room) = (injected.put(message), injected.put(&[0; 4096]));
    let sent = injected.call(libc::SYS_sendto, [socket, at, message.len() as u64, 0, 0, 0]);
    sent.expect("a message to the kernel is sent");
    let at_once = libc::MSG_DONTWAIT as u64;
    let mut error = 0;
    while injected.call(libc::SYS_recvfrom, [socket, room, 4096, at_once, 0, 0]).is_ok() {
        let answer = injected.get(room, 20);
        if u16::from_ne_bytes([answer[4], answer[5]]) == libc::NLMSG_ERROR as u16 {
            error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        }
    }
    -error
}

#[test]
fn a_confined_peer_changes_nothing_of_the_network_by_netlink() {
    for life in lives() {
        life.host.run("ip link add other0 type veth peer name other1");
        let other = life.host.read("/sys/class/net/other0/ifindex").trim().parse::<i32>();
        let other = other.expect("an index is a number");
        let mut injected = life.peer().inject();
        let socket =
            datagram_socket(&mut injected, libc::AF_NETLINK).expect("it has a netlink socket");

        // A queueing discipline of another interface.
        let ingress = [&[0; 4][..], &other.to_ne_bytes(), &0xffff_0000u32.to_ne_bytes()].concat();
        let ingress = [&ingress[..], &0xffff_fff1u32.to_ne_bytes(), &[0; 4]].concat();
        let ingress = [&ingress[..], &[12, 0, 1, 0], b"ingress\0"].concat();
        let refused =
            configure(&mut injected, socket, &message(NEW_QDISC, REQUEST | CREATE, &ingress));
        let made = life.host.run("tc qdisc show dev other0");
        assert!(!made.contains("ingress"), "the peer made one (errno {refused}): {made}");
        assert_eq!(refused, libc::EPERM, "RTM_NEWQDISC");

        // All kinds that are not queries and that the kernel handles.
        let others = KINDS.filter(|kind| kind % 4 != 2).filter_map(|kind| {
            let error = configure(&mut injected, socket, &message(kind, REQUEST, &[0; 64]));
            (error != libc::EPERM && error != libc::EOPNOTSUPP).then_some((kind, error))
        });
        let others: Vec<_> = others.collect();
        assert!(others.is_empty(), "handled kinds, and errno: {others:?}");
    }
}

#[test]
fn a_confined_peer_does_not_reach_the_packet_filter_by_an_option() {
    for life in lives() {
        let peer = life.peer();
        let sockets = peer.descriptors().into_iter();
        let sockets = sockets.filter(|(_, target)| target.starts_with("socket:"));
        let mut sockets: Vec<u64> = sockets.map(|(descriptor, _)| descriptor).collect();
        let mut injected = peer.inject();
        sockets.extend(datagram_socket(&mut injected, libc::AF_INET).ok());
        let rule = injected.put(&[0; 128]);
        for socket in sockets {
            let arguments = [socket, libc::SOL_IP as u64, REPLACE_TABLE, rule, 128, 0];
            let answer = injected.call(libc::SYS_setsockopt, arguments);
            assert_eq!(answer, Err(Errno::EPERM), "IPT_SO_SET_REPLACE on {socket}");
        }
    }
}

#[test]
fn a_confined_peer_removes_no_socket_of_another_interface() {
    for life in lives() {
        let path = "/run/wireguard/other.sock";
        let other = UnixListener::bind(life.host.outside(path)).expect("a host has room");
        let mut injected = life.peer().inject();
        let path_at = injected.put(b"/run/wireguard/other.sock\0");
        let here = libc::AT_FDCWD as u64;
        let removed = injected.call(libc::SYS_unlinkat, [here, path_at, 0, 0, 0, 0]);
        assert!(removed.is_err() && life.host.has(path), "{removed:?}");
        drop(other);
    }
}

/// Objects that must be unchanged afterwards.
struct Victims {
    file: (&'static str, u64),
    socket: (&'static str, u64),
    _listener: UnixListener,
}

impl Victims {
    fn of(life: &Life) -> io::Result<Self> {
        let (file, socket) = ("/run/rig/victim", "/run/wireguard/other.sock");
        life.host.write("victim", "only root may remove this");
        let listener = UnixListener::bind(life.host.outside(socket))?;
        let inode = |path| Ok::<_, io::Error>((path, fs::metadata(life.host.outside(path))?.ino()));
        life.host.run("ip link add other0 type veth peer name other1 && ip link set other0 up");
        Ok(Self { file: inode(file)?, socket: inode(socket)?, _listener: listener })
    }

    fn are_unchanged(&self, life: &Life) {
        for (path, _) in [self.file, self.socket] {
            assert!(life.host.has(path), "{path} was removed");
        }
        let other = life.host.run("ip link show dev other0");
        assert!(other.contains(",UP"), "{other}");
    }
}

/// Commands of the helper: to delete the interface, and to remove the sockets' files
/// (`crates/sys/src/process/helper/wire.rs`).
const DELETE: u8 = 4;
const REMOVE: u8 = 7;

/// A message from a peer to the process that removes its sockets: an inode and its path.
fn order((path, inode): (&str, u64)) -> Vec<u8> {
    [&inode.to_ne_bytes()[..], path.as_bytes(), &[0]].concat()
}

#[test]
fn messages_of_a_confined_peer_to_privileged_processes_change_no_other_object() {
    for arguments in ["wg0", "--user nobody wg0", "--user nobody --sandbox off wg0"] {
        if arguments.contains("nobody") && lacks_users() {
            continue;
        }
        let life = Life::interface(arguments);
        let victims = Victims::of(&life).expect("a host has room for files");
        let pid = life.host.run("cat /run/rig/pid").trim().parse().expect("it wrote it");
        let peer = life.unconfined(pid);
        let lines = peer.descriptors().into_iter().filter(|(descriptor, target)| {
            *descriptor > 2 && ["socket:", "pipe:"].iter().any(|kind| target.starts_with(kind))
        });
        let mut output = vec![order(victims.file), order(victims.socket)];
        // Every kind of short message, with numbers of other objects.
        for kind in 0..=255 {
            for number in [0u32, 1, 2, 3, 4, u32::MAX] {
                let number = number.to_ne_bytes();
                output.push([&[kind, 1, 0, 0][..], &number].concat());
                output.push([&[kind, 0, 0x1f, 0x90][..], &number].concat());
                // Messages that end the peer itself are sent last.
                if ![DELETE, REMOVE].contains(&kind) {
                    output.push([&[kind, 0, 0, 0][..], &number].concat());
                }
            }
        }
        output.extend([vec![0], vec![1; 24], vec![2; 48], vec![0xff; 4096]]);
        output.push([&[REMOVE][..], &[0; 7]].concat());
        let mut injected = peer.inject();
        for (line, _) in lines {
            for message in &output {
                injected.clear();
                let at = injected.put(message);
                let length = message.len() as u64;
                let (at_once, room) = (libc::MSG_DONTWAIT as u64, injected.put(&[0; 64]));
                let quiet = at_once | libc::MSG_NOSIGNAL as u64;
                let report = match injected.call(libc::SYS_sendto, [line, at, length, quiet, 0, 0])
                {
                    Err(Errno::ENOTSOCK) => {
                        injected.call(libc::SYS_write, [line, at, length, 0, 0, 0])
                    }
                    report => report,
                };
                // Answers must not fill the line.
                let _ = injected.call(libc::SYS_recvfrom, [line, room, 64, at_once, 0, 0]);
                if report.is_err() {
                    break;
                }
            }
        }
        drop(injected);
        victims.are_unchanged(&life);
        // The messages may have ended it.
        life.host.attempt("kill -KILL $(cat /run/rig/pid)");
        let gone = || life.host.attempt("pgrep linerate").stdout.trim().is_empty();
        eventually("all its processes are gone", PATIENCE, gone);
        victims.are_unchanged(&life);
    }
}
