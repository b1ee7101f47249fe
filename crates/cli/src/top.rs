//! `linerate top`: live rates of interfaces.
//!
//! ```text
//!   daemons -- every interval --> Sample, Sample -- rates --> lines --> screen
//! ```

mod lines;
mod rates;
mod screen;

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use sys::{clock::boottime_nanos, process::Signals};

use crate::interface::{self, Interface};
use screen::{Screen, ScreenSize};

/// Arguments of `linerate top`.
#[derive(Args)]
pub(crate) struct Top {
    /// Only this interface; all running ones by default.
    interface: Option<String>,
    /// Seconds between two updates.
    #[arg(short, long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    interval: f64,
    /// Stop after this many updates; by default at `q` or ctrl-C.
    #[arg(short, long, value_name = "N")]
    count: Option<u64>,
}

/// The state of the interfaces at one time.
pub(crate) struct Sample {
    /// Nanoseconds since boot.
    pub at: u64,
    pub interfaces: Vec<Interface>,
}

impl Top {
    /// Draws on the terminal, or prints one screen after the other if standard output is not one.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let signals = Signals::block()?;
        let mut before = self.sample()?;
        if before.interfaces.is_empty() {
            bail!("no interface is running");
        }
        let mut screen = Screen::open(signals)?;
        let mut left = self.count;
        while left != Some(0) && !screen.wait_for_quit(Duration::from_secs_f64(self.interval))? {
            let now = self.sample()?;
            let ScreenSize { rows, columns } = screen.size();
            screen.draw(&lines::render(&before, &now, rows), columns)?;
            before = now;
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    fn sample(&self) -> anyhow::Result<Sample> {
        let interfaces = interface::query(self.interface.as_deref())?;
        Ok(Sample { at: boottime_nanos(), interfaces })
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    // Each sample makes the daemon walk its peers.
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be a number of seconds from 0.1 to 3600".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_must_be_within_its_range() {
        for (text, wanted) in
            [("1", Some(1.0)), ("0.1", Some(0.1)), ("0", None), ("-1", None), ("inf", None)]
        {
            assert_eq!(seconds(text).ok(), wanted, "{text}");
        }
        assert!(seconds("NaN").is_err() && seconds("x").is_err());
    }
}
