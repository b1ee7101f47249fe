//! Tests of the handshake with published vectors.

use rand_chacha::{ChaCha20Rng, rand_core::SeedableRng};

use super::*;
use crate::stack;

/// The vector `Noise_IKpsk2_25519_ChaChaPoly_BLAKE2s` of cacophony
/// (haskell-cryptography/cacophony, `vectors/cacophony.txt`, public domain).
mod vector {
    pub(super) const PROLOGUE: &str = "4a6f686e2047616c74";
    pub(super) const PSK: &str = "54686973206973206d7920417573747269616e20706572737065637469766521";
    pub(super) const INIT_STATIC: &str =
        "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1";
    pub(super) const INIT_EPHEMERAL: &str =
        "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a";
    pub(super) const INIT_REMOTE_STATIC: &str =
        "31e0303fd6418d2f8c0e78b91f22e8caed0fbe48656dcf4767e4834f701b8f62";
    pub(super) const RESP_STATIC: &str =
        "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893";
    pub(super) const RESP_EPHEMERAL: &str =
        "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b";

    /// Payload and ciphertext of initiation, response and transport messages. The sides alternate,
    /// starting with the initiator.
    pub(super) const MESSAGES: [(&str, &str); 6] = [
        (
            "4c756477696720766f6e204d69736573",
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944\
             001e21de9f98ddd8e2ad57527207feb56253c9c94a9e496782ecfcb2a75fbcaf\
             1b52948cc48daefe660c62119ab5000980c84831215f2441eba616548e832985\
             464cf17e51ee93109008399a21f7e13f",
        ),
        (
            "4d757272617920526f746862617264",
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843\
             cb765f2caef0751b8f007572dab0322217755c0632f365717edbf34d33e87a",
        ),
        ("462e20412e20486179656b", "8153ca9833bc3c1b91a7e66e5f4d4f5b59bf9e64c2f20d15f0bba7"),
        ("4361726c204d656e676572", "07af0c9c86e1b4e80f36b04ff7688d51141af3debd0332f0a705ef"),
        (
            "4a65616e2d426170746973746520536179",
            "6ab1467c0448cc78394494abaaf23afce0e234315d6e2624dcbfa8a21c1c4d073d",
        ),
        (
            "457567656e2042f6686d20766f6e2042617765726b",
            "dfc346c0d2296ae6cf1acf6f12b8456a1dba228cf8d8b774aacf1c47fc53aa80ebc7a4c292",
        ),
    ];
}

fn bytes(hex: &str) -> Vec<u8> {
    base16ct::lower::decode_vec(hex).unwrap()
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap()
}

fn key(hex: &str) -> [u8; 32] {
    array(&bytes(hex))
}

/// The vector's keys are raw bytes. Clamping them does not change the result of X25519.
fn private(hex: &str) -> PrivateKey {
    PrivateKey::from_bytes(&key(hex))
}

/// The initiator's side of the vector's handshake, up to its first message.
fn start(identity: &Identity, ephemeral: PrivateKey) -> (Initiator, InitiationParts, Vec<u8>) {
    let remote = PublicKey::from(key(vector::INIT_REMOTE_STATIC));
    let static_static = identity.private.diffie_hellman(&remote).unwrap();
    let payload = bytes(vector::MESSAGES[0].0);
    let mut sealed = vec![0; payload.len() + TAG];
    let (initiator, parts) = Initiator::start_with(
        &bytes(vector::PROLOGUE),
        Statics { identity, remote: &remote, shared: &static_static },
        ephemeral,
        &payload,
        &mut sealed,
    )
    .unwrap();
    (initiator, parts, sealed)
}

/// The vector's responder.
fn responder() -> Identity {
    Identity::with_prologue(&bytes(vector::PROLOGUE), private(vector::RESP_STATIC))
}

