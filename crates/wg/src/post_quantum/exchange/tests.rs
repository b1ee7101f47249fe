//! Both state machines of an exchange, and unexpected messages of a peer.

use proptest::prelude::*;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};

use super::*;

fn at(ms: u64) -> Time {
    Time::from_nanos(1_000_000_000) + Duration::from_millis(ms)
}

fn rng() -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(1)
}

fn sent(exchange: &mut Exchange) -> Vec<ExchangeMessage> {
    std::iter::from_fn(|| exchange.poll_message()).collect()
}

fn kinds(messages: &[ExchangeMessage]) -> Vec<Kind> {
    messages.iter().map(|message| message.kind).collect()
}

/// Handles messages. Returns the outcomes.
fn receive(exchange: &mut Exchange, messages: &[ExchangeMessage], ms: u64) -> Vec<Outcome> {
    let mut rng = ChaCha20Rng::seed_from_u64(ms + 2);
    messages.iter().filter_map(|it| exchange.handle_message(it, at(ms), &mut rng)).collect()
}

fn pair() -> [Exchange; 2] {
    [Role::Offerer, Role::Encapsulator].map(Exchange::new)
}

#[test]
fn both_sides_get_the_same_secret_and_its_confirmation() {
    let [mut one, mut other] = pair();
    one.start(false, at(0), &mut rng());
    let request = sent(&mut one);
    assert_eq!(kinds(&request), [Kind::Request]);
    receive(&mut other, &request, 1);
    receive(&mut one, &sent(&mut other), 2);
    let key = sent(&mut one);
    assert_eq!(kinds(&key), [Kind::Key; 3]);
    let sealed = receive(&mut other, &key, 3);
    let [Outcome::Agreed { id, secret }] = &sealed[..] else {
        panic!("the encapsulator has a secret")
    };
    let ciphertext = sent(&mut other);
    let opened = receive(&mut one, &ciphertext, 4);
    let [Outcome::Agreed { id: same, secret: opened }] = &opened[..] else {
        panic!("the offerer has a secret")
    };
    assert_eq!((id, secret.as_slice()), (same, opened.as_slice()));
    let done = sent(&mut one);
    assert!(
        matches!(receive(&mut other, &done, 5)[..], [Outcome::Confirmed { id: it }] if it == *id)
    );
    let ready = sent(&mut other);
    assert!(
        matches!(receive(&mut one, &ready, 6)[..], [Outcome::Confirmed { id: it }] if it == *id)
    );
    assert!(one.poll_timeout().is_none() && other.poll_timeout().is_none(), "no timer remains");
    receive(&mut other, &done, 7);
    assert_eq!(kinds(&sent(&mut other)), [Kind::Ready], "Done is answered each time");
}

#[test]
fn repeated_key_gets_the_same_ciphertext_and_an_early_new_key_is_ignored() {
    let [mut one, mut other] = pair();
    one.peer_answers = true;
    one.start(false, at(0), &mut rng());
    let key = sent(&mut one);
    receive(&mut other, &key, 1);
    let ciphertext = sent(&mut other);
    assert!(receive(&mut other, &key, 300).is_empty());
    assert_eq!(sent(&mut other), ciphertext);
    receive(&mut other, &key, 301);
    assert!(sent(&mut other).is_empty(), "the parts of one key are one request");

    let [mut again, _] = pair();
    again.peer_answers = true;
    again.start(false, at(0), &mut ChaCha20Rng::seed_from_u64(9));
    let another = sent(&mut again);
    assert!(receive(&mut other, &another, 500).is_empty());
    assert!(matches!(receive(&mut other, &another, 1_001)[..], [Outcome::Agreed { .. }]));
}

#[test]
fn repeated_requests_get_one_key_a_second() {
    let [mut one, mut other] = pair();
    let request = [ExchangeMessage::short(Kind::Request, 0)];
    receive(&mut one, &request, 0);
    let key = sent(&mut one);
    receive(&mut other, &key, 1);
    assert!(matches!(receive(&mut one, &sent(&mut other), 2)[..], [Outcome::Agreed { .. }]));
    sent(&mut one);
    receive(&mut one, &request, 999);
    assert!(sent(&mut one).is_empty(), "the request is ignored");
    receive(&mut one, &request, 1_000);
    assert_eq!(kinds(&sent(&mut one)), [Kind::Key; 3]);
}

