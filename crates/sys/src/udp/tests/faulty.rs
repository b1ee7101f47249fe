//! A simulated kernel that refuses messages by rules, and records sent messages.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use packet::Tos;

use super::super::{
    address::Family,
    cmsg::Ancillary,
    mmsg::{Calls, MAX_MESSAGES, Outgoing, Received},
};
use super::*;
use crate::{
    testing::{Random, VirtualTime},
    time::Clock,
};

/// A limit that the tests do not reach.
const MAX_CALLS: usize = 200_000;

/// The condition for refusing a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The call with this number, from 0.
    Call(usize, Errno),
    /// All calls until this time.
    Until(Duration, Errno),
    /// Every message, with this probability in 256.
    Chance(u8, Errno),
    To(IpAddr, Errno),
    From(IpAddr, Errno),
    /// GSO messages to an address.
    GsoTo(IpAddr, Errno),
    /// GSO messages through an interface.
    GsoBy(u32, Errno),
    /// GSO messages with more datagrams than this.
    Above(usize, Errno),
    /// GSO messages to an address, with longer segments than this.
    Longer(IpAddr, usize, Errno),
    /// All messages with longer datagrams than this.
    TooLong(usize, Errno),
}

/// A sent message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) remote: SocketAddr,
    pub(super) local: Option<Local>,
    pub(super) tos: Tos,
    pub(super) datagrams: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(super) struct Faulty {
    pub(super) rules: Vec<Rule>,
    pub(super) random: Random,
    /// The probability in 256 that a call ends after a message.
    pub(super) partial: u8,
    pub(super) time: VirtualTime,
    pub(super) calls: usize,
    pub(super) refused: Vec<Errno>,
    pub(super) sent: Vec<Message>,
    /// The results of `receive` for each call: an error, or the maximum number of datagrams.
    pub(super) answers: VecDeque<Result<usize, Errno>>,
    pub(super) incoming: VecDeque<Vec<u8>>,
    pub(super) received: Vec<usize>,
    pub(super) no_gro: bool,
}

impl Faulty {
    fn refusal(&mut self, message: &Outgoing<'_>, datagrams: usize) -> Option<Errno> {
        let (now, call) = (Duration::from_nanos(self.time.now()), self.calls);
        let to = message.remote.ip();
        let is_gso = datagrams > 1;
        let segment = message.segment.map_or(0, usize::from);
        let random = &mut self.random;
        self.rules.iter().find_map(|rule| {
            let (refuses, errno) = match *rule {
                Rule::Call(number, errno) => (call == number, errno),
                Rule::Until(end, errno) => (now < end, errno),
                Rule::Chance(chances, errno) => (random.chance(chances), errno),
                Rule::To(address, errno) => (to == address, errno),
                Rule::From(address, errno) => {
                    (message.local.is_some_and(|local| local.addr == address), errno)
                }
                Rule::GsoTo(address, errno) => (is_gso && to == address, errno),
                Rule::GsoBy(interface, errno) => {
                    let by = message.local.map_or(0, |local| local.interface);
                    (is_gso && by == interface, errno)
                }
                Rule::Above(most, errno) => (datagrams > most, errno),
                Rule::Longer(address, most, errno) => {
                    (is_gso && to == address && segment > most, errno)
                }
                Rule::TooLong(most, errno) => (message.payload.len().max(segment) > most, errno),
            };
            refuses.then_some(errno)
        })
    }
}

/// Splits a message as the kernel does, within the limits of all versions.
fn split(message: &Outgoing<'_>) -> Vec<Vec<u8>> {
    assert!(message.payload.len() <= 65_507, "longer than a datagram");
    let Some(segment) = message.segment else { return vec![message.payload.to_vec()] };
    let datagrams: Vec<_> = message.payload.chunks(segment.into()).map(<[u8]>::to_vec).collect();
    assert!((2..=64).contains(&datagrams.len()), "{} segments", datagrams.len());
    datagrams
}

impl Clock for Faulty {
    fn now(&self) -> u64 {
        self.time.now()
    }

    fn sleep(&self, time: Duration) {
        self.time.sleep(time);
    }

    fn wait_writable(&self, fd: BorrowedFd<'_>, at_most: Duration) {
        self.time.wait_writable(fd, at_most);
    }
}