/// Opens an initiation in one batch with forged ones.
fn opened(identity: &Identity, initiation: &[u8]) -> Option<OpenedInitiation> {
    let static_key = array(&initiation[32..80]);
    let mut all = [(array::<32>(&initiation[..32]).into(), &static_key); 9];
    let forged = [0; 48];
    (0..9).filter(|at| *at != 5).for_each(|at| all[at].1 = &forged);
    let mut opened = OpenedInitiation::open_each(identity, &all);
    assert!(opened.iter().enumerate().all(|(at, opened)| at == 5 || opened.is_none()));
    opened.swap_remove(5)
}

/// Proves the vector's claim in one batch with forged ones.
fn proved(
    opened: &OpenedInitiation,
    static_static: &Secret,
    initiation: &[u8],
) -> Option<([u8; 16], Responder)> {
    let claim = |sealed| Claim { opened, static_static, sealed };
    let forged = [0; 32];
    let claims = [&forged, &initiation[80..], &forged, &forged].map(claim);
    let mut proved = Claim::prove_each(&claims);
    assert!(proved.iter().enumerate().all(|(at, proved)| at == 1 || proved.is_none()));
    proved.swap_remove(1)
}

#[test]
fn vector_public_key_matches_its_private_key() {
    assert_eq!(
        *private(vector::RESP_STATIC).public_key().as_bytes(),
        key(vector::INIT_REMOTE_STATIC)
    );
}

#[test]
fn initiator_writes_and_reads_the_messages_of_the_vector() {
    let identity = Identity::new(private(vector::INIT_STATIC));
    let (initiator, parts, sealed) = start(&identity, private(vector::INIT_EPHEMERAL));
    let message = [parts.ephemeral.as_bytes(), &parts.static_key[..], &sealed].concat();
    assert_eq!(message, bytes(vector::MESSAGES[0].1));

    let response = bytes(vector::MESSAGES[1].1);
    let psk = PresharedKey::from_bytes(&key(vector::PSK));
    let mut payload = vec![0; response.len() - 32 - TAG];
    let ephemeral = PublicKey::from(array::<32>(&response[..32]));
    let answered = initiator.open_response(&identity, &ephemeral).unwrap();
    let keys = answered.finish(&psk, &response[32..], &mut payload).unwrap();
    assert_eq!(payload, bytes(vector::MESSAGES[1].0));
    check_transport(&keys, true);
}

#[test]
fn responder_reads_and_writes_the_messages_of_the_vector() {
    let identity = responder();
    let initiation = bytes(vector::MESSAGES[0].1);
    let opened = opened(&identity, &initiation).unwrap();
    assert_eq!(opened.remote, private(vector::INIT_STATIC).public_key());
    let static_static = identity.private.diffie_hellman(&opened.remote).unwrap();
    let (payload, responder) = proved(&opened, &static_static, &initiation).unwrap();
    assert_eq!(payload[..], bytes(vector::MESSAGES[0].0));

    let ephemeral = private(vector::RESP_EPHEMERAL);
    let psk = PresharedKey::from_bytes(&key(vector::PSK));
    let payload = bytes(vector::MESSAGES[1].0);
    let ephemeral = Ephemeral::with(&[(ephemeral, &responder)]).pop().flatten().unwrap();
    for many in [1, 5] {
        let questions = (0..many)
            .map(|_| ResponseRequest { responder: &responder, ephemeral: &ephemeral, psk: &psk })
            .collect::<Vec<_>>();
        let answers = SealedResponse::seal_each(&questions, &payload);
        assert_eq!(answers.len(), many);
        for answer in answers {
            let message = [&ephemeral.public.as_bytes()[..], &answer.sealed].concat();
            assert_eq!(message, bytes(vector::MESSAGES[1].1));
            check_transport(&answer.keys, false);
        }
    }
}

/// The vector's transport messages through `aead`: Noise's nonce is WireGuard's.
fn check_transport(keys: &TransportKeys, initiator: bool) {
    for (at, (payload, ciphertext)) in vector::MESSAGES[2..].iter().enumerate() {
        let counter = at as u64 / 2;
        let (payload, ciphertext) = (bytes(payload), bytes(ciphertext));
        let ours = (at % 2 == 0) == initiator;
        let key = aead::Key::new(if ours { &keys.send } else { &keys.recv });
        if ours {
            let mut data = [&payload[..], &[0; TAG]].concat();
            aead::seal(&mut [aead::Seal { key: &key, counter, data: &mut data }]);
            assert_eq!(data, ciphertext, "message {at}");
        } else {
            let mut data = ciphertext;
            let mut open = [aead::Open { key: &key, counter, data: &mut data, authentic: false }];
            aead::open(&mut open);
            assert!(open[0].authentic, "message {at}");
            assert_eq!(data[..payload.len()], payload);
        }
    }
}

