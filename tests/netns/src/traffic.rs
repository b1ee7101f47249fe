//! Traffic through a tunnel: ping and iperf3.

use std::collections::BTreeSet;
use std::iter;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::host::{Host, Outcome};
use crate::wait::eventually;

/// iperf3's own port.
const IPERF_PORT: u16 = 5201;

/// Seconds past its duration after which a hanging iperf3 is ended.
const IPERF_PATIENCE: u32 = 30;

/// Time in which a started program must show an effect.
const SOON: Duration = Duration::from_secs(5);

/// The most requests in flight when a running ping is ended.
const ON_THEIR_WAY: u32 = 10;

/// Result of a ping.
#[derive(Debug)]
pub struct Ping {
    /// Requests sent.
    pub sent: u32,
    /// Replies received.
    pub received: u32,
    /// Round-trip times in milliseconds, in order of arrival.
    pub times: Vec<f64>,
    /// Its output.
    pub text: String,
}

/// Runs ping to its end: `ping(&host, "-c 3 -i 0.1 10.9.0.2")`. It is repeated up to twice if it
/// ended before the last answers arrived.
pub fn ping(host: &Host, arguments: impl AsRef<str>) -> Ping {
    let line = format!("ping -n {}", patient(arguments.as_ref()));
    let once = || {
        let outcome = host.attempt(&line);
        Ping::parse(outcome.stdout + &outcome.stderr)
    };
    let ended_early =
        |ping: &Ping| ping.received > 0 && !ping.is_complete() && ping.lost().is_empty();
    iter::repeat_with(once).take(2).find(|ping| !ended_early(ping)).unwrap_or_else(once)
}

/// The middle value.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Sends a few requests at once instead of one after the other. After the first reply, iputils
/// waits for the others no longer than twice the longest round trip or the interval, regardless of
/// `-W`, and on a busy machine the last one takes longer than 100 ms. So the interval is long.
/// Tests that need single requests, for example because a super-packet would count once, send five
/// or more.
fn patient(arguments: &str) -> String {
    const FEW: u32 = 4;
    const SECONDS: u32 = 5;
    let mut words: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    let place = |option: &str| words.iter().position(|word| word == option).map(|at| at + 1);
    let [Some(count), Some(interval)] = ["-c", "-i"].map(place) else { return arguments.into() };
    if words[count].parse().is_ok_and(|count: u32| count <= FEW) {
        words[interval] = format!("{SECONDS} -l {}", words[count]);
    }
    words.join(" ")
}

impl Ping {
    /// Whether every request was answered.
    pub fn is_complete(&self) -> bool {
        self.sent > 0 && self.sent == self.received
    }

    /// The middle round-trip time in milliseconds; infinite without replies.
    pub fn median(&self) -> f64 {
        self.percentile(0.5)
    }

    /// The percentile of the round-trip times.
    pub fn percentile(&self, part: f64) -> f64 {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        let index = (times.len() as f64 * part) as usize;
        times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or(f64::INFINITY)
    }

    /// The longest time without an answered request, for requests at this interval.
    pub fn longest_gap(&self, interval: Duration) -> Duration {
        let mut all: Vec<u32> = self.answered().chain([0, self.sent + 1]).collect();
        all.sort_unstable();
        let gaps = all.windows(2).map(|two| (two[1] - two[0]).saturating_sub(1));
        interval * gaps.max().unwrap_or_default()
    }

    /// The unanswered requests. Those after the last answer do not count: they may have been in
    /// flight when ping ended.
    pub fn lost(&self) -> Vec<u32> {
        let answered: BTreeSet<u32> = self.answered().collect();
        let last = answered.last().copied().unwrap_or_default();
        (1..=last).filter(|number| !answered.contains(number)).collect()
    }

    /// The numbers of the answered requests.
    fn answered(&self) -> impl Iterator<Item = u32> {
        let replies = self.text.lines().filter(|line| line.contains("time="));
        replies.filter_map(|line| {
            line.split("icmp_seq=").nth(1)?.split_whitespace().next()?.parse().ok()
        })
    }

