//! Runs both directions on one thread, and moves the outbound half to a second thread while one
//! core is not enough.
//!
//! ```text
//!   first thread    | wait for both | in, out | in, out | in | in | in, out | wait for both |
//!                                             `-> away        ^
//!   second thread   (sleeps)                      | out | out |- back
//! ```
//!
//! On one thread, packets that a received packet causes (answers, acknowledgements, forwarded
//! packets) are sent before the thread sleeps. No other thread must be woken, and the scheduler
//! needs only one core. Only one outbound half exists, and one thread at a time has it, so each
//! flow stays in order.

use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use packet::{IpRecv, IpSend, Poll, Ready, UdpRecv, UdpSend, Waker};
use wg::{Time, stack};

use crate::{Clock, Inbound, Outbound, round_counter::Rounds, take_turns};

/// CPU time used so far, by the calling thread and by the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub thread: Duration,
    pub process: Duration,
}

/// Reads CPU time. It is called once in each [`WINDOW`].
pub type CpuClock = Arc<dyn Fn() -> CpuTime + Send + Sync>;

/// Usage is measured over this time before the outbound half moves to the other thread.
const WINDOW: Duration = Duration::from_millis(50);
/// Steps between two readings of the clock.
const STEPS: u32 = 16;
/// Usage of the thread, in cores, at which the outbound half moves to the second thread. The thread
/// never slept and no other program waited for its core, so another core may be free.
const SATURATED: f64 = 0.95;
/// Usage of the process, in cores, below which the outbound half moves back.
const CALM: f64 = 0.8;

/// State of the first thread.
pub(crate) struct DataThread<IR, IS, UR, US> {
    inbound: Inbound<UR, IS>,
    /// `None` while the second thread has it.
    outbound: Option<Box<Outbound<IR, US>>>,
    poll: Box<dyn Poll>,
    /// Whether one half had more work than it could do in its step.
    more: bool,
    usage: Usage,
    second: Option<Channel<Box<Outbound<IR, US>>>>,
    rounds: [Rounds; 2],
}

/// The ends of two channels, to the other thread and from it.
struct Channel<T> {
    to_other: SyncSender<T>,
    from_other: Receiver<T>,
}

/// State of the second thread.
pub(crate) struct OutboundThread<IR, US> {
    outbound: Option<Box<Outbound<IR, US>>>,
    usage: Usage,
    first: Channel<Box<Outbound<IR, US>>>,
    wake_first: Waker,
    rounds: Rounds,
}

impl<IR: IpRecv, IS: IpSend, UR: UdpRecv, US: UdpSend> DataThread<IR, IS, UR, US> {
    /// Creates the first thread's state. `rounds` has the counters of the outbound and of the
    /// inbound half.
    pub(crate) fn new(
        outbound: Outbound<IR, US>,
        inbound: Inbound<UR, IS>,
        poll: Box<dyn Poll>,
        usage: Usage,
        rounds: [Rounds; 2],
    ) -> Self {
        let outbound = Some(Box::new(outbound));
        Self { inbound, outbound, poll, more: false, usage, second: None, rounds }
    }

    /// Creates the second thread's state. `wake` ends the waits of the first thread.
    pub(crate) fn second(&mut self, wake: Waker) -> OutboundThread<IR, US> {
        let (away, taken) = sync_channel(1);
        let (back, returned) = sync_channel(1);
        self.second = Some(Channel { to_other: away, from_other: returned });
        let first = Channel { to_other: back, from_other: taken };
        let [rounds, _] = self.rounds.clone();
        OutboundThread {
            outbound: None,
            usage: self.usage.restarted(),
            first,
            wake_first: wake,
            rounds,
        }
    }

    /// Does the work that is available, or waits for work.
    ///
    /// # Errors
    /// One of the sides is gone.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        if let Some(second) = &self.second
            && self.outbound.is_none()
        {
            self.outbound = second.from_other.try_recv().ok();
            // Packets may wait in its queue, and no event ends a wait for them.
            self.more |= self.outbound.is_some();
        }
        let Some(outbound) = &mut self.outbound else {
            self.more = self.rounds[1].step(|| self.inbound.step(true))?;
            return Ok(());
        };
        let ready = if self.more {
            Ready { ip: true, udp: true }
        } else {
            self.poll.poll(self.inbound.max_wait())?
        };
        self.more = false;
        // After a timeout the inbound half must run, because it requested that timeout.
        if ready.udp || !ready.ip {
            self.more = self.inbound.step(false)?;
            self.rounds[1].count();
        }
        // The outbound half also runs if only datagrams arrived, because the host may already have
        // answered them.
        self.more |= outbound.step(false)?;
        self.rounds[0].count();
        if self.more {
            take_turns();
        }
        if self.usage.look().is_some_and(|share| share.thread >= SATURATED) {
            self.send_away();
        }
        Ok(())
    }

    fn send_away(&mut self) {
        let Some(second) = &self.second else { return };
        // This thread's stack may still contain session keys of the outbound half.
        stack::wipe();
        // If the second thread is gone, its end was already reported.
        let _ = self.outbound.take().map(|outbound| second.to_other.send(outbound));
    }
}

