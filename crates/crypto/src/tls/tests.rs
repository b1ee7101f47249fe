//! Complete handshakes in memory, between our implementation and itself, and with sides without
//! X25519MLKEM768.

use std::io::Read;

use rustls::{
    ClientConfig, ClientConnection, NamedGroup, RootCertStore, ServerConfig, ServerConnection,
    crypto::SupportedKxGroup, pki_types::PrivateKeyDer,
};

use super::hybrid::X25519MlKem768;
use super::*;

fn handshake(client: Arc<CryptoProvider>, server: Arc<CryptoProvider>) -> [NamedGroup; 2] {
    let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).expect("a key");
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).expect("a certificate");
    let client = ClientConfig::builder_with_provider(client)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = ServerConfig::builder_with_provider(server)
        .with_safe_default_protocol_versions()
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![own.cert.der().clone()], key)
        .expect("a certificate with its key");
    let name = "localhost".try_into().expect("a name");
    let mut client = ClientConnection::new(Arc::new(client), name).expect("a client");
    let mut server = ServerConnection::new(Arc::new(server)).expect("a server");
    let mut rounds = 0;
    while client.is_handshaking() || server.is_handshaking() {
        let mut sent = Vec::new();
        client.write_tls(&mut sent).expect("it is memory");
        server.read_tls(&mut &sent[..]).expect("it is memory");
        server.process_new_packets().expect("the client's messages");
        let mut sent = Vec::new();
        server.write_tls(&mut sent).expect("it is memory");
        client.read_tls(&mut &sent[..]).expect("it is memory");
        client.process_new_packets().expect("the server's messages");
        rounds += 1;
        assert!(rounds <= 2, "no second round is needed");
    }
    // Both have the same keys if one can decrypt the other's data.
    use std::io::Write;
    client.writer().write_all(b"word").expect("it is memory");
    let mut sent = Vec::new();
    client.write_tls(&mut sent).expect("it is memory");
    server.read_tls(&mut &sent[..]).expect("it is memory");
    server.process_new_packets().expect("data");
    let mut received = [0; 4];
    server.reader().read_exact(&mut received).expect("data");
    assert_eq!(&received, b"word");
    let client = client.negotiated_key_exchange_group().expect("it is over").name();
    [client, server.negotiated_key_exchange_group().expect("it is over").name()]
}

#[test]
fn hybrid_group_is_used_if_both_support_it_otherwise_x25519_in_one_round() {
    let plain = || Arc::new(ring::default_provider());
    assert_eq!(handshake(provider(), provider()), [NamedGroup::X25519MLKEM768; 2]);
    assert_eq!(handshake(provider(), plain()), [NamedGroup::X25519; 2]);
    assert_eq!(handshake(plain(), provider()), [NamedGroup::X25519; 2]);
}

#[test]
fn shares_of_wrong_length_or_invalid_keys_are_refused() {
    let client = X25519MlKem768.start().expect("randomness");
    let share = client.pub_key().to_vec();
    let answer = |share: &[u8]| X25519MlKem768.start_and_complete(share);
    let server = answer(&share).expect("a whole share");
    assert_eq!((share.len(), server.pub_key.len()), (1216, 1120));
    for wrong in [&share[1..], &share[..1184], &[][..], &[&share[..], &[0]].concat()] {
        assert!(answer(wrong).is_err(), "{} bytes", wrong.len());
    }
    assert!(answer(&[0xff; 1216]).is_err(), "coefficients that are too large");
    for len in [0, 32, 1088, 1119, 1121] {
        let client = X25519MlKem768.start().expect("randomness");
        assert!(client.complete(&vec![1; len]).is_err(), "{len} bytes");
    }
    let secret = client.complete(&server.pub_key).expect("the server's share");
    assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
    assert_eq!(secret.secret_bytes().len(), 64);
}
