//! A server behind each proxy with a configuration in docs/server.md: exactly that text, except for
//! names of hosts and files.

use netns::{
    Family, Host, Member, MemberKind, Nat, Path, Service, Tailnet, Uplink, eventually, ping,
};

use super::{PATIENCE, block, is_online, start};

const MANUAL: &str = include_str!("../../../../../docs/server.md");

/// The manual's configuration of a proxy, with the rig's names.
fn of_manual(proxy: &str) -> String {
    block(MANUAL, proxy)
        .replace("net.example.com", "10.1.0.1")
        .replace("/etc/ssl/private/10.1.0.1.key", "/run/rig/tls.key")
        .replace("/etc/ssl/10.1.0.1.pem", "/run/rig/tls.pem")
        .replace("/etc/haproxy/10.1.0.1.pem", "/run/rig/both.pem")
}

fn proxied(start_proxy: impl FnOnce(&Host) -> Service) -> Option<(Tailnet, Service)> {
    let mut tailnet = start()?;
    let coordinator = &mut tailnet.coordinator;
    coordinator.change("listen = [\"[::]:443\"]\n", "");
    coordinator.change("tls_certificate = \"/run/rig/tls.pem\"\n", "");
    coordinator.change("tls_key = \"/run/rig/tls.key\"\n", "");
    coordinator.kill();
    let host = coordinator.host.clone();
    let service = start_proxy(&host).wait_until(|| host.listens(443));
    coordinator.set(&of_manual("toml proxied"));
    Some((tailnet, service))
}

fn nginx(host: &Host) -> Service {
    let text = format!(
        "daemon off; pid /run/rig/nginx-pid; error_log stderr; user root;\nevents {{}}\nhttp {{\n\
         access_log off;\n{}\n}}\n",
        of_manual("nginx")
    );
    let file = host.write("nginx.conf", &text);
    host.run("mkdir -p /run/rig/nginx && mount -t tmpfs tmpfs /var/lib/nginx");
    Service::start(host, "nginx", ["nginx", "-c", &file])
}

fn caddy(host: &Host) -> Service {
    let file = host.write("Caddyfile", &of_manual("caddyfile"));
    let words =
        ["env", "HOME=/run/rig", "caddy", "run", "--adapter", "caddyfile", "--config", &file];
    Service::start(host, "caddy", words)
}

fn haproxy(host: &Host) -> Service {
    let file = host.write("haproxy.cfg", &of_manual("haproxy"));
    host.run("cat /run/rig/tls.pem /run/rig/tls.key >/run/rig/both.pem");
    Service::start(host, "haproxy", ["haproxy", "-db", "-f", &file])
}

/// Both kinds of members join and connect through the relay behind the proxy.
fn carries(tailnet: &Tailnet) {
    let [one, other] =
        [("one", MemberKind::Tailscaled), ("other", MemberKind::Linerate)].map(|(name, kind)| {
            let host = tailnet.host(name, Uplink::Behind(Nat::WithoutUdp));
            Member::join(tailnet, host, kind, "")
        });
    one.reaches(&other, Family::V4);
    other.reaches(&one, Family::V6);
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert_eq!(path, Path::Relay("rig".to_owned()));
    }
    let pings =
        ping(&one.host, format!("-c 20 -i 0.05 -s 1200 {}", other.addresses.of(Family::V4)));
    assert!(pings.received + 1 >= pings.sent, "{}", pings.text);
    eventually("both are online", PATIENCE, || {
        is_online(tailnet, "one") && is_online(tailnet, "other")
    });
}

/// The protocol of browsers: WebSockets, by GET.
fn forwards_web_sockets(tailnet: &Tailnet) {
    let client = tailnet.host("browser", Uplink::Switch);
    let url = tailnet.coordinator.url();
    // Any Noise message gets an answer; errors are reported inside of it.
    let message = "A".repeat(136);
    let ways = [
        ("tailscale-control-protocol", format!("{url}/ts2021?X-Tailscale-Handshake={message}")),
        ("derp", format!("{url}/derp")),
    ];
    for (protocol, url) in ways {
        let request = client.attempt(format!(
            "curl -sS -m 3 -i --http1.1 --cacert /run/rig/ca.pem -H 'Connection: Upgrade' \
             -H 'Upgrade: websocket' -H 'Sec-WebSocket-Version: 13' \
             -H 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==' \
             -H 'Sec-WebSocket-Protocol: {protocol}' '{url}' | head -n 1 | tr -d '\\0'"
        ));
        assert!(request.stdout.starts_with("HTTP/1.1 101"), "{protocol}: {request:?}");
    }
}

/// Wrong keys are counted by the client's address, even if the client claims another.
fn counts_by_client(tailnet: &Tailnet) {
    let [noisy, quiet] = ["noisy", "quiet"].map(|name| tailnet.host(name, Uplink::Switch));
    let url = tailnet.coordinator.url();
    let asks = |host: &Host, more: &str| {
        host.run(format!(
            "curl -sS -o /dev/null -w %{{http_code}} --cacert /run/rig/ca.pem {more} \
             -H 'Authorization: Bearer no' {url}/api/v1/node"
        ))
    };
    for number in 0..20 {
        let lie = format!("-H 'X-Forwarded-For: 192.0.2.{number}'");
        assert_eq!(asks(&noisy, &lie), "401");
    }
    assert_eq!(asks(&noisy, "-H 'X-Forwarded-For: 192.0.2.99'"), "429");
    assert_eq!(asks(&quiet, ""), "401");
    assert!(!tailnet.coordinator.log().contains("panicked"));
}

fn works_behind(start_proxy: impl FnOnce(&Host) -> Service) {
    let Some((tailnet, _proxy)) = proxied(start_proxy) else { return };
    carries(&tailnet);
    forwards_web_sockets(&tailnet);
    counts_by_client(&tailnet);
}

#[test]
fn members_join_and_are_relayed_behind_nginx() {
    works_behind(nginx);
}

#[test]
fn members_join_and_are_relayed_behind_caddy() {
    works_behind(caddy);
}

#[test]
fn members_join_and_are_relayed_behind_haproxy() {
    works_behind(haproxy);
}
