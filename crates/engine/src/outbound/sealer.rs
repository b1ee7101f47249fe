//! Seals what was written, and sends it.

use std::{mem, sync::Arc};

use arrayvec::ArrayVec;
use packet::{Endpoint, Failure, SendBatch, SendError, Transmit, UdpSend};
use wg::{Device, DropReason, SentDatagrams, Time, message::DATA_HEADER_LEN, stack};

use super::unsealed::{InBandDatagram, Unsealed};
use crate::{AEAD_BATCH, Shared, datagram_sender::DatagramSender, stage::Work};

/// The way to the network, and what goes there next.
pub(super) struct Sealer<U> {
    device: Arc<Device>,
    sender: DatagramSender<U>,
    pub written: Unsealed,
    /// When that was.
    pub now: Time,
    /// Whether sessions ended, whose keys are to be wiped from the stack.
    pub wipes: bool,
}

impl<U: UdpSend> Sealer<U> {
    pub fn new(shared: &Shared, udp: U) -> Self {
        Self {
            device: shared.device.clone(),
            sender: DatagramSender::new(udp, &shared.attached),
            written: Unsealed::default(),
            now: Time::from_nanos(0),
            wipes: false,
        }
    }
}

impl<U: UdpSend> Work for Sealer<U> {
    fn run(&mut self) {
        if !self.written.out.is_empty() {
            self.send_data();
        }
        // Behind the data: that is what confirms a session to a peer that knows no probes.
        self.send_in_band();
        self.written.clear();
        if mem::take(&mut self.wipes) {
            stack::wipe();
        }
    }
}

impl<U: UdpSend> Sealer<U> {
    fn send_data(&mut self) {
        let Self { device, sender, written, now, .. } = self;
        seal(written);
        sender.send(&mut written.out);
        for failure in written.out.failures() {
            handle_failure(device, written, failure);
        }
        for run in &written.runs {
            let lens = &written.lens[run.lens.clone()];
            if went(&written.out, &run.reservation.endpoint) {
                let (packets, bytes) = (lens.len() as u64, lens.iter().sum());
                let sent = SentDatagrams { packets, bytes, longest: run.longest };
                device.handle_sent(&run.peer, &run.reservation, sent, *now);
            }
        }
    }

    fn send_in_band(&mut self) {
        let Self { device, sender, written, now, .. } = self;
        for InBandDatagram { peer, reservation, probe, mut datagram } in written.in_band.drain(..) {
            let (key, counter) = (&reservation.keypair.send.key, reservation.counter);
            aead::seal(&mut [aead::Seal { key, counter, data: &mut datagram[DATA_HEADER_LEN..] }]);
            match sender.send_unfragmented(&datagram, reservation.endpoint) {
                Ok(()) => device.handle_probe_sent(&peer, datagram.len(), *now),
                Err(SendError::TooBig) => {
                    probe.into_iter().for_each(|probe| device.handle_probe_refused(&peer, probe));
                }
                // It counts as lost, and what else is lost now is counted.
                Err(_) => {}
            }
        }
    }
}

fn seal(written: &mut Unsealed) {
    let mut rest = written.out.bytes_mut();
    let mut seals: ArrayVec<aead::Seal<'_>, AEAD_BATCH> = ArrayVec::new();
    for run in &written.runs {
        for (len, counter) in written.lens[run.lens.clone()].iter().zip(run.reservation.counter..) {
            let (datagram, behind) = rest.split_at_mut(*len);
            rest = behind;
            if seals.is_full() {
                aead::seal(&mut seals);
                seals.clear();
            }
            let key = &run.reservation.keypair.send.key;
            seals.push(aead::Seal { key, counter, data: &mut datagram[DATA_HEADER_LEN..] });
        }
    }
    aead::seal(&mut seals);
}

fn handle_failure(device: &Device, written: &Unsealed, failure: &Failure) {
    if failure.error == SendError::StaleSource {
        let endpoint = written.out.transmits()[failure.transmit].endpoint;
        for run in written.runs.iter().filter(|run| run.reservation.endpoint == endpoint) {
            run.peer.clear_source();
        }
    }
    count_failure(device, failure);
}

/// Counts what a failed send lost.
pub(crate) fn count_failure(device: &Device, failure: &Failure) {
    let reason = match failure.error {
        // It went, from another source.
        SendError::StaleSource => return,
        SendError::Unreachable => DropReason::OutUnreachable,
        SendError::TooBig => DropReason::OutTooBig,
        SendError::NoBuffer => DropReason::OutNoBuffer,
        SendError::NoSocket => DropReason::OutNoSocket,
        SendError::RelayFull => DropReason::OutRelayFull,
        SendError::Other(_) => DropReason::OutSendFailed,
    };
    device.drops.count(reason, failure.datagrams as u64);
}

/// Whether any datagram of the batch went to `endpoint`.
fn went(batch: &SendBatch, endpoint: &Endpoint) -> bool {
    let to_it = |transmit: &&Transmit| transmit.endpoint == *endpoint;
    let all: usize = batch.transmits().iter().filter(to_it).map(Transmit::datagrams).sum();
    let lost = batch.failures().iter().filter(|failure| {
        failure.error != SendError::StaleSource
            && batch.transmits()[failure.transmit].endpoint == *endpoint
    });
    lost.map(|failure| failure.datagrams).sum::<usize>() < all
}
