//! A hub of 10,000 peers that all shake hands with it: the right end's daemon, and the generator of
//! `crate::crowd` on the left host.

use netns::{Family, PORT};

use super::{Turn, generator};
use crate::crowd::{Crowd, Greeted};
use crate::measure::{
    HANDSHAKES, HANDSHAKES_AGAIN, HANDSHAKES_COOKIES, HANDSHAKES_DONE, MEMORY_PEER, MEMORY_SESSION,
};

const COUNT: usize = 10_000;
const COUNT_BRIEF: usize = 100;

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
    }
}
