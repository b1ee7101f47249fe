//! Bundles: several datagrams in one DERP frame, between nodes that support them
//! (docs/decisions/0009). Only linerate uses them.
//!
//! ```text
//!   | \0BUNDLE\0 | segment (2, big-endian) | datagrams back to back, each but the last of that length |
//! ```
//!
//! A relay queues 32 frames per receiver (tailscale `derp/derpserver`, `perClientSendQueueDepth`)
//! and its cost is per frame. A burst of TCP in one frame is therefore faster and is not dropped. A
//! node sends bundles only to peers that accept them. If a node receives many single datagrams of a
//! peer, it sends that peer an offer to accept bundles, in a sealed disco message.

use std::{collections::HashMap, time::Duration};

use bytes::{Buf as _, Bytes, BytesMut};

use super::derp_frame::{MAX_PACKET, write_packet_of};
use crate::keys::{DiscoPublic, NodePublic};

const MAGIC: [u8; 8] = *b"\0BUNDLE\0";
/// The length of the header.
const HEADER: usize = MAGIC.len() + 2;
/// The shortest WireGuard message: an empty data message.
const SHORTEST: usize = 32;

/// The first and the longest time between two offers to a peer. A peer without support for bundles
/// continues to send single datagrams.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Appends datagrams to `out` as bundles. All but the last have the length `segment`.
pub fn write_bundles(out: &mut BytesMut, to: &NodePublic, run: &[u8], segment: usize) {
    let most = ((MAX_PACKET - HEADER) / segment).max(1) * segment;
    for part in run.chunks(most) {
        match u16::try_from(segment) {
            Ok(segment) if part.len() > segment.into() => {
                write_packet_of(out, to, &[&MAGIC, &segment.to_be_bytes(), part]);
            }
            _ => write_packet_of(out, to, &[part]),
        }
    }
}

/// Returns the datagrams of a bundle, and the length of each but the last. Any other datagram is
/// returned unchanged.
pub fn read_bundle(mut datagram: Bytes) -> (Bytes, usize) {
    let segment = datagram.strip_prefix(&MAGIC).and_then(|rest| {
        let (segment, run) = rest.split_first_chunk()?;
        let segment = usize::from(u16::from_be_bytes(*segment));
        (segment >= SHORTEST && run.len() >= SHORTEST).then_some(segment)
    });
    let segment = segment.inspect(|_| datagram.advance(HEADER)).unwrap_or(datagram.len());
    (datagram, segment)
}

/// The peers that accept bundles, and the times of the offers to peers.
#[derive(Debug, Default)]
pub struct Bundles(HashMap<NodePublic, PeerState>);

/// The state is reset when the peer's disco key changes.
#[derive(Debug)]
struct PeerState {
    disco: DiscoPublic,
    accepts: bool,
    /// The earliest time of the next offer.
    next: Duration,
    pause: Duration,
}

impl Bundles {
    /// Returns whether the peer with this disco key accepts bundles.
    pub fn accepts(&self, peer: &NodePublic, disco: DiscoPublic) -> bool {
        self.0.get(peer).is_some_and(|state| state.accepts && state.disco == disco)
    }

    /// The peer offered to accept bundles.
    pub fn handle_offer(&mut self, peer: NodePublic, disco: DiscoPublic) {
        self.state(peer, disco).accepts = true;
    }

