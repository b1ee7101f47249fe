//! Floods of UDP, by the generator of `crate::flood`, and the drops of their packets.
//!
//! ```text
//!   sender --> TUN ring --> daemon ~~~~ outer socket --> daemon --> inner socket (the sink)
//!   offered    `ring`                   `socket`                    `carried`
//! ```
//!
//! The sink reads nothing, so each datagram that the far kernel delivers is dropped by the sink's
//! full buffer and counted. All counters are read at two instants during the flood, so that the
//! queues at its start and end do not count.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use netns::{PORT, Stopwatch};

use super::{Ends, Server, Turn, generator};
use crate::flood::Sent;
use crate::measure::{self, Measure, OVERLOAD, OVERLOAD_GSO, OVERLOAD_GSO_PEAK, OVERLOAD_PEAK};

/// The discard port.
const SINK: u16 = 9;

/// Time of the flood before the counters are first read, and after they were last read.
const EDGE: Duration = Duration::from_millis(200);

/// Retries of a brief flood that carried nothing.
const AGAIN: u32 = 3;

/// The largest payload that the tests use, which fits the MTU with IPv4 and UDP headers: as single
/// datagrams, and in runs by `UDP_SEGMENT`.
const OVERLOADS: [(&str, [&Measure; 2]); 2] = [
    ("1380", [&OVERLOAD_PEAK, &OVERLOAD]),
    ("1380 --segment", [&OVERLOAD_GSO_PEAK, &OVERLOAD_GSO]),
];

/// Rates of the paced sender, as fractions of an unpaced sender of single datagrams. The slowest
/// peers carry a tenth of it.
const RAMP: [f64; 6] = [0.1, 0.25, 0.35, 0.5, 0.75, 1.0];

/// Result of a flood.
struct Flow {
    /// Packets a second, in thousands.
    carried: f64,
    sent: f64,
    own: f64,
    ring: f64,
    socket: f64,
    /// Microseconds of both daemons for each carried packet.
    cpu: f64,
    /// Context switches of both daemons, voluntary and involuntary, in thousands a second.
    switches: [f64; 2],
}

/// Index of the daemons' costs in a flow's figures.
const COSTS_AT: usize = 5;

impl Flow {
    fn figures(&self) -> [f64; 8] {
        let [waits, preempted] = self.switches;
        let Self { carried, sent, own, ring, socket, cpu, .. } = *self;
        [carried, sent, own, ring, socket, cpu, waits, preempted]
    }
}

/// The floods: size and options of the sender, and the measures, in the order of [`Flow::figures`].
static FLOODS: [(&str, [&Measure; 8]); 4] = {
    use measure::*;
    [
        (
            "64",
            [
                &UDP_64,
                &UDP_64_SENT,
                &UDP_64_OWN,
                &UDP_64_RING,
                &UDP_64_SOCKET,
                &UDP_64_CPU,
                &UDP_64_WAITS,
                &UDP_64_PREEMPTED,
            ],
        ),
        (
            "200",
            [
                &UDP_200,
                &UDP_200_SENT,
                &UDP_200_OWN,
                &UDP_200_RING,
                &UDP_200_SOCKET,
                &UDP_200_CPU,
                &UDP_200_WAITS,
                &UDP_200_PREEMPTED,
            ],
        ),
        (
            "1380",
            [
                &UDP_1380,
                &UDP_1380_SENT,
                &UDP_1380_OWN,
                &UDP_1380_RING,
                &UDP_1380_SOCKET,
                &UDP_1380_CPU,
                &UDP_1380_WAITS,
                &UDP_1380_PREEMPTED,
            ],
        ),
        (
            "1380 --segment",
            [
                &UDP_GSO,
                &UDP_GSO_SENT,
                &UDP_GSO_OWN,
                &UDP_GSO_RING,
                &UDP_GSO_SOCKET,
                &UDP_GSO_CPU,
                &UDP_GSO_WAITS,
                &UDP_GSO_PREEMPTED,
            ],
        ),
    ]
};

