//! Handles handshake messages, timers and requests from the data path: everything that is not
//! urgent. It drives [`wg::Control`], which it shares with the configuration.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use packet::{Endpoint, SendBatch, Tos, UdpSend};
use rand_core::CryptoRng;
use wg::{
    Control, Device, Time,
    message::{Handshake, Kind},
};

use crate::{Clock, Shared, datagram_sender::DatagramSender, lock, outbound::count_failure};

/// Capacity of the inbox: less than 1 MiB (kernel `MAX_QUEUED_INCOMING_HANDSHAKES` is 4096).
const INBOX_MESSAGES: usize = 4096;
/// With more than this number waiting, the device is under load (kernel: an eighth).
const INBOX_LOADED: usize = INBOX_MESSAGES / 8;
/// Messages that are processed in one turn. The configuration may take the lock between turns.
const MESSAGES_PER_TURN: usize = 64;
/// Handshakes that are processed together under load. Eight at once cost as much as two one by one
/// (docs/decisions/0015), and need only one wakeup.
const GATHERED_MESSAGES: usize = 16;
/// The longest wait for this number of messages.
const GATHER_TIME: Duration = Duration::from_millis(8);
/// Messages are gathered if there was work twice within this time. It is a multiple of
/// [`GATHER_TIME`], because the thread may also wait for a core.
const GATHER_WINDOW: Duration = Duration::from_millis(32);
/// The longest sleep. The clock of the wait stops while the host is suspended; the protocol's clock
/// does not.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The queue of handshake messages from the inbound half. The slow path sleeps on it.
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
    /// Number of messages that ends the sleep.
    wanted: usize,
}

impl Inbox {
    /// Queues a datagram. Returns false if it does not fit or is malformed. [`Inbox::pushed`] must
    /// be called after the last one.
    pub(crate) fn push(&self, datagram: &[u8], from: Endpoint) -> bool {
        let mut state = self.lock();
        let Some(message) = Handshake::copy_of(datagram) else { return false };
        if state.messages.len() >= INBOX_MESSAGES {
            return false;
        }
        state.messages.push_back((message, from));
        true
    }

    /// Ends the slow path's sleep, if enough messages are queued.
    pub(crate) fn pushed(&self) {
        let state = self.lock();
        if state.asleep && state.messages.len() >= state.wanted {
            self.awake.notify_one();
        }
    }

    /// Ends the slow path's sleep.
    pub fn wake(&self) {
        let mut state = self.lock();
        state.woken = true;
        if state.asleep {
            self.awake.notify_one();
        }
    }

    /// Sleeps until a message, a wakeup or a timeout. During `gather` it waits for several
    /// messages. Returns the next messages and the number of queued ones.
    fn wait(&self, gather: Duration, sleep: Duration) -> (Vec<(Handshake, Endpoint)>, usize) {
        let mut state = self.lock();
        state.asleep = true;
        for (wanted, time) in
            [(GATHERED_MESSAGES, gather.min(sleep)), (1, sleep.saturating_sub(gather))]
        {
            state.wanted = wanted;
            let lacks = |state: &mut InboxState| !state.woken && state.messages.len() < wanted;
            let waited = self.awake.wait_timeout_while(state, time, lacks);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        (state.asleep, state.woken) = (false, false);
        let waiting = state.messages.len();
        (state.messages.drain(..waiting.min(MESSAGES_PER_TURN)).collect(), waiting)
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
    sender: DatagramSender<U>,
    out: SendBatch,
    /// Times at which messages were processed last, and before that.
    worked: [Option<Time>; 2],
    sleep: Duration,
}

impl<R: CryptoRng, U: UdpSend> SlowPath<R, U> {
    /// Creates a slow path that sends by `udp`.
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
            sender: DatagramSender::new(udp, &shared.attached),
            out: SendBatch::default(),
            worked: [None; 2],
            sleep: Duration::ZERO,
        }
    }

    /// Time to wait for further messages. It is zero for a single message and for a second one that
    /// may belong to the same handshake, as when both peers initiate.
    fn gather(&self, now: Time) -> Duration {
        match self.worked {
            [Some(last), Some(before)] if now.since(before) < GATHER_WINDOW => {
                GATHER_TIME.saturating_sub(now.since(last))
            }
            _ => Duration::ZERO,
        }
    }

