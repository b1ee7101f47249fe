//! The networks of `AllowedIPs`, with the syntax of wg(8). Networks after `!` or `-` are refused.

use ipnet::IpNet;

use super::{
    Reason,
    error::Fault,
    lines::{Entries, Entry, Key},
};
use crate::value::{self, ValueError, Wanted};

/// The words of a `[Peer]` section.
#[derive(Default)]
struct AllowedIps {
    /// The networks, each with its line and its host bits.
    nets: Vec<(usize, IpNet)>,
    /// The networks after `!` or `-`.
    holes: Vec<IpNet>,
}

/// The networks of a `[Peer]` section, each with its line and its host bits.
///
/// # Errors
/// A word is not a network, or is an exception, which the list of a peer cannot have.
pub(super) fn read(entries: &Entries<'_>) -> Result<Vec<(usize, IpNet)>, Fault> {
    let mut read = AllowedIps::default();
    let mut first_hole = None;
    for entry in entries.of(Key::AllowedIps) {
        for part in entry.value.split(',') {
            let former = read.holes.len();
            let added = read.add_part(entry, part);
            added.map_err(|error| entry.fault(Reason::Value(error)))?;
            if former == 0 && !read.holes.is_empty() {
                first_hole = Some(entry);
            }
        }
    }
    match first_hole {
        Some(entry) => Err(entry.fault(Reason::Exception { instead: read.without_holes() })),
        None => Ok(read.nets),
    }
}

impl AllowedIps {
    /// Adds the text between two commas. wg(8) removes all blanks, as in `10.0.0.0 /8`. Here they
    /// may separate networks, too.
    fn add_part(&mut self, entry: &Entry<'_>, part: &str) -> Result<(), ValueError> {
        let mut words = part.split_whitespace().peekable();
        let Some(first) = words.next() else { return Ok(()) };
        if words.peek().is_none() {
            return self.add(entry, first);
        }
        let joined: String = part.split_whitespace().collect();
        if self.add(entry, &joined).is_ok() {
            return Ok(());
        }
        part.split_whitespace().try_for_each(|word| self.add(entry, word))
    }

    fn add(&mut self, entry: &Entry<'_>, word: &str) -> Result<(), ValueError> {
        let net = |text| value::address(text).map_err(|_| ValueError::new(Wanted::Network, word));
        match word.strip_prefix(['!', '-']) {
            Some(hole) => self.holes.push(net(hole)?.trunc()),
            // wg(8) adds such a network. To a peer of a file, that is the same.
            None => self.nets.push((entry.line, net(word.strip_prefix('+').unwrap_or(word))?)),
        }
        Ok(())
    }

    /// The networks that contain everything except the holes.
    fn without_holes(&self) -> Vec<IpNet> {
        let nets: Vec<_> = self.nets.iter().map(|(_, net)| net.trunc()).collect();
        let mut left = IpNet::aggregate(&nets);
        for hole in &self.holes {
            left = left.into_iter().flat_map(|net| without(net, *hole)).collect();
        }
        left
    }
}

/// The networks that contain everything of `net` except `hole`.
fn without(net: IpNet, hole: IpNet) -> Vec<IpNet> {
    if hole.contains(&net) {
        return Vec::new();
    }
    if !net.contains(&hole) {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).expect("it is larger than the hole");
    halves.flat_map(|half| without(half, hole)).collect()
}
