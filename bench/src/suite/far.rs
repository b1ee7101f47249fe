//! TCP at the distances of real paths. What a tunnel reorders or drops costs little at the round
//! trip of a cable, and most of the rate here.

use netns::{Host, Iperf};

use super::Turn;
use crate::measure::{Measure, TCP_20, TCP_20_LOSS, TCP_66_LOSS};

/// A stream needs so much longer than over a cable to find its rate, in seconds.
const LONGER: u32 = 2;

/// What a brief stream carries, in few round trips.
const BRIEF_BYTES: u64 = 256 << 10;

/// Buffers of TCP, in bytes: at 66 ms the default of 6 MB would be the limit.
const BUFFERS: &str = "4096 131072 67108864";

/// Has a host's kernel send with BBR, as CUBIC would tell the loss of the link alone; with CUBIC
/// where it has no BBR. What it sends with.
pub(super) fn send_through_loss(host: &Host) -> String {
    const CONTROL: &str = "/proc/sys/net/ipv4/tcp_congestion_control";
    host.attempt(format!("echo bbr >{CONTROL}"));
    host.read(CONTROL).trim().to_owned()
}

impl Turn<'_> {
    pub(super) fn tcp_from_far(&mut self) {
        for host in [&self.client, &self.server] {
            host.run(format!("echo {BUFFERS} >/proc/sys/net/ipv4/tcp_rmem"));
            host.run(format!("echo {BUFFERS} >/proc/sys/net/ipv4/tcp_wmem"));
        }
        let shapes: [(&'static Measure, &str); 3] = [
            (&TCP_20, "rtt=20"),
            (&TCP_20_LOSS, "rtt=20,loss=0.01"),
            (&TCP_66_LOSS, "rtt=66,loss=0.01"),
        ];
        for (measure, shape) in shapes.into_iter().filter(|(one, _)| self.plan.wants(one)) {
            if let Some(link) = &mut self.ends.link {
                link.reshape(shape);
            }
            self.ends.meet();
            if shape.contains("loss") {
                send_through_loss(&self.server);
                let control = send_through_loss(&self.client);
                self.readings.borrow_mut().set_congestion(&control);
            }
            let iperf = Iperf { seconds: self.plan.seconds + LONGER, ..self.iperf("") };
            let rate = if self.plan.is_brief { iperf.carry(BRIEF_BYTES) } else { iperf.run() };
            self.note(measure, rate.gbps());
        }
    }
}