    /// Several single datagrams of a peer were received. Returns whether to send it an offer.
    pub fn handle_singles(&mut self, peer: NodePublic, disco: DiscoPublic, now: Duration) -> bool {
        let state = self.state(peer, disco);
        if now < state.next {
            return false;
        }
        state.next = now + state.pause;
        state.pause = (state.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// Removes all other peers.
    pub fn retain(&mut self, mut there: impl FnMut(&NodePublic) -> bool) {
        self.0.retain(|peer, _| there(peer));
    }

    fn state(&mut self, peer: NodePublic, disco: DiscoPublic) -> &mut PeerState {
        let new = || PeerState { disco, accepts: false, next: Duration::ZERO, pause: PAUSE };
        let state = self.0.entry(peer).or_insert_with(new);
        if state.disco != disco {
            *state = new();
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::derp::{Decoder, SEND_OVERHEAD};

    const PEER: NodePublic = NodePublic([1; 32]);
    const TO: usize = 32;

    /// Returns the number of written frames, and the datagrams in them.
    fn received(mut out: BytesMut) -> (usize, Vec<Bytes>) {
        let (mut decoder, mut frames, mut datagrams) = (Decoder::default(), 0, Vec::new());
        while let Some((_, mut contents)) = decoder.poll_frame(&mut out).unwrap() {
            frames += 1;
            contents.advance(TO);
            assert!(contents.len() <= MAX_PACKET);
            let (run, segment) = read_bundle(contents);
            datagrams.extend(run.chunks(segment).map(Bytes::copy_from_slice));
        }
        (frames, datagrams)
    }

    proptest! {
        #[test]
        fn bundled_datagrams_arrive_unchanged(
            segment in SHORTEST..1500usize,
            datagrams in 1..100usize,
            last in SHORTEST..1500usize,
        ) {
            let len = (datagrams - 1) * segment + last.min(segment);
            let run: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut out = BytesMut::new();
            write_bundles(&mut out, &PEER, &run, segment);
            let (frames, got) = received(out);
            prop_assert_eq!(frames, len.div_ceil((MAX_PACKET - HEADER) / segment * segment));
            prop_assert!(got.iter().map(|one| &one[..]).eq(run.chunks(segment)));
        }

        #[test]
        fn any_bytes_are_read_as_bundle_or_datagram(
            bytes in proptest::collection::vec(any::<u8>(), 1..100),
            is_bundle: bool,
        ) {
            let magic: &[u8] = if is_bundle { &MAGIC } else { &[] };
            let datagram = Bytes::from([magic, &bytes].concat());
            let (run, segment) = read_bundle(datagram.clone());
            prop_assert!(segment > 0 && datagram.ends_with(&run));
        }
    }

    #[test]
    fn single_datagram_is_not_bundled() {
        let mut out = BytesMut::new();
        write_bundles(&mut out, &PEER, &[7; 1400], 1400);
        assert_eq!(out.len(), SEND_OVERHEAD + 1400);
        let (mut out, long) = (BytesMut::new(), vec![7; MAX_PACKET]);
        write_bundles(&mut out, &PEER, &long, MAX_PACKET);
        assert_eq!(received(out).1, [long]);
    }

    #[test]
    fn bundle_with_too_short_segments_is_one_datagram() {
        for segment in [0u16, 1, 31] {
            let bundle = [&MAGIC[..], &segment.to_be_bytes(), &[0; 100]].concat();
            assert_eq!(read_bundle(bundle.clone().into()), (bundle.into(), 110));
        }
    }

    #[test]
    fn peer_accepts_bundles_until_its_disco_key_changes() {
        let (old, new) = (DiscoPublic([2; 32]), DiscoPublic([3; 32]));
        let mut bundles = Bundles::default();
        assert!(!bundles.accepts(&PEER, old));
        bundles.handle_offer(PEER, old);
        assert!(bundles.accepts(&PEER, old) && !bundles.accepts(&PEER, new));
        bundles.handle_singles(PEER, old, Duration::ZERO);
        assert!(bundles.accepts(&PEER, old));
        bundles.handle_singles(PEER, new, Duration::ZERO);
        assert!(!bundles.accepts(&PEER, old));
        bundles.handle_offer(PEER, new);
        bundles.retain(|_| false);
        assert!(!bundles.accepts(&PEER, new));
    }

    #[test]
    fn offers_to_a_peer_without_bundles_become_rare() {
        let mut bundles = Bundles::default();
        let mut told =
            |ms| bundles.handle_singles(PEER, DiscoPublic([2; 32]), Duration::from_millis(ms));
        let in_hour: Vec<u64> = (0..3_600_000).step_by(100).filter(|ms| told(*ms)).collect();
        assert_eq!(in_hour[..4], [0, 500, 1_500, 3_500]);
        assert!((60..80).contains(&in_hour.len()), "{}", in_hour.len());
    }
}
