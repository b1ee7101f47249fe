//! QUIC, by the generator of `crate::quic`.

use netns::{Host, INTERFACE, PORT};

use super::{Server, Turn, generator};
use crate::measure::{
    Measure, QUIC_DOWN, QUIC_OWN, QUIC_RING, QUIC_SOCKET, QUIC_TLS_DOWN, QUIC_TLS_UP, QUIC_UP,
};
use crate::quic::Carried;

/// Any free port.
const AT: u16 = 4433;

impl Turn<'_> {
    pub(super) fn quic(&mut self) {
        let before = self.quic_drops();
        self.quic_way(&QUIC_DOWN, "down", "plain");
        self.quic_way(&QUIC_UP, "up", "plain");
        let places: [&'static Measure; 3] = [&QUIC_OWN, &QUIC_SOCKET, &QUIC_RING];
        for ((measure, after), before) in places.into_iter().zip(self.quic_drops()).zip(before) {
            self.note(measure, (after - before) as f64);
        }
    }

    pub(super) fn quic_by_tls(&mut self) {
        self.quic_way(&QUIC_TLS_DOWN, "down", "tls");
        self.quic_way(&QUIC_TLS_UP, "up", "tls");
    }

    /// Packets dropped at both ends: by sockets in the tunnel, by outer sockets, by the TUN
    /// rings.
    fn quic_drops(&self) -> [u64; 3] {
        let hosts = [&self.ends.left.host, &self.ends.right.host];
        let sum = |of: &dyn Fn(&Host) -> u64| hosts.into_iter().map(of).sum::<u64>();
        let all = sum(&|host| host.udp_count("RcvbufErrors"));
        let outer = sum(&|host| host.dropped_by_socket(PORT).unwrap_or(0));
        [all.saturating_sub(outer), outer, sum(&|host| host.dropped_by_device(INTERFACE))]
    }

    /// One direction, with the protection `plain` or `tls`.
    pub(super) fn quic_way(&mut self, measure: &'static Measure, way: &str, protection: &str) {
        let to = format!("{}:{AT}", self.target);
        let server = Server::start(&self.server, &["quic-server", &to, protection], AT);
        let program = generator();
        let line = format!(
            "{} quic-client {to} {way} {} {protection}",
            program.display(),
            self.plan.time().as_secs_f64()
        );
        let client = self.client.attempt(&line);
        drop(server);
        let carried = Carried::parse(&client.stdout);
        if carried.is_none() {
            eprintln!("quic {way} failed: {}", client.stderr.trim());
        }
        // A failed transfer leaves no figure and does not end the bench.
        self.note(measure, carried.map_or(f64::NAN, |carried| carried.gbps()));
    }
}
