//! Times of all joins of all turns: median and 95th percentile.

use serde_json::{Map, Value, json};

use crate::comparison::Comparison;
use crate::measure::JOINS;
use netns::Table;

/// The columns.
const PARTS: [(&str, f64); 2] = [("p50", 0.5), ("p95", 0.95)];

/// A row for each pair of NAT boxes; `None` without joins.
pub(super) fn joins(comparison: &Comparison) -> Option<Table> {
    let names = comparison.contenders.iter().map(|one| one.name.as_str());
    let columns = names.flat_map(|name| PARTS.map(|(part, _)| format!("{name} {part}")));
    let headings: Vec<String> = ["seconds, of all joins".to_owned(), "joins".to_owned()]
        .into_iter()
        .chain(columns)
        .collect();
    let mut table = Table::new(headings.iter().map(String::as_str));
    let mut is_empty = true;
    for measure in JOINS {
        let all: Vec<Vec<f64>> = (0..comparison.contenders.len())
            .map(|one| comparison.round_trips(one, measure.key))
            .collect();
        let most = all.iter().map(Vec::len).max().unwrap_or_default();
        if most == 0 {
            continue;
        }
        is_empty = false;
        let figures = all.iter().flat_map(|one| PARTS.map(|(_, part)| share(one, part)));
        let figures = figures.map(|figure| measure.format(figure));
        table.row([measure.title.to_owned(), most.to_string()].into_iter().chain(figures));
    }
    (!is_empty).then_some(table)
}

/// The times of one contender, by the measures' keys.
pub(super) fn json_of(comparison: &Comparison, contender: usize) -> Map<String, Value> {
    let one = |key: &str| (key.to_owned(), json!(comparison.round_trips(contender, key)));
    JOINS.map(|measure| one(measure.key)).into_iter().filter(|(_, all)| all != &json!([])).collect()
}

/// The percentile of sorted values; NaN for an empty slice.
fn share(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn the_95th_percentile_of_twenty_values_is_the_nineteenth() {
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!([share(&twenty, 0.5), share(&twenty, 0.95)], [10.0, 19.0]);
        assert_eq!(share(&[7.0], 0.95), 7.0);
        assert!(share(&[], 0.5).is_nan());
    }
}
