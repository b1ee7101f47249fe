//! Frames: a type, a length of 4 bytes (big-endian), and contents.

use std::{fmt, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::keys::NodePublic;

/// The length of a frame's header.
pub const HEADER_LEN: usize = 5;
/// The longest valid frame.
pub const MAX_FRAME: usize = 1 << 20;
/// The longest datagram.
pub const MAX_PACKET: usize = 64 << 10;
/// The difference between the lengths of a frame and of the datagram in it.
pub const SEND_OVERHEAD: usize = HEADER_LEN + KEY;

const KEY: usize = 32;
/// The longest frame that is read completely: a datagram with two keys. Longer ones are skipped as
/// they arrive, so that the buffer stays small.
const MAX_READ: usize = MAX_PACKET + 2 * KEY;
/// The longest health message that is read.
const MAX_HEALTH: usize = 1 << 10;
pub(super) const GREETING: [u8; 8] = *b"DERP\xf0\x9f\x94\x91";

/// The types of frames.
pub mod kind {
    /// The magic number and the relay's key: the first frame of a relay.
    pub const SERVER_KEY: u8 = 0x01;
    /// The contents of [`seal_login`](crate::derp::seal_login): the first frame of a client.
    pub const CLIENT_INFO: u8 = 0x02;
    /// The relay's answer to the login.
    pub const SERVER_INFO: u8 = 0x03;
    /// The receiver's key and a datagram.
    pub const SEND_PACKET: u8 = 0x04;
    /// The sender's key and a datagram.
    pub const RECV_PACKET: u8 = 0x05;
    /// Without contents.
    pub const KEEP_ALIVE: u8 = 0x06;
    /// One byte: whether this is the client's home relay.
    pub const NOTE_PREFERRED: u8 = 0x07;
    /// The key of a peer that is not connected, and the reason.
    pub const PEER_GONE: u8 = 0x08;
    /// The key of a connected client, with its address, port and flags: for a mesh.
    pub const PEER_PRESENT: u8 = 0x09;
    /// The keys of sender and receiver and a datagram: from a relay of the mesh.
    pub const FORWARD_PACKET: u8 = 0x0a;
    /// Without contents: a relay of the mesh requests the list of clients.
    pub const WATCH_CONNS: u8 = 0x10;
    /// A request by a relay of the mesh to close the connections of this key.
    pub const CLOSE_PEER: u8 = 0x11;
    /// Eight bytes, returned in a pong.
    pub const PING: u8 = 0x12;
    /// The eight bytes of a ping.
    pub const PONG: u8 = 0x13;
    /// A problem of the connection; empty for none.
    pub const HEALTH: u8 = 0x14;
    /// Two times of 4 bytes in milliseconds: the time until the client should reconnect, and for
    /// how long it should retry.
    pub const RESTARTING: u8 = 0x15;
}

/// A frame from a relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromRelay {
    /// The relay's key.
    ServerKey([u8; 32]),
    /// The relay accepts the login. The contents are sealed for the node key, and are not read.
    ServerInfo,
    /// A datagram.
    Packet {
        /// The sender.
        from: NodePublic,
        /// The datagram.
        bytes: Bytes,
    },
    /// The keepalive of an idle connection.
    KeepAlive,
    /// A peer is not connected.
    PeerGone {
        /// The peer's key.
        peer: NodePublic,
        /// The reason.
        reason: GoneReason,
    },
    /// The data to return in a pong.
    Ping([u8; 8]),
    /// The data of the ping.
    Pong([u8; 8]),
    /// A problem of the connection; empty for none.
    Health(String),
    /// The relay will restart.
    Restarting {
        /// The time until the client should reconnect.
        reconnect_in: Duration,
        /// For how long the client should retry.
        try_for: Duration,
    },
}

/// The reason why a peer is not connected to a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneReason {
    /// The peer closed its connection.
    Disconnected,
    /// The peer is unknown to the relay. Relays report this only for disco messages, and at most
    /// three times a second.
    NotHere,
    /// Another.
    Other(u8),
}

impl GoneReason {
    fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Disconnected,
            1 => Self::NotHere,
            other => Self::Other(other),
        }
    }

    /// Returns the byte in a frame.
    pub fn byte(self) -> u8 {
        match self {
            Self::Disconnected => 0,
            Self::NotHere => 1,
            Self::Other(other) => other,
        }
    }
}

/// The reason why a stream cannot be read. The connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The announced length is not valid.
    TooLong(u32),
    /// The first frame is not the greeting of a relay.
    Greeting,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(len) => write!(f, "a frame of {len} bytes"),
            Self::Greeting => f.write_str("the greeting is not that of a relay"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Splits a stream into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The number of bytes of a skipped frame that have not arrived.
    passed_over: usize,
}

