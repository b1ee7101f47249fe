use sha2::{Digest as _, Sha256};

use super::*;

/// Logs a node that trusts `trusted` in to a relay with this description. Returns the error
/// otherwise.
async fn log_in(relay: &Relay, trusted: &Relay, about: DerpNode) -> Result<relay::Client, String> {
    let mut member = Node::new(1, trusted);
    member.command(map([(1, vec![about])])).await;
    member.command(Command::Home(Some(1))).await;
    let accepting = relay.client();
    tokio::pin!(accepting);
    let (mut client, mut is_connected) = (None, false);
    loop {
        tokio::select! {
            accepted = &mut accepting, if client.is_none() => client = Some(accepted),
            event = member.event() => match event {
                Event::Connected { .. } => is_connected = true,
                Event::Disconnected { why, .. } => return Err(why),
                event => panic!("{event:?}"),
            },
        }
        if let Some(client) = client.take_if(|_| is_connected) {
            return Ok(client);
        }
    }
}

#[tokio::test]
async fn relay_needs_a_trusted_certificate_for_its_name() {
    let (relay, other) = (Relay::new().await, Relay::new().await);
    assert!(log_in(&relay, &relay, node(relay.at)).await.is_ok());
    let why = log_in(&relay, &other, node(relay.at)).await.err().unwrap();
    assert!(why.contains("TLS with relay.example"), "{why}");
    let renamed = DerpNode { host_name: "other.example".into(), ..node(relay.at) };
    assert!(log_in(&relay, &relay, renamed).await.is_err());
    let no_name = DerpNode { host_name: "a\r\nb".into(), ..node(relay.at) };
    assert!(log_in(&relay, &relay, no_name).await.is_err());
}

#[tokio::test]
async fn relay_marked_insecure_is_accepted_without_a_trusted_certificate() {
    let (relay, other) = (Relay::new().await, Relay::new().await);
    let insecure = DerpNode { insecure_for_tests: true, ..node(relay.at) };
    assert!(log_in(&relay, &other, insecure).await.is_ok());
}

#[tokio::test]
async fn certificate_can_be_pinned_by_hash() {
    let (relay, other) = (Relay::named("relay.example", true).await, Relay::new().await);
    let hash: String =
        Sha256::digest(&relay.certificate).iter().map(|b| format!("{b:02x}")).collect();
    let hashed =
        |hash: &str| DerpNode { cert_name: format!("sha256-raw:{hash}"), ..node(relay.at) };
    assert!(log_in(&relay, &other, hashed(&hash)).await.is_ok());
    let last = if hash.ends_with('0') { '1' } else { '0' };
    let changed = format!("{}{last}", &hash[..63]);
    for wrong in [&*"0".repeat(64), &changed] {
        assert!(log_in(&relay, &other, hashed(wrong)).await.is_err(), "{wrong}");
    }
    assert!(log_in(&relay, &other, hashed("none")).await.is_err());
    let renamed = DerpNode { host_name: "other.example".into(), ..hashed(&hash) };
    assert!(log_in(&relay, &other, renamed).await.is_err(), "its name counts");
    let insecure = DerpNode { insecure_for_tests: true, ..hashed(&"0".repeat(64)) };
    assert!(log_in(&relay, &other, insecure).await.is_err(), "the pinned hash applies");
}

#[tokio::test]
async fn certificate_can_be_for_another_name_than_the_host() {
    let relay = Relay::named("real.example", false).await;
    let fronted = DerpNode { cert_name: "real.example".into(), ..node(relay.at) };
    let config =
        |roots| super::super::tls::config(&fronted, &tls(RootCertStore::empty()), || roots);
    let mut roots = RootCertStore::empty();
    roots.add(relay.certificate.clone()).unwrap();
    for (roots, is_trusted) in [(roots, true), (RootCertStore::empty(), false)] {
        let Ok(config) = config(roots) else {
            assert!(!is_trusted);
            continue;
        };
        let connecting = async {
            let stream = tokio::net::TcpStream::connect(relay.at).await.unwrap();
            let name = "relay.example".try_into().unwrap();
            tokio_rustls::TlsConnector::from(config).connect(name, stream).await
        };
        tokio::select! {
            connected = connecting => assert_eq!(connected.is_ok(), is_trusted),
            _ = relay.upgrade_request() => unreachable!("no request follows"),
        }
    }
}

#[tokio::test]
async fn relay_key_in_a_certificate_enables_fast_start() {
    let relay = Relay::named("relay.example", true).await;
    let mut client = log_in(&relay, &relay, node(relay.at)).await.unwrap();
    assert!(client.request.contains("\r\nDerp-Fast-Start: 1\r\n"), "{}", client.request);
    assert_eq!(
        client.next().await.map(|(kind, _)| kind),
        Some(tailnet::derp::kind::NOTE_PREFERRED)
    );
}
