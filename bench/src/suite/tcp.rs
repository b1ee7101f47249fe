//! TCP, by iperf3.

use netns::{Iperf, Rate};

use super::Turn;
use crate::measure::{
    CPU, MEMORY_TCP, PREEMPTED, TCP_4, TCP_32, TCP_BACK, TCP_BOTH, TCP_FORTH, TCP_PLAIN, WAITS,
};

impl Turn<'_> {
    pub(super) fn tcp(&mut self) {
        let before = (self.cpu(), self.switches());
        let forth = self.stream("");
        let (cpu, switches) = (self.cpu() - before.0, self.switches());
        let gigabytes = forth.bytes / 1e9;
        self.note(&TCP_FORTH, forth.gbps());
        self.note(&CPU, cpu / gigabytes);
        for (kind, measure) in [&WAITS, &PREEMPTED].into_iter().enumerate() {
            self.note(measure, (switches[kind] - before.1[kind]) / 1e3 / gigabytes);
        }
        self.note(&MEMORY_TCP, self.memory());
        self.note(&TCP_BACK, self.stream("-R").gbps());
        self.note(&TCP_4, self.stream("-P 4").gbps());
        self.note(&TCP_32, self.stream("-P 32").gbps());
        self.note(&TCP_BOTH, self.stream("--bidir").gbps());
    }

    /// The cable as a NIC that segments neither UDP nor TCP, at both ends.
    pub(super) fn tcp_over_plain_link(&mut self) {
        for host in [&self.client, &self.server] {
            host.run("ethtool -K eth0 tx-udp-segmentation off tso off gso off");
        }
        let rate = self.stream("");
        self.note(&TCP_PLAIN, rate.gbps());
    }

    /// A stream between the client and the server, to its end.
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
