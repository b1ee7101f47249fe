//! Requirements of a run: every drop has a cause, memory is flat, no threads or files are left
//! over, and no traffic stalls.

use std::fmt::Write;
use std::time::Duration;

use netns::{Daemon, Pair, announce, median};

use super::disturb::{Events, LONG, drops};
use super::load::LoadCarried;

/// The longest stall of TCP: a lost handshake message is sent again after 5 s and jitter, and TCP's
/// own timeout may double meanwhile.
const LONGEST_STALL: Duration = Duration::from_secs(10);
/// The fraction of the paced datagrams and of the pings that may be lost to moves and queues.
const MOST_LOST: f64 = 0.05;
/// The lowest rate of a stream, in bits a second.
const LEAST_RATE: f64 = 10e6;

const SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Memory is compared from here on, when most buffers have been used: at most a fifth of the run.
const WARM_UP: Duration = Duration::from_secs(120);
/// Growth of resident memory in bytes: the last of the slots to receive into, 4 MiB, and of the
/// queue are only used in a rare burst.
const MOST_GROWN: f64 = 4.0 * 1024.0 * 1024.0;
/// A run of this length shows whether memory grows steadily; in a shorter one buffers are still
/// being used for the first time.
const SLOPE_LENGTH: Duration = Duration::from_secs(300);
/// Limit of growth in a minute, in bytes.
const MOST_SLOPE: f64 = 64.0 * 1024.0;

/// Datagrams that fit into a receive buffer of 4 MiB, and so between two hosts.
const IN_FLIGHT: u64 = 4096;

/// A reason for packet drops in this test.
struct Cause {
    reason: &'static str,
    because: &'static str,
    /// Limit of packets, by the number that the run carried.
    most: fn(&Events, u64) -> u64,
}

const CAUSES: &[Cause] = &[
    Cause {
        reason: "in unknown index",
        because: "left deleted its session with its peer, and right still used it",
        most: |events, _| events.rekeys * IN_FLIGHT,
    },
    Cause {
        reason: "handshake lost secret",
        because: "left forgot with its peer the secret against quantum computers, and right answered \
                  with it",
        most: |events, _| events.rekeys,
    },
    Cause {
        reason: "handshake forged",
        because: "right answered once more, because its first answer might be lost",
        most: |events, _| events.rekeys * 2,
    },
    Cause {
        reason: "in spoofed",
        because: "they were being opened when left took its peer away, and the peer that owns \
                  their source now is another",
        most: |events, _| events.rekeys * IN_FLIGHT,
    },
    Cause {
        reason: "out staged full",
        because: "more than 128 packets waited for the handshake",
        most: |events, _| events.rekeys * IN_FLIGHT,
    },
    Cause {
        reason: "out handshake failed",
        because: "they waited for a handshake when left removed its peer",
        most: |events, _| events.rekeys * 128,
    },
    Cause {
        reason: "in forged",
        because: "coalesced datagrams that stood in the socket when udp-gro went off: the kernel \
                  then gives each of them as one, and does not say so",
        most: |events, _| events.udp_gro_off * 256,
    },
    Cause {
        reason: "out unreachable",
        because: "the path was interrupted when left's address changed",
        most: |events, _| events.moves * 256,
    },
    Cause {
        reason: "out no peer",
        because: "left had none between taking its peer away and adding it again; and nobody has \
                  the addresses at which the kernel solicits IPv6 routers and reports groups",
        most: |events, _| events.rekeys * 128 + 64,
    },
    Cause {
        reason: "out congestion",
        because: "a stream's queue was full, and its sender got an error",
        most: |_, packets| packets / 100,
    },
    Cause {
        reason: "in congestion",
        because: "the socket's queue was full, and the sender of a stream got an error",
        most: |_, packets| packets / 100,
    },
    Cause {
        reason: "udp overflow",
        because: "streams fill a receive buffer faster than it is emptied",
        most: |_, packets| packets / 100,
    },
    Cause {
        reason: "tun queue",
        because: "streams fill an interface's queue faster than it is emptied",
        most: |_, packets| packets / 100,
    },
    Cause {
        reason: "cable",
        because: "the kernel's queue behind the cable was full (net.core.netdev_max_backlog)",
        most: |_, packets| packets / 100,
    },
];

/// The causes that do not occur while left does not remove its peer.
const OF_REKEYS: [&str; 6] = [
    "in unknown index",
    "handshake lost secret",
    "handshake forged",
    "in spoofed",
    "out staged full",
    "out handshake failed",
];

/// Resources of both daemons over time.
#[derive(Default)]
pub(super) struct Health {
    samples: Vec<[Sample; 2]>,
    next: Duration,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Duration,
    memory: f64,
    threads: u64,
    files: u64,
}

