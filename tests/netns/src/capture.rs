//! Captures an interface, with super-packets as in the kernel: a packet socket (packet(7)) with
//! virtio-net headers.

pub(crate) mod message;
pub(crate) mod split;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::net::if_::if_nametoindex;
use nix::sys::socket::{
    AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, getsockopt, recvfrom, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::{getsockopt_impl, setsockopt_impl, sockopt_impl};

use crate::background::in_background;
use crate::host::Host;

/// Buffer for frames that arrive while the reader waits for a core.
const BUFFER: usize = 256 << 20;

/// Bytes of the virtio-net header, and the longest packet.
const HEADER: usize = 10;
const LONGEST: usize = HEADER + 65_535;

/// Interval at which the reader checks whether it must stop.
const LOOK: TimeVal = TimeVal::new(0, 200_000);

/// Direction relative to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The host sends.
    Out,
    /// The host receives.
    In,
}

/// A packet or super-packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its direction.
    pub direction: Direction,
    /// From the IP header on.
    pub bytes: Vec<u8>,
    /// Payload bytes of each segment of a super-packet.
    pub segment_size: Option<usize>,
    /// For a partial checksum: where it starts, and the offset of its field.
    pub checksum: Option<(usize, usize)>,
}

/// A running capture.
pub struct Capture {
    stop: Arc<AtomicBool>,
    reader: JoinHandle<Vec<Frame>>,
}

impl Capture {
    /// Captures both directions of a device of a host.
    ///
    /// # Panics
    /// If the right is missing, or the device does not exist.
    pub fn start(host: &Host, device: &str) -> Self {
        let (socket, index) = host.inside(|| open(device));
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let reader = in_background("capture", move || read(&socket, index, &stopped));
        Self { stop, reader }
    }

    /// Ends the capture when no more frames arrive.
    ///
    /// # Panics
    /// If the kernel dropped frames.
    pub fn finish(self) -> Vec<Frame> {
        self.stop.store(true, Ordering::Relaxed);
        self.reader.join().expect("the capture is complete")
    }
}

fn open(device: &str) -> (OwnedFd, usize) {
    // The socket receives from all devices: binding it to one needs a link address, which a TUN
    // device does not have.
    let (kind, flags) = (SockType::Raw, SockFlag::SOCK_CLOEXEC);
    let socket = socket(AddressFamily::Packet, kind, flags, SockProtocol::EthAll);
    let socket = socket.expect("tests/netns/run gives the right");
    setsockopt(&socket, PacketVnetHeader, &1).expect("Linux 2.6.27");
    // Without the right to force the size, the buffer is smaller; lost frames are reported at the
    // end.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &BUFFER)
        .or_else(|_| setsockopt(&socket, sockopt::RcvBuf, &BUFFER));
    setsockopt(&socket, sockopt::ReceiveTimeout, &LOOK).expect("a time is given");
    (socket, if_nametoindex(device).expect("the device is there") as usize)
}

fn read(socket: &OwnedFd, index: usize, stop: &AtomicBool) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut buffer = vec![0; LONGEST];
    loop {
        match recvfrom::<LinkAddr>(socket.as_raw_fd(), &mut buffer) {
            Ok((len, Some(link))) if link.ifindex() == index => {
                frames.push(Frame::parse(&buffer[..len], link.pkttype()));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) if stop.load(Ordering::Relaxed) => break,
            Err(Errno::EAGAIN) => {}
            Err(error) => panic!("the capture ended: {error}"),
        }
    }
    let [_, lost] = getsockopt(socket, PacketStatistics).expect("a packet socket counts");
    assert_eq!(lost, 0, "the capture lost frames");
    frames
}

impl Frame {
    fn parse(read: &[u8], kind: u8) -> Self {
        /// `VIRTIO_NET_HDR_F_NEEDS_CSUM` of `linux/virtio_net.h`.
        const NEEDS_CHECKSUM: u8 = 1;
        let (header, bytes) = read.split_at(HEADER);
        let field = |at: usize| usize::from(u16::from_ne_bytes([header[at], header[at + 1]]));
        Self {
            direction: if kind == libc::PACKET_OUTGOING { Direction::Out } else { Direction::In },
            bytes: bytes.to_vec(),
            segment_size: (header[1] != 0).then(|| field(4)),
            checksum: (header[0] & NEEDS_CHECKSUM != 0).then(|| (field(6), field(8))),
        }
    }
}

sockopt_impl!(
    /// Enables virtio-net headers before frames.
    PacketVnetHeader,
    SetOnly,
    libc::SOL_PACKET,
    libc::PACKET_VNET_HDR,
    libc::c_int
);
sockopt_impl!(
    /// Received frames and dropped frames: `struct tpacket_stats`.
    PacketStatistics,
    GetOnly,
    libc::SOL_PACKET,
    libc::PACKET_STATISTICS,
    [libc::c_uint; 2]
);
