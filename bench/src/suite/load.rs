//! Measures other load of the machine while the bench itself is idle.

use std::fs;
use std::thread;
use std::time::Duration;

/// Long enough to notice a program that runs now and then.
const LOOK: Duration = Duration::from_millis(250);

/// Current processor time of all cores, in percent.
pub(super) fn sample() -> f64 {
    let before = Ticks::read();
    thread::sleep(LOOK);
    Ticks::read().busy_since(before)
}

/// Ticks of all cores since boot.
#[derive(Clone, Copy)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
    fn parse(stat: &str) -> Self {
        let line = stat.lines().next().unwrap_or_default();
        let fields = line.split_whitespace().skip(1).take(8);
        let ticks: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
        Self { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
    }

    fn busy_since(self, before: Self) -> f64 {
        let idle = self.idle.saturating_sub(before.idle) as f64;
        let all = self.all.saturating_sub(before.all) as f64;
        if all > 0.0 { 100.0 * (1.0 - idle / all) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::Ticks;

    #[test]
    fn idle_and_iowait_are_not_busy() {
        let before = Ticks::parse("cpu  10 0 0 100 0 0 0 0 7 7\ncpu0 1 1 1 1\n");
        let after = Ticks::parse("cpu  20 5 5 150 10 0 10 10 9 9\ncpu0 1 1 1 1\n");
        assert_eq!(after.busy_since(before), 40.0);
        assert_eq!(after.busy_since(after), 0.0);
    }
}
