//! The constants of the search, each with its source.

use std::time::Duration;

/// Lower bound of the search, as the length of a plaintext: the 576 bytes of IPv4 that every host
/// accepts (RFC 791 section 3.1), less 60 for the outer headers and our own.
pub(crate) const MIN_PLPMTU: u16 = 576 - 60;
/// Length that is assumed to arrive while nothing else is known: the minimum MTU of IPv6, 1280,
/// less 80 (RFC 8899 `BASE_PLPMTU`).
pub(crate) const BASE_PLPMTU: u16 = 1280 - 80;
/// Upper bound of the search: the payload of one UDP datagram over IPv4.
pub(crate) const MAX_PLPMTU: u16 = 65_507 - 32;
/// A search ends if its bounds are at most this far apart, in bytes.
pub(crate) const SEARCH_STEP: u16 = 16;
/// After this many unanswered short probes the peer does not support probing (RFC 8899
/// `MAX_PROBES`).
pub(crate) const MAX_PROBES: u32 = 3;
/// A length is too long if at least this many of its probes were lost while the short probes sent
/// with them were answered. On a path with loss the number is higher ([`super::search`]).
pub(crate) const MIN_PROBE_PAIRS: usize = 8;
/// After this many pairs the trial ends, with or without a verdict.
pub(crate) const MAX_PROBE_PAIRS: usize = 64;
/// Interval between pairs of a long and a short probe after a long probe was not answered in time.
/// With 1420 bytes that is 760 kbit/s, for 200 ms if only the length is the cause.
pub(crate) const PROBE_PAIR_INTERVAL: Duration = Duration::from_millis(15);
/// A long probe is suspected lost after this time beyond twice the round trip. It counts as lost
/// only after [`PROBE_TIMEOUT`].
pub(crate) const PROBE_SUSPECT_AFTER: Duration = Duration::from_millis(40);
/// A probe is lost after this time beyond twice the round trip, which a busy peer may take. RFC
/// 8899 requires one second or more only if the round trip is unknown.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// A probe is lost after this time if the round trip is unknown (RFC 8085 section 3.1.1).
pub(crate) const INITIAL_PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Upper bound of the time after which a probe is lost.
pub(crate) const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// While long data is sent, a probe verifies at this interval that its length arrives. Together
/// with the time of a verdict, this is less than the 1.4 s until TCP's third retransmission.
pub(crate) const CONFIRM_INTERVAL: Duration = Duration::from_millis(300);
/// After this time the search is repeated to find out whether the path carries more (RFC 8899
/// `PMTU_RAISE_TIMER`).
pub(crate) const PMTU_RAISE_INTERVAL: Duration = Duration::from_secs(600);
/// After this many consecutive trials without a verdict, probing stops: the peer replied before,
/// but another WireGuard implementation may have replaced it.
pub(crate) const MAX_INCONCLUSIVE_TRIALS: u32 = 5;
