//! The ladder: one binary, technique by technique, each rung with those of the rungs below.
//!
//! It is the experiment of this project's sources, on the user's own machine. A rung is there for
//! what can be switched at run time (`linerate set IFACE offload NAME on|off`).

use crate::comparison::Comparison;
use crate::contender::Contender;
use crate::measure::{ALL, Measure};
use crate::suite::Test;
use crate::table::Table;

/// What each rung adds.
const RUNGS: [(&str, &[&str]); 4] = [
    ("single packets, by sendmmsg and recvmmsg", &[]),
    ("+ TCP super-packets at the TUN (TSO, GRO)", &["tun-tso", "tun-tcp-gro"]),
    ("+ UDP GSO and GRO at the socket", &["udp-gso", "udp-gro"]),
    ("+ UDP super-packets at the TUN (USO, GRO)", &["tun-uso", "tun-udp-gro"]),
];

/// What is measured on every rung, unless the user says otherwise.
pub const TESTS: [Test; 2] = [Test::Tcp, Test::Quic];

/// A contender a rung, from the lowest.
pub fn rungs(linerate: &Contender) -> Vec<Contender> {
    let rung = |top: usize| {
        let offloads = RUNGS[..=top].iter().flat_map(|(_, adds)| adds.iter().copied()).collect();
        let carrier = linerate.carrier.clone();
        Contender { name: RUNGS[top].0.to_owned(), carrier, offloads: Some(offloads) }
    };
    (0..RUNGS.len()).map(rung).collect()
}

/// A row a rung, a column a measure: the median, and beside it what it is of the lowest rung's.
pub fn table(comparison: &Comparison) -> Table {
    let is_shown = |measure: &&Measure| measure.bar.is_some() && comparison.has(measure);
    let measures: Vec<&Measure> = ALL.iter().copied().filter(is_shown).collect();
    let heading = |measure: &Measure| format!("{} {}", measure.key, measure.unit);
    let headings: Vec<String> = measures.iter().map(|measure| heading(measure)).collect();
    let mut table = Table::new(["rung"].into_iter().chain(headings.iter().map(String::as_str)));
    for (rung, contender) in comparison.contenders.iter().enumerate() {
        let figures = measures.iter().map(|measure| {
            let figure = measure.format(comparison.of(rung, measure).median);
            // The comparison's ratios are of the first contender, which is the lowest rung.
            format!("{figure} ({:.2}x)", 1.0 / comparison.ratio(rung, measure).median)
        });
        table.row([contender.name.clone()].into_iter().chain(figures));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::rungs;
    use crate::contender::{Carrier, Contender};

    #[test]
    fn each_rung_keeps_what_those_below_it_have() {
        let linerate = Contender::new("linerate", Carrier::Bare);
        let offloads: Vec<Vec<&str>> =
            rungs(&linerate).into_iter().filter_map(|rung| rung.offloads).collect();
        assert!(offloads[0].is_empty());
        assert_eq!(offloads[1], ["tun-tso", "tun-tcp-gro"]);
        assert_eq!(offloads.last().map(Vec::len), Some(6));
        assert!(offloads.windows(2).all(|pair| pair[1].starts_with(&pair[0])));
    }
}
