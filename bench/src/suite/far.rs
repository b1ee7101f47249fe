//! TCP over the round trips of real paths, where reordering and loss of a tunnel cost most of the
//! rate; over a cable they cost little.

use netns::{Host, Iperf};

use super::Turn;
use crate::measure::{Measure, TCP_20, TCP_20_LOSS, TCP_66_LOSS};

/// Additional seconds that a stream needs to reach its rate.
const LONGER: u32 = 2;

/// Bytes of a brief stream, which needs few round trips.
const BRIEF_BYTES: u64 = 256 << 10;

/// Buffers of TCP, in bytes. The default of 6 MB would be the limit at 66 ms.
const BUFFERS: &str = "4096 131072 67108864";

/// Sets a host's congestion control to BBR if available, because the rate of CUBIC would depend
/// only on the loss of the link. Returns the one in use.
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
            self.ends.wait_until_connected();
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
