//! Tailnet lock at a node: the user's commands, the synchronization with a coordinator, and nodes
//! that a coordinator inserts. The chains are those of the tests of the crate `tailnet`.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends")]

mod command;
mod follow;
mod inserted_nodes;
#[expect(dead_code, reason = "the tests of the crate `tailnet` use the rest")]
#[path = "../../../tailnet/tests/tka/vectors.rs"]
mod vectors;

use mesh::tka_follower::{Step, next_step};
use tailnet::{
    keys::NodePublic,
    map_messages::TkaInfo,
    tka::{Authority, DecodeError, TkaKey, VerifyError, WrappedAuthKey, sync_requests::Requester},
};

use self::vectors::{Chain, begin, chains, hex};

#[test]
fn next_step_depends_on_both_heads() {
    let chain = &chains()[0];
    let authority = begin(chain);
    let input = |head: &str, disabled| TkaInfo { head: head.into(), disabled };
    let head = authority.head().to_string();
    assert_eq!(next_step(None, None), Step::Nothing);
    assert_eq!(next_step(Some(&input("x", true)), None), Step::Nothing);
    assert_eq!(next_step(Some(&input(&head, false)), None), Step::FetchCheckpoint);
    assert_eq!(next_step(Some(&input(&head, false)), Some(&authority)), Step::Nothing);
    assert_eq!(next_step(Some(&input("x", false)), Some(&authority)), Step::FetchUpdates);
    assert_eq!(next_step(None, Some(&authority)), Step::FetchSecret);
    assert_eq!(next_step(Some(&input(&head, true)), Some(&authority)), Step::FetchSecret);
}
