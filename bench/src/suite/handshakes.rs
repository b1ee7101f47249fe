//! A hub of 10,000 peers that all shake hands with it: the right end's daemon, and the generator of
//! `crate::crowd` on the left host.

use netns::{Family, Iperf, PORT};

use super::{Server, Turn, generator};
use crate::crowd::{CROWD_PORT, Crowd, Greeted};
use crate::measure::{
    HANDSHAKES, HANDSHAKES_AGAIN, HANDSHAKES_COOKIES, HANDSHAKES_DONE, MEMORY_PEER, MEMORY_SESSION,
    STORM, STORM_CLOSED, STORM_DONE,
};

const COUNT: usize = 10_000;
const COUNT_BRIEF: usize = 100;

/// Peers that have lost a hub try again every five seconds: 10,000 are so many a second.
const A_SECOND: usize = 2_000;
const A_SECOND_BRIEF: usize = 50;

/// A stream begins and ends within the storm beside it, which lasts so much longer.
const LONGER: u32 = 1;
const LONGEST: u32 = 4;

/// A port that no daemon has.
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
        let greeted: Vec<Greeted> = outcome.stdout.lines().filter_map(Greeted::parse).collect();
        let [greeted, again] = greeted[..] else {
            panic!("the initiators failed: {}", outcome.stderr.trim());
        };
        let kilobytes = |more: f64| more / 1e3 / count as f64;
        let (known, met) = (kilobytes(known - alone), kilobytes(memory() - alone));
        let rate = |greeted: Greeted| greeted.sessions as f64 / 1e3 / greeted.seconds;
        self.note(&HANDSHAKES, rate(greeted));
        self.note(&HANDSHAKES_AGAIN, rate(again));
        self.note(&HANDSHAKES_DONE, 100.0 * greeted.sessions as f64 / count as f64);
        self.note(&HANDSHAKES_COOKIES, greeted.cookies as f64);
        self.note(&MEMORY_PEER, known);
        self.note(&MEMORY_SESSION, met);
        self.goodput_beside_storms();
    }

    /// TCP through the tunnel while the crowd comes back to its far end, and beside the same
    /// datagrams to a port that no program has open.
    fn goodput_beside_storms(&mut self) {
        let gbps = || self.stream("").gbps();
        let before = gbps();
        let (beside, stormed) = self.beside_storm(PORT);
        let between = gbps();
        let (closed, _) = self.beside_storm(CLOSED);
        let after = gbps();
        self.note(&STORM, 100.0 * beside / f64::midpoint(before, between));
        self.note(&STORM_DONE, stormed);
        self.note(&STORM_CLOSED, 100.0 * closed / f64::midpoint(between, after));
    }

    /// A stream beside a storm at a port of the hub: its Gbit/s, and how many handshakes of a hundred
    /// were completed.
    fn beside_storm(&self, port: u16) -> (f64, f64) {
        let hub = &self.ends.right;
        let brief = self.plan.is_brief;
        let a_second = if brief { A_SECOND_BRIEF } else { A_SECOND };
        let longest = if brief { COUNT_BRIEF } else { COUNT };
        let seconds = self.plan.seconds.min(LONGEST);
        let count = longest.min(a_second * (seconds + LONGER) as usize);
        let key = hub.key.as_ref().map_or("", |key| &key.public);
        let at = hub.outer.endpoint(Family::V4, port).to_string();
        let [numbers, rate] = [count, a_second].map(|number| number.to_string());
        let line = ["storm", &numbers, key, &at, &rate];
        let storm = Server::start(&self.client, &line, CROWD_PORT);
        let rate = self.plan.stream(&Iperf { seconds, ..self.iperf("") }).gbps();
        let stormed = Greeted::parse(&storm.finish()).expect("a storm says what came of it");
        (rate, 100.0 * stormed.sessions as f64 / count as f64)
    }
}
