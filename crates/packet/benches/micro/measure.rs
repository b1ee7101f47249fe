//! Times pieces of work alternately, so that disturbances of the machine affect all of them alike,
//! and prints tables.

use std::{
    env,
    time::{Duration, Instant},
};

/// Number of rounds. Results are medians.
const ROUNDS: usize = 31;
/// Duration of one piece of work in a round: long enough that the cost of reading the clock is
/// negligible.
const ROUND: Duration = Duration::from_micros(200);

/// Runs a piece of work the given number of times, and returns the time.
pub(crate) type Work<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

/// Work that is the same in each run.
pub(crate) fn work<'a, T>(mut once: impl FnMut() -> T + 'a) -> Work<'a> {
    Box::new(move |times| {
        let start = now();
        for _ in 0..times {
            std::hint::black_box(once());
        }
        start.elapsed()
    })
}

#[expect(clippy::disallowed_methods, reason = "a bench measures")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Whether to measure. `cargo test --benches` runs each piece of work once.
pub(crate) fn measuring() -> bool {
    env::args().any(|arg| arg == "--bench")
}

/// Nanoseconds of one run of each piece of work, round by round.
pub(crate) struct Times(Vec<Vec<f64>>);

impl Times {
    /// Measures the works, or runs each once.
    pub(crate) fn of<const N: usize>(mut works: [Work<'_>; N]) -> Self {
        let rounds = if measuring() { ROUNDS } else { 1 };
        let times: Vec<u64> = works.iter_mut().map(|work| enough(work, rounds)).collect();
        let round = |_| {
            let pairs = works.iter_mut().zip(&times);
            pairs.map(|(work, times)| work(*times).as_secs_f64() * 1e9 / *times as f64).collect()
        };
        Self((0..rounds).map(round).collect())
    }

    /// The median of the work at `index`, in nanoseconds.
    pub(crate) fn ns(&self, index: usize) -> f64 {
        median(self.0.iter().map(|round| round[index]))
    }

    /// Ratio of the time at `other` to the time at `index`: the median of the rounds' ratios.
    pub(crate) fn faster(&self, index: usize, other: usize) -> f64 {
        median(self.0.iter().map(|round| round[other] / round[index]))
    }
}

/// Returns the number of runs of the work in a round.
fn enough(work: &mut Work<'_>, rounds: usize) -> u64 {
    let mut times = 1;
    while rounds > 1 && work(times) < ROUND {
        times *= 2;
    }
    times
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Runs the parts of a bench that the command line names, or all parts.
pub(crate) fn run(parts: &[(&str, fn())]) {
    let named: Vec<String> = env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    for (name, part) in parts {
        if named.is_empty() || named.iter().any(|wanted| name.contains(wanted.as_str())) {
            part();
        }
    }
}

/// Prints a table. The first column is left-aligned, figures are right-aligned.
pub(crate) fn table<const N: usize>(title: &str, headings: [&str; N], rows: &[[String; N]]) {
    let headings = headings.map(str::to_owned);
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().chain([&headings]).map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    });
    println!("\n{title}");
    for row in [&headings].into_iter().chain(rows) {
        print!("  {:<1$}", row[0], widths[0]);
        for (cell, width) in row.iter().zip(widths).skip(1) {
            print!("   {cell:>width$}");
        }
        println!();
    }
}
