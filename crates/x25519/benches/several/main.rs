//! What a Diffie-Hellman costs, one at a time and among so many:
//!
//! ```text
//!   cargo bench -p linerate-x25519
//! ```

use std::{hint::black_box, time::Instant};

use x25519::{Job, diffie_hellman, diffie_hellman_each, portable, public_key, public_key_each};

fn main() {
    let private = [7; 32];
    let public = public_key(&[9; 32]);
    let row = |name: &str, each: usize, work: &dyn Fn()| {
        println!("{name:24} {:8.2} us", least(work) / each as f64);
    };
    row("dalek", 1, &|| drop(black_box(portable::diffie_hellman(&private, &public))));
    row("one", 1, &|| drop(black_box(diffie_hellman(&private, &public))));
    row("a public key", 1, &|| {
        black_box(public_key(&private));
    });
    for many in (1..=16).chain([32, 64]) {
        let jobs = vec![Job { private: &private, public: &public }; many];
        row(&format!("among {many}"), many, &|| drop(black_box(diffie_hellman_each(&jobs))));
    }
    for many in [4, 8, 32, 64] {
        let privates = vec![&private; many];
        row(&format!("public keys of {many}"), many, &|| {
            drop(black_box(public_key_each(&privates)));
        });
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
    (0..500).map(|_| once()).fold(f64::INFINITY, f64::min)
}