#[test]
fn changed_byte_in_a_message_of_the_vector_is_rejected() {
    let identity = Identity::new(private(vector::INIT_STATIC));
    let (initiator, _, _) = start(&identity, private(vector::INIT_EPHEMERAL));
    let response = bytes(vector::MESSAGES[1].1);
    let psk = PresharedKey::from_bytes(&key(vector::PSK));
    for at in 0..response.len() {
        let mut forged = response.clone();
        forged[at] ^= 1;
        let mut payload = vec![0; response.len() - 32 - TAG];
        let ephemeral = PublicKey::from(array::<32>(&forged[..32]));
        let keys = initiator
            .open_response(&identity, &ephemeral)
            .and_then(|answered| answered.finish(&psk, &forged[32..], &mut payload));
        assert!(keys.is_none(), "byte {at}");
    }

    let identity = responder();
    let initiation = bytes(vector::MESSAGES[0].1);
    let remote = private(vector::INIT_STATIC).public_key();
    let static_static = identity.private.diffie_hellman(&remote).unwrap();
    for at in 0..initiation.len() {
        let mut forged = initiation.clone();
        forged[at] ^= 1;
        let opened = opened(&identity, &forged);
        let responder = opened.and_then(|opened| proved(&opened, &static_static, &forged));
        assert!(responder.is_none(), "byte {at}");
    }
}

#[test]
fn response_with_another_preshared_key_is_rejected() {
    let identity = Identity::new(private(vector::INIT_STATIC));
    let (initiator, _, _) = start(&identity, private(vector::INIT_EPHEMERAL));
    let response = bytes(vector::MESSAGES[1].1);
    let ephemeral = PublicKey::from(array::<32>(&response[..32]));
    let mut payload = vec![0; response.len() - 32 - TAG];
    let psk = PresharedKey::default();
    let answered = initiator.open_response(&identity, &ephemeral);
    assert!(answered.is_none_or(|it| it.finish(&psk, &response[32..], &mut payload).is_none()));
}

/// With a point of low order anyone can compute the result, and seal any static key with it.
#[test]
fn initiation_with_a_low_order_ephemeral_key_is_not_opened() {
    let identity = responder();
    let ephemeral = PublicKey::from([0; 32]);
    let mut symmetric = identity.start.clone();
    symmetric.mix_ephemeral(&ephemeral);
    let key = symmetric.mix_key(&Secret::default());
    let mut static_key = [0; 32 + TAG];
    symmetric.encrypt(&key, identity.public.as_bytes(), &mut static_key);
    for many in [1, 9] {
        let opened = OpenedInitiation::open_each(&identity, &vec![(ephemeral, &static_key); many]);
        assert_eq!(opened.len(), many);
        assert!(opened.iter().all(Option::is_none));
    }
}

