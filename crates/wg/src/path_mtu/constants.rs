//! The constants of the search, each with its source.

use std::time::Duration;

/// The shortest plaintext that a path's MTU is searched among: IPv4's 576 bytes that every
/// host takes (RFC 791 section 3.1), less 60 of the outer headers and our own.
pub(super) const PROBE_FLOOR: u16 = 576 - 60;
/// What is taken to arrive while nothing else is known: IPv6's least MTU of 1280, less 80
/// (RFC 8899 `BASE_PLPMTU`).
pub(super) const PROBE_BASE: u16 = 1280 - 80;
/// The longest plaintext that is asked about: what one UDP datagram over IPv4 holds.
pub(super) const PROBE_MOST: u16 = 65_507 - 32;
/// A search ends when its bounds are no further apart, in bytes.
pub(super) const PROBE_STEP: u16 = 16;
/// A peer that did not answer so many short questions knows none (RFC 8899 `MAX_PROBES`).
pub(super) const PROBE_LOST: u32 = 3;
/// A length is too long when at least so many questions of it were lost beside short ones that
/// were answered, and more on a path that loses more ([`super::search`]).
pub(super) const PROBE_PAIRS_LEAST: usize = 8;
/// After so many pairs there is a verdict, or none is to be had.
pub(super) const PROBE_PAIRS_MOST: usize = 64;
/// How often a pair of a long and a short question is sent once a long one is doubted: with
/// 1420 bytes that is 760 kbit/s, for 200 ms where nothing is amiss but the length.
pub(super) const PROBE_PAIR_EVERY: Duration = Duration::from_millis(15);
/// A long question is doubted when it was not answered for so long beyond twice the round trip.
/// It is lost only after [`PROBE_TIMEOUT`].
pub(super) const PROBE_DOUBT_AFTER: Duration = Duration::from_millis(40);
/// How long an answer is waited for beyond twice the round trip: a busy peer takes so long.
/// RFC 8899 asks for a second and more of who cannot measure the round trip.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long it is waited for where the round trip is not known (RFC 8085 section 3.1.1).
pub(super) const PROBE_FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it is waited for at most.
pub(super) const PROBE_TIMEOUT_MOST: Duration = Duration::from_secs(3);
/// While long data is sent, it is asked this often whether that arrives: with what the
/// verdict takes it is less than the third retransmission of TCP takes to come, 1.4 s.
pub(super) const PROBE_CONFIRM_AFTER: Duration = Duration::from_millis(300);
/// Whether a path carries more than what was found is asked after this long (RFC 8899
/// `PMTU_RAISE_TIMER`).
pub(super) const PROBE_RAISE_AFTER: Duration = Duration::from_secs(600);
/// After so many trials in a row without any answer the peer is asked no more: it answered
/// once, but another WireGuard may have its place now.
pub(super) const PROBE_STRIKES: u32 = 5;