impl Decoder {
    /// Removes the next complete frame from `buffer` without a copy, and returns its type and
    /// contents. `None`: append more data to `buffer`.
    ///
    /// # Errors
    /// The stream is not one of a relay.
    pub fn poll_frame(&mut self, buffer: &mut BytesMut) -> Result<Option<(u8, Bytes)>, FrameError> {
        let Some((kind, len)) = self.poll_header(buffer)? else { return Ok(None) };
        buffer.advance(HEADER_LEN);
        Ok(Some((kind, buffer.split_to(len).freeze())))
    }

    /// Returns the type and length of the next complete frame, which stays in `buffer`. `None`:
    /// append more data to `buffer`.
    ///
    /// # Errors
    /// The stream is not one of a relay.
    pub fn poll_header(
        &mut self,
        buffer: &mut BytesMut,
    ) -> Result<Option<(u8, usize)>, FrameError> {
        loop {
            let passed_over = self.passed_over.min(buffer.len());
            buffer.advance(passed_over);
            self.passed_over -= passed_over;
            let Some(&[kind, len @ ..]) = buffer.first_chunk::<HEADER_LEN>() else {
                return Ok(None);
            };
            let announced = u32::from_be_bytes(len);
            let len = usize::try_from(announced).unwrap_or(usize::MAX);
            if len > MAX_FRAME {
                return Err(FrameError::TooLong(announced));
            }
            if len > MAX_READ {
                self.passed_over = HEADER_LEN + len;
                continue;
            }
            if buffer.len() < HEADER_LEN + len {
                // Memory for the rest of the frame.
                buffer.reserve(HEADER_LEN + len - buffer.len());
                return Ok(None);
            }
            return Ok(Some((kind, len)));
        }
    }
}

impl FromRelay {
    /// Reads a frame. `None`: the type is unknown, or the contents are too short.
    ///
    /// # Errors
    /// The contents are not a valid greeting.
    pub fn read(kind: u8, mut contents: Bytes) -> Result<Option<Self>, FrameError> {
        let eight = contents.first_chunk::<8>().copied();
        Ok(match kind {
            kind::SERVER_KEY => {
                let rest = contents.strip_prefix(&GREETING).ok_or(FrameError::Greeting)?;
                Some(Self::ServerKey(*rest.first_chunk().ok_or(FrameError::Greeting)?))
            }
            kind::SERVER_INFO => Some(Self::ServerInfo),
            kind::RECV_PACKET => contents.first_chunk::<KEY>().copied().map(|from| {
                contents.advance(KEY);
                Self::Packet { from: NodePublic(from), bytes: contents }
            }),
            kind::KEEP_ALIVE => Some(Self::KeepAlive),
            kind::PEER_GONE => contents.split_first_chunk::<KEY>().map(|(peer, rest)| {
                // Old relays do not send a reason.
                let reason = GoneReason::of(rest.first().copied().unwrap_or(0));
                Self::PeerGone { peer: NodePublic(*peer), reason }
            }),
            kind::PING => eight.map(Self::Ping),
            kind::PONG => eight.map(Self::Pong),
            kind::HEALTH => {
                let text = &contents[..contents.len().min(MAX_HEALTH)];
                Some(Self::Health(String::from_utf8_lossy(text).into_owned()))
            }
            kind::RESTARTING => eight.map(|[a, b, c, d, rest @ ..]| {
                let ms = |bytes| Duration::from_millis(u32::from_be_bytes(bytes).into());
                Self::Restarting { reconnect_in: ms([a, b, c, d]), try_for: ms(rest) }
            }),
            _ => None,
        })
    }
}

/// Appends a frame to `out`.
pub fn write_frame(out: &mut BytesMut, kind: u8, contents: &[u8]) {
    write_header(out, kind, contents.len());
    out.extend_from_slice(contents);
}

/// Appends the frame of a datagram to `out`. The datagram must not be longer than [`MAX_PACKET`].
pub fn write_packet(out: &mut BytesMut, to: &NodePublic, datagram: &[u8]) {
    write_packet_of(out, to, &[datagram]);
}

