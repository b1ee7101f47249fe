//! Connections over the loopback interface.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use mesh::{http_proxy::Proxies, permitted_addresses::Scope};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use rustls::{RootCertStore, ServerConfig, pki_types::PrivateKeyDer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use super::super::{
    dial::{Dialer, Stream, Target, race, tls},
    error::ControlError,
};
use super::*;

type Issuer = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Issuer {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Listens with a certificate for this name and these years, and sends "hello" after the handshake.
async fn listens(authority: &Issuer, name: &str, years: (i32, i32)) -> u16 {
    let mut params = CertificateParams::new([name.to_owned()]).unwrap();
    params.not_before = date_time_ymd(years.0, 1, 1);
    params.not_after = date_time_ymd(years.1, 1, 1);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                let _ = stream.write_all(b"hello").await;
                let _ = stream.shutdown().await;
            }
        }
    });
    port
}

fn dialer(authority: &Issuer, variables: &[(&str, String)]) -> Dialer {
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let proxies = Proxies::new(|name| {
        let (_, value) = variables.iter().find(|(variable, _)| *variable == name)?;
        Some(value.clone())
    });
    Dialer::new(proxies, tls(roots), None).within(here())
}

/// The scope of a coordinator on this machine.
fn here() -> Scope {
    Scope::of_control(&"http://127.0.0.1".parse().unwrap(), "")
}

fn target(host: &str, port: u16) -> Target {
    Target { host: host.into(), port, tls: true, address: Some([127, 0, 0, 1].into()) }
}

async fn hello(mut stream: Box<dyn Stream>) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn certificate_of_trusted_ca_is_accepted() {
    let authority = authority();
    let port = listens(&authority, "control.example", (2000, 2100)).await;
    let dialer = dialer(&authority, &[]);
    let stream = dialer.dial(&target("control.example", port)).await.unwrap();
    assert_eq!(hello(stream).await, "hello");
}

#[tokio::test]
async fn each_rejected_certificate_has_its_own_message() {
    let ours = authority();
    for (issuer, name, years, expected) in [
        (&authority(), "control.example", (2000, 2100), "a CA that this machine does not trust"),
        (&ours, "other.example", (2000, 2100), "its certificate is for another name"),
        (&ours, "control.example", (2000, 2001), "expired"),
        (&ours, "control.example", (2100, 2101), "is valid only in"),
    ] {
        let port = listens(issuer, name, years).await;
        let result = dialer(&ours, &[]).dial(&target("control.example", port)).await;
        let error = result.err().unwrap().to_string();
        assert!(error.starts_with("control.example: its certificate"), "{error}");
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.contains("check the clock"), years != (2000, 2100), "{error}");
    }
}

#[tokio::test]
async fn closed_port_and_host_without_tls_have_clear_errors() {
    let authority = authority();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let speaking = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 1024]).await;
    });
    let dialer = dialer(&authority, &[]);
    let error = dialer.dial(&target("control.example", port)).await.err().unwrap().to_string();
    assert!(error.contains("does not use TLS"), "{error}");
    speaking.await.unwrap();
    let error = dialer.dial(&target("control.example", port)).await.err().unwrap().to_string();
    assert!(error.contains("connection refused: nothing listens there"), "{error}");
}

#[tokio::test]
async fn hook_runs_for_each_socket_and_can_reject_it() {
    let authority = authority();
    let port = listens(&authority, "control.example", (2000, 2100)).await;
    let seen = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&seen);
    let hook = Arc::new(move |_: std::os::fd::BorrowedFd<'_>| {
        match counter.fetch_add(1, Ordering::Relaxed) {
            0 => Ok(()),
            _ => Err(std::io::Error::other("no mark")),
        }
    });
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).unwrap();
    let dialer = Dialer::new(Proxies::default(), tls(roots), Some(hook)).within(here());
    assert!(dialer.dial(&target("control.example", port)).await.is_ok());
    let error = dialer.dial(&target("control.example", port)).await.err().unwrap();
    assert!(error.to_string().contains("no mark"), "{error}");
    assert_eq!(seen.load(Ordering::Relaxed), 2);
}

/// A proxy that serves one request, or sends this answer. Returns the request.
async fn proxy(answer: Option<&'static str>) -> (u16, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        if let Some(answer) = answer {
            stream.write_all(answer.as_bytes()).await.unwrap();
            return request;
        }
        let to = request.split(' ').nth(1).unwrap();
        let mut onward = TcpStream::connect(to).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nVia: test\r\n\r\n").await.unwrap();
        let _ = tokio::io::copy_bidirectional(&mut stream, &mut onward).await;
        request
    });
    (port, serving)
}

