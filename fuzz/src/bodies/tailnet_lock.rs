//! Tailnet lock: updates from a coordinator, and signatures of node keys.

use std::time::Duration;

use mesh::tka_follower::{Follower, LocalAuthority, SyncInput};
use tailnet::{
    keys::NodePublic,
    map_messages::TkaInfo,
    tka::{Authority, rejected_peers, sync_requests::Requester},
};

use super::take;

/// A checkpoint, further updates, and signatures, each behind its length. The stored chain can be
/// restored, and refused input changes nothing.
pub fn tailnet_lock(data: &[u8]) {
    let mut rest = data;
    let mut next = || {
        let [low, high] = take(&mut rest);
        let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (text, behind) = rest.split_at(len);
        rest = behind;
        (!text.is_empty()).then_some(text)
    };
    let Some(Ok(mut authority)) = next().map(Authority::bootstrap) else { return };
    for _ in 0..8 {
        let Some(text) = next() else { break };
        let before = authority.head();
        if authority.inform(&[text]).is_err() {
            assert_eq!(authority.head(), before);
        }
        let texts = authority.encoded_updates();
        let restored = Authority::from_stored(&texts).expect("it was kept");
        assert_eq!((restored.head(), restored.encoded_updates()), (authority.head(), texts));
        let node = NodePublic([50; 32]);
        let refused = rejected_peers(&authority, [(node, text)].into_iter());
        assert_eq!(!refused.contains_key(&node), authority.check(&node, text).is_ok());
    }
    follow(authority, next);
}

/// A coordinator's answers to a node with these keys. The keys change only by valid updates, and
/// are disabled only by a secret.
fn follow<'a>(authority: Authority, mut next: impl FnMut() -> Option<&'a [u8]>) {
    let tka = TkaInfo { head: "x".to_owned(), disabled: false };
    let requester = Requester { version: 119, node_key: NodePublic([1; 32]) };
    let mut input = SyncInput { tka: Some(&tka), requester, now: Duration::ZERO };
    let mut follower = Follower::new(LocalAuthority::Trusted(Box::new(authority)));
    follower.handle_connected();
    let mut request = None;
    for _ in 0..8 {
        let Some(text) = next() else { break };
        input.now = follower.poll_timeout().unwrap_or(input.now);
        let Some(query) = request.take().or_else(|| follower.poll_request(input)) else { break };
        let before = follower.local_authority().authority().map(Authority::head);
        let (changed, further) = follower.handle_answer(query.number, Ok(text), input, 0);
        let after = follower.local_authority().authority().map(Authority::head);
        assert!(after.is_some() && changed == (before != after));
        request = further;
    }
}
