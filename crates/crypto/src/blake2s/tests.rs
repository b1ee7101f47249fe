use proptest::{collection::vec, prelude::*};

use super::*;

/// Reports a skip if the processor does not support the lanes, because then only the library is
/// tested.
fn needs_lanes() {
    #[cfg(target_arch = "x86_64")]
    if avx512::Lanes::new().is_none() {
        skips::skip("avx512");
    }
}

/// RFC 7693, appendix B.
#[test]
fn example_of_the_rfc_has_the_expected_hash() {
    needs_lanes();
    let expected = "508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982";
    let hex = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!(hex(&hash(&[b"abc"])), expected);
    for hash in hash_each(&[[&b"a"[..], &b"bc"[..]]; 5]) {
        assert_eq!(hex(&hash), expected);
    }
}

#[test]
#[should_panic(expected = "different lengths")]
fn messages_of_different_lengths_are_refused() {
    hash_each(&[[&b"a"[..], &[]], [&[], &[]]]);
}

#[test]
#[should_panic(expected = "too long")]
fn input_longer_than_a_block_is_refused() {
    derive_each::<1>(&[Job { key: &[0; 32], input: &[0; MAX_INPUT_LEN + 1] }]);
}

fn derived<const N: usize>(keys: &[[u8; 32]], inputs: &[Vec<u8>]) -> Result<(), TestCaseError> {
    let jobs: Vec<_> =
        keys.iter().zip(inputs).map(|(key, input)| Job { key, input: &input[..] }).collect();
    let expected: Vec<[Secret; N]> = jobs.iter().map(|job| derive(*job)).collect();
    prop_assert_eq!(derive_each(&jobs), expected);
    Ok(())
}

proptest! {
    #[test]
    fn results_of_a_batch_equal_those_of_single_calls(
        (keys, inputs, other) in (0usize..40, 0usize..=MAX_INPUT_LEN, 0usize..200).prop_flat_map(
            |(many, len, longer)| (
                vec(any::<[u8; 32]>(), many),
                vec(vec(any::<u8>(), len), many),
                vec(vec(any::<u8>(), longer), many),
            ),
        )
    ) {
        needs_lanes();
        derived::<1>(&keys, &inputs)?;
        derived::<2>(&keys, &inputs)?;
        derived::<3>(&keys, &inputs)?;
        let messages: Vec<[&[u8]; 2]> =
            inputs.iter().zip(&other).map(|(one, other)| [&one[..], &other[..]]).collect();
        let expected: Vec<_> = messages.iter().map(|message| hash(message)).collect();
        prop_assert_eq!(hash_each(&messages), expected);
    }
}

/// Tests the crate blake2, because valgrind emulates a processor without AVX-512.
#[test]
#[ignore = "by make memcheck, under valgrind"]
fn memcheck_finds_no_branch_on_a_key_or_a_message() {
    memcheck::begin();
    let (key, input) = ([7; 32], [9; MAX_INPUT_LEN]);
    let expected = (hash(&[&key, &input]), derive::<3>(Job { key: &key, input: &input }));
    memcheck::hide(&key);
    memcheck::hide(&input);
    let (mut hashed, mut derived) = ([0; 32], <[Secret; 3]>::default());
    let decisions = memcheck::decisions(|| {
        hashed = hash(&[&key, &input]);
        derived = derive(Job { key: &key, input: &input });
    });
    assert_eq!(decisions, 0);
    memcheck::show(&hashed);
    derived.iter().for_each(|secret| memcheck::show(&secret[..]));
    assert_eq!((hashed, derived), expected);
}
