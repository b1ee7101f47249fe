//! TCP connections, by the generator of `crate::connections`.

use super::{Server, Turn, generator};
use crate::measure::CONNECTIONS;

/// Any free port.
const AT: u16 = 4434;

impl Turn<'_> {
    pub(super) fn connections(&mut self) {
        let to = format!("{}:{AT}", self.target);
        let _server = Server::start_tcp(&self.server, &["answer", &to], AT);
        let line =
            format!("{} call {to} {}", generator().display(), self.plan.time().as_secs_f64());
        let rate: f64 = self.client.run(line).trim().parse().expect("the caller prints a rate");
        self.note(&CONNECTIONS, rate / 1e3);
    }
}
