//! Passes datagrams of other protocols than WireGuard from the data plane's socket to another
//! thread.
//!
//! ```text
//!   UDP -> inbound -- 1 to 4, little-endian --> sessions, slow path
//!             |------ a registered magic -----> ControlReceiver
//!             |------ STUN's cookie, if set --> ControlReceiver
//!             `------ anything else: counted, dropped
//! ```
//!
//! Only datagrams that are not WireGuard messages are examined. The protocols are fixed when the
//! data plane is built. The queue is bounded. The rate is limited for each sender and in total
//! ([`rate_limit`]). Senders from which an answer is expected ([`expected_senders`]) have a
//! separate limit. The data plane never waits for the reader.

mod expected_senders;
mod rate_limit;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel},
    },
    time::Duration,
};

use packet::{Endpoint, Remote};
use wg::{DropReason, Time};

use self::{expected_senders::ExpectedSenders, rate_limit::RateLimit};

/// Capacity of the queue in bytes: 1,000 datagrams of the usual length.
const CAPACITY: usize = 256 << 10;
/// Overhead of a datagram, in bytes.
const OVERHEAD: usize = 128;
/// Bytes of STUN's header (RFC 8489 section 5).
const STUN_HEADER: usize = 20;
/// STUN's magic cookie, at bytes 4 to 7 of every message.
const STUN_COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();

/// The bytes at the beginning of all datagrams of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Magic {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Magic {
    /// Length of the longest magic, in bytes.
    pub const MAX: usize = 8;

    /// Returns `None` if the prefix is empty or too long.
    pub fn new(prefix: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX];
        bytes.get_mut(..prefix.len()).filter(|bytes| !bytes.is_empty())?.copy_from_slice(prefix);
        Some(Self { bytes, len: prefix.len() })
    }

    fn begins(&self, datagram: &[u8]) -> bool {
        datagram.starts_with(&self.bytes[..self.len])
    }
}

/// The protocols whose datagrams are passed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ControlProtocols {
    /// Protocols that are identified by these bytes.
    pub magics: Vec<Magic>,
    /// Whether STUN messages are included.
    pub stun: bool,
}

/// A datagram of a control protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlDatagram {
    pub bytes: Vec<u8>,
    /// Its sender, and the local address and interface at which it arrived.
    pub from: Endpoint,
    /// Time at which its batch was received.
    pub at: Time,
}

/// The data plane's end of the channel.
#[derive(Clone, Debug)]
pub struct ControlSender {
    registered: ControlProtocols,
    datagrams: Sender<ControlDatagram>,
    free: Arc<AtomicUsize>,
    limits: Arc<Limits>,
}

/// Rate limits for expected and other senders.
#[derive(Debug, Default)]
struct Limits {
    unexpected_limit: RateLimit,
    unexpected_count: AtomicU64,
    /// For senders from which an answer is expected.
    expected_limit: RateLimit,
    expected: ExpectedSenders,
}

/// The receiving end of the channel.
#[derive(Debug)]
pub struct ControlReceiver {
    datagrams: Receiver<ControlDatagram>,
    free: Arc<AtomicUsize>,
}

/// Creates a channel for the given protocols.
pub fn control_channel(registered: ControlProtocols) -> (ControlSender, ControlReceiver) {
    let (sender, datagrams) = channel();
    let free = Arc::new(AtomicUsize::new(CAPACITY));
    let sender =
        ControlSender { registered, datagrams: sender, free: free.clone(), limits: Arc::default() };
    (sender, ControlReceiver { datagrams, free })
}

impl ControlSender {
    /// Records that a datagram is sent to this address by the same socket, so that an answer is
    /// expected.
    pub fn expect_from(&self, from: IpAddr) {
        self.limits.expected.note(from);
    }

    /// Number of datagrams from unexpected senders.
    pub(crate) fn unexpected(&self) -> u64 {
        self.limits.unexpected_count.load(Ordering::Relaxed)
    }

    pub(crate) fn expected(&self) -> &ExpectedSenders {
        &self.limits.expected
    }

