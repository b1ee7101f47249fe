//! Datagrams of control protocols on the data plane's socket.

use std::time::Duration;

use engine::{Attachments, ControlProtocols, ControlReceiver, Magic, control_channel};
use packet::{ControlSend, Ecn, Endpoint, Local};
use sim::{Link, Network};
use wg::{DropReason, Time};

use crate::support::{Host, make_peers, packet, run};

const SECOND: Duration = Duration::from_secs(1);
const MAGIC: [u8; 6] = *b"TS\xf0\x9f\x92\xac";
/// The header of a Binding Request (RFC 5769 section 2.1).
const STUN: [u8; 20] =
    *b"\x00\x01\x00\x00\x21\x12\xa4\x42\xb7\xe7\xa7\x01\xbc\x34\xd6\x86\xfa\x87\xdf\xae";

fn host(network: &Network, number: u8) -> (Host, ControlReceiver) {
    let magics = vec![Magic::new(&MAGIC).unwrap()];
    let (control, receiver) = control_channel(ControlProtocols { magics, stun: true });
    let attached = Attachments { control_datagrams: Some(control), ..Attachments::default() };
    (Host::with(network, number, |net| net, attached), receiver)
}

#[test]
fn control_datagrams_arrive_with_source_and_time() {
    let network = Network::new(1, Link::CLEAN);
    let ((mut a, from_b), (mut b, from_a)) = (host(&network, 1), host(&network, 2));
    make_peers(&a, &b);
    let [by_a, by_b] = [a.address, b.address].map(|address| network.socket(address).1);
    let hello = [&MAGIC[..], &[7; 60]].concat();
    let to_a = Endpoint::new(a.address);
    a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 1, 500));
    let sent = Time::from_nanos(network.now().as_nanos() as u64);
    by_b.send_control(&hello, to_a, None).unwrap();
    by_b.send_control(&STUN, to_a, Some(64)).unwrap();
    // It opens a pinhole in the NAT, and does not reach the peer.
    by_b.send_control(b"TS", to_a, Some(4)).unwrap();
    run(&network, &mut [&mut a, &mut b], SECOND);
    for expected in [&hello[..], &STUN] {
        let received = from_b.try_recv().unwrap();
        assert_eq!((&received.bytes[..], received.from.remote), (expected, b.address.into()));
        let local = Local { addr: a.address.ip(), interface: 1 };
        assert_eq!(received.from.local, Some(local));
        assert_eq!(received.at, sent + Link::CLEAN.delay);
        // It is answered to the endpoint from which it received.
        by_a.send_control(&received.bytes, received.from, None).unwrap();
    }
    assert!(from_b.try_recv().is_err());
    run(&network, &mut [&mut a, &mut b], SECOND);
    let answers: Vec<_> = std::iter::from_fn(|| from_a.try_recv().ok()).collect();
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(|answer| answer.from.remote == a.address.into()));
    assert_eq!((b.port.take().len(), a.all_drops(), b.all_drops()), (1, vec![], vec![]));
}

#[test]
fn without_control_protocols_datagrams_are_malformed() {
    let network = Network::new(1, Link::CLEAN);
    let mut host = Host::new(&network, 1, |net| net);
    let from = ([192, 0, 2, 9], 3478).into();
    for datagram in [&MAGIC[..], &STUN] {
        network.inject(from, host.address, Ecn::NotEct, datagram);
    }
    run(&network, &mut [&mut host], SECOND);
    assert_eq!(host.all_drops(), [(DropReason::InMalformed, 2)]);
}

#[test]
fn unread_control_datagrams_are_dropped_and_data_continues() {
    let network = Network::new(1, Link::CLEAN);
    let (mut a, from_b) = host(&network, 1);
    let (mut b, _from_a) = host(&network, 2);
    make_peers(&a, &b);
    let long = [&MAGIC[..], &[0; 1400]].concat();
    for number in 0..1000 {
        network.inject(b.address, a.address, Ecn::NotEct, &long);
        if number % 100 == 0 {
            b.port.push(packet("10.0.0.2", "10.0.0.1", 0, number, 100));
            run(&network, &mut [&mut a, &mut b], SECOND / 10);
        }
    }
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert_eq!(a.port.take().len(), 10);
    let read = std::iter::from_fn(|| from_b.try_recv().ok()).count() as u64;
    assert!((100..500).contains(&read), "{read}");
    assert_eq!(a.all_drops(), [(DropReason::InControlFull, 1000 - read)]);
    network.inject(b.address, a.address, Ecn::NotEct, &long);
    run(&network, &mut [&mut a, &mut b], SECOND);
    assert!(from_b.try_recv().is_ok());
}

#[test]
fn short_and_malformed_datagrams_do_not_disturb_traffic() {
    let network = Network::new(1, Link::CLEAN);
    let (mut a, receiver) = host(&network, 1);
    let from = ([192, 0, 2, 9], 3478).into();
    let mut sent = 0;
    for whole in [&MAGIC[..], &STUN, &[1, 0, 0, 0, 0x21, 0x12, 0xa4, 0x42], &[4, 0, 0, 0]] {
        for len in 0..whole.len() {
            network.inject(from, a.address, Ecn::NotEct, &whole[..len]);
            sent += 1;
        }
    }
    run(&network, &mut [&mut a], SECOND);
    assert!(receiver.try_recv().is_err());
    assert_eq!(a.all_drops(), [(DropReason::InMalformed, sent)]);
}
