//! How often one place in the code may log: at once as often as [`BURST`], then once each
//! [`PAUSE`]. Packets, peers and clients can cause an event as often as they like, and a log
//! that they fill hides what else it says.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tracing::callsite::Identifier;

/// Events at once.
const BURST: u32 = 10;
/// After which there may be one more.
const PAUSE: Duration = Duration::from_secs(5);

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is told; so many of its place were not, since the last that was.
    Told { untold: u64 },
    /// It is not.
    Untold,
}

/// The limit of each place. There are only as many as the code has.
#[derive(Default)]
pub(super) struct Limits(Mutex<HashMap<Identifier, Limit>>);

/// A bucket of tokens (RFC 2697 has such ones), one for each event that may be told.
struct Limit {
    tokens: u32,
    /// When the last token came, or the bucket was full.
    since: Duration,
    untold: u64,
}

impl Limits {
    /// Judges an event of this place at `now`, a time that does not step back.
    pub fn judge(&self, place: Identifier, now: Duration) -> Verdict {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        limits.entry(place).or_insert_with(|| Limit::new(now)).judge(now)
    }
}

impl Limit {
    fn new(now: Duration) -> Self {
        Self { tokens: BURST, since: now, untold: 0 }
    }

    fn judge(&mut self, now: Duration) -> Verdict {
        let come = now.saturating_sub(self.since).as_nanos() / PAUSE.as_nanos();
        let missing = BURST - self.tokens;
        if come >= missing.into() {
            (self.tokens, self.since) = (BURST, now);
        } else {
            self.tokens += come as u32;
            self.since += PAUSE * come as u32;
        }
        let Some(left) = self.tokens.checked_sub(1) else {
            self.untold += 1;
            return Verdict::Untold;
        };
        self.tokens = left;
        Verdict::Told { untold: std::mem::take(&mut self.untold) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NONE: Verdict = Verdict::Told { untold: 0 };

    #[test]
    fn ten_are_told_at_once_and_then_one_each_five_seconds_with_how_many_were_not() {
        let mut limit = Limit::new(SECOND);
        let mut told = Vec::new();
        // One each 100 ms, for 21 s.
        for step in 0..210_u32 {
            if let Verdict::Told { untold } = limit.judge(SECOND + SECOND / 10 * step) {
                told.push((step, untold));
            }
        }
        let burst = (0..10).map(|step| (step, 0));
        let after = [(50, 40), (100, 49), (150, 49), (200, 49)];
        assert_eq!(told, burst.chain(after).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_seldom_is_always_told_and_a_rest_gives_the_burst_back() {
        let mut limit = Limit::new(Duration::ZERO);
        assert!((0..1000).all(|step| limit.judge(PAUSE * step) == NONE));
        let burst = |limit: &mut Limit, now| {
            (0..100).filter(|_| limit.judge(now) != Verdict::Untold).count()
        };
        let quiet = PAUSE * 2000;
        assert_eq!(burst(&mut limit, quiet), 10);
        assert_eq!(burst(&mut limit, quiet + PAUSE * 3), 3);
        assert_eq!(burst(&mut limit, quiet + PAUSE * 1000), 10);
    }

    proptest! {
        #[test]
        fn none_is_lost_without_a_count_and_never_are_more_told_than_may_be(
            gaps in proptest::collection::vec(0u64..20_000, 0..300),
        ) {
            let (mut limit, mut now) = (Limit::new(Duration::ZERO), Duration::ZERO);
            let (mut told, mut counted) = (0_u64, 0);
            for gap in &gaps {
                now += Duration::from_millis(*gap / 10);
                if let Verdict::Told { untold } = limit.judge(now) {
                    told += 1;
                    counted += untold;
                }
            }
            prop_assert_eq!(told + counted + limit.untold, gaps.len() as u64);
            prop_assert!(told <= u64::from(BURST) + now.as_secs() / PAUSE.as_secs());
        }
    }
}
