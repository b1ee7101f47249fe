use std::sync::Arc;
use std::time::Duration;

use doubles::coordinator::{Behaviour, framed, packed};
use netns::Member;
use serde_json::{Value, json};

use super::super::double::{Payload, Stream, peer};
use super::watched::Watched;
use super::{Ruled, ruled};

/// Limit of the anonymous memory of all processes of a node, in bytes: a frame of a map stream may
/// have 64 MiB.
const MEMORY: u64 = 96 << 20;

/// The same with the largest accepted number of peers.
const MEMORY_OF_MANY: u64 = 480 << 20;

/// Pings to observe after an attack without a message.
const PINGS: usize = 50;

#[test]
fn a_coordinator_with_another_protocol_is_reported_and_harmless() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    let page = "HTTP/1.1 200 OK\r\nContent-Length: 23\r\n\r\n<html>\u{1b}[2J\u{7}hello</html>";
    for (behaviour, reported) in [
        (Behaviour::Sends(vec![0xa5; 64 << 10]), "the coordinator ended"),
        (Behaviour::Sends(page.into()), "is not a coordinator's URL"),
        (Behaviour::RepliesWith([&[2, 0, 48][..], &[7; 48]].concat()), "does not match"),
        (Behaviour::ThenSends(vec![4, 0xff, 0xff]), "a record of 65535 bytes"),
        (Behaviour::ThenSends([&[4, 0, 100][..], &[7; 100]].concat()), "did not seal"),
        (Behaviour::Drips(b"HTTP/1.1 200 OK\r\nX: ".into(), Duration::from_millis(50)), "in time"),
    ] {
        ruled.double.set_behaviour(behaviour);
        watched.wait_for_status(reported);
    }
    ruled.double.set_behaviour(Behaviour::Good);
    watched.recovers();
    watched.finish(MEMORY);
}

#[test]
fn unreadable_frames_are_reported_and_harmless() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    let half = &packed(&json!({ "Domain": "x".repeat(1000) }))[..20];
    for (payload, reported) in [
        (Payload::once(framed(&[0xa5; 1000])), "not zstd"),
        (Payload::once([0xff; 4]), "a frame of 4294967295 bytes"),
        (Payload::once(bomb()), "unpacks to more than"),
        (Payload::cut_off(half), "closed the stream"),
        (Payload::once(framed(b"{\"Peers\":[")), "unreadable"),
    ] {
        ruled.double.set_stream(Stream::Then(payload));
        watched.wait_for_status(reported);
    }
    ruled.set_first_map(|map| map["Node"] = Value::Null);
    watched.wait_for_status("does not name this node");
    // A single frame that would take months.
    let length = u32::try_from(60 << 20).expect("it is less").to_le_bytes();
    let streams = ruled.double.streams();
    ruled.double.set_stream(Stream::Then(Payload::dripping([&length[..], &[0x28; 1000]].concat())));
    ruled.wait_for_streams(streams);
    watched.wait_for_replies(PINGS);
    ruled.double.set_stream(Stream::Good);
    watched.recovers();
    watched.finish(MEMORY);
}

#[test]
fn floods_of_maps_are_read_only_as_fast_as_they_are_handled() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    let message = |number: usize| json!({ "Title": "x".repeat(1000), "Text": number.to_string() });
    for flood in [
        all(|number| json!({ "PeersChanged": [stranger(number)] })),
        all(|number| json!({ "UserProfiles": [{ "ID": number, "LoginName": "x".repeat(1000) }] })),
        all(|number| json!({ "DisplayMessages": { number.to_string(): message(number) } })),
        all(|number| json!({ "PacketFilters": { number.to_string(): [rule(number)] } })),
        all(|number| json!({ "PeersRemoved": [number + 99], "OnlineChange": { "77": true } })),
        all(|number| json!({ "PeersChangedPatch": [{ "NodeID": number + 99, "DERPRegion": 7 }] })),
    ] {
        let streams = ruled.double.streams();
        ruled.double.set_stream(Stream::Then(Payload::once(flood)));
        ruled.wait_for_streams(streams);
        watched.wait_for_replies(PINGS);
        watched.status();
    }
    ruled.double.set_stream(Stream::Good);
    watched.recovers();
    watched.finish(MEMORY_OF_MANY);
}

#[test]
fn a_map_of_a_hundred_thousand_peers_costs_no_packet() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    ruled.set_first_map(move |map| {
        let is_watched = map["Node"]["Hostinfo"]["Hostname"] == "one";
        let peers = map["Peers"].as_array_mut().expect("a map has peers");
        let bare = |number| {
            let key = format!("nodekey:{number:064x}");
            json!({ "ID": number + 100, "Key": key, "Addresses": ["fd7a:115c:a1e0::ffff/128"] })
        };
        peers.extend((1..100_000).filter(|_| is_watched).map(bare));
    });
    watched.wait_for_status("there are more than 50000");
    ruled.double.set_stream(Stream::Good);
    watched.recovers();
    watched.finish(MEMORY_OF_MANY);
}

