//! Relays: that of linerate-server compared with Tailscale's derper, with the same clients.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use netns::{
    CoordinatorKind, Family, Iperf, Member, MemberKind, Nat, Path, Service, Stopwatch, Tailnet,
    Uplink,
};

use super::Note;
use crate::contender::Headscale;
use crate::measure::{
    Measure, SERVER_RELAY_64, SERVER_RELAY_64_CPU, SERVER_RELAY_1400, SERVER_RELAY_1400_CPU,
    SERVER_RELAY_HELD, SERVER_RELAY_REACHED, SERVER_RELAY_TCP, SERVER_RELAY_TCP_OWN,
};
use crate::suite::Plan;
use crate::suite::generator::generator;
use netns::Processes;

/// derper's port on the coordinator's host.
const DERPER: u16 = 8443;

/// Pairs that send, and clients with idle connections.
const PAIRS: usize = 2;
const HELD: usize = 2000;

/// Time until the relay's memory is read; the generator is idle for twice that.
const SETTLE: Duration = Duration::from_secs(5);

/// The region of derper, for members that use it alone.
const REGION: &str = "derper";

/// The length of datagrams, the measure of their rate, and that of the relay's cost.
struct Load {
    size: usize,
    rate: &'static Measure,
    cpu: &'static Measure,
    /// Value of one datagram, in the unit of the rate.
    counts: f64,
}

static LOADS: [Load; 2] = [
    Load {
        size: 1400,
        rate: &SERVER_RELAY_1400,
        cpu: &SERVER_RELAY_1400_CPU,
        counts: 1400.0 * 8.0 / 1e9,
    },
    Load { size: 64, rate: &SERVER_RELAY_64, cpu: &SERVER_RELAY_64_CPU, counts: 1e-3 },
];

/// A relay and its network.
struct Relay {
    tailnet: Tailnet,
    derper: Option<Service>,
}

/// Measures the relay of a contender, unless derper is not built.
pub(super) fn run(
    kind: CoordinatorKind,
    programs: Option<&Headscale>,
    plan: &Plan,
    note: Note<'_>,
) {
    if programs.is_some_and(|programs| programs.relay().is_none()) {
        netns::skip("derper");
        return;
    }
    for load in &LOADS {
        let relay = Relay::start(kind, programs);
        let (rate, cpu) = relay.carry(load.size, plan.time());
        note(load.rate, rate * load.counts);
        note(load.cpu, cpu * 1e6 / rate);
    }
    let held = if plan.is_brief { 10 } else { HELD };
    let (memory, reached) = Relay::start(kind, programs).hold_idle(held);
    note(&SERVER_RELAY_HELD, memory / 1e3);
    note(&SERVER_RELAY_REACHED, reached);
    // linerate-server coordinates both; it is idle meanwhile.
    let mut relay = Relay::start(CoordinatorKind::Linerate, programs);
    relay.use_derper_alone();
    for (kind, measure) in
        [(MemberKind::Tailscaled, &SERVER_RELAY_TCP), (MemberKind::Linerate, &SERVER_RELAY_TCP_OWN)]
    {
        note(measure, relay.stream(kind, plan.seconds) * 1e3);
    }
}

impl Relay {
    fn start(kind: CoordinatorKind, programs: Option<&Headscale>) -> Self {
        let tailnet = Tailnet::without_members(kind);
        let host = &tailnet.coordinator.host;
        let derper = programs.and_then(Headscale::relay).map(|program| {
            host.run(
                "mkdir /run/rig/certs && cd /run/rig && \
                 cp tls.pem certs/10.1.0.1.crt && cp tls.key certs/10.1.0.1.key",
            );
            let (program, at) = (program.display().to_string(), format!("-a=:{DERPER}"));
            let words = [
                program.as_str(),
                at.as_str(),
                "-certmode=manual",
                "-certdir=/run/rig/certs",
                "-hostname=10.1.0.1",
                "-http-port=-1",
                "-stun=false",
                "-c=/run/rig/derper.key",
            ];
            Service::start(host, "derper", words).wait_until(|| host.listens(DERPER))
        });
        Self { tailnet, derper }
    }

