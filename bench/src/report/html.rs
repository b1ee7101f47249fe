//! The report as one self-contained page of HTML, light or dark, for any screen.

use netns::base64;

use super::{FAILED, MEMORY, each_table, figure, heading, left_out, range, warning};
use crate::claim::{self, SHARE};
use crate::comparison::Comparison;
use crate::flame::Flame;
use crate::machine::Machine;
use crate::measure::{self, ALL, Measure, PINGS};
use crate::report::chart::{Bar, bars, latencies};
use netns::{Table, escape};

/// The headings and the measures of their bars.
static SECTIONS: [(&str, &[&Measure]); 9] = {
    use measure::*;
    [
        ("TCP", &[&TCP_FORTH, &TCP_BACK, &TCP_4, &TCP_32, &TCP_BOTH, &TCP_PLAIN]),
        ("QUIC", &[&QUIC_DOWN, &QUIC_UP, &QUIC_TLS_DOWN, &QUIC_TLS_UP]),
        ("UDP floods, packets carried", &[&UDP_64, &UDP_200, &UDP_1380, &UDP_GSO]),
        ("Overload", &[&OVERLOAD_PEAK, &OVERLOAD, &OVERLOAD_GSO_PEAK, &OVERLOAD_GSO]),
        ("Far away", &[&TCP_20, &TCP_20_LOSS, &TCP_66_LOSS]),
        (
            "Forwarded, inside VXLAN, in jumbo frames",
            &[
                &FORWARD_TCP,
                &FORWARD_QUIC_DOWN,
                &FORWARD_QUIC_UP,
                &FORWARD_WIRE_DOWN,
                &FORWARD_WIRE_DOWN_OFF,
                &FORWARD_WIRE_UP,
                &FORWARD_WIRE_UP_OFF,
                &VXLAN,
                &TCP_JUMBO,
            ],
        ),
        ("Many connections, many peers", &[&CONNECTIONS, &PEERS_1, &PEERS_1000, &HANDSHAKES]),
        (
            "Latency, less is better",
            &[&IDLE_P50, &IDLE_P99, &IDLE_P999, &BUSY_P50, &BUSY_P99, &BUSY_P999],
        ),
        (
            "Cost, less is better",
            &[&CPU, &WAITS, &PREEMPTED, &MEMORY_TCP, &MEMORY_END, &MEMORY_PEER, &MEMORY_SESSION],
        ),
    ]
};

/// The whole page.
pub fn page(comparison: &Comparison, seconds: u32) -> String {
    let names: Vec<&str> = comparison.contenders.iter().map(|one| one.name.as_str()).collect();
    let title = match (comparison.is_ladder, names.len()) {
        (true, _) => "linerate, technique by technique".to_owned(),
        (false, 1) => names[0].to_owned(),
        _ => format!("{} compared with {}", names[0], names[1..].join(", ")),
    };
    let title = escape(&title);
    let style = include_str!("style.css");
    let mut page = format!(
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n\
         <meta name=viewport content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{style}</style></head>\n<body><main>\n<h1>{title}</h1>\n"
    );
    page += &introduction(comparison, seconds);
    for table in each_table(comparison) {
        page += &format!("<div class=wide>{}</div>\n", table.html());
    }
    for (heading, measures) in SECTIONS {
        page += &section(comparison, heading, measures);
    }
    page += &round_trips(comparison);
    page += &fine(comparison);
    page += &flames(comparison);
    page + "</main></body></html>\n"
}

fn introduction(comparison: &Comparison, seconds: u32) -> String {
    let rounds = comparison.rounds.len();
    let lines = match rounds {
        ..2 => String::new(),
        2..claim::ROUNDS => {
            " Lines and the figures in brackets range from the least to the most of all turns."
                .to_owned()
        }
        _ => format!(
            " Lines and the figures in brackets are intervals: {SHARE} of 100 medians of a second run with \
             as many rounds on the same machine lie within."
        ),
    };
    let mut text = format!(
        "<p>Two hosts in network namespaces, a tunnel of MTU 1420 between them, all on {}. \
         Rounds: {rounds}, in each a turn of every contender with fresh daemons, every other one in reverse order; \
         {seconds} s a test. {MEMORY} {FAILED} \
         Bars are medians, ratios are taken round by round.{lines}</p>\n",
        escape(&Machine::here().to_string()),
    );
    for line in left_out(comparison) {
        text += &format!("<p>{}</p>\n", escape(&line));
    }
    if let Some(warning) = warning(comparison) {
        text += &format!("<p class=warning>{}</p>\n", escape(&warning));
    }
    let item = |one: &crate::contender::Contender| {
        format!("<li>{}: {}</li>", escape(&one.name), escape(&one.version()))
    };
    if !comparison.is_ladder {
        let items: String = comparison.contenders.iter().map(item).collect();
        text += &format!("<ul>{items}</ul>\n");
    }
    text
}

