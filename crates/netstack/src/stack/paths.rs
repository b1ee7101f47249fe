//! What paths let through, as routers said of datagrams (RFC 1191, RFC 8201). A
//! connection knows its own.

use std::{collections::HashMap, net::IpAddr, time::Duration};

use crate::time::Time;

/// Paths that are remembered, each of some 50 bytes.
const REMEMBERED: usize = 1024;
/// For how long: afterwards the path may have become wider (RFC 1191 section 6.3, RFC 8201
/// section 4).
const AGE: Duration = Duration::from_mins(10);

/// The paths that are narrower than our MTU.
#[derive(Default)]
pub(super) struct Paths(HashMap<IpAddr, (usize, Time)>);

impl Paths {
    /// A router let no more than `mtu` bytes through on the way to an address. Who says
    /// more than was said before is not believed.
    pub fn lower(&mut self, to: IpAddr, mtu: usize, now: Time) {
        if self.mtu(to, now).is_some_and(|known| known <= mtu) {
            return;
        }
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() < REMEMBERED || self.0.contains_key(&to) {
            self.0.insert(to, (mtu, now + AGE));
        }
    }

    /// The longest packet to an address, in bytes, where it is known.
    pub fn mtu(&self, to: IpAddr, now: Time) -> Option<usize> {
        self.0.get(&to).filter(|(_, until)| now < *until).map(|(mtu, _)| *mtu)
    }
}
