//! docs/tutorials/from-tailscale.md: laptop and desk are tailscaled in a network of headscale, which
//! stands for Tailscale's service.

use netns::{Family, Member, MemberKind, Uplink};

use super::{Machines, install_server, of_server, old_network};
use crate::server::mesh::addresses;

const PAGE: &str = include_str!("../../../../../docs/tutorials/from-tailscale.md");

#[test]
fn tutorial_from_tailscale_moves_a_stock_client_and_a_linerate_node() {
    let Some(tailnet) = old_network() else { return };
    let [laptop, desk] = ["laptop", "desk"].map(|name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Tailscaled, "")
    });
    let server = tailnet.host("server", Uplink::Switch);
    let at = addresses(&server);
    let certificate = tailnet.certificate.of(addresses(&server));
    server.write("tls.pem", &certificate.chain);
    server.write_secret("tls.key", &certificate.key);
    let replaced = of_server(at.of(Family::V4));
    let hosts = [("server", &server), ("laptop", &laptop.host), ("desk", &desk.host)];
    let mut machines = Machines::new(&hosts, replaced);
    install_server(&server);
    machines.run(PAGE);
}