    /// Passes on a datagram that is not a valid WireGuard message, or returns the reason for which
    /// it is dropped.
    pub(crate) fn forward(
        &self,
        datagram: &[u8],
        from: Endpoint,
        at: Time,
    ) -> Result<(), DropReason> {
        let ip = match from.remote {
            Remote::Direct(at) => Some(at.ip()),
            Remote::Relayed(_) => None,
        };
        let Limits { unexpected_limit, unexpected_count, expected_limit, expected } = &*self.limits;
        let is_expected = ip.is_none_or(|ip| expected.has(ip));
        // Datagrams that begin like WireGuard messages are not counted, because the socket never
        // sheds them.
        if !is_expected && !is_wireguard(datagram) {
            unexpected_count.fetch_add(1, Ordering::Relaxed);
        }
        let limit = if is_expected { expected_limit } else { unexpected_limit };
        if !self.registered.covers(datagram) {
            return Err(DropReason::InMalformed);
        }
        if !limit.admits(ip, at) {
            return Err(DropReason::InControlFull);
        }
        let cost = datagram.len() + OVERHEAD;
        let less = |free: usize| free.checked_sub(cost);
        let charged = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        charged.map_err(|_| DropReason::InControlFull)?;
        let datagram = ControlDatagram { bytes: datagram.to_vec(), from, at };
        // A dropped receiver counts like a full queue.
        self.datagrams.send(datagram).map_err(|_| DropReason::InControlFull)
    }
}

impl ControlReceiver {
    /// Waits for the next datagram.
    ///
    /// # Errors
    /// None arrived in time, or the data plane has ended.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<ControlDatagram, RecvTimeoutError> {
        self.datagrams.recv_timeout(timeout).inspect(|datagram| self.give_back(datagram))
    }

    /// Returns the next datagram without waiting.
    ///
    /// # Errors
    /// The queue is empty, or the data plane has ended.
    pub fn try_recv(&self) -> Result<ControlDatagram, TryRecvError> {
        self.datagrams.try_recv().inspect(|datagram| self.give_back(datagram))
    }

    fn give_back(&self, datagram: &ControlDatagram) {
        self.free.fetch_add(datagram.bytes.len() + OVERHEAD, Ordering::Relaxed);
    }
}

impl ControlProtocols {
    fn covers(&self, datagram: &[u8]) -> bool {
        !is_wireguard(datagram)
            && (self.magics.iter().any(|magic| magic.begins(datagram))
                || self.stun && is_stun(datagram))
    }
}

/// Whether the first four bytes are the type of a WireGuard message, which may be invalid.
fn is_wireguard(datagram: &[u8]) -> bool {
    let kind = datagram.first_chunk().map(|kind| u32::from_le_bytes(*kind));
    matches!(kind, Some(1..=4))
}