    /// Parses the output of iputils' ping(8).
    pub fn parse(text: String) -> Self {
        let summary = text.lines().find(|line| line.contains("packets transmitted"));
        let before = |word: &str| {
            let words: Vec<&str> = summary.unwrap_or_default().split_whitespace().collect();
            let at = words.iter().position(|w| w.starts_with(word));
            at.and_then(|at| words.get(at - 1)?.parse().ok())
        };
        let sent = before("packets").unwrap_or(0);
        // `N received` follows `N packets transmitted,`.
        let received = before("received").unwrap_or(0);
        let time = |line: &str| line.split("time=").nth(1)?.split_whitespace().next()?.parse().ok();
        let times = text.lines().filter_map(time).collect();
        Self { sent, received, times, text }
    }
}

/// A ping that runs while a test changes things.
pub struct Pinging {
    host: Host,
    process: Child,
    log: String,
}

impl Pinging {
    /// Starts it; `arguments` as for [`ping`], without a count.
    pub fn start(host: &Host, name: &str, arguments: &str) -> Self {
        let log = format!("/run/rig/ping-{name}.log");
        // stdbuf writes each reply to the log at once.
        let line = format!("echo $$ >{log}.pid; exec stdbuf -oL ping -n {arguments} >{log} 2>&1");
        let mut command = host.command("bash");
        command.args(["-c", &line]).stdin(Stdio::null());
        let process = command.spawn().expect("nsenter is installed (make deps)");
        let pinging = Self { host: host.clone(), process, log };
        eventually("ping starts", SOON, || host.has(&format!("{}.pid", pinging.log)));
        pinging
    }

    /// Number of replies received.
    pub fn replies(&self) -> usize {
        let text = std::fs::read_to_string(self.host.outside(&self.log)).unwrap_or_default();
        text.matches("time=").count()
    }

    /// Waits for `more` further replies.
    ///
    /// # Panics
    /// If they do not arrive within `within`.
    pub fn wait_for_replies(&self, more: usize, within: Duration) {
        let wanted = self.replies() + more;
        eventually("further replies arrive", within, || self.replies() >= wanted);
    }

    /// Ends it and returns the result.
    pub fn finish(mut self) -> Ping {
        self.host.run(format!("kill -INT $(cat {}.pid)", self.log));
        // The log has the result.
        let _ = self.process.wait();
        let mut ping = Ping::parse(self.host.read(&self.log));
        // The last requests may have been in flight when ping ended.
        let last = ping.answered().max().unwrap_or_default();
        if ping.sent.saturating_sub(last) <= ON_THEIR_WAY {
            ping.sent = ping.sent.min(last);
        }
        ping
    }
}

/// One iperf3 measurement from `client` to an address of `server`.
pub struct Iperf<'a> {
    /// The client's host.
    pub client: &'a Host,
    /// The server's host.
    pub server: &'a Host,
    /// The server's address for the client.
    pub address: &'a str,
    /// Whole seconds.
    pub seconds: u32,
    /// More arguments for the client: `-R`, `-u -b 100M`, `-P 4`.
    pub options: &'a str,
}

/// Result of an iperf3 run.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bits a second at the receiver; with `--bidir` at both receivers.
    pub bits_per_second: f64,
    /// Bytes at the receiver; with `--bidir` at both receivers.
    pub bytes: f64,
    /// Lost datagrams in percent; 0 for TCP.
    pub lost_percent: f64,
    /// Number of lost datagrams.
    pub lost: f64,
}

impl Rate {
    /// The percentage of lost datagrams, without counting `datagrams` of them.
    pub fn lost_percent_without(&self, datagrams: u64) -> f64 {
        let others = (self.lost - datagrams as f64).max(0.0);
        if self.lost > 0.0 { self.lost_percent * others / self.lost } else { 0.0 }
    }
}

