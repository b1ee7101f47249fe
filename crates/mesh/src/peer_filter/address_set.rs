//! Sets of addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packet::filter::{AddressRange, merged_ranges};

/// A set of addresses: sorted ranges of each family with gaps between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AddressSet {
    v4: Vec<Bits>,
    v6: Vec<Bits>,
}

/// The first and the last address of a range.
type Bits = (u128, u128);

impl FromIterator<AddressRange> for AddressSet {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(ranges: I) -> Self {
        let mut set = Self::default();
        for range in ranges {
            let bits = (bits(range.first()), bits(range.last()));
            if range.first().is_ipv4() { set.v4.push(bits) } else { set.v6.push(bits) }
        }
        Self { v4: merged_ranges(set.v4), v6: merged_ranges(set.v6) }
    }
}

impl AddressSet {
    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Returns whether the set is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the ranges.
    pub(super) fn ranges(&self) -> impl Iterator<Item = AddressRange> {
        let v4 = self.v4.iter().map(|bits| of(*bits, true));
        let v6 = self.v6.iter().map(|bits| of(*bits, false));
        v4.chain(v6).flatten()
    }

    /// Returns the difference of two sets.
    pub(super) fn less(&self, other: &Self) -> Self {
        Self { v4: less(&self.v4, &other.v4), v6: less(&self.v6, &other.v6) }
    }

    /// Returns whether the sets have a common address.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let in_both = |own: &[Bits], other: &[Bits]| other.iter().any(|range| meets(own, *range));
        in_both(&self.v4, &other.v4) || in_both(&self.v6, &other.v6)
    }

    /// Returns whether the set contains an address of the range.
    pub(super) fn overlaps_range(&self, range: AddressRange) -> bool {
        let own = if range.first().is_ipv4() { &self.v4 } else { &self.v6 };
        meets(own, (bits(range.first()), bits(range.last())))
    }
}

/// Returns the index of the first range that does not end before `first`.
fn not_before(ranges: &[Bits], first: u128) -> usize {
    ranges.partition_point(|(_, last)| *last < first)
}

fn meets(ranges: &[Bits], (first, last): Bits) -> bool {
    ranges.get(not_before(ranges, first)).is_some_and(|range| range.0 <= last)
}

fn less(own: &[Bits], other: &[Bits]) -> Vec<Bits> {
    let mut left = Vec::with_capacity(own.len());
    for &(mut first, last) in own {
        let from = not_before(other, first);
        let mut rest = true;
        for &(out, to) in other[from..].iter().take_while(|(out, _)| *out <= last) {
            if first < out {
                left.push((first, out - 1));
            }
            rest = to < last;
            if !rest {
                break;
            }
            first = to + 1;
        }
        if rest {
            left.push((first, last));
        }
    }
    left
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(ip) => ip.to_bits().into(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

fn of((first, last): Bits, v4: bool) -> Option<AddressRange> {
    let address = |bits: u128| match u32::try_from(bits) {
        Ok(bits) if v4 => IpAddr::V4(Ipv4Addr::from_bits(bits)),
        _ => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    };
    AddressRange::new(address(first), address(last))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn range() -> impl Strategy<Value = AddressRange> {
        (any::<bool>(), 0u8..12, 0u8..12).prop_map(|(v4, a, b)| {
            // Addresses at both ends of the address space.
            let address = |low: u8| match (v4, low < 6) {
                (true, true) => IpAddr::V4(Ipv4Addr::from_bits(low.into())),
                (true, false) => IpAddr::V4(Ipv4Addr::from_bits(u32::MAX - u32::from(11 - low))),
                (false, true) => IpAddr::V6(Ipv6Addr::from_bits(low.into())),
                (false, false) => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX - u128::from(11 - low))),
            };
            AddressRange::new(address(a.min(b)), address(a.max(b))).unwrap()
        })
    }

    fn has(ranges: &[AddressRange], address: IpAddr) -> bool {
        let of_it = |range: &&AddressRange| range.first().is_ipv4() == address.is_ipv4();
        let mut ranges = ranges.iter().filter(of_it);
        ranges.any(|range| range.first() <= address && address <= range.last())
    }

    proptest! {
        #[test]
        fn set_contains_the_addresses_of_its_ranges(
            own in vec(range(), 0..6),
            other in vec(range(), 0..6),
        ) {
            let set = AddressSet::from_iter(own.iter().copied());
            let others = AddressSet::from_iter(other.iter().copied());
            let left: Vec<_> = set.less(&others).ranges().collect();
            let whole: Vec<_> = set.ranges().collect();
            let mut overlap = false;
            for low in 0..12u32 {
                let near = if low < 6 { low } else { u32::MAX - (11 - low) };
                let far = if low < 6 { low.into() } else { u128::MAX - u128::from(11 - low) };
                let v4 = IpAddr::V4(Ipv4Addr::from_bits(near));
                for address in [v4, IpAddr::V6(Ipv6Addr::from_bits(far))] {
                    let (in_own, in_other) = (has(&own, address), has(&other, address));
                    prop_assert_eq!(has(&whole, address), in_own);
                    prop_assert_eq!(has(&left, address), in_own && !in_other);
                    overlap |= in_own && in_other;
                }
            }
            prop_assert_eq!(set.overlaps(&others), overlap);
            prop_assert_eq!(AddressSet::from_iter(left.iter().copied()).len(), left.len());
        }
    }
}
