//! Cost of a derivation of two keys and of a hash of one block, alone and in batches:
//!
//! ```text
//!   cargo bench -p linerate-crypto --bench blake2s
//! ```

mod batches;

use batches::{Batch, measure, show, work};
use crypto::blake2s::{Job, derive_each, hash_each};

const MANY: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

fn main() {
    measure::run(&[("derivations", derivations), ("hashes", hashes)]);
}

fn derivations() {
    let batch_of = |many| -> Batch<'_> {
        let jobs = vec![Job { key: &[7; 32], input: &[9; 32] }; many];
        (format!("batch of {many}"), many, work(move || derive_each::<2>(&jobs)))
    };
    show("derivations of two keys", MANY.map(batch_of));
}

fn hashes() {
    let batch_of = |many| -> Batch<'_> {
        let messages = vec![[&[7_u8; 32][..], &[9; 32]]; many];
        (format!("batch of {many}"), many, work(move || hash_each(&messages)))
    };
    show("hashes of a block", MANY.map(batch_of));
}
