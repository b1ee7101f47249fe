//! Cost of one operation in batches of different sizes.

use std::array;

#[path = "../../packet/benches/micro/measure.rs"]
pub(crate) mod measure;

pub(crate) use measure::work;
use measure::{Times, Work, table};

/// A batch: its name, its number of operations, and its work.
pub(crate) type Batch<'a> = (String, usize, Work<'a>);

/// Measures the batches. Prints the cost of one operation of each, and its ratio to the first
/// batch.
pub(crate) fn show<const N: usize>(title: &str, batches: [Batch<'_>; N]) {
    let names = batches.each_ref().map(|(name, many, _)| (name.clone(), *many as f64));
    let times = Times::of(batches.map(|(_, _, work)| work));
    let rows: [[String; 3]; N] = array::from_fn(|at| {
        let (name, many) = &names[at];
        let faster = times.faster(at, 0) * many / names[0].1;
        [name.clone(), format!("{:.2}", times.ns(at) / many / 1e3), format!("{faster:.2}")]
    });
    table(title, ["", "us each", "faster"], &rows);
}
