//! Both machines of an exchange, and what a peer may say that does not belong there.

use proptest::prelude::*;
use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};

use super::*;

fn at(ms: u64) -> Time {
    Time::from_nanos(1_000_000_000) + Duration::from_millis(ms)
}

fn rng() -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(1)
}

fn said(exchange: &mut Exchange) -> Vec<ExchangeMessage> {
    std::iter::from_fn(|| exchange.poll_message()).collect()
}

fn kinds(messages: &[ExchangeMessage]) -> Vec<Kind> {
    messages.iter().map(|message| message.kind).collect()
}

/// What comes of messages that arrive.
fn hear(exchange: &mut Exchange, messages: &[ExchangeMessage], ms: u64) -> Vec<Outcome> {
    let mut rng = ChaCha20Rng::seed_from_u64(ms + 2);
    messages.iter().filter_map(|it| exchange.handle_message(it, at(ms), &mut rng)).collect()
}

fn pair() -> [Exchange; 2] {
    [Role::Offers, Role::Seals].map(Exchange::new)
}

#[test]
fn both_sides_have_the_same_secret_and_know_when_the_other_one_has() {
    let [mut one, mut other] = pair();
    one.handle_want(false, at(0), &mut rng());
    let ask = said(&mut one);
    assert_eq!(kinds(&ask), [Kind::Ask]);
    hear(&mut other, &ask, 1);
    hear(&mut one, &said(&mut other), 2);
    let key = said(&mut one);
    assert_eq!(kinds(&key), [Kind::Key; 3]);
    let sealed = hear(&mut other, &key, 3);
    let [Outcome::Agreed { id, secret }] = &sealed[..] else {
        panic!("the one that seals has a secret")
    };
    let ciphertext = said(&mut other);
    let opened = hear(&mut one, &ciphertext, 4);
    let [Outcome::Agreed { id: same, secret: opened }] = &opened[..] else {
        panic!("the one that offers has a secret")
    };
    assert_eq!((id, secret.as_slice()), (same, opened.as_slice()));
    let done = said(&mut one);
    assert!(matches!(hear(&mut other, &done, 5)[..], [Outcome::Shared { id: it }] if it == *id));
    let ready = said(&mut other);
    assert!(matches!(hear(&mut one, &ready, 6)[..], [Outcome::Shared { id: it }] if it == *id));
    assert!(one.poll_timeout().is_none() && other.poll_timeout().is_none(), "nothing is left");
    hear(&mut other, &done, 7);
    assert_eq!(kinds(&said(&mut other)), [Kind::Ready], "as often as it is asked for");
}

#[test]
fn a_key_that_is_repeated_has_the_same_ciphertext_and_one_that_comes_too_soon_has_none() {
    let [mut one, mut other] = pair();
    one.answers = true;
    one.handle_want(false, at(0), &mut rng());
    let key = said(&mut one);
    hear(&mut other, &key, 1);
    let ciphertext = said(&mut other);
    assert!(hear(&mut other, &key, 300).is_empty());
    assert_eq!(said(&mut other), ciphertext);
    hear(&mut other, &key, 301);
    assert!(said(&mut other).is_empty(), "each part asked for it");

    let [mut again, _] = pair();
    again.answers = true;
    again.handle_want(false, at(0), &mut ChaCha20Rng::seed_from_u64(9));
    let another = said(&mut again);
    assert!(hear(&mut other, &another, 500).is_empty());
    assert!(matches!(hear(&mut other, &another, 1_001)[..], [Outcome::Agreed { .. }]));
}

