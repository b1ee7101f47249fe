//! Packets to addresses without a peer, with lookup of such peers.

use std::{sync::Arc, time::Duration};

use sim::Link;
use wg::{DropReason, Event};

use crate::support::{packet, pair, run};

#[test]
fn a_packet_without_a_peer_is_dropped_and_looked_up_if_enabled() {
    let (network, mut a, mut b) = pair(1, Link::CLEAN);
    let device = a.control.lock().unwrap().device().clone();
    for (on, expected) in [(false, None), (true, Some(Event::UnknownAddress([10, 0, 0, 9].into())))]
    {
        if on {
            let mut control = a.control.lock().unwrap();
            control.subscribe(Arc::new(|| {}));
            control.set_peer_lookup(true);
        }
        for number in 0..3 {
            a.port.push(packet("10.0.0.1", "10.0.0.9", 0, number, 64));
        }
        run(&network, &mut [&mut a, &mut b], Duration::from_millis(10));
        assert_eq!(device.events.poll(), expected);
        assert_eq!(device.events.poll(), None);
    }
    assert_eq!(a.drops(DropReason::OutNoPeer), 6);

    a.introduce(b.identity(), "10.0.0.9/32");
    a.port.push(packet("10.0.0.1", "10.0.0.9", 0, 9, 64));
    run(&network, &mut [&mut a, &mut b], Duration::from_secs(1));
    assert_eq!(b.port.take().len(), 1, "the sender's next packet finds the peer");
}