#[tokio::test]
async fn proxy_gets_connect_with_password_and_tls_runs_through_it() {
    let authority = authority();
    let port = listens(&authority, "control.example", (2000, 2100)).await;
    let (proxy_port, serving) = proxy(None).await;
    let url = format!("http://me:secret@127.0.0.1:{proxy_port}");
    let dialer = dialer(&authority, &[("HTTPS_PROXY", url)]);
    let stream = dialer.dial(&target("control.example", port)).await.unwrap();
    assert_eq!(hello(stream).await, "hello");
    let request = serving.await.unwrap();
    assert!(request.starts_with(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")), "{request}");
    assert!(request.contains("\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n"), "{request}");
}

#[tokio::test]
async fn answer_of_refusing_proxy_is_quoted() {
    let authority = authority();
    for answer in ["HTTP/1.1 403 Forbidden by policy\r\n\r\n", "SSH-2.0-OpenSSH\r\n\r\n"] {
        let (port, _serving) = proxy(Some(answer)).await;
        let dialer = dialer(&authority, &[("HTTPS_PROXY", format!("127.0.0.1:{port}"))]);
        let error = dialer.dial(&target("control.example", 443)).await.err().unwrap().to_string();
        let expected = format!("the proxy 127.0.0.1:{port} refuses: {}", answer.trim_end());
        assert_eq!(error, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn attempts_start_on_time_or_after_failures_and_first_error_is_reported() {
    let begun = tokio::time::Instant::now();
    let attempt = |after, takes, outcome: Result<u8, &'static str>| {
        let run = async move {
            tokio::time::sleep(Duration::from_millis(takes)).await;
            outcome.map_err(|why| ControlError::ConnectionEnded(why.into()))
        };
        (Duration::from_millis(after), run)
    };
    // The second starts in parallel, and wins.
    let won = race([attempt(0, 10_000, Ok(1)), attempt(500, 100, Ok(2))]).await.unwrap();
    assert_eq!((won, begun.elapsed().as_millis()), (2, 600));
    // The second starts early.
    let begun = tokio::time::Instant::now();
    let won = race([attempt(0, 10, Err("no")), attempt(500, 10, Ok(2))]).await.unwrap();
    assert_eq!((won, begun.elapsed().as_millis()), (2, 20));
    let lost = race([attempt(0, 10, Err("one")), attempt(5, 1, Err("two"))]).await;
    assert_eq!(lost.unwrap_err().to_string(), "the connection to the coordinator ended: two");
}

#[tokio::test(start_paused = true)]
async fn key_mismatch_is_reported_before_other_errors() {
    let attempt = |after, is_other_key| {
        let run = async move {
            let (expected, offered) = (MachinePublic([1; 32]), MachinePublic([2; 32]));
            Err::<u8, _>(match is_other_key {
                true => ControlError::KeyMismatch { url: "http://a".into(), expected, offered },
                false => ControlError::ConnectionEnded("no route".into()),
            })
        };
        (Duration::from_millis(after), run)
    };
    for order in [[true, false], [false, true]] {
        let lost = race([attempt(0, order[0]), attempt(5, order[1])]).await.unwrap_err();
        assert!(matches!(lost, ControlError::KeyMismatch { .. }), "{lost}");
    }
}

#[tokio::test]
async fn local_addresses_are_dialled_only_for_a_coordinator_on_this_machine() {
    let authority = authority();
    let port = listens(&authority, "control.example", (2000, 2100)).await;
    let at = |host: &str, address: Option<&str>| Target {
        host: host.into(),
        port,
        tls: true,
        address: address.map(|address| address.parse().unwrap()),
    };
    let targets = [
        at("control.example", Some("127.0.0.1")),
        at("control.example", Some("::ffff:127.0.0.1")),
        at("control.example", Some("0.0.0.0")),
        at("127.0.0.1", None),
        // A local address from DNS.
        at("localhost", None),
    ];
    let (proxy_port, _serving) = proxy(None).await;
    let proxied = [("HTTPS_PROXY", format!("127.0.0.1:{proxy_port}"))];
    for (target, variables) in targets.iter().flat_map(|at| [(at, &[][..]), (at, &proxied[..])]) {
        let far = dialer(&authority, variables).within(Scope::default());
        let error = far.dial(target).await.err().expect("it is refused").to_string();
        assert!(error.contains("an address of this machine"), "{target:?}: {error}");
    }
    // The user's proxy may have a local address.
    let unspecified = dialer(&authority, &[]).dial(&targets[2]).await.err().unwrap().to_string();
    assert!(unspecified.contains("an address of this machine"), "{unspecified}");
    assert!(dialer(&authority, &proxied).dial(&targets[0]).await.is_ok());
}
