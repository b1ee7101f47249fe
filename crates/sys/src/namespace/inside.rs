//! The child, in its namespace.

use std::{
    collections::HashSet,
    fs, io,
    os::fd::{AsFd, AsRawFd, OwnedFd},
};

use caps::{CapSet, Capability};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::Signal,
        socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, socket},
    },
    unistd::{Gid, Uid, getgid, getuid},
};

use super::{Kind, Plan, Step, wire::Word};
use crate::{
    keepalive::KEEPALIVE,
    line,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route},
    process::sandbox::confine_maker,
    tun::{TunError, device},
};

/// TCP of sockets inside, in `net.ipv4`. Buffers are bytes at least, at first and at most;
/// the most is what 1 Gbit/s takes over a path of 66 ms, twice, as the kernel reckons its own
/// book-keeping in. It sends as the stack of our own does (docs/decisions/0008), where the
/// kernel has that.
const TCP: [(&str, &str); 3] = [
    ("tcp_rmem", "4096 131072 16777216"),
    ("tcp_wmem", "4096 65536 16777216"),
    ("tcp_congestion_control", "bbr"),
];

/// A step that failed.
type Failure = (Step, io::Error);

/// Makes the namespace and serves until the other end of the line is closed.
pub(super) fn run(line: &OwnedFd, plan: &Plan) {
    match set_up(plan) {
        Ok((tun, index)) => {
            if answer(line, Word::Tun { index }, Some(tun)).is_ok() {
                serve(line);
            }
        }
        Err((step, error)) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            // Where nobody hears it, nobody waits for it.
            let _ = answer(line, Word::Refused { step, errno }, None);
        }
    }
}

fn set_up(plan: &Plan) -> Result<(OwnedFd, u32), Failure> {
    // Before anything: to enter a user namespace changes who we are, inside.
    let (user, group) = (getuid(), getgid());
    enter(user, group).map_err(|error| (Step::Enter, error))?;
    let made = furnish(plan)?;
    tune(group);
    give_up_rights().map_err(|error| (Step::Rights, error))?;
    if plan.sandbox {
        confine_maker().map_err(|error| (Step::Rights, io::Error::other(error)))?;
    }
    Ok(made)
}

/// Enters a user and a network namespace, or the latter alone where only root's own
/// right is to be had.
fn enter(user: Uid, group: Gid) -> io::Result<()> {
    match unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET) {
        Ok(()) => {
            // Without it no group may be mapped (user_namespaces(7)).
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
        // The first refusal is the one to tell: as root the second may do.
        Err(errno) => unshare(CloneFlags::CLONE_NEWNET).map_err(|_| errno)?,
    }
    // To enter a user namespace takes it back, so it comes here. Whoever starts us
    // may be gone by now; then the line is closed, too, and `serve` ends.
    Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)
}

/// Makes lo and the TUN as they are to be.
fn furnish(plan: &Plan) -> Result<(OwnedFd, u32), Failure> {
    let at = |step| move |error: NetlinkError| (step, io::Error::from(error));
    let netlink = Netlink::open().map_err(at(Step::Loopback))?;
    if let Some(lo) = netlink.link_by_name("lo").map_err(at(Step::Loopback))? {
        netlink.set_up(lo.index).map_err(at(Step::Loopback))?;
    }
    let (device, name) = device::create(&plan.name).map_err(|error| (Step::Tun, cause(error)))?;
    let index = nix::net::if_::if_nametoindex(name.as_str())
        .map_err(|errno| (Step::Tun, io::Error::from(errno)))?;
    netlink.set_mtu(index, plan.mtu).map_err(at(Step::Mtu))?;
    for &address in &plan.addresses {
        netlink.add_address(index, address).map_err(at(Step::Address))?;
    }
    netlink.set_up(index).map_err(at(Step::Route))?;
    for destination in [Ipv4Net::default().into(), Ipv6Net::default().into()] {
        if !has_source(plan, &destination) {
            continue;
        }
        let route = Route { destination, device: index, table: MAIN_TABLE, metric: None };
        match netlink.add_route(&route) {
            // An address had it as its prefix.
            Err(error) if error.errno() == Some(libc::EEXIST) => {}
            added => added.map_err(at(Step::Route))?,
        }
    }
    Ok((device.into_fd(), index))
}

/// Whether we have an address to send from.
fn has_source(plan: &Plan, route: &IpNet) -> bool {
    plan.addresses.iter().any(|address| address.addr().is_ipv4() == route.addr().is_ipv4())
}

fn cause(error: TunError) -> io::Error {
    let errno = match error {
        TunError::NameInvalid | TunError::MtuInvalid => Errno::EINVAL,
        TunError::Busy => Errno::EBUSY,
        TunError::NoPermission => Errno::EPERM,
        TunError::NoDevice => Errno::ENOENT,
        TunError::Os(error) => return error,
    };
    errno.into()
}

/// What is good to have: where `/proc/sys` may not be written to, it works without.
fn tune(group: Gid) {
    let net = "/proc/sys/net/ipv4";
    // So that whoever uses a socket for echo needs no right.
    let _ = fs::write(format!("{net}/ping_group_range"), format!("{group} {group}"));
    for (name, value) in TCP {
        let _ = fs::write(format!("{net}/{name}"), value);
    }
    // For sockets that are dialled, so that none of their times is to be set later.
    for (name, value) in [
        ("time", KEEPALIVE.idle.as_secs()),
        ("intvl", KEEPALIVE.interval.as_secs()),
        ("probes", KEEPALIVE.probes.into()),
    ] {
        let _ = fs::write(format!("{net}/tcp_keepalive_{name}"), value.to_string());
    }
}

/// Sockets of the kinds that are made here take no right.
fn give_up_rights() -> io::Result<()> {
    let none = HashSet::<Capability>::new();
    caps::clear(None, CapSet::Ambient).map_err(io::Error::other)?;
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &none).map_err(io::Error::other)?;
    }
    prctl::set_no_new_privs()?;
    Ok(prctl::set_dumpable(false)?)
}

/// Answers one request after the other.
pub(super) fn serve(line: &OwnedFd) {
    let mut request = [0];
    loop {
        match recv(line.as_raw_fd(), &mut request, MsgFlags::empty()) {
            Ok(1) => {}
            Err(Errno::EINTR) => continue,
            _ => return,
        }
        let answered = match make(request[0]) {
            Ok(fd) => answer(line, Word::Socket, Some(fd)),
            Err(errno) => {
                answer(line, Word::Refused { step: Step::Enter, errno: errno as i32 }, None)
            }
        };
        if answered.is_err() {
            return;
        }
    }
}

fn make(request: u8) -> Result<OwnedFd, Errno> {
    let kind = Kind::from_byte(request).ok_or(Errno::EINVAL)?;
    let (v4, v6) = (AddressFamily::Inet, AddressFamily::Inet6);
    let (family, kind, protocol) = match kind {
        Kind::Tcp4 => (v4, SockType::Stream, None),
        Kind::Tcp6 => (v6, SockType::Stream, None),
        Kind::Udp4 => (v4, SockType::Datagram, None),
        Kind::Udp6 => (v6, SockType::Datagram, None),
        Kind::Ping4 => (v4, SockType::Datagram, Some(SockProtocol::Icmp)),
        Kind::Ping6 => (v6, SockType::Datagram, Some(SockProtocol::IcmpV6)),
    };
    socket(family, kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, protocol)
}

fn answer(line: &OwnedFd, word: Word, fd: Option<OwnedFd>) -> io::Result<()> {
    line::send(line.as_fd(), &word.encode(), fd.as_ref().map(AsFd::as_fd))
}