/// The slow path handles 64 handshakes at once. Secrets deeper than the wiped part of the stack
/// would remain.
#[test]
fn sixty_four_handshakes_use_less_stack_than_is_wiped() {
    let identity = responder();
    let initiation = bytes(vector::MESSAGES[0].1);
    let static_key = array(&initiation[32..80]);
    let initiations = [(array::<32>(&initiation[..32]).into(), &static_key); 64];
    let psk = PresharedKey::from_bytes(&key(vector::PSK));
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let mut answered = 0;
    let deep = stack::measure::depth(|| {
        let opened = OpenedInitiation::open_each(&identity, &initiations);
        let remote = opened[0].as_ref().unwrap().remote;
        let static_static = &identity.private.diffie_hellman(&remote).unwrap();
        let sealed = &initiation[80..];
        let claims: Vec<_> =
            opened.iter().flatten().map(|opened| Claim { opened, static_static, sealed }).collect();
        let proved = Claim::prove_each::<16>(&claims);
        let responders = proved.iter().flatten().map(|(_, responder)| responder);
        let ephemerals = Ephemeral::generate_each(responders.clone(), &mut rng);
        let questions = responders.zip(ephemerals.iter().flatten());
        let questions: Vec<_> = questions
            .map(|(responder, ephemeral)| ResponseRequest { responder, ephemeral, psk: &psk })
            .collect();
        answered = SealedResponse::seal_each(&questions, &[]).len();
    });
    assert_eq!(answered, 64);
    let (deep, wiped) = (8 * deep, 8 * stack::HANDSHAKE);
    assert!(deep < wiped * 3 / 4, "{deep} of {wiped} bytes");
    assert!(deep > 4096, "{deep} bytes: the measurement does not work");
}

/// A private key of the vector. Memcheck treats its bytes as secret.
fn hidden(hex: &str) -> PrivateKey {
    let bytes = key(hex);
    memcheck::hide(&bytes);
    PrivateKey::from_bytes(&bytes)
}

#[test]
#[ignore = "by make memcheck, under valgrind"]
fn memcheck_finds_only_validity_branches_in_an_initiator() {
    memcheck::begin();
    let identity = Identity::new(hidden(vector::INIT_STATIC));
    let psk = key(vector::PSK);
    memcheck::hide(&psk);
    let psk = PresharedKey::from_bytes(&psk);

    // Each Diffie-Hellman has one branch: whether the result is zero.
    let mut started = None;
    let begin = || started = Some(start(&identity, hidden(vector::INIT_EPHEMERAL)));
    assert_eq!(memcheck::decisions(begin), 2);
    let (initiator, parts, sealed) = started.unwrap();
    let message = [parts.ephemeral.as_bytes(), &parts.static_key[..], &sealed].concat();
    memcheck::show(&message);
    assert_eq!(message, bytes(vector::MESSAGES[0].1));

    // The response has one more: whether it is authentic.
    let response = bytes(vector::MESSAGES[1].1);
    let ephemeral = PublicKey::from(array::<32>(&response[..32]));
    let mut payload = vec![0; response.len() - 32 - TAG];
    let mut keys = None;
    let finish = || {
        let answered = initiator.open_response(&identity, &ephemeral).unwrap();
        keys = answered.finish(&psk, &response[32..], &mut payload);
    };
    assert_eq!(memcheck::decisions(finish), 3);
    let keys = keys.unwrap();
    [&keys.send, &keys.recv].into_iter().for_each(|key| memcheck::show(&key[..]));
    check_transport(&keys, true);
}

#[test]
#[ignore = "by make memcheck, under valgrind"]
fn memcheck_finds_no_branch_on_a_secret_in_a_response() {
    memcheck::begin();
    let identity = Identity::with_prologue(&bytes(vector::PROLOGUE), hidden(vector::RESP_STATIC));
    let psk = key(vector::PSK);
    memcheck::hide(&psk);
    let psk = PresharedKey::from_bytes(&psk);
    let initiation = bytes(vector::MESSAGES[0].1);
    let opened = opened(&identity, &initiation).unwrap();
    let static_static = identity.private.diffie_hellman(&opened.remote).unwrap();
    let (_, responder) = proved(&opened, &static_static, &initiation).unwrap();
    let ephemeral = Ephemeral::with(&[(hidden(vector::RESP_EPHEMERAL), &responder)]);
    let ephemeral = ephemeral.into_iter().next().flatten().unwrap();
    let question = ResponseRequest { responder: &responder, ephemeral: &ephemeral, psk: &psk };
    let mut answers = Vec::new();
    let payload = bytes(vector::MESSAGES[1].0);
    let answer = || answers = SealedResponse::seal_each(&[question], &payload);
    assert_eq!(memcheck::decisions(answer), 0);
    memcheck::show(&answers[0].sealed);
    assert_eq!(answers[0].sealed, bytes(vector::MESSAGES[1].1)[32..]);
}
