//! What a derivation of two keys costs, one at a time and among so many:
//!
//! ```text
//!   cargo bench -p linerate-blake2s
//! ```

use std::{hint::black_box, time::Instant};

use blake2s::{Job, derive, derive_each, hash, hash_each};

fn main() {
    let job = Job { key: &[7; 32], input: &[9; 32] };
    let message: [&[u8]; 2] = [&[7; 32], &[9; 32]];
    let row = |name: &str, each: usize, work: &dyn Fn()| {
        println!("{name:24} {:8.3} us", least(work) / each as f64);
    };
    row("one", 1, &|| drop(black_box(derive::<2>(black_box(job)))));
    row("one hash", 1, &|| {
        black_box(hash(black_box(&message)));
    });
    for many in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32] {
        let jobs = vec![job; many];
        row(&format!("among {many}"), many, &|| drop(black_box(derive_each::<2>(&jobs))));
    }
    for many in [2, 3, 8, 16, 32] {
        let messages = vec![message; many];
        row(&format!("hash among {many}"), many, &|| drop(black_box(hash_each(&messages))));
    }
}

/// The least of many runs, in microseconds.
#[expect(clippy::disallowed_methods, reason = "a bench measures time")]
fn least(work: &dyn Fn()) -> f64 {
    let once = || {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..2000).map(|_| once()).fold(f64::INFINITY, f64::min)
}
