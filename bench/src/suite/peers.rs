//! The cost of many peers: the left end has 1, 10, 100 and 1000, and the right end is the last of
//! them; and the memory of idle peers.

use netns::INTERFACE;

use super::Turn;
use crate::crowd::Crowd;
use crate::measure::{MEMORY_IDLE_1000, Measure, PEERS_1, PEERS_10, PEERS_100, PEERS_1000};

impl Turn<'_> {
    pub(super) fn peers(&mut self) {
        let mut memory = Vec::new();
        let mut steps: Vec<(&'static Measure, usize)> =
            vec![(&PEERS_1, 1), (&PEERS_10, 10), (&PEERS_100, 100), (&PEERS_1000, 1000)];
        steps.retain(|(_, count)| !self.plan.is_brief || [1, 10].contains(count));
        for (measure, count) in steps {
            self.crowd(count - 1);
            self.ends.wait_until_connected();
            let rate = self.stream("");
            self.note(measure, rate.gbps());
            memory.push(self.ends.left.private_memory());
        }
        if self.plan.is_brief {
            return;
        }
        let idle = (memory[memory.len() - 1] - memory[0]) / 999.0;
        self.note(&MEMORY_IDLE_1000, idle / 1e3);
    }

    /// Adds peers that do not exist to the left end, and then the right end.
    fn crowd(&self, count: usize) {
        let (left, right) = (&self.ends.left, &self.ends.right);
        let key = right.key.as_ref().map_or("", |key| &key.public);
        left.host.run(format!("wg set {INTERFACE} peer {key} remove"));
        Crowd::new(count).join(&left.host, None);
        left.add_peer(right, "");
    }
}