/// Counters at one instant.
struct Counters {
    carried: f64,
    own: f64,
    ring: f64,
    socket: f64,
    cpu: f64,
    switches: [f64; 2],
}

impl Turn<'_> {
    pub(super) fn udp(&mut self) {
        for (arguments, measures) in &FLOODS {
            if !self.wants(measures[0]) {
                continue;
            }
            let flow = self.flood(arguments, self.plan.time());
            let (traffic, costs) = measures.split_at(COSTS_AT);
            let figures = flow.figures();
            for (measure, figure) in traffic.iter().copied().zip(figures) {
                self.note(measure, figure);
            }
            for (measure, figure) in costs.iter().copied().zip(figures.into_iter().skip(COSTS_AT)) {
                self.note_cost(measure, figure);
            }
        }
    }

    pub(super) fn overload(&mut self) {
        let flooded = OVERLOADS.map(|(arguments, _)| self.flood(arguments, self.plan.time()));
        let offered = flooded[0].sent * 1e3;
        for ((arguments, [peak_measure, part_measure]), Flow { carried, .. }) in
            OVERLOADS.into_iter().zip(flooded)
        {
            let paced = RAMP.map(|part| {
                let rate = part * offered;
                self.flood(&format!("{arguments} --rate {rate:.0}"), self.plan.time() / 2).carried
            });
            let peak = paced.into_iter().fold(carried, f64::max);
            self.note(peak_measure, peak);
            self.note(part_measure, 100.0 * carried / peak);
        }
    }

    /// Rate that a flood carries, in thousands of packets a second.
    pub(super) fn flood_carried(&self, arguments: &str) -> f64 {
        self.flood(arguments, self.plan.time()).carried
    }

    /// Floods from left to right; `arguments` are the size and the options of the sender.
    fn flood(&self, arguments: &str, time: Duration) -> Flow {
        let mut flow = self.flood_once(arguments, time);
        // On a loaded machine the daemons may not have run in so short a time.
        let mut again = if self.plan.is_brief { AGAIN } else { 0 };
        while flow.carried == 0.0 && again > 0 {
            flow = self.flood_once(arguments, time);
            again -= 1;
        }
        flow
    }

    fn flood_once(&self, arguments: &str, time: Duration) -> Flow {
        let _sink = Server::start(&self.server, &["sink", &SINK.to_string()], SINK);
        let edge = self.plan.edge(EDGE);
        let whole = (time + 2 * edge).as_secs_f64();
        let sender = self
            .client
            .command(generator())
            .args(["flood", &format!("{}:{SINK}", self.target), &whole.to_string()])
            .args(arguments.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nsenter is installed (make deps)");
        thread::sleep(edge);
        let (watch, before) = (Stopwatch::start(), self.counters());
        thread::sleep(time);
        let (time, after) = (watch.elapsed().as_secs_f64(), self.counters());

        let output = sender.wait_with_output().expect("a child can be waited for");
        let sent = Sent::parse(&String::from_utf8_lossy(&output.stdout));
        let sent = sent.expect("the sender prints its result");
        let rate = |of: &dyn Fn(&Counters) -> f64| (of(&after) - of(&before)) / time / 1e3;
        let carried = rate(&|counters| counters.carried);
        Flow {
            carried,
            sent: sent.datagrams as f64 / sent.seconds / 1e3,
            own: rate(&|counters| counters.own),
            ring: rate(&|counters| counters.ring),
            socket: rate(&|counters| counters.socket),
            cpu: rate(&|counters| counters.cpu) * 1e6 / carried,
            switches: [0, 1].map(|kind| rate(&|counters| counters.switches[kind])),
        }
    }

    fn counters(&self) -> Counters {
        let Ends { left, right, .. } = &self.ends;
        Counters {
            carried: self.server.dropped_by_socket(SINK).unwrap_or(0) as f64,
            own: self.client.udp_count("SndbufErrors") as f64,
            ring: left.host.dropped_by_device(left.device) as f64,
            socket: right.host.dropped_by_socket(PORT).unwrap_or(0) as f64,
            cpu: self.cpu(),
            switches: self.switches(),
        }
    }
}
