//! What machines ask.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Method, StatusCode, body::Incoming};
use serde_json::{Value, json};
use tailnet::{
    control::frame::FrameReader,
    keys::{DiscoPublic, NodePublic},
};
use tokio::time::timeout;

use super::world::{World, said_by_machine};

/// A network of machines with these numbers.
async fn network(numbers: &[u8]) -> World {
    let world = World::new().await;
    world.command(Method::POST, "user", json!({ "name": "anna" })).await;
    let key = json!({ "user": "1", "reusable": true });
    let key = world.command(Method::POST, "preauthkey", key).await;
    for number in numbers {
        let hostinfo = json!({ "Hostname": format!("host-{number}"), "OS": "linux" });
        world.join(*number, key["key"].as_str().unwrap(), hostinfo).await;
        let (key, disco) = (NodePublic([*number; 32]), DiscoPublic([*number; 32]));
        let told = json!({ "Version": 131, "NodeKey": key, "DiscoKey": disco, "OmitPeers": true });
        let mut machine = world.machine(*number).await;
        machine.send_request(said_by_machine("map", &told)).await.unwrap();
    }
    world
}

/// The one map that a body has.
async fn map(body: Incoming) -> Value {
    let mut reader = FrameReader::default();
    reader.handle_bytes(&body.collect().await.unwrap().to_bytes());
    let map = reader.poll_frame().unwrap().unwrap();
    assert!(reader.poll_frame().unwrap().is_none());
    serde_json::from_slice(&map).unwrap()
}

#[tokio::test]
async fn of_whole_maps_that_are_asked_for_once_a_connection_is_sent_one_at_a_time() {
    let world = network(&[1, 2]).await;
    let mut machine = world.machine(1).await;
    let body = json!({
        "Version": 131, "NodeKey": NodePublic([1; 32]), "Compress": "zstd", "ReadOnly": true,
    });
    let mut ask = async || {
        let response = machine.send_request(said_by_machine("map", &body)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body()
    };
    let first = ask().await;
    let mut second = ask().await;
    let early = timeout(Duration::from_millis(200), second.frame()).await;
    assert!(early.is_err(), "the first was not read");
    for body in [first, second] {
        let map = map(body).await;
        assert_eq!(map["Peers"].as_array().unwrap().len(), 1, "{map}");
        assert!(map["Node"]["Name"].as_str().unwrap().starts_with("host-1."), "{map}");
    }
}
