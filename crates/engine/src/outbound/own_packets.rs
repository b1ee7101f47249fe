//! Sends the packets of this program.

use std::{slice, sync::atomic::Ordering};

use packet::{IpRecv, UdpSend, pcapng::Direction, wire::IpHeader};
use wg::{DropReason, Time};

use super::{Item, Outbound, Watch};

impl<I: IpRecv, U: UdpSend> Outbound<I, U> {
    /// Sends all queued packets.
    pub(super) fn send_own(&mut self, now: Time) {
        if let Some(packets) = self.own_packets.take() {
            packets.iter().for_each(|packet| self.send_one(packet, now));
        }
    }

    #[cold]
    fn send_one(&mut self, packet: &[u8], now: Time) {
        let Self { device, unsealed, staged, watch, mtu, .. } = self;
        let Ok(header) = IpHeader::parse(packet) else {
            device.drops.count(DropReason::OutInvalid, 1);
            return;
        };
        let destination = header.destination(packet);
        let Some(peer) = device.routes().lookup(destination).cloned() else {
            device.drops.count(DropReason::OutNoPeer, 1);
            device.report_unknown_address(destination, now);
            return;
        };
        if let Some(view) = watch.as_ref().and_then(Watch::look) {
            view.show(Direction::Outbound, Some(peer.public_key()), [packet].into_iter());
        }
        let item = Item::plain(packet, header.ecn);
        // Packets must not overtake staged ones.
        let waits = staged.has(&peer);
        if waits {
            device.handle_staged(&peer, now);
        }
        let mtu = mtu.load(Ordering::Relaxed) as usize;
        if waits || !unsealed.push(device, &peer, slice::from_ref(&item), mtu, now) {
            item.stage(device, staged, &peer);
        }
    }
}
