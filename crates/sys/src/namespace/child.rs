//! The child process in the namespace.

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

use super::{Kind, Plan, Step, reply::Reply};
use crate::{
    channel,
    errno::errno,
    keepalive::KEEPALIVE,
    netlink::{MAIN_TABLE, Netlink, NetlinkError, Route},
    process::sandbox::confine_socket_server,
    tun::{TunError, device},
};

/// TCP sysctls in `net.ipv4`. Buffer sizes are minimum, default and maximum in bytes. The maximum
/// is twice the bandwidth-delay product of 1 Gbit/s and 66 ms, because the kernel counts its own
/// overhead. Congestion control is the same as in our own stack (docs/decisions/0008), if the
/// kernel supports it.
const TCP: [(&str, &str); 3] = [
    ("tcp_rmem", "4096 131072 16777216"),
    ("tcp_wmem", "4096 65536 16777216"),
    ("tcp_congestion_control", "bbr"),
];

/// A step that failed.
type Failure = (Step, io::Error);

/// Sets up the namespace and serves requests until the other end of the channel is closed.
pub(super) fn run(channel: &OwnedFd, plan: &Plan) {
    match set_up(plan) {
        Ok((tun, index)) => {
            if send(channel, Reply::Tun { index }, Some(tun)).is_ok() {
                serve(channel);
            }
        }
        Err((step, error)) => {
            let errno = errno(&error).unwrap_or(Errno::EIO) as i32;
            // This fails if the parent has exited, which does not matter.
            let _ = send(channel, Reply::Refused { step, errno }, None);
        }
    }
}

fn set_up(plan: &Plan) -> Result<(OwnedFd, u32), Failure> {
    // This comes first: in a user namespace our ids change until they are mapped.
    let (user, group) = (getuid(), getgid());
    enter(user, group).map_err(|error| (Step::Enter, error))?;
    let made = configure_links(plan)?;
    set_sysctls(group);
    drop_privileges().map_err(|error| (Step::Privileges, error))?;
    if plan.sandbox {
        confine_socket_server().map_err(|error| (Step::Privileges, io::Error::other(error)))?;
    }
    Ok(made)
}

/// Enters a user and a network namespace. If user namespaces are forbidden, enters only a network
/// namespace, which requires root.
fn enter(user: Uid, group: Gid) -> io::Result<()> {
    match unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET) {
        Ok(()) => {
            // Required before a group can be mapped (user_namespaces(7)).
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
        }
        // Report the first error, as the second call requires root.
        Err(errno) => unshare(CloneFlags::CLONE_NEWNET).map_err(|_| errno)?,
    }
    // Entering a user namespace resets this, so it comes last. If the parent has exited already,
    // the channel is closed too, and `serve` returns.
    Ok(prctl::set_pdeathsig(Signal::SIGKILL)?)
}

/// Sets up lo and the TUN.
fn configure_links(plan: &Plan) -> Result<(OwnedFd, u32), Failure> {
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
            // The address with prefix length 0 is the default route.
            Err(error) if error.errno() == Some(Errno::EEXIST) => {}
            added => added.map_err(at(Step::Route))?,
        }
    }
    Ok((device.into_fd(), index))
}

/// Whether the TUN has an address of the route's family.
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

/// These settings are optional: if `/proc/sys` is read-only, they are skipped.
fn set_sysctls(group: Gid) {
    let net = "/proc/sys/net/ipv4";
    // Lets this group create ICMP echo sockets without privileges.
    let _ = fs::write(format!("{net}/ping_group_range"), format!("{group} {group}"));
    for (name, value) in TCP {
        let _ = fs::write(format!("{net}/{name}"), value);
    }
    // Outgoing connections use these keepalive times.
    for (name, value) in [
        ("time", KEEPALIVE.idle.as_secs()),
        ("intvl", KEEPALIVE.interval.as_secs()),
        ("probes", KEEPALIVE.probes.into()),
    ] {
        let _ = fs::write(format!("{net}/tcp_keepalive_{name}"), value.to_string());
    }
}

/// Sockets of these kinds can be created without privileges.
fn drop_privileges() -> io::Result<()> {
    let none = HashSet::<Capability>::new();
    caps::clear(None, CapSet::Ambient).map_err(io::Error::other)?;
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::set(None, set, &none).map_err(io::Error::other)?;
    }
    prctl::set_no_new_privs()?;
    Ok(prctl::set_dumpable(false)?)
}

/// Serves requests one after another.
pub(super) fn serve(channel: &OwnedFd) {
    let mut request = [0];
    loop {
        match recv(channel.as_raw_fd(), &mut request, MsgFlags::empty()) {
            Ok(1) => {}
            Err(Errno::EINTR) => continue,
            _ => return,
        }
        let sent = match make_socket(request[0]) {
            Ok(fd) => send(channel, Reply::Socket, Some(fd)),
            Err(errno) => {
                send(channel, Reply::Refused { step: Step::Enter, errno: errno as i32 }, None)
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

fn make_socket(request: u8) -> Result<OwnedFd, Errno> {
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

fn send(channel: &OwnedFd, reply: Reply, fd: Option<OwnedFd>) -> io::Result<()> {
    channel::send(channel.as_fd(), &reply.encode(), fd.as_ref().map(AsFd::as_fd))
}
