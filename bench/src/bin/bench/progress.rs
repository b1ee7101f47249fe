//! Progress of a run: figures, and a bar below them if stderr is a terminal.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use linerate_bench::contender::Contender;
use linerate_bench::suite::News;

/// Redraw interval of the bar's clock.
const TICK: Duration = Duration::from_millis(500);

/// Prints events of a run.
pub(crate) struct Progress {
    rounds: u32,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// `tests` is the number of tests in all rounds.
    pub(crate) fn new(rounds: u32, tests: usize) -> Self {
        if !stderr().is_terminal() {
            return Self { rounds, bar: None };
        }
        let bar = ProgressBar::new(tests as u64);
        let style = "{elapsed_precise} {wide_bar} {pos}/{len}, about {eta} left: {msg}";
        bar.set_style(ProgressStyle::with_template(style).expect("the template is valid"));
        bar.enable_steady_tick(TICK);
        Self { rounds, bar: Some(bar) }
    }

    /// Prints a figure, or the name of the test that begins.
    pub(crate) fn show(&self, round: u32, contender: &Contender, news: News<'_>) {
        let name = &contender.name;
        match (news, &self.bar) {
            (News::Test(test), Some(bar)) => {
                bar.inc(1);
                bar.set_message(format!("{name}, {}", test.name()));
            }
            (News::Test(_), None) => {}
            (News::Figure(measure, value), bar) => {
                let (rounds, title, unit) = (self.rounds, measure.title.trim(), measure.unit);
                let value = measure.format(value);
                let line = format!("{round}/{rounds} {name:<22} {title:<40} {value:>9} {unit}");
                match bar {
                    Some(bar) => bar.println(line),
                    None => eprintln!("{line}"),
                }
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
