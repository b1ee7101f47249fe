//! What one costs among so many.

use std::array;

#[path = "../../../packet/benches/micro/measure.rs"]
pub mod measure;

pub use measure::work;
use measure::{Times, Work, table};

/// A batch: what it is called, how many it has, and the work of all.
pub type Batch<'a> = (String, usize, Work<'a>);

/// Measures the batches, and prints what one of each costs, beside one of the first.
pub fn show<const N: usize>(title: &str, batches: [Batch<'_>; N]) {
    let names = batches.each_ref().map(|(name, many, _)| (name.clone(), *many as f64));
    let times = Times::of(batches.map(|(_, _, work)| work));
    let rows: [[String; 3]; N] = array::from_fn(|at| {
        let (name, many) = &names[at];
        let faster = times.faster(at, 0) * many / names[0].1;
        [name.clone(), format!("{:.2}", times.ns(at) / many / 1e3), format!("{faster:.2}")]
    });
    table(title, ["", "us each", "faster"], &rows);
}
