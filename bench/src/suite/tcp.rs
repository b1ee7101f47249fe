//! TCP, by iperf3.

use netns::{Iperf, Rate};

use super::Turn;
use crate::measure::{
    CPU, MEMORY_TCP, MEMORY_TCP_AFTER, MEMORY_TCP_PSS, Measure, PREEMPTED, TCP_4, TCP_32, TCP_BACK,
    TCP_BOTH, TCP_FORTH, TCP_PLAIN, WAITS,
};

impl Turn<'_> {
    pub(super) fn tcp(&mut self) {
        let before = (self.cpu(), self.switches());
        let forth = self.stream("");
        let (cpu, switches) = (self.cpu() - before.0, self.switches());
        let gigabytes = forth.bytes / 1e9;
        self.note(&TCP_FORTH, forth.gbps());
        self.note_cost(&CPU, cpu / gigabytes);
        for (kind, measure) in [&WAITS, &PREEMPTED].into_iter().enumerate() {
            self.note_cost(measure, (switches[kind] - before.1[kind]) / 1e3 / gigabytes);
        }
        self.note_memory([&MEMORY_TCP, &MEMORY_TCP_AFTER, &MEMORY_TCP_PSS]);
        let more: [(&'static Measure, &str); 4] =
            [(&TCP_BACK, "-R"), (&TCP_4, "-P 4"), (&TCP_32, "-P 32"), (&TCP_BOTH, "--bidir")];
        for (measure, options) in more {
            if self.wants(measure) {
                self.note(measure, self.stream(options).gbps());
            }
        }
    }

    /// The cable as a NIC without UDP and TCP segmentation, at both ends.
    pub(super) fn tcp_over_plain_link(&mut self) {
        for host in [&self.client, &self.server] {
            host.run("ethtool -K eth0 tx-udp-segmentation off tso off gso off");
        }
        let rate = self.stream("");
        self.note(&TCP_PLAIN, rate.gbps());
    }

    /// Runs a stream between the client and the server to its end.
    pub(super) fn stream(&self, options: &str) -> Rate {
        self.plan.stream(&self.iperf(options))
    }

    pub(super) fn iperf<'a>(&'a self, options: &'a str) -> Iperf<'a> {
        Iperf {
            client: &self.client,
            server: &self.server,
            address: &self.target,
            seconds: self.plan.seconds,
            options,
        }
    }
}
