//! The constants of the exchange, each with its reason.

use std::time::Duration;

/// After this many unanswered requests the peer does not support the exchange.
pub(crate) const MAX_REQUESTS: u32 = 3;
/// Time to wait for an answer to a request, because the round trip is unknown (RFC 8085 section
/// 3.1.1).
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// A key or a confirmation is sent again after this time without an answer, and then after twice
/// the previous time. That is three datagrams, which a path with a longer round trip carries twice.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Upper bound of the time between two transmissions.
pub(crate) const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(8);
/// Maximum number of transmissions, which take 40 seconds. Then the exchange waits for the next
/// session.
pub(crate) const MAX_TRANSMISSIONS: u32 = 8;
/// Minimum interval between two transmissions of a ciphertext, because the three parts of a
/// repeated key are one request.
pub(crate) const MIN_CIPHERTEXT_INTERVAL: Duration = Duration::from_millis(200);
/// Parts of a key, and a ciphertext, are stored for this long: longer than they are retransmitted.
pub(crate) const STATE_LIFETIME: Duration = Duration::from_secs(60);
/// A peer's key is answered at most once in this time, and a key is made for a request of the peer
/// at most once in this time. Each costs about as much as a handshake.
pub(crate) const MIN_KEY_INTERVAL: Duration = Duration::from_secs(1);
/// A secret of this age is replaced in the next session.
pub(crate) const SECRET_LIFETIME: Duration = Duration::from_secs(3600);
/// A peer that starts another handshake within this time could not read the response. A lost
/// initiation or response is repeated only after five seconds.
pub(crate) const UNREADABLE_WITHIN: Duration = Duration::from_millis(2500);
/// After an unreadable response, which may be forged, a side with a secret waits this long from its
/// initiation before it sends another one, so that the true response can arrive. This is longer
/// than usual round trips, and shorter than [`UNREADABLE_WITHIN`] by more than one round trip.
pub(crate) const UNREADABLE_RETRY_DELAY: Duration = Duration::from_secs(1);
