//! A simulated device that refuses writes by rules, and segments the others as the kernel does.

use std::{
    collections::VecDeque,
    io::IoSlice,
    os::fd::{AsFd, BorrowedFd},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use nix::{errno::Errno, sys::eventfd::EventFd};
use packet::{Offload, SegmentProtocol, Segments, VNET_HEADER_LEN};

use super::super::device::{Calls, SuperPackets};
use crate::{
    testing::{Random, VirtualTime},
    time::Clock,
};

/// A limit that the tests do not reach.
const MAX_WRITES: usize = 200_000;

/// The condition for refusing a write.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// The write with this number, from 0.
    Write(usize, Errno),
    /// All writes until this time.
    Until(Duration, Errno),
    /// Every write, with this probability in 256.
    Chance(u8, Errno),
    /// Super-packets of UDP, or of TCP.
    Super { udp: bool, errno: Errno },
    /// Super-packets with more packets than this.
    Above(usize, Errno),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) rules: Vec<Rule>,
    pub(super) random: Random,
    pub(super) writes: usize,
    pub(super) refused: usize,
    /// The accepted packets, and their number in each write.
    pub(super) packets: Vec<Vec<u8>>,
    pub(super) sizes: Vec<usize>,
    /// The results of reads.
    pub(super) incoming: VecDeque<Result<Vec<u8>, Errno>>,
    /// Super-packets that TUNSETOFFLOAD refuses.
    pub(super) lacks: SuperPackets,
    /// The last setting by TUNSETOFFLOAD.
    pub(super) offload: SuperPackets,
}

#[derive(Debug)]
pub(super) struct Faulty {
    state: Mutex<State>,
    pub(super) time: VirtualTime,
    quiet: EventFd,
}

impl Faulty {
    pub(super) fn new(rules: &[Rule]) -> Self {
        let state = State { rules: rules.to_vec(), ..State::default() };
        let (time, quiet) = (VirtualTime::default(), EventFd::new().unwrap());
        Self { state: Mutex::new(state), time, quiet }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn refusal(&mut self, now: Duration, offload: Offload, packets: usize) -> Option<Errno> {
        let Self { rules, random, writes, .. } = self;
        let is_udp = match offload {
            Offload::Segment { protocol, .. } => Some(protocol == SegmentProtocol::Udp),
            _ => None,
        };
        rules.iter().find_map(|rule| {
            let (refuses, errno) = match *rule {
                Rule::Write(number, errno) => (*writes == number, errno),
                Rule::Until(end, errno) => (now < end, errno),
                Rule::Chance(chances, errno) => (random.chance(chances), errno),
                Rule::Super { udp, errno } => (is_udp == Some(udp), errno),
                Rule::Above(most, errno) => (packets > most, errno),
            };
            refuses.then_some(errno)
        })
    }
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

impl AsFd for Faulty {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.quiet.as_fd()
    }
}

impl Calls for Faulty {
    fn read(&self, to: &mut [u8]) -> Result<usize, Errno> {
        let packet = self.state().incoming.pop_front().unwrap_or(Err(Errno::EAGAIN))?;
        to[..VNET_HEADER_LEN].fill(0);
        to[VNET_HEADER_LEN..][..packet.len()].copy_from_slice(&packet);
        Ok(VNET_HEADER_LEN + packet.len())
    }

    fn write(&self, pieces: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let written: Vec<u8> = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        let (header, packet) = written.split_first_chunk::<VNET_HEADER_LEN>().unwrap();
        let offload = Offload::parse(header).unwrap();
        let segments = Segments::new(packet, offload).unwrap();
        let count = segments.count();
        let mut state = self.state();
        let refusal = state.refusal(Duration::from_nanos(self.time.now()), offload, count);
        state.writes += 1;
        assert!(state.writes < MAX_WRITES, "endless");
        if let Some(errno) = refusal {
            state.refused += 1;
            return Err(errno);
        }
        state.sizes.push(count);
        for index in 0..count {
            let mut segment = vec![0; segments.segment_len(index)];
            segments.write(index, &mut segment);
            state.packets.push(segment);
        }
        Ok(written.len())
    }

    fn set_offload(&self, reads: SuperPackets) -> Result<(), Errno> {
        let mut state = self.state();
        let lacks = state.lacks;
        if reads.tcp && lacks.tcp || reads.udp && lacks.udp || reads.tunnel && lacks.tunnel {
            return Err(Errno::EINVAL);
        }
        state.offload = reads;
        Ok(())
    }
}
