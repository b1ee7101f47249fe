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
    Control, Device, Time,
    message::{Handshake, Kind},
};

use crate::{Clock, Shared, datagram_sender::DatagramSender, lock, outbound::count_failure};

/// Handshake messages that may wait (kernel `MAX_QUEUED_INCOMING_HANDSHAKES` is
/// 4096): less than 1 MiB.
const INBOX_MESSAGES: usize = 4096;
/// With more than this waiting, the device is under load (kernel: an eighth).
const INBOX_LOADED: usize = INBOX_MESSAGES / 8;
/// Messages worked on before configuration may have its turn.
const TURN: usize = 64;
/// Handshakes of a crowd that are worked on together: eight at once cost what two do one by one
/// (docs/decisions/0015), and one wake.
const TOGETHER: usize = 16;
/// The longest wait for so many.
const GATHER: Duration = Duration::from_millis(8);
/// A crowd is where there was work twice within this time: several times [`GATHER`], as the thread
/// may wait for a core, too.
const CROWDED: Duration = Duration::from_millis(32);
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
    /// How many messages end the sleep.
    wanted: usize,
}

impl Inbox {
    /// Takes a datagram; false where it has no room. [`Inbox::pushed`] is to follow the last one.
    pub(crate) fn push(&self, datagram: &[u8], from: Endpoint) -> bool {
        let mut state = self.lock();
        let Some(message) = Handshake::copy_of(datagram) else { return false };
        if state.messages.len() >= INBOX_MESSAGES {
            return false;
        }
        state.messages.push_back((message, from));
        true
    }

    /// Ends the slow path's sleep, if it waits for no more than there is.
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

    /// Sleeps until there is a message, or while `gather` lasts until there are several, or a wake
    /// comes or the time is up. Returns the next messages, and how many were waiting.
    fn wait(&self, gather: Duration, sleep: Duration) -> (Vec<(Handshake, Endpoint)>, usize) {
        let mut state = self.lock();
        state.asleep = true;
        for (wanted, time) in [(TOGETHER, gather.min(sleep)), (1, sleep.saturating_sub(gather))] {
            state.wanted = wanted;
            let lacks = |state: &mut InboxState| !state.woken && state.messages.len() < wanted;
            let waited = self.awake.wait_timeout_while(state, time, lacks);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
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
    sender: DatagramSender<U>,
    out: SendBatch,
    /// When messages were worked on last, and the time before.
    worked: [Option<Time>; 2],
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
            sender: DatagramSender::new(udp, &shared.attached),
            out: SendBatch::default(),
            worked: [None; 2],
            sleep: Duration::ZERO,
        }
    }

    /// How long several messages are waited for. Neither a lone one waits, nor a second that belongs
    /// to it, as where both sides begin.
    fn gather(&self, now: Time) -> Duration {
        match self.worked {
            [Some(last), Some(before)] if now.since(before) < CROWDED => {
                GATHER.saturating_sub(now.since(last))
            }
            _ => Duration::ZERO,
        }
    }

    /// Waits for something to do, and does it.
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

/// Handshakes are AF41 and cookie replies are not, as of the kernel's module (`HANDSHAKE_DSCP` of
/// messages.h, which send.c does not give to cookie replies).
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
            // An initiation in its form.
            let mut datagram = [0; 148];
            datagram[0] = 1;
            assert!(inbox.push(&datagram, from));
        }
        inbox.pushed();
    }

    #[test]
    fn what_comes_one_behind_another_is_worked_on_together() {
        let inbox = Inbox::default();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| inbox.wait(LONG, LONG).1);
            while !inbox.lock().asleep {
                thread::yield_now();
            }
            for _ in 0..TOGETHER {
                push(&inbox, 1);
                // The system may end a wait for no reason.
                inbox.awake.notify_one();
                thread::yield_now();
            }
            assert_eq!(waiting.join().unwrap(), TOGETHER);
        });
    }

    #[test]
    fn a_lone_message_is_waited_for_and_none_waits_for_others_in_vain() {
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
    fn only_behind_several_others_is_a_message_kept_waiting() {
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
        // What is waited for after so long, where there was so much to do.
        let mut after = |passed: Duration, messages: usize| {
            let nanos = passed.as_nanos() as u64;
            let now = time.fetch_add(nanos, Ordering::Relaxed) + nanos;
            let gather = slow_path.gather(Time::from_nanos(now));
            push(&inbox, messages);
            inbox.wake();
            slow_path.step();
            gather
        };
        let (quarter, all) = (GATHER / 4, GATHER);
        assert_eq!(after(GATHER, 1), Duration::ZERO, "the first");
        assert_eq!(after(quarter, 1), Duration::ZERO, "one that may belong to it");
        assert_eq!(after(Duration::ZERO, 0), all, "the third");
        assert_eq!(after(quarter, 0), 3 * quarter, "other work is no message");
        assert_eq!(after(quarter, TOGETHER), 2 * quarter);
        assert_eq!(after(all, TOGETHER), Duration::ZERO, "the time is up");
        assert_eq!(after(Duration::ZERO, TOGETHER), all, "they still come");
        assert_eq!(after(CROWDED, 1), Duration::ZERO, "a lone one later");
        assert_eq!(after(quarter, 1), Duration::ZERO);
    }
}
