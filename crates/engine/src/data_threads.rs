//! Both directions on one thread, and the outbound one on a thread of its own while one core is not
//! enough.
//!
//! ```text
//!   first thread    | wait for both | in, out | in, out | in | in | in, out | wait for both |
//!                                             `-> away        ^
//!   second thread   (sleeps)                      | out | out |- back
//! ```
//!
//! On one thread what a packet provokes is sent before that thread sleeps: an answer, an
//! acknowledgement, a packet that is forwarded. No thread is woken for it, and the scheduler has one
//! fewer to find a core for. There is one outbound half and it is in one place at a time, so a flow
//! keeps its order.

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

use crate::{Clock, Inbound, Outbound, rounds::Rounds, take_turns};

/// How much cpu_clock time was used so far, by the calling thread and by the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    pub thread: Duration,
    pub process: Duration,
}

/// Reads cpu_clock time; called once in a [`WINDOW`].
pub type CpuClock = Arc<dyn Fn() -> CpuTime + Send + Sync>;

/// For so long is measured before the outbound half goes to another thread or comes back.
const WINDOW: Duration = Duration::from_millis(50);
/// Steps between two looks at the clock.
const STEPS: u32 = 16;
/// It goes where the thread had so much of a core: it never slept, and no other program waited for
/// that core, so that there may be another one that is free.
const SATURATED: f64 = 0.95;
/// It comes back where all threads together had no more.
const CALM: f64 = 0.8;

/// The first thread's work.
pub(crate) struct DataThread<IR, IS, UR, US> {
    inbound: Inbound<UR, IS>,
    /// While it is here.
    outbound: Option<Box<Outbound<IR, US>>>,
    poll: Box<dyn Poll>,
    /// Whether a side had more than it could work on.
    more: bool,
    usage: Usage,
    second: Option<Channel<Box<Outbound<IR, US>>>>,
    rounds: [Rounds; 2],
}

/// A thread's ways to the other one and from it.
struct Channel<T> {
    there: SyncSender<T>,
    here: Receiver<T>,
}

/// The second thread's work.
pub(crate) struct OutboundThread<IR, US> {
    outbound: Option<Box<Outbound<IR, US>>>,
    usage: Usage,
    first: Channel<Box<Outbound<IR, US>>>,
    wake_first: Waker,
    rounds: Rounds,
}

impl<IR: IpRecv, IS: IpSend, UR: UdpRecv, US: UdpSend> DataThread<IR, IS, UR, US> {
    /// Takes both halves, and the counters of their rounds: outbound, inbound.
    pub fn new(
        outbound: Outbound<IR, US>,
        inbound: Inbound<UR, IS>,
        poll: Box<dyn Poll>,
        usage: Usage,
        rounds: [Rounds; 2],
    ) -> Self {
        let outbound = Some(Box::new(outbound));
        Self { inbound, outbound, poll, more: false, usage, second: None, rounds }
    }

    /// What a second thread is to do, beside this one; `wake` ends this one's waits.
    pub fn second(&mut self, wake: Waker) -> OutboundThread<IR, US> {
        let (away, taken) = sync_channel(1);
        let (back, returned) = sync_channel(1);
        self.second = Some(Channel { there: away, here: returned });
        let first = Channel { there: back, here: taken };
        let [rounds, _] = self.rounds.clone();
        OutboundThread { outbound: None, usage: self.usage.anew(), first, wake_first: wake, rounds }
    }

    /// Works on what there is, or waits for it.
    ///
    /// # Errors
    /// One of the sides is gone.
    pub fn step(&mut self) -> io::Result<()> {
        if let Some(second) = &self.second
            && self.outbound.is_none()
        {
            self.outbound = second.here.try_recv().ok();
            // Packets may wait in it, for which nothing ends a wait.
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
        // Where the time is over, the inbound half asked for that.
        if ready.udp || !ready.ip {
            self.more = self.inbound.step(false)?;
            self.rounds[1].count();
        }
        // Also where only datagrams came: what they brought may have been answered by now.
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
        // The keys that it used here are not this thread's business from now on.
        stack::wipe();
        // Where the second thread is gone, its end was reported.
        let _ = self.outbound.take().map(|outbound| second.there.send(outbound));
    }
}

impl<IR: IpRecv, US: UdpSend> OutboundThread<IR, US> {
    /// Works on what there is, or waits for it; while the half is with the first thread, for that.
    ///
    /// # Errors
    /// The IP side or the first thread is gone.
    pub fn step(&mut self) -> io::Result<()> {
        let outbound = match &mut self.outbound {
            Some(outbound) => outbound,
            None => {
                let outbound = self.first.here.recv().map_err(io::Error::other)?;
                self.usage = self.usage.anew();
                self.outbound.insert(outbound)
            }
        };
        self.rounds.step(|| outbound.step(true))?;
        if self.usage.look().is_some_and(|share| share.process < CALM) {
            stack::wipe();
            let _ = self.outbound.take().map(|outbound| self.first.there.send(outbound));
            (self.wake_first)();
        }
        Ok(())
    }
}

/// How much of a core was used, window by window.
pub(crate) struct Usage {
    clock: Clock,
    cpu_clock: CpuClock,
    /// Where the window began.
    since: Option<(Time, CpuTime)>,
    steps: u32,
}

/// Of one core's time, by the calling thread and by the process, which may have more than one.
struct Share {
    thread: f64,
    process: f64,
}

impl Usage {
    pub fn new(clock: Clock, cpu_clock: CpuClock) -> Self {
        Self { clock, cpu_clock, since: None, steps: 0 }
    }

    /// From now on, by another thread.
    fn anew(&self) -> Self {
        Self::new(self.clock.clone(), self.cpu_clock.clone())
    }

    /// To be called once a step: what was used, once a window is over.
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

    /// Packets without end, of which none has a peer, and no datagrams.
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

    /// Fails where it would wait a second time.
    struct Once(bool);

    impl Poll for Once {
        fn poll(&mut self, _: Option<Duration>) -> io::Result<Ready> {
            if std::mem::replace(&mut self.0, true) {
                return Err(io::Error::other("it waits, though packets do"));
            }
            Ok(Ready { ip: true, udp: false })
        }
    }

    #[test]
    fn packets_that_wait_when_the_outbound_half_comes_back_are_sent_without_another() {
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
        // No datagram comes meanwhile.
        first.step().unwrap();
        second.step().unwrap();
        // From now on nothing is used.
        while second.outbound.is_some() {
            used.store(0, Ordering::Relaxed);
            second.step().unwrap();
        }
        first.step().unwrap();
        assert!(first.outbound.is_some());
    }
}
