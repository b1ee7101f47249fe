//! Handshake messages, timers and what the data path asks for: everything that
//! may take its time. It drives [`wg::Control`], which configuration shares.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packet::{Endpoint, SendBatch, Tos, UdpSend};
use rand_core::CryptoRng;
use wg::{
    Control, Device,
    message::{Handshake, Kind},
};

use crate::{Clock, Shared, lock, outbound::count_failure, outlet::Outlet};

/// Handshake messages that may wait (kernel `MAX_QUEUED_INCOMING_HANDSHAKES` is
/// 4096): less than 1 MiB.
const INBOX_MESSAGES: usize = 4096;
/// With more than this waiting, the device is under load (kernel: an eighth).
const INBOX_LOADED: usize = INBOX_MESSAGES / 8;
/// Messages worked on before configuration may have its turn.
const TURN: usize = 64;
/// The longest sleep: the wait's clock stands still while the host is suspended,
/// the protocol's does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// Where the inbound half leaves handshake messages, and where the slow path
/// sleeps.
#[derive(Default)]
pub struct Inbox {
    state: Mutex<InboxState>,
    awake: Condvar,
}

#[derive(Default)]
struct InboxState {
    messages: VecDeque<(Handshake, Endpoint)>,
    woken: bool,
    asleep: bool,
}

impl Inbox {
    /// Takes a datagram, behind the last of which the slow path is to be woken; false where it has
    /// no room.
    pub(crate) fn push(&self, datagram: &[u8], from: Endpoint) -> bool {
        let mut state = self.lock();
        let Some(message) = Handshake::copy_of(datagram) else { return false };
        if state.messages.len() >= INBOX_MESSAGES {
            return false;
        }
        state.messages.push_back((message, from));
        true
    }

    /// Ends the slow path's sleep.
    pub fn wake(&self) {
        let mut state = self.lock();
        state.woken = true;
        if state.asleep {
            self.awake.notify_one();
        }
    }

    /// Sleeps until there is a message, a wake or the time is up. Returns the
    /// next messages, and how many were waiting.
    fn wait(&self, sleep: Duration) -> (Vec<(Handshake, Endpoint)>, usize) {
        let mut state = self.lock();
        state.asleep = true;
        let idle = |state: &mut InboxState| !state.woken && state.messages.is_empty();
        let (mut state, _) = self
            .awake
            .wait_timeout_while(state, sleep, idle)
            .unwrap_or_else(PoisonError::into_inner);
        (state.asleep, state.woken) = (false, false);
        let waiting = state.messages.len();
        (state.messages.drain(..waiting.min(TURN)).collect(), waiting)
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        lock(&self.state)
    }
}

/// The slow path of a device.
pub struct SlowPath<R, U> {
    control: Arc<Mutex<Control<R>>>,
    clock: Clock,
    inbox: Arc<Inbox>,
    device: Arc<Device>,
    outlet: Outlet<U>,
    out: SendBatch,
    sleep: Duration,
}

impl<R: CryptoRng, U: UdpSend> SlowPath<R, U> {
    /// A slow path that answers by `udp`.
    pub fn new(
        shared: &Shared,
        control: Arc<Mutex<Control<R>>>,
        inbox: Arc<Inbox>,
        udp: U,
    ) -> Self {
        Self {
            control,
            clock: shared.clock.clone(),
            inbox,
            device: shared.device.clone(),
            outlet: Outlet::new(udp, &shared.attached),
            out: SendBatch::default(),
            sleep: Duration::ZERO,
        }
    }

    /// Waits for something to do, and does it.
    pub fn step(&mut self) {
        let (messages, waiting) = self.inbox.wait(self.sleep);
        let now = (self.clock)();
        let mut control = lock(&self.control);
        if waiting > INBOX_LOADED {
            control.note_load(now.time);
        }
        let datagrams = messages.iter().map(|(message, from)| (message.as_bytes(), *from));
        control.handle_datagrams(datagrams, now);
        control.handle_notices(now);
        control.handle_timeout(now);
        while let Some((message, endpoint)) = control.poll_transmit() {
            let bytes = message.as_bytes();
            self.out.push(bytes.len(), endpoint, tos(bytes)).copy_from_slice(bytes);
        }
        self.sleep = match control.poll_timeout() {
            Some(deadline) => deadline.since((self.clock)().time).min(LONGEST_SLEEP),
            None => LONGEST_SLEEP,
        };
        drop(control);
        if !self.out.is_empty() {
            self.outlet.send(&mut self.out);
            self.out.failures().iter().for_each(|failure| count_failure(&self.device, failure));
            self.out.clear();
        }
    }
}

/// Handshakes are AF41 and cookie replies are not, as of the kernel's module (`HANDSHAKE_DSCP` of
/// messages.h, which send.c does not give to cookie replies).
fn tos(message: &[u8]) -> Tos {
    match Kind::of(message) {
        Some(Kind::Initiation | Kind::Response) => Tos::AF41,
        _ => Tos::default(),
    }
}
