//! Input of a member from a coordinator: records, the early payload, frames, answers.

use mesh::{
    dialing::{Candidate, ControlUrl},
    http_proxy::Proxies,
    registration::{Login, Registration},
};
use tailnet::keys::{MachineKey, NodePublic};
use tailnet::ts2021::{
    early_payload::EarlyPayload,
    map_frames::{FrameError, FrameReader, LONGEST},
    noise_handshake::Response,
    record::{Opener, PLAIN, RECORD, Sealer},
    requests::{MapHead, RegisterResponse},
};

use super::{steps, take};

/// Records and garbage on one stream, delivered in pieces: the output equals the sealed records, up
/// to the first invalid one.
pub fn ts2021_records(data: &[u8]) {
    let key = [7; 32].into();
    let (mut sealer, mut opener) = (Sealer::new(&key), Opener::new(&key));
    let (mut wire, mut sealed, mut is_whole) = (Vec::new(), Vec::new(), true);
    let (mut plain, mut delivered) = (Vec::new(), 0);
    steps(data, 200, |step, rest| match step % 4 {
        0 => {
            let [low, high, fill] = take(rest);
            let text = vec![fill; usize::from(u16::from_le_bytes([low, high])) % (2 * PLAIN)];
            let taken = sealer.seal(&text, &mut wire).expect("few records");
            assert_eq!(taken, text.len().min(PLAIN));
            if is_whole {
                sealed.extend_from_slice(&text[..taken]);
            }
        }
        1 => {
            let [len] = take(rest);
            let (garbage, behind) = rest.split_at(usize::from(len).min(rest.len()));
            *rest = behind;
            is_whole &= garbage.is_empty();
            wire.extend_from_slice(garbage);
        }
        2 => {
            let [from_end, mask] = take(rest);
            let at = wire.len().checked_sub(1 + usize::from(from_end));
            if let Some(at) = at.filter(|at| *at >= delivered && mask != 0) {
                wire[at] ^= mask;
                is_whole = false;
            }
        }
        _ => {
            let [low, high] = take(rest);
            let len = usize::from(u16::from_le_bytes([low, high])) % (2 * RECORD);
            let piece = &wire[delivered..wire.len().min(delivered + len)];
            delivered += piece.len();
            let opened = opener.handle_bytes(piece, &mut plain);
            assert!(opened.is_ok() || !is_whole);
        }
    });
    let opened = opener.handle_bytes(&wire[delivered..], &mut plain);
    if is_whole {
        assert_eq!(opened, Ok(()));
        assert!(plain == sealed && !opener.is_within_record());
    } else {
        let both = plain.len().min(sealed.len());
        assert!(plain[..both] == sealed[..both]);
    }
}

/// A stream gives the same payload, frames and answers in any pieces.
pub fn ts2021_stream(data: &[u8]) {
    let key = MachineKey::new(Box::new([9; 32].into()));
    assert!(Response::new(&key, data, [4; 32].into()).is_err(), "it is not a member's message");
    let mut stream = data;
    let [pieces] = take(&mut stream);
    let size = usize::from(pieces).max(1);
    let (mut rest, mut payload) = (Vec::new(), None);
    let mut early = EarlyPayload::default();
    let read = stream.chunks(size).try_for_each(|piece| {
        let (more, found) = early.handle_plain(piece.to_vec())?;
        rest.extend(more);
        payload = payload.take().or(found);
        Ok(())
    });
    let whole = EarlyPayload::default().handle_plain(stream.to_vec());
    assert_eq!(whole, read.map(|()| (rest.clone(), payload.clone())));
    let frames = frames(&rest, rest.len().max(1));
    assert!(frames == self::frames(&rest, size));
    for text in frames.iter().flatten().chain(&payload) {
        answers(text);
    }
}

fn frames(stream: &[u8], size: usize) -> Vec<Result<Vec<u8>, FrameError>> {
    let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
    for piece in stream.chunks(size) {
        reader.handle_bytes(piece);
        loop {
            match reader.poll_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => {
                    assert!(frame.len() <= LONGEST);
                    frames.push(Ok(frame));
                }
                Err(error) => {
                    let goes_on = !matches!(error, FrameError::TooLong(_));
                    frames.push(Err(error));
                    if !goes_on {
                        return frames;
                    }
                }
            }
        }
    }
    frames
}

fn answers(text: &[u8]) {
    if let Ok(head) = serde_json::from_slice::<MapHead>(text) {
        let planned = head.dial_plan.map(|plan| plan.candidates()).unwrap_or_default();
        drop(planned.into_iter().map(Candidate::from).collect::<Vec<_>>());
    }
    if let Ok(response) = serde_json::from_slice::<RegisterResponse>(text) {
        let url = response.auth_url.clone();
        let mut registration = Registration::new(Login::new(NodePublic([1; 32])));
        let _ = registration.handle_response(response);
        assert!(!registration.awaits_login() || url.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    let Ok(text) = str::from_utf8(text) else { return };
    if let Ok(url) = text.parse::<ControlUrl>() {
        assert_eq!(url.to_string().parse(), Ok(url));
    }
    let proxies = Proxies::new(|_| Some(text.to_owned()));
    let _ = proxies.for_host(true, "a.example", 443);
}
