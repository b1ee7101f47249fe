//! Timestamps with relative descriptions.

use coordinator::Time;

/// A timestamp in ISO 8601 and in words.
pub(super) struct Timestamp {
    pub iso: String,
    pub words: String,
}

impl Timestamp {
    /// An optional timestamp, with a text if it is absent.
    pub(super) fn or(at: Option<Time>, none: &str, now: Time) -> Self {
        match at {
            Some(at) => Self { iso: at.text(), words: words(at, now) },
            None => Self { iso: String::new(), words: none.to_owned() },
        }
    }

    pub(super) fn of(at: Time, now: Time) -> Self {
        Self::or(Some(at), "", now)
    }
}

fn words(at: Time, now: Time) -> String {
    let is_past = at <= now;
    let seconds = if is_past { now.since(at) } else { at.since(now) }.as_secs();
    let (number, unit) = match seconds {
        0..60 if is_past => return "just now".into(),
        0..3600 => ((seconds / 60).max(1), "min"),
        3600..172_800 => (seconds / 3600, "h"),
        172_800..63_072_000 => (seconds / 86_400, "days"),
        _ => (seconds / 31_536_000, "years"),
    };
    if is_past { format!("{number} {unit} ago") } else { format!("in {number} {unit}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn relative_times_use_the_largest_unit() {
        let now = Time(1_800_000_000_000);
        let later = |seconds| words(now.after(Duration::from_secs(seconds)), now);
        let ago = |seconds: u64| words(Time(now.0 - seconds * 1000), now);
        assert_eq!([ago(0), ago(59), ago(61)], ["just now", "just now", "1 min ago"]);
        assert_eq!([ago(7200), ago(86_400 * 3)], ["2 h ago", "3 days ago"]);
        assert_eq!(
            [later(5), later(3600), later(86_400 * 90)],
            ["in 1 min", "in 1 h", "in 90 days"]
        );
    }
}
