//! A program that is a node, by the library.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use netns::{
    Family, Host, Member, MemberKind, Service, Tailnet, Uplink, eventually, in_background,
};

use crate::tailnet::PATIENCE;

/// The name of the program in the tailnet.
const NODE: &str = "program";
/// The log of the program.
const LOG: &str = "/run/rig/library.log";
/// Length of the page, longer than any buffer on the path.
const PAGE: usize = 3_000_000;

/// Answers every HTTP request with a long page.
fn serve(host: &Host) {
    let listener = host.inside(|| TcpListener::bind("[::]:80").expect("the port is free"));
    in_background("page", move || {
        let page = format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(PAGE));
        for mut stream in listener.incoming().flatten() {
            let head = BufReader::new(&stream).lines().map_while(Result::ok);
            let _ = head.take_while(|line| !line.is_empty()).count();
            let _ = stream.write_all(page.as_bytes());
        }
    });
}

/// Starts the program as a user without rights, and waits until it serves.
fn start(host: &Host, url: &str, key: &str) -> Service {
    let program = netns::example("tailnet");
    let program = program.display();
    let words = format!(
        "env SSL_CERT_FILE=/run/rig/ca.pem TS_AUTHKEY={key} setpriv --reuid=nobody \
         --regid=nogroup --clear-groups --bounding-set=-all --inh-caps=-all {program} {url} \
         /run/rig/state/node {NODE} stock.rig.test"
    );
    let service = Service::start(host, "library", words.split_whitespace());
    service.wait_until(|| host.read(LOG).contains("serving"))
}

#[test]
fn a_program_is_a_node_that_fetches_serves_and_restarts_as_the_same_node() {
    if netns::lacks_users() {
        return;
    }
    let Some(tailnet) = Tailnet::start() else { return };
    let host = tailnet.host("stock", Uplink::Switch);
    let stock = Member::join(&tailnet, host, MemberKind::Tailscaled, "");
    serve(&stock.host);
    let host = tailnet.host("user", Uplink::Switch);
    host.run("mkdir /run/rig/state && chown nobody /run/rig/state && chmod 644 /run/rig/ca.pem");
    let (url, key) = (tailnet.coordinator.url(), tailnet.coordinator.auth_key());

    let fetched = |to: &str| {
        let line = format!("curl --silent --show-error --max-time 10 http://{to}/");
        stock.host.attempt(line).stdout.len()
    };
    let mut own = Vec::new();
    for key in [key, ""] {
        let mut program = start(&host, url, key);
        assert!(!host.has_device(Member::INTERFACE));
        let log = host.read(LOG);
        let joined = log.lines().find(|line| line.starts_with("joined as program.rig.test at "));
        own.push(joined.unwrap_or_else(|| panic!("{log}")).to_owned());
        assert!(log.contains(&format!("{} bytes from stock.rig.test", PAGE + 19)), "{log}");

        let status = stock.status();
        let peers = status["Peer"].as_object().into_iter().flat_map(|peers| peers.values());
        let peer = peers.into_iter().find(|peer| peer["HostName"] == NODE).expect("it is there");
        for family in Family::ALL {
            let addresses = peer["TailscaleIPs"].as_array().into_iter().flatten();
            let mut texts = addresses.filter_map(|address| address.as_str());
            let is_v6 = family == Family::V6;
            let address = texts.find(|text| text.contains(':') == is_v6).expect("one of each");
            let to = if is_v6 { format!("[{address}]") } else { address.to_owned() };
            eventually(&format!("{to} serves"), PATIENCE, || fetched(&to) == PAGE);
        }
        assert!(host.read(LOG).contains("request from stock.rig.test"), "{}", host.read(LOG));

        // It ends by itself when its input ends, and closes its connections.
        program.close_input();
        eventually("it ends", PATIENCE, || host.read(LOG).contains("closed"));
    }
    assert_eq!(own[0], own[1], "it is another node");
}
