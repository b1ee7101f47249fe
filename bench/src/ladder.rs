//! The ladder: one binary, technique by technique. Each rung has the techniques of the rungs below.
//!
//! It repeats the experiment on which this project is based on the user's own machine. Everything
//! is switched at run time: offloads by `linerate set IFACE offload NAME on|off`, the rest by the
//! environment.

use crate::comparison::Comparison;
use crate::contender::{Carrier, Contender};
use crate::measure::{ALL, Measure};
use crate::suite::Test;
use netns::Table;

/// A rung: the techniques that it adds.
struct Rung {
    name: &'static str,
    offloads: &'static [&'static str],
    /// The environment variable that disables it on the rungs below.
    instead_of: Option<(&'static str, &'static str)>,
}

const fn offloads(name: &'static str, offloads: &'static [&'static str]) -> Rung {
    Rung { name, offloads, instead_of: None }
}

const fn code(name: &'static str, instead_of: (&'static str, &'static str)) -> Rung {
    Rung { name, offloads: &[], instead_of: Some(instead_of) }
}

const RUNGS: [Rung; 7] = [
    offloads("one packet after the other", &[]),
    code("+ vectors (sendmmsg, recvmmsg)", ("LINERATE_VECTOR", "1")),
    offloads("+ TCP super-packets at the TUN (TSO, GRO)", &["tun-tso", "tun-tcp-gro"]),
    offloads("+ UDP GSO and GRO at the socket", &["udp-gso", "udp-gro"]),
    code("+ SIMD checksum", ("LINERATE_CHECKSUM", "scalar")),
    offloads(
        "+ UDP super-packets at the TUN (USO, GRO)",
        &["tun-uso", "tun-tunnel-gso", "tun-udp-gro"],
    ),
    code("+ batched AEAD", ("LINERATE_AEAD", "library")),
];

/// Tests that run on every rung by default.
pub const TESTS: [Test; 2] = [Test::Tcp, Test::Quic];

/// One contender per rung, from the lowest.
pub fn rungs(linerate: &Contender) -> Vec<Contender> {
    (1..=RUNGS.len()).map(|height| rung(linerate, height)).collect()
}

/// The contender with the lowest `height` rungs.
fn rung(linerate: &Contender, height: usize) -> Contender {
    let (climbed, above) = RUNGS.split_at(height);
    let offloads = climbed.iter().flat_map(|rung| rung.offloads.iter().copied()).collect();
    let mut carrier = linerate.carrier.clone();
    if let Carrier::Daemon(program) = &mut carrier {
        program.environment.extend(above.iter().filter_map(|rung| rung.instead_of));
    }
    let name = climbed[height - 1].name.to_owned();
    Contender { name, setting: None, carrier, offloads: Some(offloads) }
}

/// A row per rung, a column per measure: the median and its ratio to the lowest rung.
pub fn table(comparison: &Comparison) -> Table {
    let is_shown = |measure: &&Measure| measure.bar.is_some() && comparison.has(measure);
    let measures: Vec<&Measure> = ALL.iter().copied().filter(is_shown).collect();
    let heading = |measure: &Measure| format!("{} {}", measure.key, measure.unit);
    let headings: Vec<String> = measures.iter().map(|measure| heading(measure)).collect();
    let mut table = Table::new(["rung"].into_iter().chain(headings.iter().map(String::as_str)));
    for (rung, contender) in comparison.contenders.iter().enumerate() {
        let figures = measures.iter().map(|measure| {
            let figure = measure.format(comparison.of(rung, measure).median);
            // The comparison's ratios are relative to the first contender, which is the lowest
            // rung.
            format!("{figure} ({:.2}x)", 1.0 / comparison.ratio(rung, measure).median)
        });
        table.row([contender.name.clone()].into_iter().chain(figures));
    }
    table
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use netns::{Implementation, Program};

    use super::rungs;
    use crate::contender::{Carrier, Contender};

    #[test]
    fn each_rung_has_the_techniques_of_the_rungs_below() {
        let (implementation, path) = (Implementation::Linerate, PathBuf::new());
        let program = Program { implementation, path, environment: Vec::new() };
        let rungs = rungs(&Contender::new("linerate", Carrier::Daemon(program)));
        let offloads: Vec<&[&str]> =
            rungs.iter().filter_map(|rung| rung.offloads.as_deref()).collect();
        assert!(offloads[0].is_empty());
        assert_eq!(offloads[2], ["tun-tso", "tun-tcp-gro"]);
        assert_eq!(offloads.last().map(|all| all.len()), Some(7));
        assert!(offloads.windows(2).all(|pair| pair[1].starts_with(pair[0])));

        let denied = |rung: &Contender| {
            let environment = rung.program().map(|program| &program.environment);
            environment.into_iter().flatten().map(|(name, _)| *name).collect::<Vec<&str>>()
        };
        let denied: Vec<Vec<&str>> = rungs.iter().map(denied).collect();
        assert_eq!(denied[0], ["LINERATE_VECTOR", "LINERATE_CHECKSUM", "LINERATE_AEAD"]);
        assert_eq!((&denied[1], &denied[2], &denied[3]), (&denied[3], &denied[3], &denied[3]));
        assert_eq!(denied[3], ["LINERATE_CHECKSUM", "LINERATE_AEAD"]);
        assert_eq!((&denied[4], &denied[5]), (&vec!["LINERATE_AEAD"], &vec!["LINERATE_AEAD"]));
        assert!(denied[6].is_empty());
    }
}
