//! Packets for this program instead of the host.

use std::{net::IpAddr, time::Duration};

use engine::{Attachments, MessageReceiver, OwnPackets, message_channel};
use packet::filter::{AddressRange, Policy};
use sim::{Link, Network};
use wg::DropReason;

use crate::support::{Host, make_peers, packet, run};

const SECOND: Duration = Duration::from_secs(1);
/// The IP protocol of [`packet`].
const OPEN: u8 = 253;

fn host(network: &Network, number: u8) -> (Host, MessageReceiver, OwnPackets) {
    let (sender, receiver) = message_channel(|packet| packet.len() < 200);
    let own = OwnPackets::default();
    let attached =
        Attachments { messages: Some(sender), own_packets: own.clone(), ..Attachments::default() };
    let host = Host::with(network, number, |net| net, attached);
    let local = ["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]
        .map(|text| AddressRange::from(text.parse::<IpAddr>().unwrap()));
    let open_protocols = vec![OPEN];
    host.filter.set(&Policy { local: local.to_vec(), open_protocols, ..Policy::default() });
    (host, receiver, own)
}

fn all(receiver: &MessageReceiver) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| receiver.try_recv()).collect()
}

#[test]
fn packets_between_programs_do_not_reach_the_hosts() {
    let network = Network::new(1, Link::CLEAN);
    let ((mut a, to_a, by_a), (mut b, to_b, by_b)) = (host(&network, 1), host(&network, 2));
    make_peers(&a, &b);
    let requests = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")]
        .map(|(from, to)| packet(from, to, 0, 1, 50));
    // Without a session, the packets are staged in order.
    for request in &requests {
        assert!(by_a.push(request.clone()));
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(all(&to_b), requests);
    let answer = packet("10.0.0.2", "10.0.0.1", 0, 2, 50);
    by_b.push(answer.clone());
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(all(&to_a), [answer]);
    assert_eq!((a.port.take().len(), b.port.take().len()), (0, 0));
    assert_eq!((a.all_drops(), b.all_drops()), (vec![], vec![]));
}

#[test]
fn unaccepted_unread_and_unroutable_messages_are_counted() {
    let network = Network::new(1, Link::CLEAN);
    let ((mut a, _to_a, by_a), (mut b, to_b, _by_b)) = (host(&network, 1), host(&network, 2));
    make_peers(&a, &b);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 500));
    a.port.push(packet("10.0.0.1", "10.0.0.9", 0, 0, 50));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!((all(&to_b).len(), b.all_drops()), (0, vec![(DropReason::InMessage, 1)]));
    (0..100).for_each(|number| a.port.push(packet("10.0.0.1", "10.0.0.2", 0, number, 50)));
    run(&network, &mut [&mut a, &mut b], SECOND);
    let read = all(&to_b).len() as u64;
    assert!((32..100).contains(&read), "{read} of 100 waited");
    assert_eq!(b.all_drops(), [(DropReason::InMessage, 1 + 100 - read)]);

    let drops = a.all_drops();
    assert!(by_a.push(vec![0x45]) && by_a.push(packet("10.0.0.1", "192.0.2.1", 0, 0, 50)));
    while by_a.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 50)) {}
    run(&network, &mut [&mut a, &mut b], SECOND);
    let more =
        |reason| a.drops(reason) - drops.iter().find(|one| one.0 == reason).map_or(0, |one| one.1);
    assert_eq!((more(DropReason::OutInvalid), more(DropReason::OutNoPeer)), (1, 1));
    assert!(all(&to_b).len() >= 32, "what else waited was sent");
}

#[test]
fn without_a_receiver_open_packets_go_to_the_host() {
    let network = Network::new(1, Link::CLEAN);
    let (mut a, mut b) = (Host::new(&network, 1, |net| net), Host::new(&network, 2, |net| net));
    make_peers(&a, &b);
    let local = vec!["10.0.0.2".parse::<IpAddr>().unwrap().into()];
    b.filter.set(&Policy { local, open_protocols: vec![OPEN], ..Policy::default() });
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 50));
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(b.port.take().len(), 1);
}
