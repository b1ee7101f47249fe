//! A relay in this process.

use std::{net::SocketAddr, sync::Arc};

use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

pub(super) use doubles::relay::relay_between;

/// A client's connection.
pub(super) type Client = doubles::relay::Client<TlsStream<TcpStream>>;

/// A relay that accepts connections; tests do the rest.
pub(super) struct Relay {
    pub at: SocketAddr,
    pub certificate: CertificateDer<'static>,
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl Relay {
    pub(super) async fn new() -> Self {
        Self::named("relay.example", false).await
    }

    /// A relay with a certificate for this name, and optionally one with the relay's key.
    pub(super) async fn named(name: &str, with_meta: bool) -> Self {
        let own = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.self_signed(&own).unwrap();
        let mut chain = vec![certificate.der().clone()];
        if with_meta {
            let mut params = CertificateParams::default();
            let key = doubles::relay::public_key();
            let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
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

    /// Accepts a connection with TLS and reads the upgrade request.
    pub(super) async fn upgrade_request(&self) -> Client {
        loop {
            let (stream, _) = self.listener.accept().await.unwrap();
            let Ok(stream) = self.tls.accept(stream).await else { continue };
            return Client::accept(stream).await.expect("a client sends a request");
        }
    }

    /// Accepts a client and its login.
    pub(super) async fn client(&self) -> Client {
        let mut client = self.upgrade_request().await;
        client.upgrade().await;
        client.log_in().await;
        client
    }
}

/// An address with a closed port.
pub(super) async fn closed_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}
