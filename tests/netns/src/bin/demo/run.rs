//! One run: two fresh hosts, two daemons of one implementation, traffic each way.

use std::time::Duration;

use netns::{
    Family, Host, INTERFACE, Implementation, Iperf, Meeting, Pair, Pinging, Processes, Rate, Watch,
    median, ping,
};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// Echo requests of an idle measurement, and their spacing in seconds.
const PINGS: &str = "-c 100 -i 0.01";

/// The cable alone, without any tunnel.
pub struct Bare {
    left: Host,
    right: Host,
}

impl Bare {
    /// Wires two hosts.
    pub fn start() -> Bare {
        let (left, right) = Pair::hosts(1500);
        Bare { left, right }
    }

    /// TCP from left to right.
    pub fn tcp(&self, seconds: u32) -> Rate {
        let (client, server) = (&self.left, &self.right);
        Iperf { client, server, address: "10.1.0.2", seconds, options: "" }.run()
    }
}

/// Two hosts, a tunnel that has shaken hands, and what its daemons have cost so far.
pub struct Run {
    pair: Pair,
    memory: Watch,
    seconds: u32,
}

/// What one direction carried and cost.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// TCP, Gbit/s.
    pub gbps: f64,
    /// Processor seconds of both daemons for each gigabyte (10^9 bytes) carried.
    pub cpu_per_gigabyte: f64,
}

/// What one run measured.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Left to right.
    pub forth: Way,
    /// Right to left.
    pub back: Way,
    /// Median round trip of an idle tunnel, milliseconds.
    pub idle_ping: f64,
    /// Median round trip beside a full TCP stream, milliseconds.
    pub busy_ping: f64,
    /// Peak private memory of both daemons, bytes; not a number where it cannot be had.
    pub memory: f64,
}

impl Run {
    /// Starts both ends; `seconds` is the length of each TCP measurement.
    pub fn start(implementation: Implementation, seconds: u32) -> Run {
        let pair = Pair::start(implementation, implementation);
        pair.introduce(Meeting::default());
        pair.left.reaches(&pair.right, Family::V4, PATIENCE);
        let memory = Watch::start(daemons(&pair).to_vec());
        Run { pair, memory, seconds }
    }

    /// Median round trip in milliseconds while nothing else passes.
    fn idle_ping(&self) -> f64 {
        ping(&self.pair.left.host, format!("{PINGS} {}", self.target())).median()
    }

    /// TCP from left to right, with the median round trip of a ping beside it.
    fn forth(&self) -> (Way, f64) {
        let beside = format!("-i 0.05 {}", self.target());
        let pings = Pinging::start(&self.pair.left.host, "beside", &beside);
        let way = self.tcp("");
        (way, pings.finish().median())
    }

    fn tcp(&self, options: &str) -> Way {
        let (client, server) = (&self.pair.left.host, &self.pair.right.host);
        let (address, seconds) = (self.target(), self.seconds);
        let before = self.cpu();
        let rate = Iperf { client, server, address, seconds, options }.run();
        let cpu = self.cpu() - before;
        Way { gbps: rate.gbps(), cpu_per_gigabyte: cpu / (rate.bytes / 1e9) }
    }

    fn target(&self) -> &str {
        self.pair.right.inner.of(Family::V4)
    }

    /// Processor time of both daemons so far, in seconds.
    fn cpu(&self) -> f64 {
        daemons(&self.pair).iter().map(Processes::cpu).sum()
    }

    /// Peak private memory of both daemons, in bytes.
    fn memory(&self) -> f64 {
        self.memory.peak().map_or(f64::NAN, |peak| peak.private)
    }

    /// What wg(8) prints on the left.
    pub fn wg_show(&self, colour: bool) -> String {
        let mode = if colour { "always" } else { "never" };
        self.pair.left.host.run(format!("WG_COLOR_MODE={mode} wg show {INTERFACE}"))
    }

    /// All measurements, one after the other; each is told to `tell` as it is made.
    pub fn measure(&self, mut tell: impl FnMut(&str, f64, &str)) -> Sample {
        let (forth, busy_ping) = self.forth();
        tell("TCP through the tunnel, left to right", forth.gbps, "Gbit/s");
        let back = self.tcp("-R");
        tell("TCP through the tunnel, right to left", back.gbps, "Gbit/s");
        let idle_ping = self.idle_ping();
        tell("round trip of an idle tunnel, median", idle_ping, "ms");
        tell("round trip beside full TCP, median", busy_ping, "ms");
        Sample { forth, back, idle_ping, busy_ping, memory: self.memory() }
    }
}

fn daemons(pair: &Pair) -> [Processes; 2] {
    [&pair.left, &pair.right].map(|side| Processes::of(&side.host, side.daemon.pid()))
}

/// The samples of one implementation.
#[derive(Default)]
pub struct Samples(Vec<Sample>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// The median of one figure.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect())
    }
}