impl Iperf<'_> {
    /// Runs it to its end.
    ///
    /// # Panics
    /// If iperf3 fails; its message is included.
    pub fn run(&self) -> Rate {
        self.start().finish()
    }

    /// Transfers this many bytes instead of running for a time, to show that traffic passes.
    ///
    /// # Panics
    /// As [`Iperf::run`].
    pub fn carry(&self, bytes: u64) -> Rate {
        self.start_until(&format!("-n {bytes}")).finish()
    }

    /// Starts it in the background.
    pub fn start(&self) -> IperfRun {
        self.start_until(&format!("-t {}", self.seconds))
    }

    fn start_until(&self, end: &str) -> IperfRun {
        let server = Server::start(self.server);
        let line = format!(
            "iperf3 --json --connect-timeout 5000 -c {} {end} {}",
            self.address, self.options
        );
        let mut command = self.client.command("timeout");
        command.arg((self.seconds + IPERF_PATIENCE).to_string()).args(["bash", "-c", &line]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let client = command.spawn().expect("nsenter is installed (make deps)");
        IperfRun { _server: server, client, line, host: self.client.name().to_owned() }
    }
}

/// A running iperf3.
pub struct IperfRun {
    _server: Server,
    client: Child,
    line: String,
    host: String,
}

impl IperfRun {
    /// Waits for its end.
    ///
    /// # Panics
    /// If iperf3 fails; its message is included.
    pub fn finish(self) -> Rate {
        let Self { _server, client, line, host } = self;
        let outcome =
            client.wait_with_output().map(Outcome::from).expect("a child can be waited for");
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
        // With --json iperf3 always exits with success.
        let error = report["error"].as_str();
        let is_well = outcome.ok && error.is_none();
        assert!(is_well, "on {host}: `{line}` failed: {}", error.unwrap_or(&outcome.stderr));
        Rate::parse(&report["end"])
    }
}

impl Rate {
    /// Gigabits a second.
    pub fn gbps(&self) -> f64 {
        self.bits_per_second / 1e9
    }

    fn parse(end: &Value) -> Self {
        let number = |sum: &str, figure: &str| end[sum][figure].as_f64().unwrap_or(0.0);
        // The second one is present only with --bidir.
        let both =
            |figure| number("sum_received", figure) + number("sum_received_bidir_reverse", figure);
        Self {
            bits_per_second: both("bits_per_second"),
            bytes: both("bytes"),
            lost_percent: number("sum_received", "lost_percent"),
            lost: number("sum_received", "lost_packets"),
        }
    }
}

/// An iperf3 server for one measurement.
struct Server(Child);

impl Server {
    fn start(host: &Host) -> Self {
        let mut command: Command = host.command("iperf3");
        command.args(["-s", "-1"]).stdin(Stdio::null()).stdout(Stdio::null());
        let server = Self(command.spawn().expect("nsenter is installed (make deps)"));
        eventually("iperf3 listens", SOON, || host.listens(IPERF_PORT));
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // With -1 it ends by itself after the measurement. After a failed one the host's end ends
        // it, and this process only kills the wrapper.
        if std::thread::panicking() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::{Ping, patient};

    #[test]
    fn a_few_pings_are_sent_at_once_and_many_at_their_interval() {
        for (given, used) in [
            ("-c 3 -i 0.1 -W 5 10.9.0.2", "-c 3 -i 5 -l 3 -W 5 10.9.0.2"),
            ("-c 70 -i 0.05 10.9.0.2", "-c 70 -i 0.05 10.9.0.2"),
            ("-c 1 -W 0.5 10.9.0.2", "-c 1 -W 0.5 10.9.0.2"),
        ] {
            assert_eq!(patient(given), used);
        }
    }

    #[test]
    fn ping_with_losses_and_errors_is_counted() {
        let text = "64 bytes from 10.9.0.2: icmp_seq=1 ttl=64 time=0.5 ms\n\
            From 10.9.0.1 icmp_seq=2 Destination Host Unreachable\n\
            3 packets transmitted, 1 received, +1 errors, 66.6667% packet loss, time 2ms\n";
        let ping = Ping::parse(text.to_owned());
        assert_eq!((ping.sent, ping.received), (3, 1));
        assert_eq!(ping.times, [0.5]);
        assert!(!ping.is_complete());
        assert!(ping.lost().is_empty(), "two may have been in flight");
        let later = "64 bytes from 10.9.0.2: icmp_seq=3 ttl=64 time=0.5 ms\n";
        let ping = Ping::parse(format!("{later}{}", ping.text));
        assert_eq!(ping.lost(), [2]);
    }
}
