//! The networks of one peer. Most peers have one or two, some a hundred thousand. The set is cheap
//! for both.

use std::collections::BTreeSet;

use ipnet::IpNet;

/// Number of networks from which on the set is a tree.
const MANY: usize = 8;

/// Networks, sorted.
#[derive(Debug)]
pub(super) enum Nets {
    Few(Vec<IpNet>),
    Many(BTreeSet<IpNet>),
}

impl Default for Nets {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Nets {
    pub(super) fn insert(&mut self, net: IpNet) {
        match self {
            Self::Few(few) => {
                let Err(at) = few.binary_search(&net) else { return };
                few.reserve_exact(1);
                few.insert(at, net);
                if few.len() >= MANY {
                    *self = Self::Many(few.drain(..).collect());
                }
            }
            Self::Many(many) => drop(many.insert(net)),
        }
    }

    pub(super) fn remove(&mut self, net: &IpNet) {
        match self {
            Self::Few(few) => few.retain(|one| one != net),
            Self::Many(many) => drop(many.remove(net)),
        }
    }

    /// Returns all networks in order.
    pub(super) fn to_vec(&self) -> Vec<IpNet> {
        match self {
            Self::Few(few) => few.clone(),
            Self::Many(many) => many.iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn random_changes_give_the_same_networks_as_a_sorted_set(changes in prop::collection::vec((any::<bool>(), 0u8..20), 0..100)) {
            let (mut nets, mut set) = (Nets::default(), BTreeSet::new());
            for (insert, host) in changes {
                let net: IpNet = format!("192.0.2.{host}/32").parse().expect("a network");
                if insert {
                    nets.insert(net);
                    set.insert(net);
                } else {
                    nets.remove(&net);
                    set.remove(&net);
                }
                prop_assert_eq!(nets.to_vec(), set.iter().copied().collect::<Vec<_>>());
            }
        }
    }
}
