//! Streams of maps: a task each, which sleeps until something changes, and reads from the network's
//! log what its client is to be told. A slow client costs nothing: what it was not told waits in the
//! log, and is told once, as it is by then.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use coordinator::{Frame, FrameKey, Part, Polled, Session};
use hyper::Response;
use tokio::{
    sync::mpsc,
    time::{Instant, timeout},
};

use crate::{
    body::{Answer, Parts},
    clock::now,
    machine::pieces,
    serve::Server,
};

/// Signs of life come between these two, as Tailscale's own and headscale's (clients wait 120 s).
const KEEP_ALIVE: [u64; 2] = [50, 59];
/// A client that takes nothing for so long is not there.
const PATIENCE: Duration = Duration::from_secs(60);
/// Frames that are kept packed for others who are to be told the same.
const KEPT: usize = 64;
/// The level of packing: the fastest of the usual ones.
const LEVEL: i32 = 1;

/// The same bytes each time: clients know them without unpacking.
static SIGN_OF_LIFE: LazyLock<Bytes> = LazyLock::new(|| framed(br#"{"KeepAlive":true}"#));

thread_local! {
    static PACKER: RefCell<Option<zstd::bulk::Compressor<'static>>> = const { RefCell::new(None) };
}

/// Frames that several are told are packed once.
#[derive(Default)]
pub struct Packed(Mutex<HashMap<FrameKey, Parts>>);

impl Packed {
    fn encode(&self, frame: &Frame) -> Parts {
        let Some(key) = &frame.key else { return encode_frame(frame) };
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = kept().get(key) {
            return bytes.clone();
        }
        let bytes = encode_frame(frame);
        let mut kept = kept();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(key.clone(), bytes.clone());
        bytes
    }
}

/// A frame as clients read it: the text for it alone, and blocks that are packed already, are a frame
/// of zstd each, which clients unpack as one.
pub fn encode_frame(frame: &Frame) -> Parts {
    let (mut parts, mut text) = (Parts::new(), String::new());
    for part in &frame.parts {
        match part {
            Part::Text(own) => text.push_str(own),
            Part::Shared(shared) => text.push_str(shared),
            Part::Block(block) => {
                if !text.is_empty() {
                    parts.push(pack(text.as_bytes()).into());
                    text.clear();
                }
                parts.push(block.packed(|text| pack(text.as_bytes()).into()));
            }
        }
    }
    parts.push(pack(text.as_bytes()).into());
    let length = length(parts.iter().map(Bytes::len).sum());
    parts[0] = [&length[..], &parts[0]].concat().into();
    parts
}

fn framed(text: &[u8]) -> Bytes {
    let packed = pack(text);
    [&length(packed.len())[..], &packed].concat().into()
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a map is shorter than 4 GiB").to_le_bytes()
}

fn pack(text: &[u8]) -> Vec<u8> {
    PACKER.with_borrow_mut(|packer| {
        let new = || zstd::bulk::Compressor::new(LEVEL).expect("the level is one");
        let packer = packer.get_or_insert_with(new);
        packer.compress(text).expect("a buffer in memory grows")
    })
}

/// The whole map, and no more.
pub fn once(server: &Server, mut session: Session) -> Response<Answer> {
    match server.network.read(|state| session.poll(state, now())) {
        Polled::Frame(frame) | Polled::End(Some(frame)) => pieces(encode_frame(&frame)),
        Polled::Nothing | Polled::End(None) => pieces(Parts::new()),
    }
}

/// Tells a client what changes, until either end has enough.
pub async fn follow(server: Arc<Server>, session: Session, to: mpsc::Sender<Parts>) {
    let id = session.node();
    let Ok(stream) = server.network.run(move |state, _| state.connect(id)).await else { return };
    tell(&server, session, &to).await;
    // The server is about to end otherwise.
    let _ = server.network.run(move |state, now| state.disconnect(id, stream, now)).await;
}

async fn tell(server: &Server, mut session: Session, to: &mpsc::Sender<Parts>) {
    let mut changed = server.network.changed();
    let mut alive_at = Instant::now() + next_sign();
    loop {
        let end = *changed.borrow_and_update();
        let polled = server.network.read(|state| session.poll_until(state, end, now()));
        let (frame, is_end) = match polled {
            Polled::Nothing => (None, false),
            Polled::Frame(frame) => (Some(frame), false),
            Polled::End(frame) => (frame, true),
        };
        if let Some(frame) = frame {
            if !sent(to, server.packed.encode(&frame)).await {
                return;
            }
            alive_at = Instant::now() + next_sign();
        }
        if is_end {
            return;
        }
        tokio::select! {
            outcome = changed.changed() => if outcome.is_err() {
                return;
            },
            () = tokio::time::sleep_until(alive_at) => {
                if !sent(to, vec![SIGN_OF_LIFE.clone()]).await {
                    return;
                }
                alive_at = Instant::now() + next_sign();
            }
            () = to.closed() => return,
        }
    }
}

async fn sent(to: &mpsc::Sender<Parts>, parts: Parts) -> bool {
    matches!(timeout(PATIENCE, to.send(parts)).await, Ok(Ok(())))
}

/// When the next sign of life is due; not for all clients at once.
fn next_sign() -> Duration {
    let [least, most] = KEEP_ALIVE;
    let mut random = [0; 8];
    // Without randomness they come at the same time.
    let _ = getrandom::fill(&mut random);
    let spread = u64::from_le_bytes(random) % ((most - least) * 1000);
    Duration::from_millis(least * 1000 + spread)
}

#[cfg(test)]
mod tests {
    use tailnet::control::frame::FrameReader;

    use super::*;

    #[test]
    fn members_read_what_is_packed() {
        let mut reader = FrameReader::default();
        let long = format!("{{\"x\":\"{}\"}}", "y".repeat(1 << 20));
        reader.handle_bytes(&SIGN_OF_LIFE);
        reader.handle_bytes(&framed(long.as_bytes()));
        assert_eq!(reader.poll_frame().unwrap().unwrap(), br#"{"KeepAlive":true}"#);
        assert_eq!(reader.poll_frame().unwrap().unwrap(), long.as_bytes());
        let signs: Vec<Duration> = (0..100).map(|_| next_sign()).collect();
        let range = Duration::from_secs(KEEP_ALIVE[0])..Duration::from_secs(KEEP_ALIVE[1]);
        assert!(signs.iter().all(|sign| range.contains(sign)));
    }
}