/// RFC 8489 section 6.3: the first two bits are zero, and the cookie is present.
fn is_stun(datagram: &[u8]) -> bool {
    datagram.len() >= STUN_HEADER && datagram[0] >> 6 == 0 && datagram[4..8] == STUN_COOKIE
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8] = b"\xf0magic";

    fn at() -> Time {
        Time::from_nanos(7)
    }

    fn channel_of(stun: bool) -> (ControlSender, ControlReceiver) {
        control_channel(ControlProtocols { magics: vec![Magic::new(MAGIC).unwrap()], stun })
    }

    fn from() -> Endpoint {
        Endpoint::new(([192, 0, 2, 1], 3478).into())
    }

    fn stun(first: [u8; 4]) -> Vec<u8> {
        [&first[..], &STUN_COOKIE, &[9; 12]].concat()
    }

    #[test]
    fn a_magic_has_one_to_eight_bytes() {
        assert_eq!(Magic::new(b""), None);
        assert_eq!(Magic::new(&[1; 9]), None);
        assert!(Magic::new(&[1; 8]).is_some_and(|magic| magic.begins(&[1; 8])));
    }

    #[test]
    fn registered_protocols_are_forwarded_by_their_first_bytes() {
        let binding_request = stun([0, 1, 0, 0]);
        let with = |prefix: &[u8], len| [prefix, &vec![5; len]].concat();
        for (datagram, forwarded) in [
            (binding_request.clone(), true),
            (stun([1, 1, 0, 8]), true),
            // The first four bytes are those of a WireGuard initiation, so it counts as an
            // initiation of a wrong length.
            (stun([1, 0, 0, 0]), false),
            (stun([0x40, 1, 0, 0]), false),
            (binding_request[..19].to_vec(), false),
            (with(&[0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x43], 12), false),
            (with(MAGIC, 0), true),
            (with(MAGIC, 1400), true),
            (with(&MAGIC[..5], 40), false),
            (with(&[], 40), false),
        ] {
            let (sender, receiver) = channel_of(true);
            let handed = sender.forward(&datagram, from(), at());
            assert_eq!(handed.is_ok(), forwarded, "{datagram:?}");
            let expected = ControlDatagram { bytes: datagram, from: from(), at: at() };
            assert_eq!(receiver.try_recv().ok(), forwarded.then_some(expected));
        }
        let (sender, _receiver) = channel_of(false);
        let refused = sender.forward(&binding_request, from(), at());
        assert_eq!(refused, Err(DropReason::InMalformed), "the protocol is not registered");
    }

    #[test]
    fn a_magic_equal_to_a_wireguard_type_does_not_match_wireguard_messages() {
        let magics = vec![Magic::new(&[4, 0, 0, 0]).unwrap(), Magic::new(&[1]).unwrap()];
        let (sender, _receiver) = control_channel(ControlProtocols { magics, stun: false });
        for kind in 1..=4 {
            assert!(sender.forward(&[kind, 0, 0, 0, 9], from(), at()).is_err());
        }
        assert!(sender.forward(&[1, 0, 0, 1, 9], from(), at()).is_ok());
    }

    #[test]
    fn short_datagrams_are_malformed() {
        let (sender, receiver) = channel_of(true);
        for datagram in [stun([0, 1, 0, 0]), MAGIC.to_vec(), vec![1, 0, 0, 0]] {
            for len in 0..datagram.len().min(MAGIC.len()) {
                let refused = sender.forward(&datagram[..len], from(), at());
                assert_eq!(refused, Err(DropReason::InMalformed));
            }
        }
        assert!(receiver.try_recv().is_err());
    }

    #[test]
    fn expected_senders_are_admitted_during_a_flood_of_unexpected_ones() {
        let (sender, receiver) = channel_of(false);
        let flood = |from: u32| {
            let from = Endpoint::new((std::net::Ipv4Addr::from_bits(from), 7).into());
            let taken = sender.forward(MAGIC, from, at());
            while receiver.try_recv().is_ok() {}
            taken
        };
        let taken = (1000..11_000).filter(|from| flood(*from).is_ok()).count();
        assert!(taken < 2_000, "{taken}");
        assert_eq!(flood(7), Err(DropReason::InControlFull), "an unexpected sender");
        sender.expect_from(std::net::Ipv4Addr::from_bits(7).into());
        assert_eq!((flood(7), flood(8)), (Ok(()), Err(DropReason::InControlFull)));
        assert_eq!(sender.unexpected(), 10_002);
        assert!(sender.forward(&[1, 0, 0, 0, 9], from(), at()).is_err());
        assert_eq!(sender.unexpected(), 10_002, "the socket never sheds it");
    }

    #[test]
    fn the_queue_is_bounded_and_reading_frees_space() {
        let (sender, receiver) = channel_of(false);
        let datagram = [MAGIC, &[0; 1000]].concat();
        let taken = (0..10_000).filter(|_| sender.forward(&datagram, from(), at()).is_ok()).count();
        assert_eq!(taken, CAPACITY / (datagram.len() + OVERHEAD));
        let refused = sender.forward(&datagram, from(), at());
        assert_eq!(refused, Err(DropReason::InControlFull));
        assert!(receiver.try_recv().is_ok());
        let later = Time::from_nanos(1_000_000_000);
        assert_eq!(sender.forward(&datagram, from(), later), Ok(()));
        while receiver.try_recv().is_ok() {}
        assert_eq!(receiver.free.load(Ordering::Relaxed), CAPACITY);
        drop(receiver);
        assert_eq!(sender.forward(&datagram, from(), at()), Err(DropReason::InControlFull));
    }
}