impl Calls for Faulty {
    fn send<'a>(
        &mut self,
        _: BorrowedFd<'_>,
        _: Family,
        datagrams: impl Iterator<Item = Outgoing<'a>>,
    ) -> Result<usize, Errno> {
        assert!(self.calls < MAX_CALLS, "endless calls");
        let mut count = 0;
        for message in datagrams.take(MAX_MESSAGES) {
            let datagrams = split(&message);
            if let Some(errno) = self.refusal(&message, datagrams.len()) {
                // sendmmsg reports an error only for its first message.
                if count == 0 {
                    self.calls += 1;
                    self.refused.push(errno);
                    return Err(errno);
                }
                break;
            }
            let Outgoing { remote, local, tos, .. } = message;
            self.sent.push(Message { remote, local, tos, datagrams });
            count += 1;
            if self.random.chance(self.partial) {
                break;
            }
        }
        assert!(count > 0, "a call without a message");
        self.calls += 1;
        Ok(count)
    }

    fn receive<'a>(
        &mut self,
        _: BorrowedFd<'_>,
        slots: impl Iterator<Item = &'a mut [u8]>,
    ) -> Result<usize, Errno> {
        self.calls += 1;
        let most = self.answers.pop_front().unwrap_or(Ok(MAX_MESSAGES))?;
        self.received.clear();
        for slot in slots.take(most.min(MAX_MESSAGES)) {
            let Some(datagram) = self.incoming.pop_front() else { break };
            slot[..datagram.len()].copy_from_slice(&datagram);
            self.received.push(datagram.len());
        }
        if self.received.is_empty() { Err(Errno::EAGAIN) } else { Ok(self.received.len()) }
    }

    fn received(&self, at: usize) -> Received {
        let (len, remote) = (self.received[at], Some(([192, 0, 2, 1], 7).into()));
        Received { len, is_whole: true, remote, ancillary: Ancillary::default() }
    }

    fn set_gro(&self, _: BorrowedFd<'_>, on: bool) -> Result<(), Errno> {
        if self.no_gro && on { Err(Errno::ENOPROTOOPT) } else { Ok(()) }
    }
}

/// A sender to a simulated kernel, and the switches that count its demotions.
pub(super) fn sender(rules: &[Rule]) -> (UdpSender<Faulty>, Arc<Offloads>) {
    let offloads = Arc::<Offloads>::default();
    let (socket, _) = UdpSocket::unbound(&offloads).unwrap();
    socket.bind(0, 0).unwrap();
    let faulty = Faulty { rules: rules.to_vec(), ..Faulty::default() };
    (UdpSender::over(socket.shared, faulty), offloads)
}

/// Sends a batch, checks that every datagram was sent or reported as failed, and returns the sent
/// messages and the failures.
pub(super) fn send_all(
    sender: &mut UdpSender<Faulty>,
    batch: &mut SendBatch,
) -> (Vec<Message>, Vec<Failure>) {
    sender.messages.sent.clear();
    sender.send(batch);
    check_all_accounted_for(batch, &sender.messages.sent);
    (sender.messages.sent.clone(), batch.failures().to_vec())
}

/// Checks that every datagram was sent once and in order, or is in the failures of its run. All
/// datagrams of the batch must be distinct.
fn check_all_accounted_for(batch: &SendBatch, sent: &[Message]) {
    let mut counts = vec![(0, 0); batch.transmits().len()];
    let mut expected = batch.transmits().iter().enumerate().flat_map(|(transmit, run)| {
        batch.datagrams(run).map(move |datagram| (transmit, run, datagram))
    });
    for message in sent {
        for datagram in &message.datagrams {
            let (transmit, run, _) = expected
                .find(|(_, _, next)| next == datagram)
                .expect("a datagram was sent twice, out of order or changed");
            assert_eq!(
                (Some(message.remote), message.tos),
                (run.endpoint.remote.direct(), run.tos)
            );
            let is_stale = message.local != run.endpoint.local;
            assert!(!is_stale || message.local.is_none());
            counts[transmit].0 += 1;
            counts[transmit].1 += usize::from(is_stale);
        }
    }
    for (transmit, (run, (sent_count, stale))) in batch.transmits().iter().zip(counts).enumerate() {
        let failed = |is_stale| {
            let of_run = batch.failures().iter().filter(|failure| failure.transmit == transmit);
            of_run
                .filter(|failure| (failure.error == SendError::StaleSource) == is_stale)
                .map(|failure| failure.datagrams)
                .sum::<usize>()
        };
        assert_eq!(sent_count + failed(false), run.datagrams(), "run {transmit} of {sent:?}");
        assert_eq!(stale, failed(true), "run {transmit}");
    }
    assert!(batch.failures().is_sorted_by_key(|failure| failure.transmit));
}
