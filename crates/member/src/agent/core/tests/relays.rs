use ipc::relay_process::FromRelayServer;
use mesh::peer_relay::MAY_ALLOCATE;
use tailnet::disco::{AllocateRequest, Disco, Message};

use super::*;
use crate::agent::peer_paths::AllocationRequest;

/// WireGuard data of this peer.
fn data(from: u8, count: usize) -> derp::Event {
    let datagram = Bytes::from([&[4, 0, 0, 0][..], &[0; 60]].concat());
    derp::Event::Received { region: 1, datagrams: vec![(key(from), datagram); count] }
}

fn sent(commands: &[derp::Command]) -> Vec<(NodePublic, &Bytes, bool)> {
    let sent = commands.iter().filter_map(|command| match command {
        derp::Command::Send { to, bytes, bundled, .. } => Some((*to, bytes, *bundled)),
        _ => None,
    });
    sent.collect()
}

/// The number of bundle offers to a peer.
fn offers(peer: &mut Disco, commands: &[derp::Command]) -> usize {
    let opened = sent(commands).into_iter().filter_map(|(_, bytes, _)| peer.open(bytes).ok());
    opened.filter(|(_, message)| *message == Message::BundleOffer).count()
}

#[tokio::test]
async fn peer_with_many_relayed_datagrams_is_offered_bundles() {
    let mut rig = Rig::joined("offers").await;
    let mut peer = disco(9);
    let mut map = map_of(&[2]);
    map["Peers"][0]["DiscoKey"] = json!(peer.public());
    rig.stream(map).await;
    rig.relay_commands().await;
    for (count, offered) in [(1, 0), (2, 1), (40, 0)] {
        rig.handle(Input::Relays(data(2, count))).await;
        assert_eq!(offers(&mut peer, &rig.relay_commands().await), offered, "{count} datagrams");
    }
    rig.pass(Duration::from_secs(1)).await;
    rig.handle(Input::Relays(data(2, 40))).await;
    assert_eq!(offers(&mut peer, &rig.relay_commands().await), 1, "the first may have been lost");
}

#[tokio::test]
async fn peer_that_accepts_bundles_gets_them() {
    let mut rig = Rig::joined("bundles").await;
    let mut map = map_of(&[2, 3]);
    map["Peers"][0]["DiscoKey"] = json!(disco(9).public());
    rig.stream(map).await;
    let own = rig.agent.mesh.disco_key();
    let mut bundled = Vec::new();
    // With a wrong disco key, from another node's key, and a valid offer.
    for (secret, from) in [(8, 2), (9, 3), (9, 2)] {
        let offer = disco(secret).seal(own, &Message::BundleOffer, [from; 24]).into();
        let datagrams = vec![(key(from), offer)];
        rig.handle(Input::Relays(derp::Event::Received { region: 1, datagrams })).await;
        rig.relay_commands().await;
        let run = || ToAgent::ToRelay { region: 1, to: key(2), bytes: vec![4; 300], segment: 100 };
        rig.plane(run()).await;
        let commands = rig.relay_commands().await;
        bundled
            .push(sent(&commands).iter().any(|(_, bytes, bundled)| bytes.len() == 300 && *bundled));
    }
    assert_eq!(bundled, [false, false, true]);
}

#[tokio::test]
async fn bundle_reaches_the_data_plane_as_one() {
    let mut rig = Rig::joined("one").await;
    rig.stream(map_of(&[2])).await;
    rig.plane_messages();
    let mut frame = BytesMut::new();
    tailnet::derp::write_bundles(&mut frame, &key(1), &[4; 300], 100);
    let bundle = frame.split_off(tailnet::derp::SEND_OVERHEAD).freeze();
    let datagrams = vec![(key(2), bundle)];
    rig.handle(Input::Relays(derp::Event::Received { region: 1, datagrams })).await;
    let relayed = rig.plane_messages().into_iter().find_map(|message| match message {
        ToDataPlane::Relayed(relayed) => Some(relayed),
        _ => None,
    });
    let relayed = relayed.expect("something came");
    assert_eq!((relayed[0].bytes.len(), relayed[0].segment, relayed.len()), (300, 100, 1));
}

#[tokio::test]
async fn permitted_peer_allocates_a_relay_endpoint_only_for_itself() {
    let mut rig = Rig::joined("allocates").await;
    let mut map = map_of(&[2, 3]);
    map["PacketFilter"] = json!([{"SrcIPs": ["100.64.0.2/32"], "CapGrant": [
        {"Dsts": ["100.64.0.1/32"], "Caps": [MAY_ALLOCATE]},
    ]}]);
    rig.stream(map).await;
    rig.set("RelayServerPort", 0).await;
    let ready = FromRelayServer::Ready { key: DiscoPublic([9; 32]), port: 7 };
    rig.handle(Input::RelayServer(ready)).await;
    let mut allocates = |peer: u8, clients: [u8; 2]| {
        let clients = clients.map(|id| DiscoPublic([id; 32]));
        let request = AllocateRequest { clients, generation: 1 };
        let disco = DiscoPublic([peer; 32]);
        let Agent { relay_process, node, applied, .. } = &mut rig.agent;
        let request = AllocationRequest { region: 1, peer: key(peer), disco, message: request };
        relay_process.allocate(request, node.map(), &applied.settings().grants);
        let messages = std::iter::from_fn(|| rig.relay_server.poll());
        messages.filter(|message| matches!(message, ToRelayServer::Allocate { .. })).count()
    };
    assert_eq!(allocates(2, [2, 3]), 1);
    assert_eq!(allocates(2, [3, 4]), 0, "for others");
    assert_eq!(allocates(3, [3, 2]), 0, "without permission");
}
