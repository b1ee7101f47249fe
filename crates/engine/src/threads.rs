//! The threads of a data plane: one for both directions or one for each, and one for the slow path.

use std::{
    io,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, JoinHandle},
};

use packet::{IpRecv, IpSend, Poll, UdpRecv, UdpSend, Waker};
use rand_core::CryptoRng;
use wg::{Control, KeyUser};

use crate::{
    Attachments, Clock, CpuClock, Inbound, Inbox, Load, Outbound, Shared, SlowPath,
    data_threads::{DataThread, Usage},
    lock,
    round_counter::Rounds,
};

/// The parts of a data plane.
pub struct Parts<R, IR, IS, UR, US> {
    /// The control half, shared with configuration.
    pub control: Arc<Mutex<Control<R>>>,
    /// Both clocks.
    pub clock: Clock,
    /// The used CPU time.
    pub cpu_clock: CpuClock,
    /// Packets to send through the tunnel.
    pub ip_recv: IR,
    /// Packets from the tunnel.
    pub ip_send: IS,
    /// Datagrams from peers.
    pub udp_recv: UR,
    /// Waits for both receiving halves at once. Without it each direction has its own thread.
    pub poll: Option<Box<dyn Poll>>,
    /// Sends data.
    pub data_send: US,
    /// Sends handshakes.
    pub handshake_send: US,
    /// The IP side's MTU, which may change at run time.
    pub mtu: Arc<AtomicU32>,
    /// Called by each thread of the data plane when it starts.
    pub on_thread_start: fn(),
    /// Number of cores that the data plane may use.
    pub cores: usize,
    /// The optional parts.
    pub attached: Attachments,
}

/// Number of cores from which on the second stage of each direction may have its own thread. With
/// fewer, the other threads keep all cores busy.
const CORES_FOR_SECONDS: usize = 4;

