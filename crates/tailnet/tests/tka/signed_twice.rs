//! A trusted key that signs an update twice.

use tailnet::tka::{NewKey, disablement_hash, first_checkpoint};

use super::*;

fn signer(number: u8) -> TkaKey {
    TkaKey::new(&[number; 32])
}

/// Returns the update with its signature written twice (RFC 8949: the array at the end).
fn signed_twice(update: &[u8]) -> Vec<u8> {
    const SIGNATURE: usize = 1 + (1 + 2 + 32) + (1 + 2 + 64);
    let (rest, signature) = update.split_at(update.len() - SIGNATURE);
    let (array, rest) = rest.split_last().unwrap();
    assert_eq!((*array, signature[0]), (0x81, 0xa2));
    [rest, &[0x82], signature, signature].concat()
}

#[test]
fn update_signed_twice_by_one_key_counts_its_votes_once() {
    let keys = [(1, 2), (2, 3), (3, 1)].map(|(key, votes)| NewKey::new(signer(key).id(), votes));
    let disabler = disablement_hash(b"secret").unwrap();
    let first = first_checkpoint(&keys, &[disabler], (1, 2), &signer(1)).unwrap();
    let begun = || Authority::bootstrap(&first).unwrap();
    let edit = |by: u8, add: u8| {
        let added = NewKey::new(signer(add).id(), 1);
        let updates = begun().edit_keys(&signer(by), &[added], &[]).unwrap();
        <[Vec<u8>; 1]>::try_from(updates).unwrap()
    };
    // Several hashes: of two updates with equal votes the lower hash is active.
    for add in 10..20 {
        let [twice] = edit(1, add).map(|update| signed_twice(&update));
        let more = edit(2, add);
        let mut expected = begun();
        expected.inform(&more).unwrap();
        let both = [[twice.clone()], more.clone()];
        for order in [[0, 1], [1, 0]] {
            let mut authority = begun();
            order.iter().for_each(|at| authority.inform(&both[*at]).unwrap());
            assert_eq!(authority.head(), expected.head(), "{add} {order:?}");
        }
        let mut alone = begun();
        alone.inform(&[twice]).unwrap();
        assert_ne!(alone.head(), begun().head(), "it counts where there is no other");
    }
}
