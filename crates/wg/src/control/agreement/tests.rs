//! Steps of an exchange leave no secret on the stack.
#![expect(deprecated, reason = "nothing else shows a private key's vector")]

use std::collections::HashSet;

use ml_kem::{DecapsulationKey, ExpandedKeyEncoding, MlKem768};
use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng as _, SeedableRng as _},
};
use sha3::{Digest as _, Sha3_512};

use super::*;
use crate::{
    PrivateKey,
    post_quantum::{
        kem::Seed,
        message::{ExchangeMessage, Kind},
    },
    stack::measure::{depth, left},
};

/// One side: its state of the peer, and its randomness.
struct Side {
    own: PublicKey,
    peer: Arc<Peer>,
    device: Arc<Device>,
    agreement: Agreement,
    rng: ChaCha20Rng,
}

/// The offerer and the encapsulator.
fn pair() -> [Side; 2] {
    let mut keys = [1, 2].map(|seed| PrivateKey::from_bytes(&[seed; 32]).public_key());
    keys.sort();
    [(0, 1), (1, 0)].map(|(own, peer)| Side {
        own: keys[own],
        peer: Peer::new(keys[peer]),
        device: Device::new(),
        agreement: Agreement::default(),
        rng: ChaCha20Rng::seed_from_u64(own as u64),
    })
}

impl Side {
    fn step<T>(
        &mut self,
        ms: u64,
        step: impl FnOnce(&mut Agreement, &mut Tools<'_, ChaCha20Rng>) -> T,
    ) -> T {
        let since = Duration::from_millis(ms);
        let mut tools = Tools {
            mode: PostQuantum::On,
            own: &self.own,
            peer: &self.peer,
            device: &self.device,
            now: Now { time: Time::from_nanos(1_000_000_000) + since, wall: since },
            rng: &mut self.rng,
        };
        step(&mut self.agreement, &mut tools)
    }

    /// Handles messages. Returns the stack below.
    fn receive(&mut self, ms: u64, messages: Vec<ExchangeMessage>) -> Vec<u64> {
        messages.into_iter().for_each(|message| self.peer.exchange.push_received(message));
        left(|| self.step(ms, |agreement, tools| agreement.handle_messages(tools)))
    }

    /// Handles the timers that are due. Returns the stack below.
    fn wait(&mut self, ms: u64) -> Vec<u64> {
        left(|| self.step(ms, |agreement, tools| agreement.handle_timeout(tools)))
    }

    fn sent(&self) -> Vec<ExchangeMessage> {
        self.peer.exchange.take_outgoing()
    }
}

/// Pieces of secrets, of eight bytes each.
#[derive(Default)]
struct Pieces(HashSet<[u8; 8]>);

impl Pieces {
    fn of(secret: &[u8]) -> Self {
        Self(secret.as_chunks().0.iter().copied().collect())
    }

    /// Pieces of a private key: the seed `d || z`, the seed `sigma` derived from `d`, and the
    /// vector derived from that (FIPS 203, algorithms 13 and 16).
    fn of_key(seed: [u8; 64]) -> Self {
        let sigma = &Sha3_512::digest([&seed[..32], &[3]].concat())[32..];
        let key = DecapsulationKey::<MlKem768>::from_seed(seed.into());
        let expanded = key.to_expanded_bytes();
        // Three polynomials of 256 coefficients, two of them in three bytes.
        let (pairs, _) = expanded[..3 * 384].as_chunks::<3>();
        let coefficients = pairs.iter().flat_map(|&[low, middle, high]| {
            let (middle, high) = (u16::from(middle), u16::from(high));
            [u16::from(low) | (middle & 0xf) << 8, middle >> 4 | high << 4]
        });
        let vector: Vec<u8> = coefficients.flat_map(u16::to_ne_bytes).collect();
        [&seed[..], sigma, &vector].map(Self::of).into_iter().collect()
    }

    /// Whether the stack contains any of them.
    fn are_in(&self, stack: &[u64]) -> bool {
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.array_windows().any(|piece| self.0.contains(piece))
    }
}

impl FromIterator<Self> for Pieces {
    fn from_iter<T: IntoIterator<Item = Self>>(all: T) -> Self {
        Self(all.into_iter().flat_map(|one| one.0).collect())
    }
}

#[test]
fn steps_of_an_exchange_leave_no_secret_on_the_stack() {
    let [mut one, mut other] = pair();
    let (mut rng, mut drawn) = (one.rng.clone(), [0; 64]);
    let _id = rng.next_u32();
    let seed = Seed::generate(&mut rng.clone());
    rng.fill_bytes(&mut drawn);
    let offer = Pieces::of_key(drawn);
    assert!(offer.are_in(&left(|| seed.key())), "the test does not find the key");

    let stack = one.receive(0, vec![ExchangeMessage::short(Kind::Request, 0)]);
    assert!(!offer.are_in(&stack), "a new offer leaves its key");
    assert!(!offer.are_in(&one.wait(500)), "a repeated offer leaves its key");
    let key = one.sent();
    let mut random = [0; 32];
    other.rng.clone().fill_bytes(&mut random);
    let sealing = Pieces::of(&random);
    assert!(
        !sealing.are_in(&other.receive(501, key[..3].to_vec())),
        "encapsulation leaves its randomness"
    );
    let ciphertext = other.sent();
    assert_eq!(ciphertext.len(), 3);
    assert!(!offer.are_in(&one.receive(502, ciphertext)), "decapsulation leaves the key");
    assert_eq!(one.sent().pop().map(|message| message.kind), Some(Kind::Done));
}

#[test]
fn every_step_of_an_exchange_uses_less_stack_than_is_wiped() {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let now = Time::from_nanos(1_000_000_000);
    let mut offers = Exchange::new(Role::Offerer);
    let mut seals = Exchange::new(Role::Encapsulator);
    let sent = |exchange: &mut Exchange| -> Vec<_> {
        std::iter::from_fn(|| exchange.poll_message()).collect()
    };
    let request = ExchangeMessage::short(Kind::Request, 0);
    let mut deepest = vec![("offer", depth(|| offers.handle_message(&request, now, &mut rng)))];
    let due = offers.poll_timeout().expect("the key is retransmitted");
    deepest.push(("repeat", depth(|| offers.handle_timeout(due))));
    let key = sent(&mut offers);
    for part in &key[..3] {
        deepest.push(("seal", depth(|| seals.handle_message(part, now, &mut rng))));
    }
    for part in sent(&mut seals) {
        deepest.push(("open", depth(|| offers.handle_message(&part, due, &mut rng))));
    }
    // A few frames of the control half are above these.
    let room = stack::EXCHANGE - 512;
    assert!(deepest.iter().all(|(_, words)| *words < room), "{deepest:?}");
}
