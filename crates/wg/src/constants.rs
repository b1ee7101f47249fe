//! The constants of the protocol, each with its source: "paper" is Donenfeld,
//! "WireGuard: Next Generation Kernel Network Tunnel"; "kernel" is
//! `drivers/net/wireguard/messages.h` of Linux.

use std::time::Duration;

/// A sender starts a new handshake after this many messages (paper 6.1).
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// No message at or past this counter is sent or accepted (paper 6.1; the
/// window is kept away from the wrap as the kernel does).
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - REPLAY_WINDOW - 1;
/// The initiator starts a new handshake on a session this old (paper 6.1).
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// A session this old is dead (paper 6.1).
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// An unanswered handshake is given up after this long without new data to send
/// (paper 6.1, 6.4).
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// An unanswered initiation is repeated after this long, plus jitter, and no
/// two initiations to one peer are closer (paper 6.1).
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// The most that is added to [`REKEY_TIMEOUT`], so that two peers that start at
/// once do not go on colliding (paper 6.1; kernel: a third of a second).
pub const REKEY_TIMEOUT_JITTER: Duration = Duration::from_millis(333);
/// After data was received and none sent for this long, a keepalive is sent
/// (paper 6.5).
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Secrets of a dead session are wiped after this long (paper 6.3).
pub const WIPE_AFTER_TIME: Duration = Duration::from_secs(3 * REJECT_AFTER_TIME.as_secs());

/// A cookie and the secret behind it live this long (paper 5.4.7).
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(120);
/// A cookie about to expire is not used: it would be stale on arrival (kernel
/// `COOKIE_SECRET_LATENCY`).
pub const COOKIE_LATENCY: Duration = Duration::from_secs(5);
/// How long a device stays under load after it last was (kernel
/// `wg_receive_handshake_packet`).
pub const UNDER_LOAD_AFTER: Duration = Duration::from_secs(1);

/// At most this many initiations of one peer are answered a second (kernel
/// `INITIATIONS_PER_SECOND`).
pub const INITIATIONS_PER_SECOND: u32 = 50;
/// Handshake messages of one source that are worked on a second while under
/// load (kernel `ratelimiter.c`).
pub const HANDSHAKES_PER_SECOND_AND_SOURCE: u32 = 20;
/// How many of them may come at once (kernel `ratelimiter.c`).
pub const HANDSHAKE_BURST: u32 = 5;

/// Counters the replay filter remembers behind the highest (kernel
/// `COUNTER_WINDOW_SIZE`: 8192 bits, of which one word is spare).
pub const REPLAY_WINDOW: u64 = 8192 - 64;

/// Packets that wait for a handshake, per peer (kernel `MAX_STAGED_PACKETS`).
pub const MAX_STAGED_PACKETS: usize = 128;

/// Transport data is padded to a multiple of this many bytes (paper 5.4.6).
pub const PADDING: usize = 16;

/// The most peers a device takes (kernel `MAX_PEERS_PER_DEVICE`).
pub const MAX_PEERS: usize = 1 << 20;

/// The shortest plaintext that a path's MTU is searched among: IPv4's 576 bytes that every
/// host takes (RFC 791 section 3.1), less 60 of the outer headers and our own.
pub const PROBE_FLOOR: u16 = 576 - 60;
/// What is taken to arrive while nothing else is known: IPv6's least MTU of 1280, less 80
/// (RFC 8899 `BASE_PLPMTU`).
pub const PROBE_BASE: u16 = 1280 - 80;
/// The longest plaintext that is asked about: what one UDP datagram over IPv4 holds.
pub const PROBE_MOST: u16 = 65_507 - 32;
/// A search ends when its bounds are no further apart, in bytes.
pub const PROBE_STEP: u16 = 16;
/// A peer that did not answer so many short questions knows none (RFC 8899 `MAX_PROBES`).
pub const PROBE_LOST: u32 = 3;
/// A length is too long when at least so many questions of it were lost beside short ones that
/// were answered, and more on a path that loses more ([`crate::path_mtu`]).
pub const PROBE_PAIRS_LEAST: usize = 8;
/// After so many pairs there is a verdict, or none is to be had.
pub const PROBE_PAIRS_MOST: usize = 64;
/// How often a pair of a long and a short question is sent once a long one is doubted: with
/// 1420 bytes that is 760 kbit/s, for 200 ms where nothing is amiss but the length.
pub const PROBE_PAIR_EVERY: Duration = Duration::from_millis(15);
/// A long question is doubted when it was not answered for so long beyond twice the round trip.
/// It is lost only after [`PROBE_TIMEOUT`].
pub const PROBE_DOUBT_AFTER: Duration = Duration::from_millis(40);
/// How long an answer is waited for beyond twice the round trip: a busy peer takes so long.
/// RFC 8899 asks for a second and more of who cannot measure the round trip.
pub const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long it is waited for where the round trip is not known (RFC 8085 section 3.1.1).
pub const PROBE_FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// How long it is waited for at most.
pub const PROBE_TIMEOUT_MOST: Duration = Duration::from_secs(3);
/// While long data is sent, it is asked this often whether that arrives: with what the
/// verdict takes it is less than the third retransmission of TCP takes to come, 1.4 s.
pub const PROBE_CONFIRM_AFTER: Duration = Duration::from_millis(300);
/// Whether a path carries more than what was found is asked after this long (RFC 8899
/// `PMTU_RAISE_TIMER`).
pub const PROBE_RAISE_AFTER: Duration = Duration::from_secs(600);
/// After so many trials in a row without any answer the peer is asked no more: it answered
/// once, but another WireGuard may have its place now.
pub const PROBE_STRIKES: u32 = 5;
