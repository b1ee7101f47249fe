//! Numbers of objects that an import read, imported and left out, by kind.

use std::collections::BTreeMap;

use coordinator::object::{Kind, Stored};

/// Kinds that an import counts, with their names.
pub(super) const KINDS: [(Kind, &str); 4] = [
    (Kind::User, "users"),
    (Kind::Node, "nodes"),
    (Kind::PreAuthKey, "pre-auth keys"),
    (Kind::ApiKey, "API keys"),
];

/// Outcome of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// It was imported.
    Imported,
    /// It was already imported earlier.
    AlreadyPresent,
    /// It was left out.
    LeftOut,
}

/// Number of objects for each kind and outcome.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    counts: BTreeMap<(Kind, Outcome), usize>,
    /// Objects of kinds that linerate does not have.
    others: usize,
    policy: Option<&'static str>,
}

impl Tally {
    /// Counts all objects as imported.
    pub(super) fn of(objects: &[Stored]) -> Self {
        let mut tally = Self::default();
        for object in objects.iter().filter(|object| object.body.is_some()) {
            tally.add(object.kind, Outcome::Imported);
        }
        let has_policy = tally.count(Kind::Policy, Outcome::Imported) > 0;
        tally.policy = Some(if has_policy { "imported" } else { "none" });
        tally
    }

    /// Counts an object.
    pub(super) fn add(&mut self, kind: Kind, outcome: Outcome) {
        *self.counts.entry((kind, outcome)).or_default() += 1;
    }

    /// Changes the outcome of an imported object to left out.
    pub(super) fn take_back(&mut self, kind: Kind) {
        if let Some(imported) = self.counts.get_mut(&(kind, Outcome::Imported)) {
            *imported = imported.saturating_sub(1);
        }
        self.add(kind, Outcome::LeftOut);
    }

    /// Counts omitted objects of kinds that linerate does not have.
    pub(super) fn leave_out_others(&mut self, number: usize) {
        self.others += number;
    }

    /// Sets the outcome of the policy.
    pub(super) fn set_policy(&mut self, policy: &'static str) {
        self.policy = Some(policy);
    }

    /// Whether any object was left out.
    pub(super) fn is_incomplete(&self) -> bool {
        self.others > 0 || KINDS.iter().any(|(kind, _)| self.count(*kind, Outcome::LeftOut) > 0)
    }

    /// One line for each kind, with the numbers of all outcomes.
    pub(super) fn lines(&self) -> Vec<String> {
        let line = |(kind, name): (Kind, &str)| {
            let counts = [Outcome::Imported, Outcome::AlreadyPresent, Outcome::LeftOut]
                .map(|outcome| self.count(kind, outcome));
            let [imported, present, left_out] = counts;
            let read: usize = counts.iter().sum();
            format!(
                "{name}: {read} read, {imported} imported, {present} already present, {left_out} left out"
            )
        };
        let mut lines: Vec<String> = KINDS.into_iter().map(line).collect();
        lines.extend(self.policy.map(|policy| format!("policy: {policy}")));
        if self.others > 0 {
            lines.push(format!("others: {} left out", self.others));
        }
        lines
    }

    fn count(&self, kind: Kind, outcome: Outcome) -> usize {
        self.counts.get(&(kind, outcome)).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_all_outcomes_add_up_to_the_number_read() {
        let mut tally = Tally::default();
        for outcome in [Outcome::Imported, Outcome::Imported, Outcome::AlreadyPresent] {
            tally.add(Kind::Node, outcome);
        }
        assert!(!tally.is_incomplete());
        tally.take_back(Kind::Node);
        assert!(tally.is_incomplete());
        let expected = "nodes: 3 read, 1 imported, 1 already present, 1 left out";
        assert!(tally.lines().iter().any(|line| line == expected), "{:?}", tally.lines());
    }
}
