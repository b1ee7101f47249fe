//! Cost of a Diffie-Hellman and of a public key, alone and in batches:
//!
//! ```text
//!   cargo bench -p linerate-crypto --bench x25519
//! ```

mod batches;

use batches::{Batch, measure, show, work};
use crypto::x25519::{
    Job, diffie_hellman, diffie_hellman_each, portable, public_key, public_key_each,
};

const MANY: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 32, 64];

fn main() {
    measure::run(&[("shared", shared), ("public keys", public_keys)]);
}

fn shared() {
    let (private, public) = ([7; 32], public_key(&[9; 32]));
    let batch_of = |many| -> Batch<'_> {
        let jobs = vec![Job { private: &private, public: &public }; many];
        (format!("batch of {many}"), many, work(move || diffie_hellman_each(&jobs)))
    };
    let dalek: Batch<'_> =
        ("dalek".to_owned(), 1, work(|| portable::diffie_hellman(&private, &public)));
    let one: Batch<'_> = ("one".to_owned(), 1, work(|| diffie_hellman(&private, &public)));
    show("Diffie-Hellman, one at a time", [one, dalek]);
    show("Diffie-Hellman, in batches", MANY.map(batch_of));
}

fn public_keys() {
    let private = [7; 32];
    let batch_of = |many| -> Batch<'_> {
        let privates = vec![&private; many];
        (format!("batch of {many}"), many, work(move || public_key_each(&privates)))
    };
    show("public keys, in batches", MANY.map(batch_of));
}
