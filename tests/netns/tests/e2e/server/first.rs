//! A server without configuration.

use std::time::Duration;

use netns::{CoordinatorKind, Family, Member, MemberKind, Nat, Path, Service, Uplink, eventually};

use crate::server::start;

const LOG: &str = "/run/rig/alone.log";

#[test]
fn one_command_hosts_a_network_and_prints_the_join_command() {
    // Only its switch is used.
    let Some(tailnet) = start() else { return };
    let host = tailnet.host("host", Uplink::Switch);
    // The server must not use files of the machine that runs the tests.
    let places = "state_dir = \"/run/rig/alone\"\nsocket = \"/run/rig/alone/socket\"\n";
    let file = host.write("alone.toml", places);
    let program = CoordinatorKind::Linerate.program().expect("it exists: the network started");
    let program = program.to_str().expect("paths of tests are text").to_owned();
    let says = |what: &str| host.has(LOG) && host.read(LOG).contains(what);
    let serve = || {
        let words = [program.as_str(), "--config", &file, "serve"];
        Service::start(&host, "alone", words)
    };
    let is_fingerprint = |word: &str| word.split(':').filter(|pair| pair.len() == 2).count() == 32;
    // It is printed after the link.
    let server = serve().wait_until(|| {
        says("SHA-256 fingerprint") && host.read(LOG).split_whitespace().any(is_fingerprint)
    });
    let text = host.read(LOG);
    let report = |before: &str| {
        let line = text.lines().find(|line| line.contains(before)).expect("the command is printed");
        line.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (ours, theirs) = (report("linerate join"), report("tailscale up"));
    let (url, server_key, key) = (&ours[2], &ours[4], &ours[6]);
    assert_eq!((url, key), (&theirs[3], &theirs[5]));
    assert!(url.starts_with("http://10."), "{url}");

    // Browsers store the page's cookie only with TLS.
    let link = text.split_whitespace().find(|word| word.contains("/admin/login#"));
    let link = link.expect("a link is printed");
    assert!(link.starts_with("https://10."), "{link}");
    let request = format!("curl -sk -o /dev/null -w %{{http_code}} {link}");
    assert_eq!(host.run(request).trim(), "200");

    // A member that only has the relay. The relay's certificate is identified by its hash.
    let one = tailnet.host("one", Uplink::Behind(Nat::WithoutUdp));
    let one = Member::join_at(url, key, one, MemberKind::Tailscaled, "");
    let other = tailnet.host("other", Uplink::Switch);
    let flags = format!("--server-key={server_key}");
    let other = Member::join_at(url, key, other, MemberKind::Linerate, &flags);
    one.reaches(&other, Family::V4);
    other.reaches(&one, Family::V4);
    assert_eq!(other.path_to(&one), Path::Relay("linerate".to_owned()));

    drop(server);
    let _server = serve().wait_until(|| says("serving http://"));
    one.reaches(&other, Family::V4);
    assert!(!says("linerate join"), "the network has its machines: {}", host.read(LOG));
}

/// Stock clients retry a private address on the same port, so this address is public.
#[test]
fn a_stock_client_reconnects_to_a_public_address_without_tls() {
    let Some(tailnet) = start() else { return };
    let public = |name: &str, number: u8| {
        let host = tailnet.host(name, Uplink::Switch);
        host.run(format!("ip address add 203.0.113.{number}/24 dev eth0"));
        host
    };
    let (host, client) = (public("host", 1), public("client", 2));
    let file = host.write(
        "alone.toml",
        "server_url = \"http://203.0.113.1:8080\"\nstate_dir = \"/run/rig/alone\"\n\
         socket = \"/run/rig/alone/socket\"\n",
    );
    let program = CoordinatorKind::Linerate.program().expect("it exists: the network started");
    let program = program.to_str().expect("paths of tests are text").to_owned();
    let serve = || {
        let words = [program.as_str(), "--config", &file, "serve"];
        Service::start(&host, "alone", words).wait_until(|| {
            host.has(LOG) && host.read(LOG).contains("serving http://") && host.listens(443)
        })
    };
    let command = |words: &str| host.run(format!("{program} --config {file} {words}"));
    let server = serve();
    command("users create ann");
    let key = command("preauthkeys create --user ann --reusable");
    let key = key.lines().last().expect("a key is printed").trim();
    let url = "http://203.0.113.1:8080";
    let member = Member::join_at(url, key, client, MemberKind::Tailscaled, "");
    drop(server);
    let _server = serve();
    let is_online = || {
        let nodes: serde_json::Value =
            serde_json::from_str(&command("nodes list --output json")).expect("a list of nodes");
        nodes[0]["online"] == true
    };
    eventually("the client is back", Duration::from_secs(60), is_online);
    // It remembers an interruption of the last minutes, and only tries port 443.
    let log = member.host.read("/run/rig/tailscaled.log");
    assert!(log.contains("forcing port 443"), "{log}");
}