/// Appends the frame of a datagram that is given in parts.
pub(super) fn write_packet_of(out: &mut BytesMut, to: &NodePublic, parts: &[&[u8]]) {
    write_header(out, kind::SEND_PACKET, KEY + parts.iter().map(|part| part.len()).sum::<usize>());
    out.extend_from_slice(&to.0);
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn write_header(out: &mut BytesMut, kind: u8, len: usize) {
    out.reserve(HEADER_LEN + len);
    out.put_u8(kind);
    out.put_u32(u32::try_from(len).expect("frames are written of datagrams and logins"));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns all frames of a stream that arrives in these pieces.
    fn frames(pieces: &[&[u8]]) -> Result<Vec<(u8, Vec<u8>)>, FrameError> {
        let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::new());
        let mut frames = Vec::new();
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while let Some((kind, contents)) = decoder.poll_frame(&mut buffer)? {
                frames.push((kind, contents.to_vec()));
            }
            assert!(buffer.len() < HEADER_LEN + MAX_READ);
        }
        Ok(frames)
    }

    fn read(kind: u8, contents: &[u8]) -> Result<Option<FromRelay>, FrameError> {
        FromRelay::read(kind, Bytes::copy_from_slice(contents))
    }

    proptest! {
        #[test]
        fn frames_are_decoded_from_any_pieces(
            expected in proptest::collection::vec(
                (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..12),
            mut cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..20),
        ) {
            let mut stream = BytesMut::new();
            for (kind, contents) in &expected {
                write_frame(&mut stream, *kind, contents);
            }
            let mut at: Vec<usize> = cuts.drain(..).map(|cut| cut.index(stream.len() + 1)).collect();
            at.extend([0, stream.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|cut| &stream[cut[0]..cut[1]]).collect();
            prop_assert_eq!(frames(&pieces), Ok(expected));
        }

        #[test]
        fn any_contents_cause_no_panic(
            kind: u8,
            contents in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let _ = read(kind, &contents);
            let _ = read(kind & 0x1f, &contents);
        }
    }

    #[test]
    fn long_frame_is_skipped_and_not_stored() {
        let mut stream = BytesMut::new();
        write_frame(&mut stream, kind::RECV_PACKET, &vec![1; MAX_FRAME]);
        write_frame(&mut stream, kind::KEEP_ALIVE, &[]);
        let pieces: Vec<&[u8]> = stream.chunks(1000).collect();
        assert_eq!(frames(&pieces), Ok(vec![(kind::KEEP_ALIVE, Vec::new())]));
    }

    #[test]
    fn too_long_frame_ends_the_stream() {
        let len = u32::try_from(MAX_FRAME).unwrap() + 1;
        let header = [&[kind::RECV_PACKET][..], &len.to_be_bytes()].concat();
        assert_eq!(frames(&[&header]), Err(FrameError::TooLong(len)));
    }

    #[test]
    fn frames_of_a_relay_are_read() {
        let key = [7; 32];
        let with_key = |rest: &[u8]| [&key[..], rest].concat();
        let peer = NodePublic(key);
        let greeting = [&GREETING[..], &key, b"later"].concat();
        assert_eq!(read(1, &greeting), Ok(Some(FromRelay::ServerKey(key))));
        assert_eq!(read(3, &[0; 60]), Ok(Some(FromRelay::ServerInfo)));
        let bytes = Bytes::from_static(b"hi");
        assert_eq!(read(5, &with_key(b"hi")), Ok(Some(FromRelay::Packet { from: peer, bytes })));
        let gone = |reason| Ok(Some(FromRelay::PeerGone { peer, reason }));
        assert_eq!(read(8, &with_key(&[1])), gone(GoneReason::NotHere));
        assert_eq!(read(8, &with_key(&[])), gone(GoneReason::Disconnected));
        assert_eq!(read(8, &with_key(&[0xf0, 1])), gone(GoneReason::Other(0xf0)));
        assert_eq!(read(0x12, b"12345678"), Ok(Some(FromRelay::Ping(*b"12345678"))));
        assert_eq!(read(0x14, b"twice"), Ok(Some(FromRelay::Health("twice".into()))));
        let (reconnect_in, try_for) = (Duration::from_millis(256), Duration::from_millis(1));
        let restarting = FromRelay::Restarting { reconnect_in, try_for };
        assert_eq!(read(0x15, &[0, 0, 1, 0, 0, 0, 0, 1]), Ok(Some(restarting)));
    }

    #[test]
    fn short_or_unknown_frames_are_ignored_but_a_bad_greeting_is_an_error() {
        for (kind, len) in [(5, 31), (8, 31), (0x12, 7), (0x13, 7), (0x15, 7), (9, 50), (0x77, 3)] {
            assert_eq!(read(kind, &vec![0; len]), Ok(None), "type {kind}");
        }
        assert_eq!(read(1, &[0; 40]), Err(FrameError::Greeting));
        assert_eq!(read(1, &GREETING), Err(FrameError::Greeting));
    }

    #[test]
    fn packet_frame_starts_with_the_receivers_key() {
        let mut out = BytesMut::new();
        write_packet(&mut out, &NodePublic([3; 32]), b"data");
        assert_eq!(out.len(), SEND_OVERHEAD + 4);
        assert_eq!(out[..HEADER_LEN], [4, 0, 0, 0, 36]);
        assert_eq!(out[HEADER_LEN..], [&[3; 32][..], b"data"].concat());
    }
}
