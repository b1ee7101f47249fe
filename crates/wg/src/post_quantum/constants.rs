//! The constants of the exchange, each with its reason.

use std::time::Duration;

/// A peer that did not answer so many questions supports none of it, as with questions about the
/// path.
pub(super) const ASK_MOST: u32 = 3;
/// How long an answer is waited for: the round trip is not known (RFC 8085 section 3.1.1).
pub(super) const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// After so long without an answer a key or a confirmation is sent again, and after twice as long
/// each time: what is lost is three datagrams, and a path that takes longer has them twice.
pub(super) const REPEAT_FIRST: Duration = Duration::from_millis(500);
/// The longest time between two of them.
pub(super) const REPEAT_LAST: Duration = Duration::from_secs(8);
/// So often it is sent at most, which takes 40 seconds. Then it waits for the next session.
pub(super) const REPEAT_MOST: u32 = 8;
/// A ciphertext is not sent again sooner: three parts of a key that come again are one question.
pub(super) const CIPHERTEXT_APART: Duration = Duration::from_millis(200);
/// Parts of a key, or a ciphertext, are kept for so long: longer than they are repeated.
pub(super) const KEPT: Duration = Duration::from_secs(60);
/// A peer has no more than one key answered a second, and no more than one made because it asks: each
/// costs about what a handshake costs.
pub(super) const ANSWERS_APART: Duration = Duration::from_secs(1);
/// A secret this old is replaced, once there is another session.
pub(super) const RENEW_AFTER: Duration = Duration::from_secs(3600);
/// A peer that begins another handshake within this time could not read the answer: an initiation
/// that was lost, or its answer, is repeated after five seconds.
pub(super) const UNREADABLE_WITHIN: Duration = Duration::from_millis(2500);
/// A response that could not be read may be forged, so where there is a secret the true one has so long
/// from the initiation on before another initiation replaces it: longer than round trips, and shorter
/// than [`UNREADABLE_WITHIN`] by one.
pub(crate) const UNREADABLE_AFTER: Duration = Duration::from_secs(1);