#[test]
fn a_peer_that_asks_again_and_again_has_one_key_a_second() {
    let [mut one, mut other] = pair();
    let ask = [ExchangeMessage::short(Kind::Ask, 0)];
    hear(&mut one, &ask, 0);
    let key = said(&mut one);
    hear(&mut other, &key, 1);
    assert!(matches!(hear(&mut one, &said(&mut other), 2)[..], [Outcome::Agreed { .. }]));
    said(&mut one);
    hear(&mut one, &ask, 999);
    assert!(said(&mut one).is_empty(), "it costs nothing");
    hear(&mut one, &ask, 1_000);
    assert_eq!(kinds(&said(&mut one)), [Kind::Key; 3]);
}

#[test]
fn what_is_not_answered_is_repeated_a_few_times_and_then_given_up() {
    let [mut one, _] = pair();
    one.answers = true;
    one.handle_want(false, at(0), &mut rng());
    let mut times = Vec::new();
    while let Some(due) = one.poll_timeout() {
        times.push(due.since(at(0)).as_millis());
        let failed = matches!(one.handle_timeout(due), Some(Outcome::Failed));
        assert_eq!(failed, one.poll_timeout().is_none());
    }
    assert_eq!(times, [500, 1_500, 3_500, 7_500, 15_500, 23_500, 31_500, 39_500]);
    assert_eq!(said(&mut one).len(), 8 * 3);
    assert!(!one.answers(), "it is asked before it is offered another one");
}

#[test]
fn what_is_kept_of_an_exchange_that_does_not_go_on_is_dropped() {
    let [mut one, mut other] = pair();
    one.answers = true;
    one.handle_want(false, at(0), &mut rng());
    hear(&mut other, &said(&mut one), 0);
    assert!(other.sealing.sealed.is_some());
    let until = other.poll_timeout().expect("it is kept for a while");
    assert_eq!(until, at(0) + KEPT);
    other.handle_timeout(until);
    assert!(other.sealing.sealed.is_none() && other.poll_timeout().is_none());
}

#[test]
fn a_key_that_is_none_is_not_answered() {
    let [_, mut other] = pair();
    let key: Vec<_> = ExchangeMessage::parts(Kind::Key, 3, &[0xff; kem::KEY_LEN]).collect();
    assert!(hear(&mut other, &key, 0).is_empty());
    assert!(said(&mut other).is_empty());
}

#[test]
fn a_ciphertext_for_another_key_gives_another_secret_and_no_text_of_another_length_is_one() {
    let [one, another] = [1, 2].map(|seed| Seed::generate(&mut ChaCha20Rng::seed_from_u64(seed)));
    let (ciphertext, secret) = kem::seal(&one.key(), &mut rng()).expect("a key");
    assert_eq!(one.open(&ciphertext).expect("a ciphertext").as_slice(), secret.as_slice());
    assert_ne!(another.open(&ciphertext).expect("a ciphertext").as_slice(), secret.as_slice());
    assert!(one.open(&ciphertext[1..]).is_none());
    assert!(kem::seal(&one.key()[1..], &mut rng()).is_none());
}

fn any_message() -> impl Strategy<Value = ExchangeMessage> {
    (1u8..=6, 0u8..3, 0u32..3).prop_map(|(kind, part, id)| {
        let kind = [Kind::Ask, Kind::Answer, Kind::Key, Kind::Ciphertext, Kind::Done, Kind::Ready]
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
    fn whatever_a_peer_says_costs_a_bounded_answer_and_ends(
        offers in any::<bool>(), wanted in any::<bool>(),
        messages in prop::collection::vec(any_message(), 0..40)
    ) {
        let [one, other] = pair();
        let mut exchange = if offers { one } else { other };
        if wanted {
            exchange.handle_want(true, at(0), &mut rng());
        }
        for (ms, message) in (0..).zip(&messages) {
            said(&mut exchange);
            exchange.handle_message(message, at(ms), &mut rng());
            prop_assert!(said(&mut exchange).len() <= 3);
        }
        let mut rounds = 0;
        while let Some(due) = exchange.poll_timeout() {
            exchange.handle_timeout(due);
            rounds += 1;
            prop_assert!(rounds < 20, "it does not end");
        }
    }
}