impl Sample {
    fn of(daemon: &Daemon, at: Duration) -> Self {
        let memory = daemon.memory() as f64;
        Self { at, memory, threads: daemon.threads(), files: daemon.files() }
    }
}

impl Health {
    /// Samples once a second.
    pub(super) fn look(&mut self, pair: &Pair, at: Duration) {
        if at < self.next {
            return;
        }
        self.next = at + SAMPLE_EVERY;
        self.samples.push([&pair.left, &pair.right].map(|side| Sample::of(&side.daemon, at)));
    }

    /// The trend of one side from `warm` on.
    fn trend(&self, side: usize, warm: Duration) -> Trend {
        let samples = self.samples.iter().map(|both| both[side]);
        let samples: Vec<Sample> = samples.filter(|sample| sample.at >= warm).collect();
        assert!(samples.len() >= 10, "there are only {} samples", samples.len());
        let (first, last) = (&samples[..5], &samples[samples.len() - 5..]);
        Trend {
            memory: [first, last].map(|part| middle(part, |sample| sample.memory)),
            slope: slope(&samples),
            threads: [first, last].map(|part| middle(part, |sample| sample.threads as f64)),
            files: [first, last].map(|part| middle(part, |sample| sample.files as f64)),
        }
    }
}

/// First and last values, each the median of five.
struct Trend {
    memory: [f64; 2],
    /// Bytes a minute.
    slope: f64,
    threads: [f64; 2],
    files: [f64; 2],
}

fn middle(samples: &[Sample], of: impl Fn(&Sample) -> f64) -> f64 {
    median(samples.iter().map(of).collect())
}

/// The slope that at least three quarters of all pairs of samples exceed (after Theil and Sen). A
/// leak is steady, while a buffer's first use is one step, which many pairs do not contain.
fn slope(samples: &[Sample]) -> f64 {
    let minutes = |from: &Sample, to: &Sample| (to.at - from.at).as_secs_f64() / 60.0;
    let from_each = samples.iter().enumerate();
    let mut slopes: Vec<f64> = from_each
        .flat_map(|(number, from)| {
            let later = samples[number + 1..].iter();
            later.map(move |to| (to.memory - from.memory) / minutes(from, to))
        })
        .collect();
    slopes.sort_by(f64::total_cmp);
    slopes[slopes.len() / 4]
}

/// The summary and the failed requirements.
pub(super) struct Verdict {
    text: String,
    faults: Vec<String>,
}

impl Verdict {
    pub(super) fn new(
        pair: &Pair,
        length: Duration,
        events: Events,
        carried: LoadCarried,
        health: Health,
    ) -> Self {
        let mut verdict = Self { text: String::new(), faults: Vec::new() };
        verdict.judge_events(length, &events);
        let packets = verdict.judge_load(length, &carried);
        verdict.judge_drops(&drops(pair), &events, packets);
        verdict.judge_health(length, &health);
        verdict
    }

    /// # Panics
    /// If a requirement failed.
    pub(super) fn announce_and_assert(self) {
        announce(&format!("\n{}", self.text));
        assert!(self.faults.is_empty(), "{:#?}", self.faults);
    }

    fn print_line(&mut self, line: String) {
        writeln!(self.text, "SOAK {line}").expect("a string takes all");
    }

    fn expect(&mut self, holds: bool, fault: String) {
        if !holds {
            self.faults.push(fault);
        }
    }

    fn judge_events(&mut self, length: Duration, events: &Events) {
        self.print_line(format!(
            "{} s: {} forced rekeys and {} handshakes of them, the slowest {:.1?}; {} by age; \
             {} moves, {} offloads toggled",
            length.as_secs(),
            events.rekeys,
            events.handshakes,
            events.slowest,
            events.by_age,
            events.moves,
            events.toggles
        ));
        // The last one may be in progress.
        let all = events.handshakes + 1 >= events.rekeys && events.handshakes > 0;
        self.expect(all && events.slowest <= LONGEST_STALL, format!("{events:?}"));
        let by_age = length < LONG || events.by_age > 0;
        self.expect(by_age, "no session was renewed by age".to_owned());
        for (name, count) in &events.undisturbed {
            self.print_line(format!("while no rekey was forced: {name}: {count}"));
            let forced = OF_REKEYS.iter().any(|reason| name.ends_with(reason));
            self.expect(!forced, format!("{name}: {count} while no rekey was forced"));
        }
    }

