//! Userspace networking: linerate's proxy with each of its two stacks, compared with tailscaled.
//!
//! ```text
//!   near                                                        far
//!   iperf3 -s <-- the stack <~~~~~~~~ tunnel ~~~~~~~~~~ TUN <-- iperf3     in
//!   streams --> SOCKS5 --> the stack ~~~ tunnel ~~~~~~~> TUN --> drain     out
//! ```
//!
//! A turn of linerate measures both stacks. The figures of tailscaled are compared with each of them.

mod drain;
mod world;

use std::cell::RefCell;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use netns::Iperf;

use self::drain::Drain;
use self::world::{Plain, SOCKS, World};
use super::far::send_through_loss;
use super::{News, Plan, generator};
use crate::contender::{Carrier, Contender};
use crate::measure::{self, Measure};
use crate::readings::Readings;
use netns::{Processes, Watch};

/// Number of streams in the tests with many.
const MANY: usize = 64;

/// The round trip of an ocean, some loss, and mild reordering.
const FAR: &str = "rtt=66,loss=0.1,reorder=0.1";

/// Additional seconds that a stream needs to reach its rate.
const LONGER: u32 = 8;

/// TCP buffers at the far end, in bytes. The default of 6 MB would be the limit at 66 ms.
const BUFFERS: &str = "4096 131072 67108864";

/// Time of the streams before and after the measurement.
const EDGE: Duration = Duration::from_millis(300);

/// The measures of one stack.
struct Measures {
    into: &'static Measure,
    into_cpu: &'static Measure,
    into_many: &'static Measure,
    out: &'static Measure,
    out_cpu: &'static Measure,
    out_many: &'static Measure,
    memory: &'static Measure,
    memory_many: &'static Measure,
    far_into: &'static Measure,
    far_out: &'static Measure,
}

/// linerate's stacks, by their names in `--stack`.
static STACKS: [(&str, Measures); 2] = {
    use measure::*;
    [
        (
            "namespace",
            Measures {
                into: &NAMESPACE_IN,
                into_cpu: &NAMESPACE_IN_CPU,
                into_many: &NAMESPACE_IN_64,
                out: &NAMESPACE_OUT,
                out_cpu: &NAMESPACE_OUT_CPU,
                out_many: &NAMESPACE_OUT_64,
                memory: &NAMESPACE_MEMORY,
                memory_many: &NAMESPACE_MEMORY_64,
                far_into: &NAMESPACE_FAR_IN,
                far_out: &NAMESPACE_FAR_OUT,
            },
        ),
        (
            "in-process",
            Measures {
                into: &IN_PROCESS_IN,
                into_cpu: &IN_PROCESS_IN_CPU,
                into_many: &IN_PROCESS_IN_64,
                out: &IN_PROCESS_OUT,
                out_cpu: &IN_PROCESS_OUT_CPU,
                out_many: &IN_PROCESS_OUT_64,
                memory: &IN_PROCESS_MEMORY,
                memory_many: &IN_PROCESS_MEMORY_64,
                far_into: &IN_PROCESS_FAR_IN,
                far_out: &IN_PROCESS_FAR_OUT,
            },
        ),
    ]
};

/// Direction, seen from the near end.
enum Direction {
    Out,
    In,
}

/// The effect of the in-process stack's techniques: without GSO or GRO, and with packet by packet
/// processing.
static PLAINER: [(&Measure, Direction, Plain); 4] = {
    use measure::*;
    const ONE: Option<&str> = Some("LINERATE_VECTOR=1");
    [
        (&IN_PROCESS_GSO, Direction::Out, Plain { without: Some("tun-tso"), environment: None }),
        (&IN_PROCESS_OUT_ONE, Direction::Out, Plain { without: Some("tun-tso"), environment: ONE }),
        (&IN_PROCESS_GRO, Direction::In, Plain { without: Some("tun-tcp-gro"), environment: None }),
        (
            &IN_PROCESS_IN_ONE,
            Direction::In,
            Plain { without: Some("tun-tcp-gro,udp-gro"), environment: ONE },
        ),
    ]
};

/// Gbit/s of the streams, and processor seconds of the near process per gigabyte.
struct Carried {
    gbps: f64,
    cpu: f64,
}

/// A turn of the test.
struct Turn<'a> {
    plan: &'a Plan,
    readings: &'a RefCell<Readings>,
    notify: &'a dyn Fn(News<'_>),
}

