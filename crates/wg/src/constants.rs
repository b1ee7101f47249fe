//! The constants of the protocol, each with its source: "paper" is Donenfeld,
//! "WireGuard: Next Generation Kernel Network Tunnel"; "kernel" is
//! `drivers/net/wireguard/messages.h` of Linux.

use std::time::Duration;

/// A sender starts a new handshake after this many messages (paper 6.1).
pub const REKEY_AFTER_MESSAGES: u64 = 1 << 60;
/// No message with this counter or a higher one is sent or accepted (paper 6.1). The distance to
/// the maximum prevents a wrap of the replay window, as in the kernel.
pub const REJECT_AFTER_MESSAGES: u64 = u64::MAX - REPLAY_WINDOW - 1;
/// The initiator replaces a session of this age by a new handshake (paper 6.1).
pub const REKEY_AFTER_TIME: Duration = Duration::from_secs(120);
/// A session of this age must not be used (paper 6.1).
pub const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// An unanswered handshake is given up after this long without new data to send
/// (paper 6.1, 6.4).
pub const REKEY_ATTEMPT_TIME: Duration = Duration::from_secs(90);
/// An unanswered initiation is repeated after this long, plus jitter. Two initiations to one peer
/// are never closer (paper 6.1).
pub const REKEY_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum jitter added to [`REKEY_TIMEOUT`], so that two peers that start at the same time do not
/// collide again and again (paper 6.1; kernel: a third of a second).
pub const REKEY_TIMEOUT_JITTER: Duration = Duration::from_millis(333);
/// A keepalive is sent if data was received and nothing was sent for this long (paper 6.5).
pub const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// The secrets of an expired session are wiped after this long (paper 6.3).
pub const WIPE_AFTER_TIME: Duration = Duration::from_secs(3 * REJECT_AFTER_TIME.as_secs());

/// Lifetime of a cookie and of the secret from which it is made (paper 5.4.7).
pub const COOKIE_LIFETIME: Duration = Duration::from_secs(120);
/// A cookie is not used within this time before its expiry, because it could be stale on arrival
/// (kernel `COOKIE_SECRET_LATENCY`).
pub const COOKIE_LATENCY: Duration = Duration::from_secs(5);
/// A device remains under load for this long after its queue was last too long (kernel
/// `wg_receive_handshake_packet`).
pub const UNDER_LOAD_AFTER: Duration = Duration::from_secs(1);

/// Maximum number of initiations of one peer that are answered in a second (kernel
/// `INITIATIONS_PER_SECOND`).
pub const INITIATIONS_PER_SECOND: u32 = 50;
/// Maximum number of handshake messages of one source that are handled in a second under load
/// (kernel `ratelimiter.c`).
pub const HANDSHAKES_PER_SECOND_AND_SOURCE: u32 = 20;
/// Burst of handshake messages of one source (kernel `ratelimiter.c`).
pub const HANDSHAKE_BURST: u32 = 5;

/// Size of the replay window behind the highest counter (kernel `COUNTER_WINDOW_SIZE`: 8192 bits,
/// of which one word is spare).
pub const REPLAY_WINDOW: u64 = 8192 - 64;

/// Maximum number of packets of one peer that wait for a handshake (kernel `MAX_STAGED_PACKETS`).
pub const MAX_STAGED_PACKETS: usize = 128;

/// Transport data is padded to a multiple of this many bytes (paper 5.4.6).
pub const PADDING: usize = 16;

/// Maximum number of peers of a device (kernel `MAX_PEERS_PER_DEVICE`).
pub const MAX_PEERS: usize = 1 << 20;

/// A peer is stale if data or an initiation was sent and nothing authentic was received for this
/// long. It equals the time after which an unanswered initiation is repeated.
pub const STALE_AFTER: Duration = REKEY_TIMEOUT;
/// An initiation of a sender that is not a peer is stored for this long. After that its sender has
/// repeated it.
pub const LOOKUP_TIMEOUT: Duration = REKEY_TIMEOUT;
/// Maximum number of public keys, and of addresses, with a pending lookup. The stored initiations
/// take less than 1 MiB, and at most 205 lookups of each kind start in a second.
pub const MAX_LOOKUPS: usize = 1024;
/// Maximum number of initiations of unknown senders, without a cookie, that are checked in a
/// second. So forged source addresses can fill at most about half of [`MAX_LOOKUPS`].
pub const LOOKUPS_PER_SECOND: u32 = 100;
