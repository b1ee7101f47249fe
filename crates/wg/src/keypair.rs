//! The keys of a session, split into the half that sends and the half that
//! receives.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    constants::REJECT_AFTER_MESSAGES, noise::TransportKeys, post_quantum::PostQuantum,
    replay::ReplayFilter, time::Time,
};

/// The role a side had in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Initiator,
    Responder,
}

/// A session's keys. The secrets are wiped when the last holder lets go.
#[derive(Debug)]
pub struct Keypair {
    /// Seals what we send.
    pub send: SendKey,
    /// Opens what we receive.
    pub recv: RecvKey,
    /// The index by which the peer names this session to us.
    pub(crate) local_index: u32,
    pub(crate) role: Role,
    pub(crate) created: Time,
    /// The number of the secret against quantum computers that the handshake was made with.
    pub(crate) secret: Option<u32>,
    /// Whether data may pass; else the session is for the exchange of such a secret alone.
    pub carries_data: bool,
    /// Whether the peer has proved that it has the keys too: by its response to
    /// an initiator, by its first data to a responder.
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
                key: aead::Key::new(&keys.send),
                remote_index,
                counter: AtomicU64::new(0),
            },
            recv: RecvKey {
                key: aead::Key::new(&keys.recv),
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

    /// The keypair of a handshake with a `secret` against quantum computers or without, where data
    /// may need one.
    pub(crate) fn with_secret(self, secret: Option<u32>, mode: PostQuantum) -> Self {
        let carries_data = secret.is_some() || mode != PostQuantum::Require;
        Self { secret, carries_data, ..self }
    }
}

/// The sending half.
#[derive(Debug)]
pub struct SendKey {
    /// The key, for [`aead::seal`].
    pub key: aead::Key,
    /// The index by which the peer knows this session.
    pub remote_index: u32,
    counter: AtomicU64,
}

impl SendKey {
    /// Takes `packets` counters in a row and returns the first, or `None` where
    /// the limit is reached: the counter never wraps.
    pub(crate) fn take(&self, packets: u64) -> Option<u64> {
        self.counter
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |counter| {
                counter.checked_add(packets).filter(|end| *end <= REJECT_AFTER_MESSAGES)
            })
            .ok()
    }

    /// Goes on from `counter`, to reach the limits in a test.
    #[doc(hidden)]
    pub fn skip_to(&self, counter: u64) {
        self.counter.store(counter, Ordering::Relaxed);
    }
}

/// The receiving half.
#[derive(Debug)]
pub struct RecvKey {
    /// The key, for [`aead::open`].
    pub key: aead::Key,
    filter: Mutex<ReplayFilter>,
}

impl RecvKey {
    /// Whether the counter of an authentic packet is new.
    pub fn accept(&self, counter: u64) -> bool {
        self.filter.lock().unwrap_or_else(PoisonError::into_inner).accept(counter)
    }
}
