//! docs/tutorials/from-headscale.md: laptop and desk are tailscaled in a network of headscale.

use netns::{Family, Member, MemberKind, Uplink, eventually, own_etc};
use serde_json::Value;

use super::{Machines, PATIENCE, install_server, of_server, old_network, server_command};

const PAGE: &str = include_str!("../../../../../docs/tutorials/from-headscale.md");

#[test]
fn tutorial_from_headscale_moves_the_network_and_its_nodes_stay() {
    let Some(tailnet) = old_network() else { return };
    let [laptop, desk] = ["laptop", "desk"].map(|name| {
        let host = tailnet.host(name, Uplink::Switch);
        Member::join(&tailnet, host, MemberKind::Tailscaled, "")
    });
    laptop.reaches(&desk, Family::V4);
    let nas = tailnet.host("nas", Uplink::Switch);

    let server = &tailnet.coordinator.host;
    own_etc(server);
    let url = tailnet.coordinator.url();
    let address = url.strip_prefix("https://").expect("it has TLS");
    let mut replaced = of_server(address);
    replaced.push(("headscale.internal", "rig.test".to_owned()));
    replaced.push(("anna", "rig".to_owned()));
    let hosts = [("server", server), ("laptop", &laptop.host), ("nas", &nas)];
    let mut machines = Machines::new(&hosts, replaced);
    install_server(server);
    server.run(
        "ln -s /run/rig/coordinator /var/lib/headscale && \
         cp /run/rig/coordinator/noise.key /run/rig/coordinator/noise_private.key",
    );
    let program = netns::CoordinatorKind::Headscale.program().expect("the network started");
    let line = format!("exec {} --config /run/rig/headscale.yaml \"$@\"", program.display());
    server.write_program("headscale", &format!("#!/bin/sh\n{line}\n"));

    let (there, back) = PAGE.split_once("## Go back").expect("the page has it");
    machines.run(there);
    eventually("the old nodes and the new one are online", PATIENCE, || {
        let nodes = server_command(server, "nodes list --output json");
        let nodes: Vec<Value> = serde_json::from_str(&nodes).expect("a list of nodes");
        nodes.len() == 3 && nodes.iter().all(|node| node["online"] == true)
    });
    let address = desk.addresses.of(Family::V4);
    assert_eq!(desk.status()["Self"]["TailscaleIPs"][0], address, "it has its address");
    laptop.reaches(&desk, Family::V4);

    machines.run(back);
    eventually("the old nodes are online at headscale", PATIENCE, || {
        let nodes = tailnet.coordinator.nodes();
        nodes.len() == 2 && nodes.iter().all(|node| node["online"] == true)
    });
}