/// Measures a contender.
///
/// # Panics
/// If its ends do not connect or a generator fails. Earlier readings remain.
pub(super) fn run(
    contender: &Contender,
    plan: &Plan,
    readings: &RefCell<Readings>,
    notify: &dyn Fn(News<'_>),
) {
    let mut turn = Turn { plan, readings, notify };
    match &contender.carrier {
        Carrier::Daemon(program) => {
            for (stack, measures) in &STACKS {
                turn.stack(&[measures], |shape| {
                    World::linerate(program, stack, &Plain::default(), shape)
                });
            }
            if plan.is_brief {
                return;
            }
            for (measure, way, plain) in &PLAINER {
                let world = World::linerate(program, "in-process", plain, plan.link());
                let (whole, plain) = match way {
                    Direction::Out => (&measure::IN_PROCESS_OUT, turn.outward(&world, 1)),
                    Direction::In => (&measure::IN_PROCESS_IN, turn.inward(&world, "")),
                };
                let whole = readings.borrow().of(whole);
                turn.note(measure, whole / plain.gbps);
            }
        }
        Carrier::Tailscaled(programs) => {
            let measures = STACKS.each_ref().map(|(_, measures)| measures);
            turn.stack(&measures, |shape| World::tailscaled(programs, shape));
        }
        Carrier::Bare | Carrier::Kernel | Carrier::Headscale(_) => {}
    }
}

impl Turn<'_> {
    /// Measures rate and cost of one stack.
    fn stack(&mut self, measures: &[&Measures], start: impl Fn(Option<&str>) -> World) {
        let mut world = start(self.plan.link());
        let memory = Watch::start(vec![Processes::of_service(&world.proxy)]);
        let into = self.inward(&world, "");
        self.note_all(measures, |one| one.into, into.gbps);
        self.note_all(measures, |one| one.into_cpu, into.cpu);
        let out = self.outward(&world, 1);
        self.note_all(measures, |one| one.out, out.gbps);
        self.note_all(measures, |one| one.out_cpu, out.cpu);
        self.note_memory(measures, |one| one.memory, &memory);
        if !self.plan.is_brief {
            self.many(measures, &world, &memory);
        }
        world.assert_direct();
        self.note_link(&mut world);
        drop(memory);
        if !self.plan.is_brief {
            self.far(measures, start(Some(FAR)));
        }
    }

    /// Many streams through the same process.
    fn many(&mut self, measures: &[&Measures], world: &World, memory: &Watch) {
        let into = self.inward(world, &format!("-P {MANY}"));
        self.note_all(measures, |one| one.into_many, into.gbps);
        let out = self.outward(world, MANY);
        self.note_all(measures, |one| one.out_many, out.gbps);
        self.note_memory(measures, |one| one.memory_many, memory);
    }

    /// The same stack over a long path.
    fn far(&mut self, measures: &[&Measures], mut world: World) {
        world.far.run(format!("echo {BUFFERS} | tee /proc/sys/net/ipv4/tcp_{{r,w}}mem"));
        send_through_loss(&world.far);
        let seconds = self.plan.seconds + LONGER;
        let mut turn = Turn {
            plan: &Plan { seconds, ..self.plan.clone() },
            readings: self.readings,
            notify: self.notify,
        };
        let (into, out) = (turn.inward(&world, "").gbps, turn.outward(&world, 1).gbps);
        turn.note_all(measures, |one| one.far_into, into);
        turn.note_all(measures, |one| one.far_out, out);
        world.assert_direct();
        self.note_link(&mut world);
    }

    /// From the far end into the stack, to a service of the near host.
    fn inward(&self, world: &World, options: &str) -> Carried {
        let (seconds, address) = (self.plan.seconds, world.near_inner.as_str());
        let before = Processes::of_service(&world.proxy).cpu();
        let iperf = Iperf { client: &world.far, server: &world.near, address, seconds, options };
        let rate = self.plan.stream(&iperf);
        let cpu = (Processes::of_service(&world.proxy).cpu() - before) / (rate.bytes / 1e9);
        Carried { gbps: rate.gbps(), cpu }
    }

    /// Out of the stack, from a client of its SOCKS5 proxy.
    fn outward(&self, world: &World, streams: usize) -> Carried {
        let mut drain = Drain::start(&world.far, &world.far_inner);
        let (time, edge) = (self.plan.time(), self.plan.edge(EDGE));
        let pour = world
            .near
            .command(generator())
            .args(["pour", drain.at(), &format!("127.0.0.1:{SOCKS}"), &streams.to_string()])
            .arg((time + 2 * edge + EDGE).as_secs_f64().to_string())
            .stdin(Stdio::null())
            .spawn();
        let mut pour = pour.expect("nsenter is installed (make deps)");
        drain.wait_for_bytes();
        thread::sleep(edge);
        let (before, spent) = (drain.count(), Processes::of_service(&world.proxy).cpu());
        thread::sleep(time);
        let (after, spent_after) = (drain.count(), Processes::of_service(&world.proxy).cpu());
        let status = pour.wait().expect("a child can be waited for");
        assert!(status.success(), "the streams out of the stack failed");
        let cpu = (spent_after - spent) / ((after.bytes - before.bytes) as f64 / 1e9);
        Carried { gbps: after.gbps_since(before), cpu }
    }

    fn note_link(&mut self, world: &mut World) {
        if let Some(link) = &mut world.link {
            super::note_link(self.readings, link);
        }
    }

    /// The peak of the private memory, if available.
    fn note_memory(
        &mut self,
        measures: &[&Measures],
        which: impl Fn(&Measures) -> &'static Measure,
        memory: &Watch,
    ) {
        if let Some(peak) = memory.peak() {
            self.note_all(measures, which, peak.private / 1e6);
        }
    }

    fn note_all(
        &mut self,
        measures: &[&Measures],
        which: impl Fn(&Measures) -> &'static Measure,
        value: f64,
    ) {
        for one in measures {
            self.note(which(one), value);
        }
    }

    fn note(&mut self, measure: &'static Measure, value: f64) {
        (self.notify)(News::Figure(measure, value));
        self.readings.borrow_mut().push(measure, value);
    }
}