/// Figures that the tables omit.
fn fine(comparison: &Comparison) -> String {
    let is_shown = |one: &&Measure| one.is_fine() && comparison.has(one);
    let measures: Vec<&Measure> = ALL.iter().copied().filter(is_shown).collect();
    if measures.is_empty() {
        return String::new();
    }
    let names = comparison.contenders.iter().map(|one| one.name.as_str());
    let mut table = Table::new([heading(comparison), "of", ""].into_iter().chain(names));
    for measure in measures {
        let figures = (0..comparison.contenders.len())
            .map(|one| figure(measure, &comparison.of(one, measure)));
        let cells = [measure.title.trim(), measure.of().title, measure.unit].map(str::to_owned);
        table.row(cells.into_iter().chain(figures));
    }
    let table = table.html();
    format!("<details><summary>All counters</summary><div class=wide>{table}</div></details>\n")
}

/// Each flame graph as its own document, so that names and scripts do not collide.
fn flames(comparison: &Comparison) -> String {
    let picture = |flame: &Flame| {
        let (title, svg) = (escape(&flame.title), base64(flame.svg.as_bytes()));
        let height = flame.height().unwrap_or(800);
        format!(
            "<figure class=flame><figcaption>{title}</figcaption>\n\
             <iframe title=\"{title}\" height={height} src=\"data:image/svg+xml;base64,{svg}\">\
             </iframe></figure>\n"
        )
    };
    let pictures: String = comparison.flames.iter().map(picture).collect();
    match pictures.is_empty() {
        true => pictures,
        false => format!("<h2>Where the daemons spend their time</h2>\n{pictures}"),
    }
}

fn section(comparison: &Comparison, heading: &str, measures: &[&Measure]) -> String {
    let chart = |measure: &&Measure| {
        let bar = |contender: usize| {
            let spread = comparison.of(contender, measure);
            let (text, range) = (figure(measure, &spread), range(&spread, measure.digits));
            let name = comparison.contenders[contender].name.as_str();
            Bar { contender, name, spread, range, text }
        };
        let rows: Vec<Bar<'_>> = (0..comparison.contenders.len()).map(bar).collect();
        let title = format!("{}, {}", measure.title.trim(), measure.unit);
        format!("<figure><figcaption>{}</figcaption>\n{}</figure>\n", escape(&title), bars(&rows))
    };
    let charts: String = measures.iter().filter(|one| comparison.has(one)).map(chart).collect();
    match charts.is_empty() {
        true => charts,
        false => format!("<h2>{}</h2>\n<div class=figures>{charts}</div>\n", escape(heading)),
    }
}

fn round_trips(comparison: &Comparison) -> String {
    let contenders = || 0..comparison.contenders.len();
    let picture = |what: &str| {
        let curve = |one| (one, comparison.round_trips(one, what));
        let svg = latencies(&contenders().map(curve).collect::<Vec<_>>());
        format!("<figure><figcaption>ping {what}, by percentile</figcaption>\n{svg}</figure>\n")
    };
    if contenders().all(|one| PINGS.iter().all(|what| comparison.round_trips(one, what).is_empty()))
    {
        return String::new();
    }
    let key = |one: usize| {
        let name = escape(&comparison.contenders[one].name);
        format!("<span class=key><i class=\"c{one}\"></i>{name}</span> ")
    };
    let keys: String = contenders().map(key).collect();
    let pictures: String = PINGS.iter().map(|what| picture(what)).collect();
    format!("<h2>Round trips</h2>\n<p>{keys}</p>\n<div class=figures>{pictures}</div>\n")
}
