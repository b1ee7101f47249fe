//! Filters packets from peers. Any thread may set a policy; it takes effect with the next batch.
//!
//! ```text
//!   IP side -> outbound --------------------------> network
//!                 `-- flows that this host opens ---.
//!                                                   v
//!   IP side <- inbound <- Judge (Rules, flows) <- OpenedFlows
//! ```
//!
//! Each direction checks once a batch whether a filter is set, with one relaxed load. The
//! delivering thread has its own copy of the rules until they are replaced. The directions share
//! the flows that this host opened, behind a lock. It is taken at most once a batch, and only if a
//! UDP or SCTP packet needs it. It is held for lookups, never during crypto or a system call.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use packet::{
    filter::{Flow, Judge, OpenedFlows, Policy, Rules, Verdict},
    wire::IpHeader,
};

use crate::lock;

/// A data plane's filter. It accepts everything until a policy is set.
#[derive(Debug, Default)]
pub struct Filter {
    /// 0 while the filter is off, otherwise a different number for each policy.
    epoch: AtomicU64,
    set: Mutex<Set>,
    /// `None` while the filter is off.
    opened: Mutex<Option<OpenedFlows>>,
    judged: AtomicU64,
}

#[derive(Debug, Default)]
struct Set {
    rules: Option<Arc<Rules>>,
    /// The last epoch that was used, whether the filter is on or off.
    last: u64,
}

impl Filter {
    /// Sets the policy. It also applies to existing flows. Replies to flows that this host opens
    /// are accepted, also if the flow was opened under an earlier policy. A policy that puts
    /// shields up removes the flows that were opened before.
    pub fn set(&self, policy: &Policy) {
        let rules = Arc::new(Rules::new(policy));
        let mut set = lock(&self.set);
        let were_up = set.rules.as_ref().is_some_and(|rules| rules.shields_up());
        let mut opened = lock(&self.opened);
        if opened.is_none() || (rules.shields_up() && !were_up) {
            *opened = Some(OpenedFlows::new(seed()));
        }
        drop(opened);
        set.rules = Some(rules);
        set.last += 1;
        self.epoch.store(set.last, Ordering::Relaxed);
    }

    /// Accepts everything.
    pub fn clear(&self) {
        let mut set = lock(&self.set);
        set.rules = None;
        self.epoch.store(0, Ordering::Relaxed);
        *lock(&self.opened) = None;
    }

    /// Number of verdicts. Consecutive packets of one flow in a batch share one.
    pub fn judged(&self) -> u64 {
        self.judged.load(Ordering::Relaxed)
    }

    /// Records the flows that `packets` of this host open, if a filter is set.
    pub(crate) fn note<'a>(&self, packets: impl Iterator<Item = &'a [u8]>) {
        if self.epoch.load(Ordering::Relaxed) != 0 {
            self.note_opened(packets);
        }
    }

    fn note_opened<'a>(&self, packets: impl Iterator<Item = &'a [u8]>) {
        let (mut opened, mut last) = (None, None);
        for flow in packets.filter_map(OpenedFlows::read) {
            if last.replace(flow) != Some(flow)
                && let Some(opened) = opened.get_or_insert_with(|| lock(&self.opened)).as_mut()
            {
                opened.note(flow);
            }
        }
    }
}

/// The inbound half's copy of the filter.
pub(crate) struct InboundFilter {
    filter: Arc<Filter>,
    /// The epoch of the judge's policy; 0 without a judge.
    epoch: u64,
    judge: Option<Judge>,
}

impl InboundFilter {
    pub(crate) fn new(filter: Arc<Filter>) -> Self {
        Self { filter, epoch: 0, judge: None }
    }

    /// The filter for a batch; `None` if it is off.
    pub(crate) fn look(&mut self) -> Option<BatchFilter<'_>> {
        let epoch = self.filter.epoch.load(Ordering::Relaxed);
        if epoch != self.epoch {
            self.follow();
        }
        let judge = self.judge.as_mut()?;
        judge.begin();
        Some(BatchFilter { judged: judge.judged(), judge, filter: &self.filter, opened: None })
    }

    /// Loads the present policy.
    #[cold]
    fn follow(&mut self) {
        let set = lock(&self.filter.set);
        self.epoch = self.filter.epoch.load(Ordering::Relaxed);
        match (&set.rules, &mut self.judge) {
            (None, judge) => *judge = None,
            (Some(rules), None) => self.judge = Some(Judge::new(rules.clone(), seed())),
            (Some(rules), Some(judge)) => judge.set_rules(rules.clone()),
        }
    }
}

/// The filter, for one batch.
pub(crate) struct BatchFilter<'a> {
    judge: &'a mut Judge,
    filter: &'a Filter,
    /// Locked when the first packet needs it.
    opened: Option<MutexGuard<'a, Option<OpenedFlows>>>,
    /// Number of verdicts before this batch.
    judged: u64,
}

impl BatchFilter<'_> {
    pub(crate) fn verdict(&mut self, header: &IpHeader, packet: &[u8]) -> Verdict {
        let Self { judge, filter, opened, .. } = self;
        let is_reply = |flow: &Flow| {
            let opened = opened.get_or_insert_with(|| lock(&filter.opened)).as_mut();
            opened.is_some_and(|opened| opened.has(flow))
        };
        judge.verdict(header, packet, is_reply)
    }
}

impl Drop for BatchFilter<'_> {
    fn drop(&mut self) {
        self.filter.judged.fetch_add(self.judge.judged() - self.judged, Ordering::Relaxed);
    }
}

/// An unpredictable number.
fn seed() -> u64 {
    RandomState::new().hash_one(0)
}