    /// Waits for work, and does it.
    pub fn step(&mut self) {
        let gather = self.gather((self.clock)().time);
        let (messages, waiting) = self.inbox.wait(gather, self.sleep);
        let now = (self.clock)();
        if !messages.is_empty() {
            self.worked = [Some(now.time), self.worked[0]];
        }
        let mut control = lock(&self.control);
        if waiting > INBOX_LOADED {
            control.set_under_load(now.time);
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
            self.sender.send(&mut self.out);
            self.out.failures().iter().for_each(|failure| count_failure(&self.device, failure));
            self.out.clear();
        }
    }
}

/// Handshakes have AF41 and cookie replies do not, as in the kernel module (`HANDSHAKE_DSCP` of
/// messages.h, which send.c does not use for cookie replies).
fn tos(message: &[u8]) -> Tos {
    match Kind::of(message) {
        Some(Kind::Initiation | Kind::Response) => Tos::AF41,
        _ => Tos::default(),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        net::SocketAddr,
        sync::atomic::{AtomicU64, Ordering},
        thread,
    };

    use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
    use wg::Now;

    use super::*;
    use crate::{Attachments, threads::tests::Nowhere};

    const LONG: Duration = Duration::from_mins(10);

    fn push(inbox: &Inbox, count: usize) {
        let from = Endpoint::new(SocketAddr::from(([192, 0, 2, 1], 1)));
        for _ in 0..count {
            // A well-formed initiation.
            let mut datagram = [0; 148];
            datagram[0] = 1;
            assert!(inbox.push(&datagram, from));
        }
        inbox.pushed();
    }

    #[test]
    fn consecutive_messages_are_gathered() {
        let inbox = Inbox::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| inbox.wait(LONG, LONG).1);
            while !inbox.lock().asleep {
                thread::yield_now();
            }
            for _ in 0..GATHERED_MESSAGES {
                push(&inbox, 1);
                // Condition variables may wake spuriously.
                inbox.awake.notify_one();
                thread::yield_now();
            }
            assert_eq!(waiting.join().unwrap(), GATHERED_MESSAGES);
        });
    }

    #[test]
    fn a_single_message_ends_the_wait_after_the_gathering_time() {
        let inbox = Inbox::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| inbox.wait(Duration::ZERO, LONG).1);
            while !inbox.lock().asleep {
                thread::yield_now();
            }
            push(&inbox, 1);
            assert_eq!(waiting.join().unwrap(), 1);
        });
        push(&inbox, 1);
        assert_eq!(inbox.wait(Duration::from_millis(1), LONG).1, 1, "the time is up");
        push(&inbox, 1);
        inbox.wake();
        assert_eq!(inbox.wait(LONG, LONG).1, 1, "there is other work");
    }

    #[test]
    fn messages_are_gathered_only_after_several_others() {
        let control = Control::new(ChaCha20Rng::seed_from_u64(1));
        let time = Arc::new(AtomicU64::new(0));
        let clock: Clock = {
            let time = time.clone();
            let now = move || Time::from_nanos(time.load(Ordering::Relaxed));
            Arc::new(move || Now { time: now(), wall: Duration::ZERO })
        };
        let device = control.device().clone();
        let shared = Shared::new(device, clock, Arc::new(|| {}), Attachments::default());
        let (control, inbox) = (Arc::new(Mutex::new(control)), Arc::new(Inbox::default()));
        let mut slow_path = SlowPath::new(&shared, control, inbox.clone(), Nowhere);
        // Returns the time to gather after the time `passed`, with a number of messages.
        let mut after = |passed: Duration, messages: usize| {
            let nanos = passed.as_nanos() as u64;
            let now = time.fetch_add(nanos, Ordering::Relaxed) + nanos;
            let gather = slow_path.gather(Time::from_nanos(now));
            push(&inbox, messages);
            inbox.wake();
            slow_path.step();
            gather
        };
        let (quarter, all) = (GATHER_TIME / 4, GATHER_TIME);
        assert_eq!(after(GATHER_TIME, 1), Duration::ZERO, "the first");
        assert_eq!(after(quarter, 1), Duration::ZERO, "one that may belong to it");
        assert_eq!(after(Duration::ZERO, 0), all, "the third");
        assert_eq!(after(quarter, 0), 3 * quarter, "other work does not count");
        assert_eq!(after(quarter, GATHERED_MESSAGES), 2 * quarter);
        assert_eq!(after(all, GATHERED_MESSAGES), Duration::ZERO, "the time is up");
        assert_eq!(after(Duration::ZERO, GATHERED_MESSAGES), all, "messages still arrive");
        assert_eq!(after(GATHER_WINDOW, 1), Duration::ZERO, "a single one later");
        assert_eq!(after(quarter, 1), Duration::ZERO);
    }
}
