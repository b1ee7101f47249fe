use std::error::Error;

use tunnel::{Config, ConfigError, StartError, Tunnel};

use crate::tunnel_pair::{A, B, Pair, at, config, in_time, key, peer};

fn text(more: &str) -> String {
    format!("[Interface]\nPrivateKey = {}\nAddress = 10.7.0.1/24\n{more}\n", *key(0).to_base64())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wg_quick_file_starts_a_tunnel() {
    let b = Tunnel::start(&config(1, B).peer(peer(0, A))).await.unwrap();
    let text = text(&format!(
        "MTU = 1420\nPostUp = never\n[Peer]\nPublicKey = {}\nEndpoint = localhost:{}\n\
         AllowedIPs = 10.7.0.2/32",
        key(1).public_key().to_base64(),
        b.listen_port()
    ));
    let path = std::env::temp_dir().join(format!("linerate-tunnel-{}.conf", std::process::id()));
    std::fs::write(&path, &text).unwrap();
    let read = Config::from_file(&path);
    std::fs::remove_file(&path).unwrap();
    for config in [read.unwrap(), Config::from_text(&text).unwrap()] {
        let a = Tunnel::start(&config).await.unwrap();
        in_time(a.ping(B[0].parse().unwrap())).await.unwrap();
    }
}

#[test]
fn invalid_configuration_is_reported_with_its_line() {
    let error = |text: &str| Config::from_text(text).unwrap_err().to_string();
    assert!(error(&text("Adress = 10.7.0.1")).starts_with("configuration:4: "));
    assert!(error(&text("Socks5 = 127.0.0.1:1080")).contains("linerate proxy"));
    assert!(error("[Interface]\nAddress = 10.7.0.1/24\n").contains("PrivateKey"));
    let absent = Config::from_file("/nowhere/wg0.conf").unwrap_err();
    assert!(absent.to_string().starts_with("/nowhere/wg0.conf: "));
    assert!(matches!(absent, ConfigError::Unreadable(..)) && absent.source().is_some());
}

#[tokio::test]
async fn failed_start_reports_the_reason() {
    let nameless = peer(1, B).endpoint("nowhere.invalid", 1);
    let error = Tunnel::start(&config(0, A).peer(nameless)).await.unwrap_err();
    assert!(matches!(&error, StartError::Endpoint(name, _) if name.host == "nowhere.invalid"));
    let error = Tunnel::start(&Config::new(key(0))).await.unwrap_err();
    assert!(matches!(error, StartError::NoAddress));
    let first = Tunnel::start(&config(0, A)).await.unwrap();
    let second = config(1, B).listen_port(first.listen_port());
    let error = Tunnel::start(&second).await.unwrap_err();
    assert!(matches!(error, StartError::Port(_)) && error.to_string().contains("in use"));
}

/// The MTU follows from the paths to the endpoints. Loopback has the largest. b is configured without an endpoint and uses
/// the MTU of the default route.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_mtu_follows_from_the_path_mtu() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let b = Config::new(key(1)).address(B[0].parse().unwrap()).peer(peer(0, A));
    let b = Tunnel::start(&b).await.unwrap();
    let to_b = peer(1, B).endpoint("127.0.0.1", b.listen_port());
    let a = Config::new(key(0)).address(A[0].parse().unwrap()).peer(to_b);
    let pair = Pair { a: Tunnel::start(&a).await.unwrap(), b };
    let listener = pair.b.listen(at(B[0], 80)).unwrap();
    let dialed = async { tokio::join!(pair.a.connect(at(B[0], 80)), listener.accept()) };
    let (near, far) = in_time(dialed).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap().0);
    let bytes = vec![7; 1_000_000];
    let mut received = vec![0; bytes.len()];
    let transfer = async { tokio::join!(near.write_all(&bytes), far.read_exact(&mut received)) };
    let (wrote, read) = in_time(transfer).await;
    assert!(wrote.is_ok() && read.is_ok() && received == bytes);
}
