//! Input of a member from relays and peers' path messages, and of a relay from its clients: DERP
//! frames, disco, STUN.

use bytes::BytesMut;
use tailnet::{
    derp::{
        Decoder, FrameError, FromClient, FromRelay, HEADER_LEN, MAX_PACKET, RelayKey, read_bundle,
        write_frame,
    },
    disco::{Disco, DiscoError, MAGIC, Message, sender},
    keys::DiscoKey,
    stun,
};

use super::{steps, take};

/// The frames of a stream that arrives in pieces of these lengths, and then the rest.
fn frames(mut stream: &[u8], pieces: &[u8]) -> (Vec<(u8, Vec<u8>)>, Option<FrameError>) {
    let (mut decoder, mut buffer, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
    let lens = pieces.iter().map(|len| usize::from(*len)).chain([usize::MAX]);
    for len in lens {
        let (piece, rest) = stream.split_at(len.min(stream.len()));
        stream = rest;
        buffer.extend_from_slice(piece);
        loop {
            match decoder.poll_frame(&mut buffer) {
                Ok(Some((kind, contents))) => {
                    assert!(contents.len() <= MAX_PACKET + 64);
                    if let Ok(Some(FromRelay::Packet { bytes, .. })) =
                        FromRelay::read(kind, contents.clone())
                    {
                        let (run, segment) = read_bundle(bytes.clone());
                        assert!(segment > 0 || bytes.is_empty());
                        assert!(bytes.ends_with(&run), "a bundle has other bytes");
                    }
                    if let Some(FromClient::Packet { bytes, .. }) =
                        FromClient::read(kind, contents.clone())
                    {
                        assert!(bytes.len() <= MAX_PACKET && contents.ends_with(&bytes));
                    }
                    frames.push((kind, contents.to_vec()));
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(buffer.len() < HEADER_LEN + MAX_PACKET + 64, "a frame is not taken out");
    }
    (frames, None)
}

/// Frames and garbage on one stream: any division into pieces gives the same frames, and written
/// frames come first.
pub fn derp_frames(data: &[u8]) {
    let key = RelayKey::new(Box::new([9; 32].into()));
    assert_eq!(key.open_login(data), None, "it was not sealed");
    let mut rest = data;
    let [cuts] = take(&mut rest);
    let (pieces, rest) = rest.split_at(usize::from(cuts % 16).min(rest.len()));
    let (mut stream, mut written) = (BytesMut::new(), Vec::new());
    steps(rest, 12, |step, data| {
        let [len, fill] = take(data);
        match step {
            // Garbage, with or without a header with its length.
            0..0x40 => stream.extend_from_slice(&[fill; 7][..usize::from(len % 8)]),
            0x40..0x60 => stream.extend_from_slice(&[fill, 0, len, fill, len, fill, fill]),
            kind => {
                let contents = vec![fill; usize::from(len) << (kind % 4)];
                write_frame(&mut stream, kind & 0x1f, &contents);
                if written.len() < 12 && step >= 0x60 {
                    written.push((stream.len(), kind & 0x1f, contents));
                }
            }
        }
    });
    let whole = frames(&stream, &[]);
    assert_eq!(frames(&stream, pieces), whole, "the frames differ in pieces");
    let mut end = 0;
    for ((written_end, kind, contents), frame) in written.iter().zip(&whole.0) {
        end += HEADER_LEN + contents.len();
        if end != *written_end {
            break;
        }
        assert_eq!(*frame, (*kind, contents.clone()));
    }
}

/// A message is read, written and sealed; and garbage as a datagram.
pub fn disco(data: &[u8]) {
    let disco = |byte: u8| Disco::new(DiscoKey::new(Box::new([byte; 32].into())));
    let (mut ours, mut theirs) = (disco(1), disco(2));
    assert!(theirs.open(data).is_err(), "it was not sealed");
    let begun = [&MAGIC[..], &ours.public().0, data].concat();
    assert!(matches!(theirs.open(&begun), Err(DiscoError::Forged | DiscoError::NotDisco)));
    let Ok(message) = Message::read(data) else { return };
    let mut text = Vec::new();
    message.write(&mut text);
    assert_eq!(Message::read(&text).as_ref(), Ok(&message));
    let mut datagram = ours.seal(theirs.public(), &message, [3; 24]);
    assert_eq!(sender(&datagram), Some(ours.public()));
    assert_eq!(theirs.open(&datagram), Ok((ours.public(), message)));
    let at = text.len() * 7 % datagram.len();
    datagram[at] ^= 1;
    assert!(theirs.open(&datagram).is_err(), "byte {at} was changed");
}

/// Any datagram, and any attributes of a success response.
pub fn stun(data: &[u8]) {
    if let Ok((tx, _)) = stun::read_response(data) {
        assert!(stun::is_stun(data) && data[8..20] == tx);
        assert!(stun::read_response(&stun::request(tx)).is_err(), "a request is not a response");
    }
    if let Ok(tx) = stun::read_request(data) {
        assert!(data[8..20] == tx && stun::read_response(data).is_err());
    }
    let mut rest = data;
    let tx: [u8; 12] = take(&mut rest);
    assert_eq!(stun::read_request(&stun::request(tx)), Ok(tx));
    let len = u16::try_from(rest.len()).unwrap_or(u16::MAX).to_be_bytes();
    let success = [&[1, 1][..], &len, &[0x21, 0x12, 0xa4, 0x42], &tx, rest].concat();
    if let Ok((read, addr)) = stun::read_response(&success) {
        assert_eq!(read, tx);
        assert_eq!(addr.ip(), addr.ip().to_canonical());
    }
}
