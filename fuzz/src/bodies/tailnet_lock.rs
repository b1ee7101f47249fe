//! Tailnet lock: updates that a coordinator passes on, and signatures of node keys.

use std::time::Duration;

use tailnet::{
    keys::NodePublic,
    messages::LockInfo,
    tka::{
        Authority,
        follow::{Follower, Known, Said},
        refused_peers,
        sync::Asking,
    },
};

use super::take;

/// A checkpoint, what follows it, and signatures, each behind its length: what is kept comes back,
/// and nothing that is refused changes anything.
pub fn tailnet_lock(data: &[u8]) {
    let mut rest = data;
    let mut next = || {
        let [low, high] = take(&mut rest);
        let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (text, behind) = rest.split_at(len);
        rest = behind;
        (!text.is_empty()).then_some(text)
    };
    let Some(Ok(mut authority)) = next().map(Authority::begin) else { return };
    for _ in 0..8 {
        let Some(text) = next() else { break };
        let before = authority.head();
        if authority.inform(&[text]).is_err() {
            assert_eq!(authority.head(), before);
        }
        let texts = authority.texts();
        let restored = Authority::restored(&texts).expect("it was kept");
        assert_eq!((restored.head(), restored.texts()), (authority.head(), texts));
        let node = NodePublic([50; 32]);
        let refused = refused_peers(&authority, [(node, text)].into_iter());
        assert_eq!(!refused.contains_key(&node), authority.check(&node, text).is_ok());
    }
    follow(authority, next);
}

/// What a coordinator answers to a node that knows these keys: they change where it is told, and are
/// lost by a secret alone.
fn follow<'a>(authority: Authority, mut next: impl FnMut() -> Option<&'a [u8]>) {
    let lock = LockInfo { head: "x".to_owned(), disabled: false };
    let asking = Asking { version: 119, node_key: NodePublic([1; 32]) };
    let mut said = Said { lock: Some(&lock), asking, now: Duration::ZERO };
    let mut follower = Follower::new(Known::Keys(Box::new(authority)));
    follower.handle_connected();
    let mut question = None;
    for _ in 0..8 {
        let Some(text) = next() else { break };
        said.now = follower.poll_timeout().unwrap_or(said.now);
        let Some(asked) = question.take().or_else(|| follower.poll_question(said)) else { break };
        let before = follower.known().authority().map(Authority::head);
        let (changed, further) = follower.handle_answer(asked.number, Ok(text), said, 0);
        let after = follower.known().authority().map(Authority::head);
        assert!(after.is_some() && changed == (before != after));
        question = further;
    }
}
