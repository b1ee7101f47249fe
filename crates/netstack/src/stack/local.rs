//! The local side of the stack: its addresses, and the packets that its link accepts.

use std::net::IpAddr;

use packet::wire;

use super::config::MIN_MTU;
use crate::ip;

pub(crate) struct Local {
    addresses: Vec<IpAddr>,
    mtu: u16,
    /// Whether super-packets are sent.
    gso: bool,
}

impl Local {
    pub(super) fn new(addresses: Vec<IpAddr>, mtu: u16) -> Self {
        Self { addresses, mtu: mtu.max(MIN_MTU), gso: true }
    }

    pub(super) fn set_addresses(&mut self, addresses: Vec<IpAddr>) {
        self.addresses = addresses;
    }

    pub(super) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu.max(MIN_MTU);
    }

    pub(super) fn set_gso(&mut self, gso: bool) {
        self.gso = gso;
    }

    pub(super) fn has_gso(&self) -> bool {
        self.gso
    }

    pub(super) fn mtu(&self) -> usize {
        usize::from(self.mtu)
    }

    /// Whether this is one of the stack's addresses.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }

    /// The first address of the family of `to`.
    pub(super) fn address_for(&self, to: IpAddr) -> Option<IpAddr> {
        let fits = |address: &&IpAddr| address.is_ipv4() == to.is_ipv4();
        self.addresses.iter().find(fits).copied()
    }

    /// The longest packet that may be sent, in bytes.
    pub(super) fn max_packet_len(&self) -> usize {
        usize::from(if self.gso { u16::MAX } else { self.mtu })
    }

    /// The largest TCP payload for an address, by the local MTU.
    pub(super) fn mss(&self, peer: IpAddr) -> u16 {
        self.mtu - ip::header_len(peer) as u16 - wire::tcp::HEADER_LEN as u16
    }
}
