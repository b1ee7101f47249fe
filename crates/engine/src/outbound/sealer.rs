//! Seals and sends the datagrams of a round.

use std::{mem, sync::Arc};

use arrayvec::ArrayVec;
use crypto::aead;
use packet::{Endpoint, Failure, SendBatch, SendError, Transmit, UdpSend};
use wg::{Device, DropReason, SentDatagrams, Time, message::DATA_HEADER_LEN, stack};

use super::datagram_writer::{InBandDatagram, Unsealed};
use crate::{AEAD_BATCH, Shared, datagram_sender::DatagramSender, stage::Work};

/// The sealing stage, with its present round.
pub(super) struct Sealer<U> {
    device: Arc<Device>,
    sender: DatagramSender<U>,
    pub unsealed: Unsealed,
    /// Time of the round.
    pub now: Time,
    /// Whether sessions ended, so that their keys must be wiped from the stack.
    pub wipes: bool,
}

impl<U: UdpSend> Sealer<U> {
    pub(super) fn new(shared: &Shared, udp: U) -> Self {
        Self {
            device: shared.device.clone(),
            sender: DatagramSender::new(udp, &shared.attached),
            unsealed: Unsealed::default(),
            now: Time::from_nanos(0),
            wipes: false,
        }
    }
}

impl<U: UdpSend> Work for Sealer<U> {
    fn run(&mut self) {
        if !self.unsealed.out.is_empty() {
            self.send_data();
        }
        // Data is sent first, because only data confirms a session to a peer without support for
        // probes.
        self.send_in_band();
        self.unsealed.clear();
        if mem::take(&mut self.wipes) {
            stack::wipe();
        }
    }
}

impl<U: UdpSend> Sealer<U> {
    fn send_data(&mut self) {
        let Self { device, sender, unsealed, now, .. } = self;
        seal(unsealed);
        sender.send(&mut unsealed.out);
        for failure in unsealed.out.failures() {
            handle_failure(device, unsealed, failure);
        }
        for run in &unsealed.runs {
            let lens = &unsealed.lens[run.lens.clone()];
            if was_sent(&unsealed.out, &run.reservation.endpoint) {
                let (packets, bytes) = (lens.len() as u64, lens.iter().sum());
                let sent = SentDatagrams { packets, bytes, longest: run.longest };
                device.handle_sent(&run.peer, &run.reservation, sent, *now);
            }
        }
    }

    fn send_in_band(&mut self) {
        let Self { device, sender, unsealed, now, .. } = self;
        for InBandDatagram { peer, reservation, probe, mut datagram } in unsealed.in_band.drain(..)
        {
            let (key, counter) = (&reservation.keypair.send.key, reservation.counter);
            aead::seal(&mut [aead::Seal { key, counter, data: &mut datagram[DATA_HEADER_LEN..] }]);
            match sender.send_unfragmented(&datagram, reservation.endpoint) {
                Ok(()) => device.handle_probe_sent(&peer, datagram.len(), *now),
                Err(SendError::TooBig) => {
                    probe.into_iter().for_each(|probe| device.handle_probe_refused(&peer, probe));
                }
                // The probe counts as lost. Other losses at this time are counted elsewhere.
                Err(_) => {}
            }
        }
    }
}

fn seal(unsealed: &mut Unsealed) {
    let mut rest = unsealed.out.bytes_mut();
    let mut seals: ArrayVec<aead::Seal<'_>, AEAD_BATCH> = ArrayVec::new();
    for run in &unsealed.runs {
        for (len, counter) in unsealed.lens[run.lens.clone()].iter().zip(run.reservation.counter..)
        {
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

fn handle_failure(device: &Device, unsealed: &Unsealed, failure: &Failure) {
    if failure.error == SendError::StaleSource {
        let endpoint = unsealed.out.transmits()[failure.transmit].endpoint;
        for run in unsealed.runs.iter().filter(|run| run.reservation.endpoint == endpoint) {
            run.peer.clear_source();
        }
    }
    count_failure(device, failure);
}

/// Counts the datagrams of a failed send.
pub(crate) fn count_failure(device: &Device, failure: &Failure) {
    let reason = match failure.error {
        // The datagrams were sent, from another source.
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

/// Whether any datagram of the batch was sent to `endpoint`.
fn was_sent(batch: &SendBatch, endpoint: &Endpoint) -> bool {
    let to_it = |transmit: &&Transmit| transmit.endpoint == *endpoint;
    let all: usize = batch.transmits().iter().filter(to_it).map(Transmit::datagrams).sum();
    let lost = batch.failures().iter().filter(|failure| {
        failure.error != SendError::StaleSource
            && batch.transmits()[failure.transmit].endpoint == *endpoint
    });
    lost.map(|failure| failure.datagrams).sum::<usize>() < all
}
