//! A certificate of a real authority: pebble, by both challenges, and its renewal.

use netns::{Certificate, Host, Service, Switch, Tailnet, eventually, serve_names};

use super::{PATIENCE, start};

const NAME: &str = "net.test";

/// Runs pebble on the coordinator's host, with certificates of this lifetime; `None` if it is not
/// built, which is announced.
fn authority(host: &Host, seconds: u32) -> Option<Service> {
    let Some(program) = netns::peer("pebble") else {
        netns::skip("pebble (tests/netns/peers tailnet)");
        return None;
    };
    serve_names(host, &["127.0.0.1"], &format!("--host-record={NAME},10.1.0.1"));
    let own = Certificate::new(Switch::coordinator());
    host.write("ca.pem", &own.authority);
    let chain = host.write("pebble.pem", &own.chain);
    let key = host.write_secret("pebble.key", &own.key);
    let config = format!(
        r#"{{"pebble": {{ "listenAddress": "10.1.0.1:14000", "managementListenAddress": "10.1.0.1:15000",
            "certificate": "{chain}", "privateKey": "{key}", "httpPort": 80, "tlsPort": 443,
            "ocspResponderURL": "", "externalAccountBindingRequired": false,
            "retryAfter": {{ "authz": 1, "order": 1 }},
            "profiles": {{ "default": {{ "description": "", "validityPeriod": {seconds} }} }} }} }}"#
    );
    let config = host.write("pebble.json", &config);
    let words = [
        "env",
        "PEBBLE_VA_NOSLEEP=1",
        "PEBBLE_WFE_NONCEREJECT=0",
        &program.display().to_string(),
        "-config",
        &config,
        "-dnsserver",
        "127.0.0.1:53",
    ]
    .map(str::to_owned);
    Some(
        Service::start(host, "pebble", words)
            .wait_until(|| host.listens(14000) && host.listens(15000)),
    )
}

/// Configures the server to use this authority.
fn with_acme(tailnet: &mut Tailnet, more: &str) {
    for key in ["tls_certificate", "tls_key"] {
        let file = if key == "tls_key" { "tls.key" } else { "tls.pem" };
        tailnet.coordinator.change(&format!("{key} = \"/run/rig/{file}\"\n"), "");
    }
    tailnet
        .coordinator
        .change("server_url = \"https://10.1.0.1\"", "server_url = \"https://net.test\"");
    tailnet.coordinator.configure(&format!(
        "[acme]\nemail = \"admin@net.test\"\ndirectory = \"https://10.1.0.1:14000/dir\"\n{more}"
    ));
}

/// The certificate that a client sees that trusts the authority; `None` without one.
fn served_certificate(host: &Host) -> Option<String> {
    let root =
        "curl -sS --cacert /run/rig/ca.pem https://10.1.0.1:15000/roots/0 >/run/rig/root.pem";
    // The authority may have ended; its root is stored by then.
    host.attempt(format!("[ -s /run/rig/root.pem ] || {root}"));
    let request = host.attempt(format!(
        "curl -sSv --cacert /run/rig/root.pem --resolve {NAME}:443:10.1.0.1 https://{NAME}/health \
         -w '%{{certs}}'"
    ));
    let text = request.ok.then_some(request.stdout)?;
    assert!(text.contains("\"pass\""), "{text}");
    text.split("-----BEGIN").nth(1).map(str::to_owned)
}

#[test]
fn a_certificate_is_issued_renewed_and_reused_after_a_restart() {
    let Some(mut tailnet) = start() else { return };
    let host = tailnet.coordinator.host.clone();
    let Some(authority) = authority(&host, 36) else { return };
    with_acme(&mut tailnet, "");
    let mut first = None;
    eventually("there is a certificate", PATIENCE, || {
        first = served_certificate(&host);
        first.is_some()
    });
    // After two thirds of its lifetime.
    eventually("there is another", PATIENCE, || {
        served_certificate(&host).is_some_and(|now| Some(now) != first)
    });
    drop(authority);
    tailnet.coordinator.restart();
    eventually("it has the same certificate", PATIENCE, || served_certificate(&host).is_some());
    assert!(tailnet.coordinator.log().contains("ACME: the certificate is in force"));
}

#[test]
fn the_http_challenge_is_answered_without_tls() {
    let Some(mut tailnet) = start() else { return };
    let host = tailnet.coordinator.host.clone();
    let Some(_authority) = authority(&host, 3600) else { return };
    tailnet
        .coordinator
        .change("listen = [\"[::]:443\"]", "listen = [\"[::]:443\"]\nlisten_plain = [\"[::]:80\"]");
    with_acme(&mut tailnet, "challenge = \"http-01\"");
    eventually("there is a certificate", PATIENCE, || served_certificate(&host).is_some());
}
