//! Limits how often each call site may log: [`BURST`] times at once, then once per [`PAUSE`].
//! Otherwise events that packets, peers and clients can cause would hide other messages.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tracing::callsite::Identifier;

/// Events in a burst.
const BURST: u32 = 10;
/// The time until one more event is allowed.
const PAUSE: Duration = Duration::from_secs(5);

/// Whether to log an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Log it. `suppressed` events of this call site were suppressed before.
    Log {
        suppressed: u64,
    },
    Suppress,
}

/// The limits of all call sites.
#[derive(Default)]
pub(super) struct Limits(Mutex<HashMap<Identifier, Limit>>);

/// A token bucket (RFC 2697) with one token per event.
struct Limit {
    tokens: u32,
    /// When the last token was added, or the bucket was full.
    since: Duration,
    suppressed: u64,
}

impl Limits {
    /// Decides whether to log an event of a call site at `now`, which must be monotonic.
    pub(super) fn check(&self, call_site: Identifier, now: Duration) -> Verdict {
        let mut limits = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        limits.entry(call_site).or_insert_with(|| Limit::new(now)).check(now)
    }
}

impl Limit {
    fn new(now: Duration) -> Self {
        Self { tokens: BURST, since: now, suppressed: 0 }
    }

    fn check(&mut self, now: Duration) -> Verdict {
        let tokens = now.saturating_sub(self.since).as_nanos() / PAUSE.as_nanos();
        let missing = BURST - self.tokens;
        if tokens >= missing.into() {
            (self.tokens, self.since) = (BURST, now);
        } else {
            self.tokens += tokens as u32;
            self.since += PAUSE * tokens as u32;
        }
        let Some(left) = self.tokens.checked_sub(1) else {
            self.suppressed += 1;
            return Verdict::Suppress;
        };
        self.tokens = left;
        Verdict::Log { suppressed: std::mem::take(&mut self.suppressed) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NONE: Verdict = Verdict::Log { suppressed: 0 };

    #[test]
    fn ten_events_are_logged_at_once_and_then_one_every_five_seconds() {
        let mut limit = Limit::new(SECOND);
        let mut logged = Vec::new();
        // One each 100 ms, for 21 s.
        for step in 0..210_u32 {
            if let Verdict::Log { suppressed } = limit.check(SECOND + SECOND / 10 * step) {
                logged.push((step, suppressed));
            }
        }
        let burst = (0..10).map(|step| (step, 0));
        let after = [(50, 40), (100, 49), (150, 49), (200, 49)];
        assert_eq!(logged, burst.chain(after).collect::<Vec<_>>());
    }

    #[test]
    fn rare_events_are_always_logged_and_a_pause_refills_the_burst() {
        let mut limit = Limit::new(Duration::ZERO);
        assert!((0..1000).all(|step| limit.check(PAUSE * step) == NONE));
        let burst = |limit: &mut Limit, now| {
            (0..100).filter(|_| limit.check(now) != Verdict::Suppress).count()
        };
        let quiet = PAUSE * 2000;
        assert_eq!(burst(&mut limit, quiet), 10);
        assert_eq!(burst(&mut limit, quiet + PAUSE * 3), 3);
        assert_eq!(burst(&mut limit, quiet + PAUSE * 1000), 10);
    }

    proptest! {
        #[test]
        fn every_event_is_logged_within_the_limit_or_counted(
            gaps in proptest::collection::vec(0u64..20_000, 0..300),
        ) {
            let (mut limit, mut now) = (Limit::new(Duration::ZERO), Duration::ZERO);
            let (mut logged, mut counted) = (0_u64, 0);
            for gap in &gaps {
                now += Duration::from_millis(*gap / 10);
                if let Verdict::Log { suppressed } = limit.check(now) {
                    logged += 1;
                    counted += suppressed;
                }
            }
            prop_assert_eq!(logged + counted + limit.suppressed, gaps.len() as u64);
            prop_assert!(logged <= u64::from(BURST) + now.as_secs() / PAUSE.as_secs());
        }
    }
}
