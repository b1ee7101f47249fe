//! A relay's end of a connection, which a test drives.

use bytes::{Bytes, BytesMut};
use tailnet::{
    derp::{Decoder, RelayKey, kind, write_frame},
    keys::NodePublic,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

fn key() -> RelayKey {
    RelayKey::new(Box::new([9; 32].into()))
}

/// A client's connection.
pub struct Client<S> {
    pub stream: S,
    buffer: BytesMut,
    decoder: Decoder,
    /// The upgrade request.
    pub request: String,
    /// Its key after the login.
    pub key: NodePublic,
}

/// The relay's key.
pub fn public_key() -> [u8; 32] {
    key().public()
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    /// Waits for an upgrade request; `None` if the connection ends before.
    pub async fn accept(mut stream: S) -> Option<Self> {
        let mut buffer = BytesMut::new();
        let end = loop {
            if let Some(end) = buffer.windows(4).position(|some| some == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut buffer).await.ok()? == 0 {
                return None;
            }
        };
        let request = String::from_utf8(buffer.split_to(end).to_vec()).ok()?;
        let (decoder, key) = (Decoder::default(), NodePublic::default());
        Some(Self { stream, buffer, decoder, request, key })
    }

    /// Upgrades the connection and sends the key.
    pub async fn upgrade(&mut self) {
        if !self.request.contains("Derp-Fast-Start: 1\r\n") {
            self.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: DERP\r\n\r\n").await;
        }
        self.frame(kind::SERVER_KEY, &key().greeting()).await;
    }

    /// Reads the login.
    ///
    /// # Panics
    /// If another frame arrives.
    pub async fn log_in(&mut self) {
        let (kind, login) = self.next().await.expect("a login");
        assert_eq!(kind, kind::CLIENT_INFO);
        let login = key().open_login(&login).expect("a login is sealed for this relay");
        let text: serde_json::Value = serde_json::from_slice(&login.text).expect("a login is JSON");
        assert_eq!((&text["version"], &text["CanAckPings"]), (&2.into(), &true.into()));
        self.key = login.client;
        self.frame(kind::SERVER_INFO, &[0; 50]).await;
    }

    pub async fn send(&mut self, bytes: &[u8]) {
        // The client may have closed the connection after invalid data.
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    pub async fn frame(&mut self, kind: u8, contents: &[u8]) {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind, contents);
        self.send(&out).await;
    }

    /// The next frame; `None` at the end.
    ///
    /// # Panics
    /// If a frame is too long.
    pub async fn next(&mut self) -> Option<(u8, Bytes)> {
        loop {
            let frame = self.decoder.poll_frame(&mut self.buffer);
            if let Some(frame) = frame.expect("a client's frames are short") {
                return Some(frame);
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// The next datagram with its receiver's key.
    ///
    /// # Panics
    /// If none arrives.
    pub async fn next_packet(&mut self) -> (NodePublic, Bytes) {
        loop {
            let (kind, mut contents) = self.next().await.expect("a datagram");
            if kind == kind::SEND_PACKET {
                let to = contents.split_to(32);
                return (NodePublic(to[..].try_into().expect("32 bytes")), contents);
            }
        }
    }
}

/// Relays datagrams between two clients until one disconnects.
pub async fn relay_between<S: AsyncRead + AsyncWrite + Unpin>(mut a: Client<S>, mut b: Client<S>) {
    loop {
        tokio::select! {
            frame = a.next() => match frame {
                Some(frame) => deliver(a.key, frame, &mut b).await,
                None => return,
            },
            frame = b.next() => match frame {
                Some(frame) => deliver(b.key, frame, &mut a).await,
                None => return,
            },
        }
    }
}

/// Relays a frame if it is a datagram for this client.
pub async fn deliver<S: AsyncRead + AsyncWrite + Unpin>(
    from: NodePublic,
    (kind, contents): (u8, Bytes),
    to: &mut Client<S>,
) {
    if kind == kind::SEND_PACKET && contents[..32] == to.key.0 {
        to.frame(kind::RECV_PACKET, &[&from.0[..], &contents[32..]].concat()).await;
    }
}