#[test]
fn public_addresses_are_refused_unless_the_user_allows_their_range() {
    let ruled = ruled();
    let [node, _] = &ruled.nodes;
    let watched = Watched::start(&ruled.nodes);
    let own = node.host.run("ip -4 route get 192.0.2.1 | grep -o 'src [0-9.]*' | cut -d' ' -f2");
    let next_hop =
        node.host.run("ip -4 route show default | grep -o 'via [0-9.]*' | cut -d' ' -f2");
    let foreign = ["8.8.8.8", own.trim(), next_hop.trim()].map(str::to_owned);
    let given = foreign.clone();
    ruled.set_first_map(move |map| {
        let addresses = map["Node"]["Addresses"].as_array_mut().expect("a node has addresses");
        addresses.extend(given.iter().map(|address| json!(format!("{address}/32"))));
        addresses.push(json!("172.30.7.7/32"));
    });
    watched.wait_for_status("address 8.8.8.8/32: refused");
    let has = |address: &str| {
        let shown = node.host.run(format!("ip -4 address show dev {}", Member::INTERFACE));
        shown.contains(&format!("inet {address}/32"))
    };
    netns::eventually("it has a private address", crate::tailnet::PATIENCE, || has("172.30.7.7"));
    for address in &foreign {
        assert!(!has(address), "{address}");
    }
    watched.finish(MEMORY);
    assert!(node.attempt(&format!("down {}", Member::INTERFACE)).ok);
    let started = node.restart("--address-range 8.8.8.0/24");
    assert!(started.ok, "{}", started.stderr);
    netns::eventually("it has the named one", crate::tailnet::PATIENCE, || has("8.8.8.8"));
    assert!(node.attempt(&format!("down {}", Member::INTERFACE)).ok);
    assert!(node.restart("").ok);
    netns::eventually("it still has it", crate::tailnet::PATIENCE, || has("8.8.8.8"));
    assert!(!has(&foreign[1]) && !has(&foreign[2]));
}

#[test]
fn names_and_messages_cannot_inject_control_characters() {
    let ruled = ruled();
    let watched = Watched::start(&ruled.nodes);
    let evil = "a\u{1b}[2J\u{7}\r\n! all is well\u{9b}2J";
    ruled.set_first_map(move |map| {
        map["Health"] = json!([evil]);
        map["DisplayMessages"] = json!({ evil: { "Title": evil, "Text": evil } });
        map["UserProfiles"][0]["LoginName"] = json!(evil);
        map["DERPMap"]["Regions"]["1"]["RegionCode"] = json!(evil);
        map["Domain"] = json!(evil);
        let mut named = stranger(7);
        named["Name"] = json!(format!("{evil}.rig.test."));
        named["Hostinfo"] = json!({ "OS": evil, "Hostname": evil });
        named["KeyExpiry"] = json!(evil);
        map["Peers"].as_array_mut().expect("a map has peers").push(named);
        map["Peers"].as_array_mut().expect("a map has peers").push(json!({ "Name": evil }));
    });
    watched.wait_for_status("all is well");
    let forged = |line: &str| line.starts_with("! all is well");
    assert!(!watched.status().lines().any(forged), "{}", watched.status());
    ruled.double.set_stream(Stream::Good);
    watched.recovers();
    watched.finish(MEMORY);
}

impl Ruled {
    /// Waits until both nodes have requested another stream.
    fn wait_for_streams(&self, before: usize) {
        netns::eventually("the nodes request streams again", crate::tailnet::PATIENCE, || {
            self.double.streams() >= before + self.nodes.len()
        });
    }

    /// Sends nodes a valid map changed by `change` first.
    fn set_first_map(&self, change: impl Fn(&mut Value) + Send + Sync + 'static) {
        let streams = self.double.streams();
        self.double.set_stream(Stream::First(Arc::new(change)));
        self.wait_for_streams(streams);
    }
}

/// A peer that does not exist.
fn stranger(number: usize) -> Value {
    peer(number + 100, &format!("stranger{number}"), &format!("nodekey:{number:064x}"))
}

fn rule(number: usize) -> Value {
    let ip = format!("100.65.{}.{}", number >> 8 & 0xff, number & 0xff);
    json!({ "SrcIPs": [ip], "DstPorts": [{ "IP": "*", "Ports": { "First": 0, "Last": 65535 } }] })
}

/// A flood of small maps.
fn all(map: impl Fn(usize) -> Value) -> Vec<u8> {
    (1..=5_000).flat_map(|number| framed(map(number).to_string().as_bytes())).collect()
}

/// zstd that repeats a byte without end: 128 KiB for each four bytes.
fn bomb() -> Vec<u8> {
    let mut packed = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x50].to_vec();
    let block = (1u32 << 1 | (128 << 10) << 3).to_le_bytes();
    for _ in 0..10_000 {
        packed.extend_from_slice(&block[..3]);
        packed.push(b' ');
    }
    framed(&packed)
}
