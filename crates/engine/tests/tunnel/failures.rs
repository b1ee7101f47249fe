//! Errors of the UDP side and of the IP side.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use packet::{Endpoint, Failure, Local, SendBatch, SendError, UdpSend};
use sim::{Link, NetSend, Network};
use wg::DropReason;

use crate::support::{Host, packet, run};

const SECOND: Duration = Duration::from_secs(1);

type Shared<T> = Arc<Mutex<T>>;

/// A socket that refuses every transmit while an error is set.
struct Refusing {
    inner: NetSend,
    error: Shared<Option<SendError>>,
    sources: Shared<Vec<Option<Local>>>,
}

impl UdpSend for Refusing {
    fn send(&mut self, batch: &mut SendBatch) {
        let sources = batch.transmits().iter().map(|transmit| transmit.endpoint.local);
        self.sources.lock().unwrap().extend(sources);
        let Some(error) = *self.error.lock().unwrap() else { return self.inner.send(batch) };
        if error == SendError::StaleSource {
            self.inner.send(batch);
        }
        let counts: Vec<_> = batch.transmits().iter().map(packet::Transmit::datagrams).collect();
        for (transmit, datagrams) in counts.into_iter().enumerate() {
            batch.fail(Failure { transmit, datagrams, error });
        }
    }

    fn send_unfragmented(&mut self, datagram: &[u8], endpoint: Endpoint) -> Result<(), SendError> {
        match *self.error.lock().unwrap() {
            Some(error) => Err(error),
            None => self.inner.send_unfragmented(datagram, endpoint),
        }
    }
}

struct Rig {
    network: Network,
    a: Host<Refusing>,
    b: Host<Refusing>,
    error: Shared<Option<SendError>>,
    sources: Shared<Vec<Option<Local>>>,
}

impl Rig {
    /// Two hosts with a session. Sends of `a` can be made to fail.
    fn new(seed: u64) -> Self {
        let network = Network::new(seed, Link::CLEAN);
        let (error, sources) = (Arc::default(), Arc::default());
        let refusing = |inner, error: &Shared<_>, sources: &Shared<_>| Refusing {
            inner,
            error: error.clone(),
            sources: sources.clone(),
        };
        let mut a = Host::new(&network, 1, |net| refusing(net, &error, &sources));
        let mut b = Host::new(&network, 2, |net| refusing(net, &Arc::default(), &Arc::default()));
        a.introduce(b.identity(), "10.0.0.2/32");
        b.introduce(a.identity(), "10.0.0.1/32");
        a.port.push(packet("10.0.0.1", "10.0.0.2", 0, 0, 64));
        run(&network, &mut [&mut a, &mut b], SECOND);
        b.port.push(packet("10.0.0.2", "10.0.0.1", 0, 0, 64));
        run(&network, &mut [&mut a, &mut b], SECOND);
        assert_eq!((a.port.take().len(), b.port.take().len()), (1, 1));
        Self { network, a, b, error, sources }
    }

    fn send(&mut self, packets: u32) -> usize {
        for number in 0..packets {
            self.a.port.push(packet("10.0.0.1", "10.0.0.2", 0, number, 64));
        }
        run(&self.network, &mut [&mut self.a, &mut self.b], SECOND);
        self.b.port.take().len()
    }
}

#[test]
fn each_error_of_the_socket_is_counted_by_reason() {
    for (error, reason) in [
        (SendError::Unreachable, DropReason::OutUnreachable),
        (SendError::TooBig, DropReason::OutTooBig),
        (SendError::NoBuffer, DropReason::OutNoBuffer),
        (SendError::NoSocket, DropReason::OutNoSocket),
        (SendError::Other(5), DropReason::OutSendFailed),
    ] {
        let mut rig = Rig::new(1);
        *rig.error.lock().unwrap() = Some(error);
        assert_eq!(rig.send(7), 0);
        assert_eq!(rig.a.all_drops(), [(reason, 7)]);
        *rig.error.lock().unwrap() = None;
        assert_eq!(rig.send(3), 3, "{error:?} is over");
    }
}

#[test]
fn a_stale_source_is_cleared_and_nothing_is_lost() {
    let mut rig = Rig::new(2);
    rig.sources.lock().unwrap().clear();
    *rig.error.lock().unwrap() = Some(SendError::StaleSource);
    assert_eq!(rig.send(2), 2);
    *rig.error.lock().unwrap() = None;
    assert_eq!(rig.send(2), 2);
    let sources = rig.sources.lock().unwrap();
    assert!(sources[0].is_some(), "a datagram of the peer was received, so the source is sticky");
    assert!(sources[1..].iter().all(Option::is_none), "then the routing table chooses");
    assert_eq!(rig.a.all_drops(), []);
}

#[test]
fn a_device_that_vanishes_ends_the_step_with_its_error() {
    let mut rig = Rig::new(3);
    rig.a.port.remove_device();
    assert!(rig.a.try_step_outbound().is_err());
}

#[test]
fn a_refused_keepalive_is_sent_ten_seconds_later_if_more_data_arrives() {
    for (packets, keepalives) in [(1, 0), (2, 1)] {
        let mut rig = Rig::new(7);
        let pass = |rig: &mut Rig, time| run(&rig.network, &mut [&mut rig.a, &mut rig.b], time);
        // After the timers of the handshake and its data.
        pass(&mut rig, 30 * SECOND);
        for number in 0..packets {
            rig.b.port.push(packet("10.0.0.2", "10.0.0.1", 0, number, 64));
            pass(&mut rig, 3 * SECOND);
        }
        *rig.error.lock().unwrap() = Some(SendError::Unreachable);
        pass(&mut rig, (12 - 3 * packets) * SECOND);
        assert_eq!(rig.a.drops(DropReason::OutUnreachable), 1, "the keepalive");
        *rig.error.lock().unwrap() = None;
        rig.sources.lock().unwrap().clear();
        // The other peer requests a handshake in the meantime, which would replace the keepalive.
        rig.network.set_link(Link { loss: 10_000, ..Link::CLEAN });
        pass(&mut rig, 7 * SECOND);
        assert_eq!(rig.sources.lock().unwrap().len(), 0);
        pass(&mut rig, 2 * SECOND);
        assert_eq!(rig.sources.lock().unwrap().len(), keepalives);
    }
}
