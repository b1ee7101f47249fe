use std::hint::black_box;

use wg::{ReplayFilter, constants::REPLAY_WINDOW};

use crate::measure::{Times, Work, table, work};

/// Name, function to the next counter, and whether that counter is new.
type Next = (&'static str, fn(u64) -> u64, bool);

pub(crate) fn accept() {
    let ways: [Next; 4] = [
        ("in order", |n| n, true),
        ("in order, each pair swapped", |n| n ^ 1, true),
        ("a window further each time", |n| n * REPLAY_WINDOW, true),
        ("replayed", |_| 0, false),
    ];
    let times = Times::of(ways.map(bench));
    let rows = std::array::from_fn::<_, 4, _>(|at| {
        [ways[at].0.to_owned(), format!("{:.1}", times.ns(at))]
    });
    table("replay filter", ["counters", "ns"], &rows);
}

fn bench((name, next, new): Next) -> Work<'static> {
    let mut filter = ReplayFilter::default();
    assert!(filter.accept(0));
    let mut count = 1;
    work(move || {
        count += 1;
        let counter = next(count);
        assert_eq!(filter.accept(black_box(counter)), new, "{name}, {counter}");
    })
}