impl<IR: IpRecv, US: UdpSend> OutboundThread<IR, US> {
    /// Does the work that is available, or waits for work. While the first thread has the outbound
    /// half, it waits for the half.
    ///
    /// # Errors
    /// The IP side or the first thread is gone.
    pub(crate) fn step(&mut self) -> io::Result<()> {
        let outbound = match &mut self.outbound {
            Some(outbound) => outbound,
            None => {
                let outbound = self.first.from_other.recv().map_err(io::Error::other)?;
                self.usage = self.usage.restarted();
                self.outbound.insert(outbound)
            }
        };
        self.rounds.step(|| outbound.step(true))?;
        if self.usage.look().is_some_and(|share| share.process < CALM) {
            stack::wipe();
            let _ = self.outbound.take().map(|outbound| self.first.to_other.send(outbound));
            (self.wake_first)();
        }
        Ok(())
    }
}

/// Measures CPU usage in windows.
pub(crate) struct Usage {
    clock: Clock,
    cpu_clock: CpuClock,
    /// Start of the present window.
    since: Option<(Time, CpuTime)>,
    steps: u32,
}

/// Usage in cores, of the calling thread and of the process. The process may use more than one
/// core.
struct Share {
    thread: f64,
    process: f64,
}

impl Usage {
    pub(crate) fn new(clock: Clock, cpu_clock: CpuClock) -> Self {
        Self { clock, cpu_clock, since: None, steps: 0 }
    }

    /// A new measurement, for another thread.
    fn restarted(&self) -> Self {
        Self::new(self.clock.clone(), self.cpu_clock.clone())
    }

    /// Must be called once a step. Returns the usage at the end of a window.
    fn look(&mut self) -> Option<Share> {
        self.steps += 1;
        if !self.steps.is_multiple_of(STEPS) {
            return None;
        }
        let now = (self.clock)().time;
        if let Some((since, _)) = self.since
            && now.since(since) < WINDOW
        {
            return None;
        }
        let spent = (self.cpu_clock)();
        let (since, before) = self.since.replace((now, spent))?;
        let elapsed = now.since(since).as_secs_f64();
        let share = |now: Duration, before| now.saturating_sub(before).as_secs_f64() / elapsed;
        let thread = share(spent.thread, before.thread);
        Some(Share { thread, process: share(spent.process, before.process) })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use packet::{Batch, Offload, RecvBatch};
    use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
    use wg::{Control, Now};

    use super::*;
    use crate::{Attachments, Inbox, Shared, threads::tests::Nowhere};

    /// Endless packets without a peer, and no datagrams.
    struct Flood;

    impl IpRecv for Flood {
        fn recv(&mut self, batch: &mut Batch, _: bool) -> io::Result<()> {
            while batch.spare().is_some() {
                batch.commit(0, 20, Offload::None);
            }
            Ok(())
        }

        fn waker(&self) -> Waker {
            Arc::new(|| {})
        }
    }

    impl UdpRecv for Flood {
        fn recv(&mut self, batch: &mut RecvBatch, _: bool, _: bool) -> io::Result<()> {
            batch.clear();
            Ok(())
        }

        fn waker(&self) -> Waker {
            Arc::new(|| {})
        }
    }

    /// Fails at the second wait.
    struct Once(bool);

    impl Poll for Once {
        fn poll(&mut self, _: Option<Duration>) -> io::Result<Ready> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::other("waits although packets are queued"));
            }
            Ok(Ready { ip: true, udp: false })
        }
    }

    #[test]
    fn packets_queued_when_the_outbound_half_returns_are_sent_at_once() {
        let device = Control::new(ChaCha20Rng::seed_from_u64(1)).device().clone();
        let (time, used) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
        let clock: Clock = {
            let (time, used) = (time.clone(), used.clone());
            Arc::new(move || {
                let nanos = time.fetch_add(1_000_000, Ordering::Relaxed);
                used.fetch_add(1_000_000, Ordering::Relaxed);
                Now { time: Time::from_nanos(nanos), wall: Duration::ZERO }
            })
        };
        let cpu_clock: CpuClock = {
            let used = used.clone();
            Arc::new(move || {
                let used = Duration::from_nanos(used.load(Ordering::Relaxed));
                CpuTime { thread: used, process: used }
            })
        };
        let shared = Shared::new(device, clock.clone(), Arc::new(|| {}), Attachments::default());
        let outbound = Outbound::new(&shared, Flood, Nowhere, Arc::default());
        let inbound = Inbound::new(&shared, Flood, Nowhere, Arc::new(Inbox::default()));
        let (poll, usage) = (Box::new(Once(false)), Usage::new(clock, cpu_clock));
        let mut first = DataThread::new(outbound, inbound, poll, usage, Default::default());
        let mut second = first.second(Arc::new(|| {}));
        while first.outbound.is_some() {
            first.step().unwrap();
        }
        // No datagram arrives in the meantime.
        first.step().unwrap();
        second.step().unwrap();
        // No CPU time is used from now on.
        while second.outbound.is_some() {
            used.store(0, Ordering::Relaxed);
            second.step().unwrap();
        }
        first.step().unwrap();
        assert!(first.outbound.is_some());
    }
}
