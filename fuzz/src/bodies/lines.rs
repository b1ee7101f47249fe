//! Messages between a peer and its helper processes.

use std::{
    fs,
    io::{IoSlice, Write},
    net::Shutdown,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
};

use config::conf::{Conf, Interface};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use process::{Rehearsal, rehearse};
use sys::namespace;

use super::{steps, take};

/// Capacity of a line in bytes before the reader starts.
const LINE: usize = 48 * 1024;
/// Length of a child's message.
const MESSAGE: usize = 6;

/// The line to a guardian: messages and arbitrary bytes.
pub fn guardian_line(data: &[u8]) {
    let Some(Rehearsal { job, conf, steps: steps_done }) = read_messages(&line_of(data)) else {
        return;
    };
    // A job that is sent again is the same job.
    let again = read_messages(&framed(&job)).expect("what was written can be read");
    assert_eq!(again.job, job);
    assert_eq!(of_the_file(again.conf), of_the_file(conf.clone()));
    let mut order = ["PreDown", "SaveConfig", "PostDown"].iter();
    for (step, saved) in steps_done {
        assert!(order.any(|next| *next == step), "{step} out of order");
        let Some(saved) = saved else { continue };
        assert_eq!(step, "SaveConfig");
        let saved = Conf::parse("wg0.conf", &saved).expect("what was written can be read");
        assert_eq!(
            of_the_file(saved.interface),
            of_the_file(conf.clone()),
            "the peer changed the file's part"
        );
    }
}

/// The part of an interface that comes from the file and not from the device.
fn of_the_file(mut interface: Interface) -> Interface {
    (interface.private_key, interface.listen_port, interface.fwmark) = (None, None, None);
    // The file's mask is dropped if the device has another mark.
    interface.policy.mask = None;
    interface
}

fn read_messages(bytes: &[u8]) -> Option<Rehearsal> {
    let (mut line, theirs) = UnixStream::pair().expect("there are descriptors");
    line.write_all(bytes).expect("there is room");
    line.shutdown(Shutdown::Write).expect("it is a socket");
    rehearse(&theirs).ok()
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("it is short");
    [&length.to_ne_bytes(), message].concat()
}

/// Messages behind their length in two bytes. If the highest bit is set, the bytes are written
/// without a frame.
fn line_of(mut data: &[u8]) -> Vec<u8> {
    let mut line = Vec::new();
    while !data.is_empty() && line.len() < LINE {
        let length = u16::from_le_bytes(take(&mut data));
        let (message, behind) = data.split_at(usize::from(length & 0x7fff).min(data.len()));
        data = behind;
        match length & 0x8000 {
            0 => line.extend(framed(message)),
            _ => line.extend(message),
        }
    }
    line.truncate(LINE);
    line
}

/// Both ends of the line to a namespace's child: messages with descriptors to the peer, and
/// requests to the child.
pub fn namespace_line(data: &[u8]) {
    let (ours, theirs) = line();
    let ends = [&ours, &theirs].map(target);
    let mut requests = 0;
    steps(data, 16, |step, rest| {
        let text = rest.split_at(usize::from(step & 15).min(rest.len()));
        *rest = text.1;
        match step >> 7 {
            0 => send_and_receive(&ours, &theirs, text.0, usize::from(step >> 4 & 7)),
            _ if !text.0.is_empty() => {
                send(&ours, text.0, 0);
                requests += 1;
            }
            _ => {}
        }
    });
    // The child opens a socket for each valid request and answers each request.
    nix::sys::socket::shutdown(ours.as_raw_fd(), nix::sys::socket::Shutdown::Write)
        .expect("it is a socket");
    namespace::serve(&theirs);
    drop(theirs);
    for _ in 0..requests {
        let (text, socket) = namespace::receive_reply(&ours).expect("every request has an answer");
        assert_eq!(text[0] == b'S', socket.is_some());
    }
    assert!(namespace::receive_reply(&ours).is_err());
    drop(ours);
    // All received descriptors refer to one of the ends.
    assert!(!open().any(|open| ends.contains(&open)), "descriptors are left behind");
}

/// Sends `text` with some descriptors, and receives it.
fn send_and_receive(ours: &OwnedFd, theirs: &OwnedFd, text: &[u8], descriptors: usize) {
    // An empty message is the end of a line.
    if text.is_empty() {
        return;
    }
    send(theirs, text, descriptors);
    let known = match text {
        [b'T' | b'S', ..] => true,
        [b'-', step, ..] => *step < 7,
        _ => false,
    };
    let received = namespace::receive_reply(ours);
    assert_eq!(received.is_ok(), known && text.len() == MESSAGE, "{text:?}");
    let Ok((again, descriptor)) = received else { return };
    assert_eq!(again[0], text[0]);
    assert!(text[0] != b'-' || again == text);
    assert!(text[0] != b'T' || again[2..] == text[2..]);
    assert_eq!(descriptor.is_some(), descriptors > 0);
}

fn line() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .expect("there are descriptors")
}

fn send(line: &OwnedFd, text: &[u8], descriptors: usize) {
    let fds = vec![line.as_raw_fd(); descriptors];
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(line.as_raw_fd(), &[IoSlice::new(text)], rights, flags, None)
        .expect("there is room");
}

/// The targets of this process's descriptors.
fn open() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc/self/fd").expect("proc is mounted");
    entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
}

fn target(end: &OwnedFd) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", end.as_raw_fd())).expect("it is open")
}
