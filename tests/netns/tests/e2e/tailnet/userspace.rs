//! A node without an interface, of a user without rights.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use netns::{
    Family, Host, Member, MemberKind, Tailnet, Uplink, eventually, in_background, lacks_users,
};

use crate::tailnet::PATIENCE;

/// Folder of the user's sockets and state.
const HOME: &str = "/run/rig/nobody";
/// The name of the node.
const NODE: &str = "home";

/// Answers every HTTP request.
fn serve(host: &Host) {
    let listener = host.inside(|| TcpListener::bind("[::]:80").expect("the port is free"));
    in_background("page", move || {
        for mut stream in listener.incoming().flatten() {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            let _ = head.take_while(|line| !line.is_empty()).count();
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        }
    });
}

/// Runs a command of linerate as a user without rights. The output is in `stdout`.
fn linerate(host: &Host, arguments: &str) -> netns::Outcome {
    let program = netns::Implementation::Linerate.path();
    let powerless = "setpriv --reuid=nobody --regid=nogroup --clear-groups --bounding-set=-all \
                     --inh-caps=-all";
    let line = format!(
        "env HOME={HOME} XDG_RUNTIME_DIR={HOME} SSL_CERT_FILE=/run/rig/ca.pem {powerless} {} \
         {arguments} </dev/null >{HOME}/log 2>&1",
        program.display()
    );
    let mut outcome = host.attempt(line);
    outcome.stdout = host.read(&format!("{HOME}/log"));
    outcome
}

#[test]
fn a_user_without_rights_reaches_nodes_through_proxies_by_address_and_by_name() {
    if lacks_users() {
        return;
    }
    let Some(tailnet) = Tailnet::start() else { return };
    let [stock, ours] = [("stock", MemberKind::Tailscaled), ("ours", MemberKind::Linerate)]
        .map(|(name, kind)| Member::join(&tailnet, tailnet.host(name, Uplink::Switch), kind, ""));
    for member in [&stock, &ours] {
        serve(&member.host);
    }
    let host = tailnet.host("user", Uplink::Switch);
    let key = host.write_secret("auth.key", tailnet.coordinator.auth_key());
    host.run(format!(
        "mkdir -p {HOME} && chown -R nobody {HOME} {key} && chmod 644 /run/rig/ca.pem"
    ));
    let url = tailnet.coordinator.url();
    let join = format!(
        "join {url} {NODE} --auth-key=file:{key} --hostname=user --userspace \
         --socks 127.0.0.1:1080 --http 127.0.0.1:8080"
    );
    let joined = linerate(&host, &join);
    assert!(joined.ok, "{joined:?}");
    assert!(!host.has_device(Member::INTERFACE) && !host.has_device(NODE));

    let curl = |proxy: &str, url: &str| {
        host.attempt(format!("curl --silent --show-error --fail --max-time 5 {proxy} {url}")).stdout
    };
    let by_socks = |to: &str| curl("--socks5-hostname 127.0.0.1:1080", &format!("http://{to}/"));
    for member in [&stock, &ours] {
        let name = member.host.name().to_owned();
        let v6 = format!("[{}]", member.addresses.of(Family::V6));
        let v4 = member.addresses.of(Family::V4).to_owned();
        for to in [v4.clone(), v6, name.clone(), format!("{name}.rig.test")] {
            eventually(&format!("{to} answers"), PATIENCE, || by_socks(&to) == "hello");
        }
        let by_http = curl("--proxy http://127.0.0.1:8080", &format!("http://{name}/"));
        assert_eq!(by_http, "hello");
    }
    assert_eq!(by_socks("nobody.rig.test"), "");
    let status = linerate(&host, "status");
    assert!(status.ok && status.stdout.contains("stock"), "{status:?}");
    let pong = linerate(&host, "ping stock");
    assert!(pong.ok && pong.stdout.contains("answer from stock"), "{pong:?}");

    // It restarts from its stored state, and leaves.
    assert!(linerate(&host, &format!("down {NODE}")).ok);
    let again = linerate(&host, &format!("join {NODE} --userspace --socks 127.0.0.1:1080"));
    assert!(again.ok, "{again:?}");
    eventually("stock answers again", PATIENCE, || by_socks("stock") == "hello");
    let left = linerate(&host, &format!("leave {NODE}"));
    assert!(left.ok, "{left:?}");
    assert!(!host.has(&format!("{HOME}/.local/state/linerate/{NODE}")));
}
