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

/// A peer is stale when data or an initiation was sent and nothing authentic came for so long: the
/// time after which an unanswered initiation is repeated.
pub const STALE_AFTER: Duration = REKEY_TIMEOUT;
/// An initiation of who is no peer yet is kept for so long; then its sender has repeated it.
pub const LOOKUP_TIMEOUT: Duration = REKEY_TIMEOUT;
/// Public keys, and addresses, that may wait for an answer at a time. The initiations that are kept
/// take less than 1 MiB, and there are at most 205 questions of each kind a second.
pub const LOOKUPS_MOST: usize = 1024;
/// Initiations of unknown senders a second that are looked at without a cookie, from all senders
/// together. So forged source addresses can fill about half of [`LOOKUPS_MOST`], and no more.
pub const LOOKUPS_PER_SECOND: u32 = 100;
