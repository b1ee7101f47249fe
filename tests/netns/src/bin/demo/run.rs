//! One run: two fresh hosts, two daemons of one implementation, traffic in each direction.

use std::time::Duration;

use netns::{
    Family, Host, INTERFACE, Implementation, Introduction, Iperf, Pair, Pinging, Processes, Rate,
    Watch, median, ping,
};

/// Long enough for a retried handshake (5 s and jitter).
const PATIENCE: Duration = Duration::from_secs(15);

/// Echo requests of an idle measurement, and their spacing in seconds.
const PINGS: &str = "-c 100 -i 0.01";

/// The cable alone, without a tunnel.
pub(crate) struct Bare {
    left: Host,
    right: Host,
}

impl Bare {
    /// Connects two hosts.
    pub(crate) fn start() -> Self {
        let (left, right) = Pair::hosts(1500);
        Self { left, right }
    }

    /// TCP from left to right.
    pub(crate) fn tcp(&self, seconds: u32) -> Rate {
        let (client, server) = (&self.left, &self.right);
        Iperf { client, server, address: "10.1.0.2", seconds, options: "" }.run()
    }
}

/// Two hosts and a tunnel with a session.
pub(crate) struct Run {
    pair: Pair,
    memory: Watch,
    seconds: u32,
}

/// Throughput and cost of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direction {
    /// TCP, Gbit/s.
    pub gbps: f64,
    /// Processor seconds of both daemons for each gigabyte (10^9 bytes) carried.
    pub cpu_per_gigabyte: f64,
}

/// Results of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Left to right.
    pub forth: Direction,
    /// Right to left.
    pub back: Direction,
    /// Median round trip of an idle tunnel, milliseconds.
    pub idle_ping: f64,
    /// Median round trip during a full TCP stream, milliseconds.
    pub busy_ping: f64,
    /// Peak private memory of both daemons, bytes; NaN if not available.
    pub memory: f64,
}

impl Run {
    /// Starts both ends; `seconds` is the length of each TCP measurement.
    pub(crate) fn start(implementation: Implementation, seconds: u32) -> Self {
        let pair = Pair::start(implementation, implementation);
        pair.introduce(Introduction::default());
        pair.left.reaches(&pair.right, Family::V4, PATIENCE);
        let memory = Watch::start(daemons(&pair).to_vec());
        Self { pair, memory, seconds }
    }

    /// Median round trip in milliseconds without other traffic.
    fn idle_ping(&self) -> f64 {
        ping(&self.pair.left.host, format!("{PINGS} {}", self.target())).median()
    }

    /// TCP from left to right, and the median round trip of a ping during it.
    fn forth(&self) -> (Direction, f64) {
        let arguments = format!("-i 0.05 {}", self.target());
        let pings = Pinging::start(&self.pair.left.host, "during-tcp", &arguments);
        let way = self.tcp("");
        (way, pings.finish().median())
    }

    fn tcp(&self, options: &str) -> Direction {
        let (client, server) = (&self.pair.left.host, &self.pair.right.host);
        let (address, seconds) = (self.target(), self.seconds);
        let before = self.cpu();
        let rate = Iperf { client, server, address, seconds, options }.run();
        let cpu = self.cpu() - before;
        Direction { gbps: rate.gbps(), cpu_per_gigabyte: cpu / (rate.bytes / 1e9) }
    }

    fn target(&self) -> &str {
        self.pair.right.inner.of(Family::V4)
    }

    /// Processor time of both daemons in seconds.
    fn cpu(&self) -> f64 {
        daemons(&self.pair).iter().map(Processes::cpu).sum()
    }

    /// Peak private memory of both daemons, in bytes.
    fn memory(&self) -> f64 {
        self.memory.peak().map_or(f64::NAN, |peak| peak.private)
    }

    /// Output of wg(8) on the left.
    pub(crate) fn wg_show(&self, colour: bool) -> String {
        let mode = if colour { "always" } else { "never" };
        self.pair.left.host.run(format!("WG_COLOR_MODE={mode} wg show {INTERFACE}"))
    }

    /// Runs all measurements one after the other, and passes each result to `report`.
    pub(crate) fn measure(&self, mut report: impl FnMut(&str, f64, &str)) -> Sample {
        let (forth, busy_ping) = self.forth();
        report("TCP through the tunnel, left to right", forth.gbps, "Gbit/s");
        let back = self.tcp("-R");
        report("TCP through the tunnel, right to left", back.gbps, "Gbit/s");
        let idle_ping = self.idle_ping();
        report("round trip of an idle tunnel, median", idle_ping, "ms");
        report("round trip during full TCP, median", busy_ping, "ms");
        Sample { forth, back, idle_ping, busy_ping, memory: self.memory() }
    }
}

fn daemons(pair: &Pair) -> [Processes; 2] {
    [&pair.left, &pair.right].map(|side| Processes::of(&side.host, side.daemon.pid()))
}

/// The samples of one implementation.
#[derive(Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// Adds one.
    pub(crate) fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// The median of one figure.
    pub(crate) fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        median(self.0.iter().map(figure).collect())
    }
}
