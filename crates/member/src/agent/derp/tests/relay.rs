//! A relay in this process.

use std::{net::SocketAddr, sync::Arc};

use bytes::{Bytes, BytesMut};
use crypto_box::{
    PublicKey, SalsaBox, SecretKey,
    aead::{Aead as _, generic_array::GenericArray},
};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tailnet::{
    derp::{Decoder, kind, write_frame},
    keys::NodePublic,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

const PRIVATE: [u8; 32] = [9; 32];

/// One that accepts connections, for tests to do the rest.
pub struct Relay {
    pub at: SocketAddr,
    pub certificate: CertificateDer<'static>,
    listener: TcpListener,
    tls: TlsAcceptor,
}

/// A client's connection.
pub struct Client {
    pub stream: TlsStream<TcpStream>,
    pub buffer: BytesMut,
    decoder: Decoder,
    /// The request that upgraded it.
    pub request: String,
    /// Its key, once it logged in.
    pub key: NodePublic,
}

impl Relay {
    pub async fn new() -> Self {
        Self::named("relay.example", false).await
    }

    /// With a certificate for this name, and one that says the relay's key.
    pub async fn named(name: &str, with_meta: bool) -> Self {
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.self_signed(&own).unwrap();
        let mut chain = vec![certificate.der().clone()];
        if with_meta {
            let mut params = CertificateParams::default();
            let hex: String = public().iter().map(|byte| format!("{byte:02x}")).collect();
            params.distinguished_name.push(DnType::CommonName, format!("derpkey{hex}"));
            let meta = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
            chain.push(meta.der().clone());
        }
        let private = PrivateKeyDer::try_from(own.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain.clone(), private)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let tls = TlsAcceptor::from(Arc::new(config));
        Self { at, certificate: chain.swap_remove(0), listener, tls }
    }

    /// A connection that spoke TLS and asked for an upgrade.
    pub async fn asked(&self) -> Client {
        loop {
            let (stream, _) = self.listener.accept().await.unwrap();
            let Ok(mut stream) = self.tls.accept(stream).await else { continue };
            let (mut buffer, decoder) = (BytesMut::new(), Decoder::default());
            let end = loop {
                if let Some(end) = buffer.windows(4).position(|some| some == b"\r\n\r\n") {
                    break end + 4;
                }
                assert_ne!(stream.read_buf(&mut buffer).await.unwrap(), 0);
            };
            let request = String::from_utf8(buffer.split_to(end).to_vec()).unwrap();
            return Client { stream, buffer, decoder, request, key: NodePublic::default() };
        }
    }

    /// A client that logged in.
    pub async fn client(&self) -> Client {
        let mut client = self.asked().await;
        client.greet().await;
        client.log_in().await;
        client
    }
}

/// An address at which nothing listens.
pub async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

fn public() -> [u8; 32] {
    *SecretKey::from(PRIVATE).public_key().as_bytes()
}

impl Client {
    /// Upgrades the connection and says the key.
    pub async fn greet(&mut self) {
        if !self.request.contains("Derp-Fast-Start: 1\r\n") {
            self.say(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: DERP\r\n\r\n").await;
        }
        self.frame(kind::SERVER_KEY, &[b"DERP\xf0\x9f\x94\x91", &public()[..]].concat()).await;
    }

    /// Takes its login.
    pub async fn log_in(&mut self) {
        let (kind, login) = self.next().await.expect("a login");
        assert_eq!(kind, kind::CLIENT_INFO);
        let (key, rest) = login.split_first_chunk::<32>().unwrap();
        let (nonce, sealed) = rest.split_at(24);
        let opening = SalsaBox::new(&PublicKey::from(*key), &SecretKey::from(PRIVATE));
        let text = opening.decrypt(GenericArray::from_slice(nonce), sealed).unwrap();
        let text: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!((&text["version"], &text["CanAckPings"]), (&2.into(), &true.into()));
        self.key = NodePublic(*key);
        self.frame(kind::SERVER_INFO, &[0; 50]).await;
    }

    pub async fn say(&mut self, bytes: &[u8]) {
        // A client that was told nonsense may be gone.
        let _ = self.stream.write_all(bytes).await;
        let _ = self.stream.flush().await;
    }

    pub async fn frame(&mut self, kind: u8, contents: &[u8]) {
        let mut out = BytesMut::new();
        write_frame(&mut out, kind, contents);
        self.say(&out).await;
    }

    /// The next frame; nothing at the end.
    pub async fn next(&mut self) -> Option<(u8, Bytes)> {
        loop {
            if let Some(frame) = self.decoder.poll_frame(&mut self.buffer).unwrap() {
                return Some(frame);
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// The next datagram: its receiver's key, and all of it.
    pub async fn packet(&mut self) -> (NodePublic, Bytes) {
        loop {
            let (kind, mut contents) = self.next().await.expect("a datagram");
            if kind == kind::SEND_PACKET {
                let to = contents.split_to(32);
                return (NodePublic(to[..].try_into().unwrap()), contents);
            }
        }
    }
}

/// Passes datagrams on between two clients until one is gone.
pub async fn pass_on(mut a: Client, mut b: Client) {
    loop {
        tokio::select! {
            frame = a.next() => match frame {
                Some(frame) => deliver(&a, frame, &mut b).await,
                None => return,
            },
            frame = b.next() => match frame {
                Some(frame) => deliver(&b, frame, &mut a).await,
                None => return,
            },
        }
    }
}

async fn deliver(from: &Client, (kind, contents): (u8, Bytes), to: &mut Client) {
    if kind == kind::SEND_PACKET && contents[..32] == to.key.0 {
        to.frame(kind::RECV_PACKET, &[&from.key.0[..], &contents[32..]].concat()).await;
    }
}
