//! The keys of a session, in a sending and a receiving half.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crypto::noise::TransportKeys;

use crate::{
    constants::REJECT_AFTER_MESSAGES, post_quantum::PostQuantum, replay::ReplayFilter, time::Time,
};

/// Role of a side in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

/// A session's keys. The secrets are wiped on the last drop.
#[derive(Debug)]
pub struct Keypair {
    /// Seals sent packets.
    pub send: SendKey,
    /// Opens received packets.
    pub recv: RecvKey,
    /// Our index, which the peer puts in its messages.
    pub(crate) local_index: u32,
    pub(crate) role: Role,
    pub(crate) created: Time,
    /// ID of the post-quantum secret of the handshake.
    pub(crate) secret: Option<u32>,
    /// Whether the session may carry data. Otherwise it only carries the post-quantum exchange.
    pub carries_data: bool,
    /// Whether the peer has proved that it has the keys: to an initiator by its response, to a
    /// responder by its first data.
    pub(crate) confirmed: AtomicBool,
}

impl Keypair {
    pub(crate) fn new(
        keys: &TransportKeys,
        local_index: u32,
        remote_index: u32,
        role: Role,
        created: Time,
    ) -> Self {
        Self {
            send: SendKey {
                key: crypto::aead::Key::new(&keys.send),
                remote_index,
                counter: AtomicU64::new(0),
            },
            recv: RecvKey {
                key: crypto::aead::Key::new(&keys.recv),
                filter: Mutex::new(ReplayFilter::default()),
            },
            local_index,
            role,
            created,
            secret: None,
            carries_data: true,
            confirmed: AtomicBool::new(role == Role::Initiator),
        }
    }

    /// Sets the post-quantum secret of the handshake, if any, and whether the session may carry
    /// data in `mode`.
    pub(crate) fn with_secret(self, secret: Option<u32>, mode: PostQuantum) -> Self {
        let carries_data = secret.is_some() || mode != PostQuantum::Require;
        Self { secret, carries_data, ..self }
    }
}

/// The sending half.
#[derive(Debug)]
pub struct SendKey {
    /// The key, for [`crypto::aead::seal`].
    pub key: crypto::aead::Key,
    /// The peer's index for this session.
    pub remote_index: u32,
    counter: AtomicU64,
}

impl SendKey {
    /// Reserves `packets` consecutive counters and returns the first one. `None` if the limit is
    /// reached: the counter never wraps.
    pub(crate) fn take(&self, packets: u64) -> Option<u64> {
        self.counter
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |counter| {
                counter.checked_add(packets).filter(|end| *end <= REJECT_AFTER_MESSAGES)
            })
            .ok()
    }

    /// Continues from `counter`, so that a test can reach the limits.
    #[doc(hidden)]
    pub fn skip_to(&self, counter: u64) {
        self.counter.store(counter, Ordering::Relaxed);
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct RecvKey {
    /// The key, for [`crypto::aead::open`].
    pub key: crypto::aead::Key,
    filter: Mutex<ReplayFilter>,
}

impl RecvKey {
    /// Whether the counter of an authentic packet is new. Marks it as used.
    pub fn accept(&self, counter: u64) -> bool {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner).accept(counter)
    }
}