    fn processes(&self) -> Processes {
        let coordinator = &self.tailnet.coordinator;
        let pid = self.derper.as_ref().map_or_else(|| coordinator.pid(), Service::pid);
        Processes::of(&coordinator.host, pid)
    }

    /// Arguments of the generator.
    fn generator_arguments(&self, pairs: usize, size: usize, time: Duration) -> Vec<String> {
        let coordinator = &self.tailnet.coordinator;
        let port = if self.derper.is_some() { DERPER } else { 443 };
        let mut words = ["relayed", "10.1.0.1"].map(str::to_owned).to_vec();
        words.extend([port.to_string(), "/run/rig/ca.pem".to_owned()]);
        words.extend([pairs, size].map(|number| number.to_string()));
        words.push(time.as_secs_f64().to_string());
        if self.derper.is_none() {
            words.extend([coordinator.url().to_owned(), coordinator.auth_key().to_owned()]);
        }
        words
    }

    /// Datagrams of this length a second, and processor time of the relay a second.
    fn carry(&self, size: usize, time: Duration) -> (f64, f64) {
        let (host, relay) = (self.tailnet.host("clients", Uplink::Switch), self.processes());
        let mut command = host.command(generator());
        command
            .args(self.generator_arguments(PAIRS, size, time))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let (watch, before) = (Stopwatch::start(), relay.cpu());
        let mut clients = command.spawn().expect("nsenter is installed (make deps)");
        let _leash = clients.stdin.take();
        let output = clients.wait_with_output().expect("the clients run");
        let cpu = (relay.cpu() - before) / watch.elapsed().as_secs_f64();
        let rate = String::from_utf8_lossy(&output.stdout).trim().parse();
        (rate.expect("the clients print the number of datagrams"), cpu)
    }

    /// Memory of an idle connection in bytes, and the number of connections that receive a datagram
    /// afterwards.
    fn hold_idle(&self, held: usize) -> (f64, f64) {
        let (host, relay) = (self.tailnet.host("clients", Uplink::Switch), self.processes());
        let private = || relay.memory().map_or(f64::NAN, |memory| memory.private);
        let before = private();
        let mut command = host.command(generator());
        let words = self.generator_arguments(held / 2, 0, 2 * SETTLE);
        command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut clients = command.spawn().expect("nsenter is installed (make deps)");
        let mut answers = BufReader::new(clients.stdout.take().expect("it is piped"));
        let mut next_line = || {
            let mut line = String::new();
            answers.read_line(&mut line).expect("the clients run");
            line
        };
        let line = next_line();
        assert!(line.starts_with("held"), "unexpected line of the clients: {line:?}");
        thread::sleep(SETTLE);
        let after = private();
        let reached = next_line().trim().parse().expect("the clients print how many were reached");
        let _ = clients.kill();
        let _ = clients.wait();
        ((after - before) / held as f64, reached)
    }

    /// Makes derper the only relay of the members, if it is measured.
    fn use_derper_alone(&mut self) {
        if self.derper.is_none() {
            return;
        }
        let map = format!(
            r#"{{"Regions": {{"900": {{"RegionID": 900, "RegionCode": "{REGION}", "Nodes": [
                {{"Name": "derper", "RegionID": 900, "HostName": "10.1.0.1", "IPv4": "10.1.0.1",
                  "IPv6": "none", "DERPPort": {DERPER}, "STUNPort": -1}}]}}}}}}"#
        );
        let file = self.tailnet.coordinator.host.write("derper.json", &map);
        let more = format!("enabled = false\nmap_paths = [\"{file}\"]\n");
        self.tailnet.coordinator.configure(&more);
    }

    /// A TCP stream between two members of this kind without UDP, in Gbit/s.
    fn stream(&self, kind: MemberKind, seconds: u32) -> f64 {
        let [left, right] = ["left", "right"].map(|name| {
            let host = self.tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
            Member::join(&self.tailnet, host, kind, "")
        });
        left.reaches(&right, Family::V4);
        let path = left.path_to(&right);
        assert!(matches!(path, Path::Relay(_)), "the path is {path:?}");
        let address = right.addresses.of(Family::V4);
        let iperf =
            Iperf { client: &left.host, server: &right.host, address, seconds, options: "" };
        iperf.run().gbps()
    }
}