    /// Returns a lower bound of inner packets.
    fn judge_load(&mut self, length: Duration, carried: &LoadCarried) -> u64 {
        let mut packets = 0;
        for (name, stream) in &carried.streams {
            let rate = stream.received as f64 * 8.0 / length.as_secs_f64();
            let gap = stream.longest_gap;
            self.print_line(format!(
                "{name}: {:.2} GB, {:.0} Mbit/s, longest stall {gap:.1?}",
                stream.received as f64 / 1e9,
                rate / 1e6
            ));
            self.expect(stream.sent == stream.received, format!("{name}: {stream:?}"));
            self.expect(gap <= LONGEST_STALL, format!("{name} stalled for {gap:?}"));
            self.expect(rate >= LEAST_RATE, format!("{name}: {rate:.0} bit/s"));
            packets += stream.received / 1420;
        }
        for (name, flow) in &carried.datagrams {
            self.print_line(format!("{name}: {flow:?}, {:.3} % lost", flow.lost() * 100.0));
            self.expect(flow.lost() <= MOST_LOST, format!("{name}: {flow:?}"));
            self.expect(flow.doubled == 0, format!("{name}: {flow:?}"));
            packets += flow.received;
        }
        let pings = &carried.pings;
        let lost = 1.0 - f64::from(pings.received) / f64::from(pings.sent.max(1));
        self.print_line(format!(
            "ping: {} sent, {:.2} % lost, {:.2} ms median, {:.2} ms p99",
            pings.sent,
            lost * 100.0,
            pings.median(),
            pings.percentile(0.99)
        ));
        self.expect(lost <= MOST_LOST, format!("{lost} of the pings are lost"));
        packets
    }

    fn judge_drops(&mut self, drops: &[(String, u64)], events: &Events, packets: u64) {
        for (name, count) in drops {
            let cause = CAUSES.iter().find(|cause| name.ends_with(cause.reason));
            let Some(cause) = cause else {
                self.print_line(format!("dropped, {name}: {count}, UNEXPLAINED"));
                self.faults.push(format!("{name}: {count} unexplained"));
                continue;
            };
            let most = (cause.most)(events, packets);
            self.print_line(format!(
                "dropped, {name}: {count} of at most {most}: {}",
                cause.because
            ));
            self.expect(*count <= most, format!("{name}: {count} are more than {most}"));
        }
    }

    fn judge_health(&mut self, length: Duration, health: &Health) {
        let warm = WARM_UP.min(length / 5);
        for (side, name) in ["left", "right"].into_iter().enumerate() {
            let Trend { memory: [first, last], slope, threads, files } = health.trend(side, warm);
            self.print_line(format!(
                "{name}: resident {:.2} MB at {} s, {:.2} MB at the end, {:+.1} KB a minute; \
                 threads {} and {}, files {} and {}",
                first / 1e6,
                warm.as_secs(),
                last / 1e6,
                slope / 1e3,
                threads[0],
                threads[1],
                files[0],
                files[1]
            ));
            self.expect(last - first <= MOST_GROWN, format!("{name} grew from {first} to {last}"));
            let steep = length >= SLOPE_LENGTH && slope > MOST_SLOPE;
            self.expect(!steep, format!("{name} grows {slope} bytes a minute"));
            self.expect(threads[1] <= threads[0], format!("{name}: threads {threads:?}"));
            self.expect(files[1] <= files[0], format!("{name}: files {files:?}"));
            self.expect(files[0] > 0.0 && first > 0.0, format!("{name}: no data"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults_of(memory: impl Fn(f64) -> f64) -> Vec<String> {
        let look = |second: u64| {
            let memory = memory(second as f64 / 60.0);
            [Sample { at: Duration::from_secs(second), memory, threads: 8, files: 15 }; 2]
        };
        let health = Health { samples: (0..600).map(look).collect(), next: Duration::ZERO };
        let mut verdict = Verdict { text: String::new(), faults: Vec::new() };
        verdict.judge_health(Duration::from_secs(600), &health);
        verdict.faults
    }

    #[test]
    fn steady_growth_is_distinguished_from_the_first_use_of_a_buffer() {
        let steady = faults_of(|minute| 1e7 + minute * 100e3);
        assert!(steady.len() == 2 && steady[0].contains("left grows "), "{steady:?}");
        let step = |height: f64| move |minute| if minute < 6.0 { 1e7 } else { 1e7 + height };
        assert_eq!(faults_of(step(2e6)), [""; 0]);
        assert_eq!(faults_of(step(5e6)).len(), 2);
    }

    #[test]
    fn a_drop_without_a_cause_or_above_its_limit_is_a_fault() {
        let events = Events { rekeys: 1, ..Events::default() };
        let faults = |reason: &str, count| {
            let mut verdict = Verdict { text: String::new(), faults: Vec::new() };
            verdict.judge_drops(&[(format!("left: {reason}"), count)], &events, 1000);
            verdict.faults.len()
        };
        assert_eq!((faults("in unknown index", 4096), faults("in unknown index", 4097)), (0, 1));
        assert_eq!((faults("out congestion", 10), faults("out congestion", 11)), (0, 1));
        assert_eq!((faults("in forged", 1), faults("in replayed", 1)), (1, 1));
    }
}
