//! QUIC, by the generator of `crate::quic`.

use super::{Server, Turn, generator};
use crate::measure::{QUIC_DOWN, QUIC_UP};
use crate::quic::Carried;

/// Any that is free in a fresh host.
const PORT: u16 = 4433;

impl Turn<'_> {
    pub(super) fn quic(&mut self) {
        for (measure, way) in [(&QUIC_DOWN, "down"), (&QUIC_UP, "up")] {
            let to = format!("{}:{PORT}", self.target());
            let server = Server::start(self.right(), &["quic-server", &to], PORT);
            let line = format!("{} quic-client {to} {way} {}", generator().display(), self.seconds);
            let client = self.left().attempt(&line);
            drop(server);
            let carried = Carried::parse(&client.stdout);
            if carried.is_none() {
                eprintln!("quic {way} failed: {}", client.stderr.trim());
            }
            // What a tunnel cannot carry is missing in the report, and no end of the bench.
            self.note(measure, carried.map_or(f64::NAN, |carried| carried.gbps()));
        }
    }
}
