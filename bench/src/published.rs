//! The rows of the published figures, their tests and contenders, and the files that have them.
//!
//! linerate and Tailscale's wireguard-go run every test of the first table, linerate and tailscaled
//! every test of the second. The other contenders run a few tests in the same run, to limit its
//! duration.

use netns::Implementation::{self, Boringtun, Gotatun, WireguardGo};

use crate::contender::{Carrier, Contender, TAILSCALED};
use crate::measure::{self, Measure};
use crate::suite::{Plan, Test};

/// A row of a table: its title with the unit, and its measures.
pub struct Row {
    /// First column.
    pub title: &'static str,
    /// The measures.
    pub measures: &'static [&'static Measure],
}

const fn row(title: &'static str, measures: &'static [&'static Measure]) -> Row {
    Row { title, measures }
}

/// The file with [`ROWS_OF_README`], below the root of the tree.
pub const README: &str = "README.md";

/// The file with all other rows.
pub const PAGE: &str = "docs/figures.md";

/// Placeholder in a title for the congestion control of TCP over links with loss.
pub const CONGESTION: &str = "{congestion}";

/// Rows of the README: linerate and Tailscale's wireguard-go.
pub static ROWS_OF_README: [Row; 7] = {
    use measure::*;
    [
        row("TCP, 1 stream, forth / back, Gbit/s", &[&TCP_FORTH, &TCP_BACK]),
        row("TCP over 66 ms with 0.01 % lost, {congestion}, Gbit/s", &[&TCP_66_LOSS]),
        row("QUIC, down / up, Gbit/s", &[&QUIC_TLS_DOWN, &QUIC_TLS_UP]),
        row("UDP of 64 / 1380 bytes, kpps", &[&UDP_64, &UDP_1380]),
        row("ping during full TCP, p50 / p99, ms", &[&BUSY_P50, &BUSY_P99]),
        row("CPU of both daemons, s per GB of TCP", &[&CPU]),
        row("private memory of both daemons, peak, MB", &[&MEMORY_TCP]),
    ]
};

/// Row of the README: linerate and tailscaled.
pub static TAILNET_ROW_OF_README: [Row; 1] = [row(
    "two nodes of a tailnet: TCP, 1 stream, forth / back, Gbit/s",
    &[&measure::TAILNET_TCP_FORTH, &measure::TAILNET_TCP_BACK],
)];

/// Rows of linerate and Tailscale's wireguard-go.
pub static ROWS: [Row; 18] = {
    use measure::*;
    [
        row("TCP, 1 stream, forth / back, Gbit/s", &[&TCP_FORTH, &TCP_BACK]),
        row("TCP, 4 streams / both ways at once, Gbit/s", &[&TCP_4, &TCP_BOTH]),
        row("TCP over 20 ms, Gbit/s", &[&TCP_20]),
        row("TCP over 66 ms with 0.01 % lost, {congestion}, Gbit/s", &[&TCP_66_LOSS]),
        row("TCP on a link without offloads, Gbit/s", &[&TCP_PLAIN]),
        row("TCP connections set up, k/s", &[&CONNECTIONS]),
        row("QUIC without its own AEAD, down / up, Gbit/s", &[&QUIC_DOWN, &QUIC_UP]),
        row(
            "QUIC with its own AEAD (`quic-tls`), down / up, Gbit/s",
            &[&QUIC_TLS_DOWN, &QUIC_TLS_UP],
        ),
        row("UDP of 64 / 1380 bytes, carried, kpps", &[&UDP_64, &UDP_1380]),
        row("forwarded: TCP, Gbit/s", &[&FORWARD_TCP]),
        row(
            "forwarded: QUIC without its own AEAD, `rx-udp-gro-forwarding`, down / up, Gbit/s",
            &[&FORWARD_WIRE_DOWN, &FORWARD_WIRE_UP],
        ),
        row(
            "forwarded: QUIC without its own AEAD, without that setting, down / up, Gbit/s",
            &[&FORWARD_WIRE_DOWN_OFF, &FORWARD_WIRE_UP_OFF],
        ),
        row("TCP in VXLAN in the tunnel, Gbit/s", &[&VXLAN]),
        row("ping during full TCP, p50 / p99, ms", &[&BUSY_P50, &BUSY_P99]),
        row("ping, idle, p50, ms", &[&IDLE_P50]),
        row("CPU of both daemons, s per GB of TCP", &[&CPU]),
        row("private memory of both in TCP, peak, MB", &[&MEMORY_TCP]),
        row("private memory of both after it, MB", &[&MEMORY_TCP_AFTER]),
    ]
};

/// Rows of linerate and tailscaled as nodes of a tailnet.
pub static ROWS_OF_TAILNET: [Row; 9] = {
    use measure::*;
    [
        row("joined by key, s (at most 1.5)", &[&TAILNET_JOIN]),
        row("then the first answer of a peer, s (at most 1)", &[&TAILNET_FIRST]),
        row("TCP, 1 stream, forth / back, Gbit/s", &[&TAILNET_TCP_FORTH, &TAILNET_TCP_BACK]),
        row("TCP, 4 streams / both ways at once, Gbit/s", &[&TAILNET_TCP_4, &TAILNET_TCP_BOTH]),
        row(
            "QUIC without its own AEAD, down / up, Gbit/s",
            &[&TAILNET_QUIC_DOWN, &TAILNET_QUIC_UP],
        ),
        row("UDP of 64 bytes, carried, kpps", &[&TAILNET_UDP_64]),
        row("TCP by headscale's relay, Mbit/s", &[&TAILNET_RELAY_TCP]),
        row("private memory of both in TCP, peak, MB", &[&TAILNET_MEMORY]),
        row("private memory of both after it, MB", &[&TAILNET_MEMORY_AFTER]),
    ]
};

/// Rows of all contenders.
pub static ROWS_OF_ALL: [Row; 10] = {
    use measure::*;
    [
        row("TCP, 1 stream, forth, Gbit/s", &[&TCP_FORTH]),
        row("TCP, 1 stream, back, Gbit/s", &[&TCP_BACK]),
        row("QUIC without its own AEAD, down, Gbit/s", &[&QUIC_DOWN]),
        row("QUIC without its own AEAD, up, Gbit/s", &[&QUIC_UP]),
        row("UDP of 64 bytes, carried, kpps", &[&UDP_64]),
        row("UDP of 1380 bytes, carried, kpps", &[&UDP_1380]),
        row("ping, idle, p50, ms", &[&IDLE_P50]),
        row("ping during full TCP, p99, ms", &[&BUSY_P99]),
        row("CPU of both, s per GB of TCP", &[&CPU]),
        row("private memory of both in TCP, peak, MB", &[&MEMORY_TCP]),
    ]
};

/// Measures of linerate and Tailscale's wireguard-go.
static MEASURES: [&Measure; 44] = {
    use measure::*;
    [
        &TCP_FORTH,
        &CPU,
        &MEMORY_TCP,
        &MEMORY_TCP_AFTER,
        &TCP_BACK,
        &TCP_4,
        &TCP_BOTH,
        &IDLE_P50,
        &BUSY_P50,
        &BUSY_P99,
        &QUIC_DOWN,
        &QUIC_UP,
        &UDP_64,
        &UDP_1380,
        &CONNECTIONS,
        &QUIC_TLS_DOWN,
        &QUIC_TLS_UP,
        &TCP_PLAIN,
        &TCP_20,
        &TCP_66_LOSS,
        &FORWARD_TCP,
        &FORWARD_WIRE_DOWN,
        &FORWARD_WIRE_DOWN_OFF,
        &FORWARD_WIRE_UP,
        &FORWARD_WIRE_UP_OFF,
        &VXLAN,
        &TAILNET_JOIN,
        &TAILNET_FIRST,
        &TAILNET_TCP_FORTH,
        &TAILNET_TCP_BACK,
        &TAILNET_TCP_4,
        &TAILNET_TCP_BOTH,
        &TAILNET_QUIC_DOWN,
        &TAILNET_QUIC_UP,
        &TAILNET_UDP_64,
        &TAILNET_RELAY_TCP,
        &TAILNET_MEMORY,
        &TAILNET_MEMORY_AFTER,
        // Parts of the figures above, for JSON.
        &MEMORY_TCP_PSS,
        &UDP_64_SENT,
        &UDP_1380_SENT,
        &BUSY_LOST,
        &BUSY_TCP,
        &MEMORY_END,
    ]
};

/// Measures of the other contenders.
static MEASURES_OF_ALL: [&Measure; 10] = {
    use measure::*;
    [
        &TCP_FORTH,
        &TCP_BACK,
        &CPU,
        &MEMORY_TCP,
        &IDLE_P50,
        &BUSY_P99,
        &QUIC_DOWN,
        &QUIC_UP,
        &UDP_64,
        &UDP_1380,
    ]
};

/// The tests of the first table.
pub const TESTS: [Test; 9] = [
    Test::Tcp,
    Test::Ping,
    Test::Quic,
    Test::Udp,
    Test::Connections,
    Test::QuicTls,
    Test::Plain,
    Test::Far,
    Test::Forward,
];

/// The tests that all contenders run.
const TESTS_OF_ALL: [Test; 4] = [Test::Tcp, Test::Ping, Test::Quic, Test::Udp];

/// Names of the contenders that linerate is compared with.
pub fn peers() -> String {
    let names =
        [Implementation::Tailscale, WireguardGo, Gotatun, Boringtun].map(Implementation::name);
    names.into_iter().chain([TAILSCALED]).collect::<Vec<&str>>().join(",")
}

/// All tests.
pub fn tests() -> Vec<Test> {
    TESTS.into_iter().chain([Test::Vxlan, Test::Tailnet]).collect()
}

/// The part of a plan that a contender runs.
pub fn plan(contender: &Contender, whole: &Plan) -> Plan {
    if runs_all(contender) {
        return Plan { only: Some(&MEASURES), ..whole.clone() };
    }
    // Only tailscaled runs the tests of a tailnet.
    let is_tailscaled = matches!(contender.carrier, Carrier::Tailscaled(_));
    let measures = if is_tailscaled { &MEASURES[..] } else { &MEASURES_OF_ALL };
    let mut plan = Plan { only: Some(measures), ..whole.clone() };
    plan.tests.retain(|test| {
        TESTS_OF_ALL.contains(test) || is_tailscaled && test.yardstick() == Some(TAILSCALED)
    });
    plan
}

/// Whether the contender is linerate or the peer of the first table.
fn runs_all(contender: &Contender) -> bool {
    let Carrier::Daemon(program) = &contender.carrier else { return false };
    matches!(program.implementation, Implementation::Linerate | Implementation::Tailscale)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use netns::{Implementation, Program};

    use super::{
        MEASURES, MEASURES_OF_ALL, ROWS, ROWS_OF_ALL, ROWS_OF_README, ROWS_OF_TAILNET, Row,
        TAILNET_ROW_OF_README, plan, tests,
    };
    use crate::contender::{Carrier, Contender};
    use crate::measure::Measure;
    use crate::suite::{Plan, Test};

    fn has(list: &[&Measure], one: &Measure) -> bool {
        list.iter().any(|measure| measure.key == one.key)
    }

    #[test]
    fn every_figure_of_the_tables_is_measured() {
        for measure in ROWS.iter().chain(&ROWS_OF_TAILNET).flat_map(|row| row.measures) {
            assert!(has(&MEASURES, measure), "{}", measure.key);
        }
        for measure in ROWS_OF_ALL.iter().flat_map(|row| row.measures) {
            assert!(has(&MEASURES, measure) && has(&MEASURES_OF_ALL, measure), "{}", measure.key);
        }
    }

    #[test]
    fn readme_has_eight_rows_whose_measures_the_page_has_too() {
        let on_page = |rows: &'static [Row], measure: &Measure| {
            rows.iter().any(|row| has(row.measures, measure))
        };
        assert_eq!(ROWS_OF_README.len() + TAILNET_ROW_OF_README.len(), 8);
        for measure in ROWS_OF_README.iter().flat_map(|row| row.measures) {
            assert!(on_page(&ROWS, measure), "{}", measure.key);
        }
        for measure in TAILNET_ROW_OF_README.iter().flat_map(|row| row.measures) {
            assert!(on_page(&ROWS_OF_TAILNET, measure), "{}", measure.key);
        }
    }

    #[test]
    fn the_others_run_a_few_tests() {
        let contender = |implementation| {
            let program = Program { implementation, path: PathBuf::new(), environment: Vec::new() };
            Contender::new("x", Carrier::Daemon(program))
        };
        let tests = tests();
        let whole = Plan { tests, seconds: 2, is_brief: false, only: None, link: None };
        let of = |implementation| plan(&contender(implementation), &whole).tests;
        assert_eq!(of(Implementation::Linerate), whole.tests);
        assert_eq!(of(Implementation::Tailscale), whole.tests);
        assert_eq!(of(Implementation::Gotatun), [Test::Tcp, Test::Ping, Test::Quic, Test::Udp]);
    }
}
