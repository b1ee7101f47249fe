//! What a Diffie-Hellman and a public key cost, one at a time and among so many:
//!
//! ```text
//!   cargo bench -p linerate-x25519
//! ```

mod batches;

use batches::{Batch, measure, show, work};
use x25519::{Job, diffie_hellman, diffie_hellman_each, portable, public_key, public_key_each};

const MANY: [usize; 14] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 32, 64];

fn main() {
    measure::run(&[("shared", shared), ("public keys", public_keys)]);
}

fn shared() {
    let (private, public) = ([7; 32], public_key(&[9; 32]));
    let among = |many| -> Batch<'_> {
        let jobs = vec![Job { private: &private, public: &public }; many];
        (format!("among {many}"), many, work(move || diffie_hellman_each(&jobs)))
    };
    let dalek: Batch<'_> =
        ("dalek".to_owned(), 1, work(|| portable::diffie_hellman(&private, &public)));
    let one: Batch<'_> = ("one".to_owned(), 1, work(|| diffie_hellman(&private, &public)));
    show("Diffie-Hellman, against one alone", [one, dalek]);
    show("Diffie-Hellman, among so many", MANY.map(among));
}

fn public_keys() {
    let private = [7; 32];
    let among = |many| -> Batch<'_> {
        let privates = vec![&private; many];
        (format!("among {many}"), many, work(move || public_key_each(&privates)))
    };
    show("public keys, among so many", MANY.map(among));
}
