//! 10,000 peers perform handshakes with a hub: the right end's daemon, and the generator of
//! `crate::crowd` on the left host.

use netns::{Family, Iperf, PORT};

use super::{Server, Turn, generator};
use crate::crowd::{CROWD_PORT, Crowd, CrowdResult};
use crate::measure::{
    HANDSHAKES, HANDSHAKES_AGAIN, HANDSHAKES_COOKIES, HANDSHAKES_DONE, MEMORY_PEER, MEMORY_SESSION,
    STORM, STORM_CLOSED, STORM_DONE,
};

const COUNT: usize = 10_000;
const COUNT_BRIEF: usize = 100;

/// Peers that have lost a hub retry every five seconds: 10,000 peers are 2,000 a second.
const A_SECOND: usize = 2_000;
const A_SECOND_BRIEF: usize = 50;

/// The stream runs entirely during the storm, which lasts this many seconds longer.
const LONGER: u32 = 1;
const LONGEST: u32 = 4;

/// A port that no program has open.
const CLOSED: u16 = 51831;

impl Turn<'_> {
    pub(super) fn handshakes(&mut self) {
        let count = if self.plan.is_brief { COUNT_BRIEF } else { COUNT };
        let hub = &self.ends.right;
        let memory = || hub.private_memory();
        let alone = memory();
        Crowd::new(count).join(&hub.host, Some(self.ends.left.outer.of(Family::V4)));
        let known = memory();
        let (key, at) = (hub.key.as_ref().map_or("", |key| &key.public), &hub.outer);
        let line = format!(
            "{} greet {count} {key} {}",
            generator().display(),
            at.endpoint(Family::V4, PORT)
        );
        let outcome = self.client.attempt(line);
        let greeted: Vec<CrowdResult> =
            outcome.stdout.lines().filter_map(CrowdResult::parse).collect();
        let [greeted, again] = greeted[..] else {
            panic!("the initiators failed: {}", outcome.stderr.trim());
        };
        let kilobytes = |more: f64| more / 1e3 / count as f64;
        let (known, met) = (kilobytes(known - alone), kilobytes(memory() - alone));
        let rate = |greeted: CrowdResult| greeted.sessions as f64 / 1e3 / greeted.seconds;
        self.note(&HANDSHAKES, rate(greeted));
        self.note(&HANDSHAKES_AGAIN, rate(again));
        self.note(&HANDSHAKES_DONE, 100.0 * greeted.sessions as f64 / count as f64);
        self.note(&HANDSHAKES_COOKIES, greeted.cookies as f64);
        self.note(&MEMORY_PEER, known);
        self.note(&MEMORY_SESSION, met);
        self.goodput_during_storms();
    }

    /// TCP through the tunnel while the crowd reconnects to its far end, and while the same
    /// datagrams go to a closed port.
    fn goodput_during_storms(&mut self) {
        let gbps = || self.stream("").gbps();
        let before = gbps();
        let (concurrent, stormed) = self.stream_during_storm(PORT);
        let between = gbps();
        let (closed, _) = self.stream_during_storm(CLOSED);
        let after = gbps();
        self.note(&STORM, 100.0 * concurrent / f64::midpoint(before, between));
        self.note(&STORM_DONE, stormed);
        self.note(&STORM_CLOSED, 100.0 * closed / f64::midpoint(between, after));
    }

    /// A stream during a storm to a port of the hub: Gbit/s, and the percentage of completed
    /// handshakes.
    fn stream_during_storm(&self, port: u16) -> (f64, f64) {
        let hub = &self.ends.right;
        let brief = self.plan.is_brief;
        let a_second = if brief { A_SECOND_BRIEF } else { A_SECOND };
        let longest = if brief { COUNT_BRIEF } else { COUNT };
        let seconds = self.plan.seconds.min(LONGEST);
        let count = longest.min(a_second * (seconds + LONGER) as usize);
        let key = hub.key.as_ref().map_or("", |key| &key.public);
        let at = hub.outer.endpoint(Family::V4, port).clone();
        let [numbers, rate] = [count, a_second].map(|number| number.to_string());
        let line = ["storm", &numbers, key, &at, &rate];
        let storm = Server::start(&self.client, &line, CROWD_PORT);
        let rate = self.plan.stream(&Iperf { seconds, ..self.iperf("") }).gbps();
        let stormed = CrowdResult::parse(&storm.finish()).expect("the generator prints its result");
        (rate, 100.0 * stormed.sessions as f64 / count as f64)
    }
}