/// A running data plane. It ends when it is dropped.
pub struct Engine {
    stop: Arc<AtomicBool>,
    inbox: Arc<Inbox>,
    load: Arc<Load>,
    wakers: [Waker; 2],
    begin: fn(),
    threads: Vec<JoinHandle<()>>,
    rounds: [(&'static str, Rounds); 3],
}

impl Engine {
    /// Starts the threads. One of them calls `ended` when the IP or the UDP side is gone.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start<R, IR, IS, UR, US>(
        parts: Parts<R, IR, IS, UR, US>,
        ended: impl Fn(io::Error) + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        R: CryptoRng + Send + 'static,
        IR: IpRecv + 'static,
        IS: IpSend,
        UR: UdpRecv + 'static,
        US: UdpSend,
    {
        let device = lock(&parts.control).device().clone();
        let inbox = Arc::new(Inbox::default());
        let wakers = [parts.ip_recv.waker(), parts.udp_recv.waker()];
        device.outbound_mailbox.set_waker(wakers[0].clone());
        parts.attached.own_packets.set_waker(wakers[0].clone());
        device.stack_wipes.set_waker(KeyUser::Outbound, wakers[0].clone());
        device.stack_wipes.set_waker(KeyUser::Inbound, wakers[1].clone());
        let woken = inbox.clone();
        device.control_mailbox.set_waker(Arc::new(move || woken.wake()));

        let shared = Shared::new(device, parts.clock, wakers[1].clone(), parts.attached);
        let mut outbound = Outbound::new(&shared, parts.ip_recv, parts.data_send, parts.mtu);
        let mut inbound = Inbound::new(&shared, parts.udp_recv, parts.ip_send, inbox.clone());
        let mut slow_path =
            SlowPath::new(&shared, parts.control, inbox.clone(), parts.handshake_send);
        if parts.cores >= CORES_FOR_SECONDS {
            outbound.start_second_thread(parts.on_thread_start)?;
            inbound.start_second_thread(parts.on_thread_start)?;
        }
        let mut engine = Self {
            stop: Arc::default(),
            inbox,
            load: shared.load,
            wakers,
            begin: parts.on_thread_start,
            threads: Vec::new(),
            rounds: ["outbound", "inbound", "slow path"].map(|name| (name, Rounds::default())),
        };
        let [out, into, slow] = engine.rounds.each_ref().map(|(_, rounds)| rounds.clone());
        let ended: Arc<dyn Fn(io::Error) + Send + Sync> = Arc::new(ended);
        if let Some(poll) = parts.poll {
            let usage = Usage::new(shared.clock.clone(), parts.cpu_clock);
            let mut both = DataThread::new(outbound, inbound, poll, usage, [out, into]);
            if parts.cores > 1 {
                let mut away = both.second(engine.wakers[1].clone());
                engine.spawn("outbound", &ended, move || away.step())?;
            }
            engine.spawn("data", &ended, move || both.step())?;
        } else {
            engine.spawn("outbound", &ended, move || out.step(|| outbound.step(true)).map(drop))?;
            engine.spawn("inbound", &ended, move || into.step(|| inbound.step(true)).map(drop))?;
        }
        engine.spawn("slow path", &ended, move || {
            slow_path.step();
            slow.count();
            Ok(())
        })?;
        Ok(engine)
    }

    /// Sizes of batches, and waits of packets.
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Wakes the slow path, as after a change of configuration.
    pub fn wake(&self) {
        self.inbox.wake();
    }

    /// Ends the waits of both receiving halves, so that they see changes.
    pub fn wake_receivers(&self) {
        self.wakers.iter().for_each(|waker| waker());
    }

    /// Number of finished rounds of each half and of the slow path, by name. After a wakeup
    /// ([`Engine::wake`], [`Engine::wake_receivers`]) each finishes a round soon, unless its thread
    /// is stuck.
    pub fn rounds(&self) -> impl Iterator<Item = (&str, u64)> {
        self.rounds.iter().map(|(name, rounds)| (*name, rounds.read()))
    }

    fn spawn(
        &mut self,
        name: &str,
        ended: &Arc<dyn Fn(io::Error) + Send + Sync>,
        mut step: impl FnMut() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let (stop, begin) = (self.stop.clone(), self.begin);
        let mut end = End { ended: ended.clone(), why: None, stop: stop.clone() };
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            begin();
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = step() {
                    end.why = Some(error);
                    break;
                }
            }
            drop(end);
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

/// Reports the end of a thread, also after a panic. A data plane that carries no packets must not
/// appear to be running.
struct End {
    ended: Arc<dyn Fn(io::Error) + Send + Sync>,
    why: Option<io::Error>,
    stop: Arc<AtomicBool>,
}

impl Drop for End {
    fn drop(&mut self) {
        if !self.stop.load(Ordering::Relaxed) {
            let panicked = || io::Error::other("a thread of the data plane panicked");
            (self.ended)(self.why.take().unwrap_or_else(panicked));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.wake_receivers();
        self.inbox.wake();
        for thread in self.threads.drain(..) {
            // A panic was already reported. The other threads must still be joined.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        cell::Cell,
        collections::HashMap,
        sync::{
            atomic::AtomicU64,
            mpsc::{Receiver, Sender, channel},
        },
        time::Duration,
    };

    use packet::{Batch, Endpoint, IpPacket, Ready, RecvBatch, SendBatch, SendError};
    use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};
    use wg::{Now, Time};

    use super::*;
    use crate::CpuTime;

    /// A side from which nothing arrives. `can_wake` is false for a waker without effect.
    struct Silence {
        wakes: (Sender<()>, Receiver<()>),
        can_wake: bool,
    }

    impl Silence {
        fn new(can_wake: bool) -> Self {
            Self { wakes: channel(), can_wake }
        }

        fn wait(&self) -> io::Result<()> {
            self.wakes.1.recv().map_err(io::Error::other)
        }

        fn waker(&self) -> Waker {
            let (wake, can_wake) = (Mutex::new(self.wakes.0.clone()), self.can_wake);
            Arc::new(move || {
                if can_wake {
                    let _ = wake.lock().unwrap().send(());
                }
            })
        }
    }

    impl IpRecv for Silence {
        fn recv(&mut self, _: &mut Batch, _: bool) -> io::Result<()> {
            self.wait()
        }

        fn waker(&self) -> Waker {
            Self::waker(self)
        }
    }

    impl UdpRecv for Silence {
        fn recv(&mut self, _: &mut RecvBatch, _: bool, _: bool) -> io::Result<()> {
            self.wait()
        }

        fn waker(&self) -> Waker {
            Self::waker(self)
        }
    }

    pub(crate) struct Nowhere;

    impl IpSend for Nowhere {
        fn send(&mut self, _: &RecvBatch, _: &[IpPacket]) -> io::Result<usize> {
            Ok(0)
        }
    }

    impl UdpSend for Nowhere {
        fn send(&mut self, _: &mut SendBatch) {}

        fn send_unfragmented(&mut self, _: &[u8], _: Endpoint) -> Result<(), SendError> {
            Ok(())
        }
    }

    fn parts<I, U>(ip: I, udp: U) -> Parts<ChaCha20Rng, I, Nowhere, U, Nowhere> {
        let control = Control::new(ChaCha20Rng::seed_from_u64(1));
        Parts {
            control: Arc::new(Mutex::new(control)),
            clock: Arc::new(|| Now { time: Time::from_nanos(1), wall: Default::default() }),
            cpu_clock: Arc::new(CpuTime::default),
            ip_recv: ip,
            ip_send: Nowhere,
            udp_recv: udp,
            poll: None,
            data_send: Nowhere,
            handshake_send: Nowhere,
            mtu: Arc::default(),
            on_thread_start: || {},
            cores: 1,
            attached: Attachments::default(),
        }
    }

    fn engine(ip: Silence, udp: Silence) -> Engine {
        Engine::start(parts(ip, udp), |_| {}).unwrap()
    }

    /// Sides that are always ready and empty. They record the name of the calling thread.
    struct Busy(&'static str, Arc<Mutex<HashMap<&'static str, String>>>);

    impl Busy {
        fn record_thread(&self) -> io::Result<()> {
            let name = thread::current().name().unwrap_or_default().to_owned();
            lock(&self.1).insert(self.0, name);
            thread::yield_now();
            Ok(())
        }
    }

    impl IpRecv for Busy {
        fn recv(&mut self, _: &mut Batch, _: bool) -> io::Result<()> {
            self.record_thread()
        }

        fn waker(&self) -> Waker {
            Arc::new(|| {})
        }
    }

    impl UdpRecv for Busy {
        fn recv(&mut self, _: &mut RecvBatch, _: bool, _: bool) -> io::Result<()> {
            self.record_thread()
        }

        fn waker(&self) -> Waker {
            Arc::new(|| {})
        }
    }

    impl Poll for Busy {
        fn poll(&mut self, _: Option<Duration>) -> io::Result<Ready> {
            Ok(Ready { ip: true, udp: true })
        }
    }

    fn rounds(engine: &Engine) -> HashMap<String, u64> {
        engine.rounds().map(|(name, rounds)| (name.to_owned(), rounds)).collect()
    }

    #[test]
    fn a_woken_thread_finishes_a_round_and_a_stuck_one_does_not() {
        let running = engine(Silence::new(true), Silence::new(true));
        let before = rounds(&running);
        assert_eq!(before.len(), 3);
        while before.iter().any(|(name, count)| rounds(&running)[name] == *count) {
            running.wake();
            running.wake_receivers();
            thread::yield_now();
        }

        let stuck = engine(Silence::new(true), Silence::new(false));
        for _ in 0..1000 {
            stuck.wake_receivers();
            thread::yield_now();
        }
        assert_eq!(rounds(&stuck)["inbound"], 0);
        // Dropping it would wait for the stuck thread.
        std::mem::forget(stuck);
    }

    thread_local! {
        /// CPU time when this thread last read the clock. Another thread may advance the clock
        /// before this one reads its CPU time.
        static USED: Cell<u64> = const { Cell::new(0) };
    }

    #[test]
    fn the_outbound_half_has_its_own_thread_while_one_core_is_not_enough() {
        let callers: Arc<Mutex<HashMap<_, _>>> = Arc::default();
        // Microseconds of CPU time that the first thread uses in each millisecond.
        let rate = Arc::new(AtomicU64::new(1000));
        let mut parts = parts(Busy("ip", callers.clone()), Busy("udp", callers.clone()));
        // The time and the used CPU time, in nanoseconds.
        let (clock, current) = (Mutex::new((1, 0)), rate.clone());
        parts.clock = Arc::new(move || {
            let mut clock = lock(&clock);
            let (time, used) = *clock;
            let used = used + current.load(Ordering::Relaxed) * 1000;
            *clock = (time + 1_000_000, used);
            USED.set(used);
            Now { time: Time::from_nanos(time), wall: Default::default() }
        });
        parts.cpu_clock = Arc::new(|| {
            let used = Duration::from_nanos(USED.get());
            CpuTime { thread: used, process: used }
        });
        parts.poll = Some(Box::new(Busy("poll", callers.clone())));
        parts.cores = 2;
        let running = Engine::start(parts, |error| panic!("{error}")).unwrap();
        let until = |name: &str| {
            let before = rounds(&running)["outbound"];
            while lock(&callers).get("ip").is_none_or(|thread| thread != name) {
                let count = rounds(&running)["outbound"] - before;
                // A thread may run many rounds before the other one is scheduled at all.
                assert!(count < 10_000_000, "still not on the thread {name} after {count} rounds");
                thread::yield_now();
            }
            assert_eq!(lock(&callers).get("udp").map(String::as_str), Some("data"));
        };
        for _ in 0..3 {
            until("outbound");
            rate.store(700, Ordering::Relaxed);
            until("data");
            // Between the two thresholds, so the half stays.
            rate.store(900, Ordering::Relaxed);
            let before = rounds(&running)["outbound"];
            while rounds(&running)["outbound"] < before + 1000 {
                thread::yield_now();
            }
            until("data");
            rate.store(1000, Ordering::Relaxed);
        }
    }
}
