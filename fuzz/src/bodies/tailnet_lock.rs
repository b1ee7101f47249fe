//! Tailnet lock: updates that a coordinator passes on, and signatures of node keys.

use tailnet::{
    keys::NodePublic,
    tka::{Authority, refused_peers},
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
}
