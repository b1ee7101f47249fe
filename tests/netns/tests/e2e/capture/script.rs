//! The traffic: always the same flows, bytes and marks.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use netns::{Family, Pace, Pair, Pattern, Side, Stream};
use nix::sys::socket::{setsockopt, sockopt};
use nix::{setsockopt_impl, sockopt_impl};

/// Port and length of each stream: two in each direction.
pub(super) const FORTH: [(u16, u64); 2] = [(7101, 4 << 20), (7102, 2_000_003)];
pub(super) const BACK: [(u16, u64); 2] = [(7103, 3_000_001), (7104, 4 << 20)];

/// Pieces that become super-packets, at a rate below that of queueing.
const PIECE: usize = 32 * 1024 + 1;
const REST: Duration = Duration::from_millis(4);

/// Payload lengths: zero, short ones, around the padding's 16, and up to the MTU less IPv6's
/// headers.
const SIZES: [usize; 14] = [0, 1, 2, 7, 8, 15, 16, 17, 100, 577, 1000, 1200, 1371, 1372];
/// Payloads longer than the MTU, which are sent in fragments.
const LONG: [usize; 5] = [1500, 2000, 4001, 8000, 20_000];
/// Bytes of each datagram and of all of them, for senders that use the kernel's segmentation.
const TRAINS: [(usize, usize); 6] =
    [(1, 40), (33, 665), (500, 8000), (1200, 54_007), (1372, 41_160), (1372, 1373)];

/// How a flow's datagrams are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    /// Without a checksum, which IPv4 allows.
    Unsummed,
    Train,
    Fragments,
}

const KINDS: [Kind; 4] = [Kind::Single, Kind::Unsummed, Kind::Train, Kind::Fragments];

/// Time for the last datagram on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(10);
const BUFFER: usize = 16 << 20;

/// Sends everything, and checks that it arrives.
///
/// # Errors
/// The first datagram that did not arrive, or arrived out of order.
///
/// # Panics
/// If a stream is incomplete.
pub(super) fn play(pair: &Pair) -> Result<(), String> {
    let (left, right) = (&pair.left, &pair.right);
    let stream = |from: &Side, to: &Side, family, (port, bytes)| {
        let address = at(to, family, port);
        let pace = Pace { piece: PIECE, rest: REST, bytes: Some(bytes) };
        Stream::start(&from.host, &to.host, address, pace)
    };
    let streams = [
        stream(left, right, Family::V4, FORTH[0]),
        stream(left, right, Family::V6, FORTH[1]),
        stream(right, left, Family::V4, BACK[0]),
        stream(right, left, Family::V6, BACK[1]),
    ];
    let arrived = all_datagrams(left, right).and_then(|()| all_datagrams(right, left));
    for stream in streams {
        let carried = stream.finish();
        assert_eq!(carried.sent, carried.received, "{carried:?}");
    }
    arrived
}

fn all_datagrams(from: &Side, to: &Side) -> Result<(), String> {
    for family in Family::ALL {
        for (number, kind) in (0..).zip(KINDS) {
            if family == Family::V4 || kind != Kind::Unsummed {
                datagrams(from, to, family, kind, 8000 + number)
                    .map_err(|fault| format!("{kind:?} {family}, {fault}"))?;
            }
        }
    }
    Ok(())
}

fn at(side: &Side, family: Family, port: u16) -> SocketAddr {
    side.inner.endpoint(family, port).parse().expect("an address of the rig")
}

fn datagrams(from: &Side, to: &Side, family: Family, kind: Kind, port: u16) -> Result<(), String> {
    let (source, address) = (at(from, family, port), at(to, family, port + 1000));
    let sending = from.host.inside(|| UdpSocket::bind(source));
    let receiving = to.host.inside(|| UdpSocket::bind(address));
    let (sending, receiving) = (sending.expect("the port is free"), receiving.expect("it is free"));
    sending.connect(address).expect("there is a route");
    let _ = setsockopt(&receiving, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&receiving, sockopt::RcvBuf, &BUFFER));
    receiving.set_read_timeout(Some(PATIENCE)).expect("a time is given");
    if kind == Kind::Unsummed {
        setsockopt(&sending, NoChecksum, &1).expect("an option of every UDP socket");
    }
    let trains: Vec<(usize, usize)> = match kind {
        Kind::Single | Kind::Unsummed => SIZES.map(|size| (size, size)).to_vec(),
        Kind::Train => TRAINS.to_vec(),
        Kind::Fragments => LONG.map(|size| (size, size)).to_vec(),
    };
    let pattern = Pattern::new(u64::from(port));
    let mut sent: Vec<&[u8]> = Vec::new();
    let (mut buffer, mut received) = (vec![0; 65_535], 0);
    let mut receive = |sent: &[&[u8]], received: &mut usize| {
        while let Some(datagram) = sent.get(*received) {
            let len =
                receiving.recv(&mut buffer).map_err(|error| format!("{received}: {error}"))?;
            if buffer[..len] != **datagram {
                return Err(format!("{received}: other bytes"));
            }
            *received += 1;
        }
        Ok(())
    };
    for mark in 0..4 {
        match family {
            Family::V4 => setsockopt(&sending, sockopt::Ipv4Tos, &mark),
            Family::V6 => setsockopt(&sending, sockopt::Ipv6TClass, &mark),
        }
        .expect("a mark");
        for (size, all) in &trains {
            if kind == Kind::Train {
                setsockopt(&sending, sockopt::UdpGsoSegment, &(*size as i32)).expect("Linux 4.18");
            }
            let bytes = pattern.at(sent.len() as u64, *all);
            sending.send(bytes).expect("the kernel takes it");
            match size {
                0 => sent.push(bytes),
                size => sent.extend(bytes.chunks(*size)),
            }
            if kind == Kind::Train {
                // One train at a time fits in the queues of a slow daemon.
                receive(&sent, &mut received)?;
            }
            thread::sleep(Duration::from_millis(1));
        }
        receive(&sent, &mut received)?;
    }
    Ok(())
}

sockopt_impl!(
    /// Disables the checksum of datagrams.
    NoChecksum,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_NO_CHECK,
    libc::c_int
);
