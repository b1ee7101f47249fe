//! Relays of one region that share their client tables: ours and Tailscale's derper, which verifies
//! clients by the coordinator.
//!
//! ```text
//!   coordinator, without a relay
//!   first  ── mesh ── second
//!     |                 |
//!    one               other: cannot reach the first
//! ```

use std::time::Duration;

use netns::{
    Addresses, CoordinatorKind, Family, Host, Member, MemberKind, Nat, Path, Service, Stopwatch,
    Tailnet, Uplink, eventually, ping,
};

use crate::server::{PATIENCE, start};

/// Time in which nodes of a failed relay connect through the other.
const MOVED: Duration = Duration::from_secs(10);
/// The mesh key.
pub(crate) const KEY: &str = "6d2f0d9cbf0b1c1e5d8a7f6e5d4c3b2a6d2f0d9cbf0b1c1e5d8a7f6e5d4c3b2a";

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ours,
    Derper,
}

struct Relay {
    kind: Kind,
    host: Host,
    addresses: Addresses,
    service: Option<Service>,
}

impl Relay {
    fn new(tailnet: &Tailnet, kind: Kind, name: &str) -> Self {
        let host = tailnet.host(name, Uplink::Switch);
        let addresses = addresses(&host);
        let certificate = tailnet.certificate.of(addresses.clone());
        let name = addresses.of(Family::V4);
        host.run("mkdir /run/rig/certs");
        host.write(&format!("certs/{name}.crt"), &certificate.chain);
        host.write_secret(&format!("certs/{name}.key"), &certificate.key);
        host.write_secret("mesh.key", KEY);
        Self { kind, host, addresses, service: None }
    }

    fn name(&self) -> &str {
        self.addresses.of(Family::V4)
    }

    /// Starts it with a mesh link to another.
    fn start(&mut self, other: &str) {
        let trust = "SSL_CERT_FILE=/run/rig/ca.pem";
        let verify = "https://10.1.0.1/verify";
        let name = self.name();
        let line = match self.kind {
            Kind::Ours => {
                let file = self.host.write("relay.toml", &ours(name, other, verify));
                let program = CoordinatorKind::Linerate.program().expect("the network started");
                format!("env {trust} {} --config {file} serve", program.display())
            }
            Kind::Derper => {
                let program = netns::peer("derper").expect("the test requires it");
                format!(
                    "env {trust} {} -a=:443 -certmode=manual -certdir=/run/rig/certs \
                     -hostname={name} -http-port=-1 -c=/run/rig/derper.key \
                     -mesh-psk-file=/run/rig/mesh.key -mesh-with={other} \
                     -verify-client-url={verify} -verify-client-url-fail-open=false",
                    program.display()
                )
            }
        };
        let service = Service::start(&self.host, "relay", line.split_whitespace());
        self.service = Some(service.wait_until(|| self.host.listens(443)));
    }
}

/// The addresses of a host on the switch.
pub(crate) fn addresses(host: &Host) -> Addresses {
    let address = |family: &str| {
        let text = host.run(format!(
            "ip -o {family} address show dev eth0 scope global | \
             sed 's|.* inet6* \\([^/]*\\)/.*|\\1|'"
        ));
        text.trim().to_owned()
    };
    Addresses::from_texts(&address("-4"), &address("-6"))
}

fn ours(name: &str, other: &str, verify: &str) -> String {
    format!(
        r#"server_url = "https://{name}"
listen = ["[::]:443"]
tls_certificate = "/run/rig/certs/{name}.crt"
tls_key = "/run/rig/certs/{name}.key"
state_dir = "/run/rig/relay"
socket = "/run/rig/relay/socket"

[derp]
mesh_key_path = "/run/rig/mesh.key"
mesh_with = ["https://{other}"]
verify_url = "{verify}"
"#
    )
}

/// The DERP map: both relays in one region.
fn map(relays: &[Relay; 2]) -> String {
    let node = |relay: &Relay| {
        serde_json::json!({
            "Name": relay.host.name(), "RegionID": 900, "HostName": relay.name(),
            "IPv4": relay.name(), "IPv6": "none",
        })
    };
    let nodes = relays.each_ref().map(node);
    let region = serde_json::json!({
        "RegionID": 900, "RegionCode": "mesh", "RegionName": "Mesh", "Nodes": nodes,
    });
    serde_json::json!({ "Regions": { "900": region } }).to_string()
}

/// Two nodes with different relays of a region reach each other; then the first relay dies.
fn meshed(kinds: [Kind; 2]) {
    let Some(mut tailnet) = start() else { return };
    if kinds.contains(&Kind::Derper) && netns::peer("derper").is_none() {
        netns::skip("derper");
        return;
    }
    let [first, second] = kinds;
    let mut relays = [Relay::new(&tailnet, first, "first"), Relay::new(&tailnet, second, "second")];
    let names = relays.each_ref().map(|relay| relay.name().to_owned());
    tailnet.coordinator.host.write("others.json", &map(&relays));
    tailnet.coordinator.configure("enabled = false\nmap_paths = [\"/run/rig/others.json\"]\n");
    relays[0].start(&names[1]);
    relays[1].start(&names[0]);
    let (one, other) = (tailnet.host("one", Uplink::Behind(Nat::WithoutUdp)), {
        let host = tailnet.host("other", Uplink::Behind(Nat::WithoutUdp));
        host.run(format!("ip route add blackhole {}", names[0]));
        host
    });
    let one = Member::join(&tailnet, one, MemberKind::Tailscaled, "");
    let other = Member::join(&tailnet, other, MemberKind::Linerate, "");
    let has_node = |relay: &Relay| {
        // The other relay's link counts as well.
        relay.host.connected_to(443).len() >= 2
    };
    eventually("each relay has a node and the other relay", PATIENCE, || {
        relays.iter().all(has_node)
    });
    let target = other.addresses.of(Family::V4).to_owned();
    eventually("they reach each other", PATIENCE, || {
        ping(&one.host, format!("-c 1 -W 1 {target}")).is_complete()
    });
    other.reaches(&one, Family::V4);
    for path in [one.path_to(&other), other.path_to(&one)] {
        assert_eq!(path, Path::Relay("mesh".to_owned()));
    }
    let pings = ping(&one.host, format!("-c 20 -i 0.05 {target}"));
    assert!(pings.received + 1 >= pings.sent, "{}", pings.text);

    relays[0].service = None;
    let watch = Stopwatch::start();
    eventually("they reach each other through the other relay", PATIENCE, || {
        ping(&one.host, format!("-c 1 -W 1 {target}")).is_complete()
    });
    let moved = watch.elapsed();
    println!("without the first relay they reconnect after {moved:?}");
    assert!(moved < MOVED, "{moved:?}");

    // After its restart, packets to the first relay are forwarded again.
    relays[0].start(&names[1]);
    let third = tailnet.host("third", Uplink::Behind(Nat::WithoutUdp));
    let third = Member::join(&tailnet, third, MemberKind::Linerate, "");
    third.reaches(&other, Family::V4);
    other.reaches(&third, Family::V4);
}

#[test]
fn nodes_of_two_relays_of_a_region_connect_and_move_when_one_dies() {
    meshed([Kind::Ours, Kind::Ours]);
}

#[test]
fn the_second_relay_of_a_region_may_be_derper() {
    meshed([Kind::Ours, Kind::Derper]);
}

#[test]
fn the_first_relay_of_a_region_may_be_derper() {
    meshed([Kind::Derper, Kind::Ours]);
}