#[test]
fn unanswered_key_is_sent_eight_times_and_then_given_up() {
    let [mut one, _] = pair();
    one.peer_answers = true;
    one.start(false, at(0), &mut rng());
    let mut times = Vec::new();
    while let Some(due) = one.poll_timeout() {
        times.push(due.since(at(0)).as_millis());
        let failed = matches!(one.handle_timeout(due), Some(Outcome::Failed));
        assert_eq!(failed, one.poll_timeout().is_none());
    }
    assert_eq!(times, [500, 1_500, 3_500, 7_500, 15_500, 23_500, 31_500, 39_500]);
    assert_eq!(sent(&mut one).len(), 8 * 3);
    assert!(!one.has_answered(), "a request comes before another key");
}

#[test]
fn state_of_an_incomplete_exchange_is_dropped_after_its_lifetime() {
    let [mut one, mut other] = pair();
    one.peer_answers = true;
    one.start(false, at(0), &mut rng());
    receive(&mut other, &sent(&mut one), 0);
    assert!(other.encapsulation.sealed.is_some());
    let until = other.poll_timeout().expect("the state has a lifetime");
    assert_eq!(until, at(0) + STATE_LIFETIME);
    other.handle_timeout(until);
    assert!(other.encapsulation.sealed.is_none() && other.poll_timeout().is_none());
}

#[test]
fn invalid_key_is_not_answered() {
    let [_, mut other] = pair();
    let key: Vec<_> = ExchangeMessage::parts(Kind::Key, 3, &[0xff; kem::KEY_LEN]).collect();
    assert!(receive(&mut other, &key, 0).is_empty());
    assert!(sent(&mut other).is_empty());
}

#[test]
fn ciphertext_for_another_key_gives_another_secret_and_wrong_length_is_rejected() {
    let [one, another] = [1, 2].map(|seed| Seed::generate(&mut ChaCha20Rng::seed_from_u64(seed)));
    let (ciphertext, secret) = kem::seal(&one.key(), &mut rng()).expect("a key");
    assert_eq!(one.open(&ciphertext).expect("a ciphertext").as_slice(), secret.as_slice());
    assert_ne!(another.open(&ciphertext).expect("a ciphertext").as_slice(), secret.as_slice());
    assert!(one.open(&ciphertext[1..]).is_none());
    assert!(kem::seal(&one.key()[1..], &mut rng()).is_none());
}

fn any_message() -> impl Strategy<Value = ExchangeMessage> {
    (1u8..=6, 0u8..3, 0u32..3).prop_map(|(kind, part, id)| {
        let kind =
            [Kind::Request, Kind::Answer, Kind::Key, Kind::Ciphertext, Kind::Done, Kind::Ready]
                [usize::from(kind) - 1];
        match kind.whole_len() {
            0 => ExchangeMessage::short(kind, id),
            len => {
                let whole = vec![1; len];
                let mut parts = ExchangeMessage::parts(kind, id, &whole);
                parts.nth(part.into()).expect("a part")
            }
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_messages_get_bounded_answers_and_the_exchange_ends(
        offers in any::<bool>(), wanted in any::<bool>(),
        messages in prop::collection::vec(any_message(), 0..40)
    ) {
        let [one, other] = pair();
        let mut exchange = if offers { one } else { other };
        if wanted {
            exchange.start(true, at(0), &mut rng());
        }
        for (ms, message) in (0..).zip(&messages) {
            sent(&mut exchange);
            exchange.handle_message(message, at(ms), &mut rng());
            prop_assert!(sent(&mut exchange).len() <= 3);
        }
        let mut rounds = 0;
        while let Some(due) = exchange.poll_timeout() {
            exchange.handle_timeout(due);
            rounds += 1;
            prop_assert!(rounds < 20, "the exchange does not end");
        }
    }
}
