//! Requests of machines.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::{Method, StatusCode, body::Incoming};
use serde_json::{Value, json};
use tailnet::{
    keys::{DiscoPublic, NodePublic},
    ts2021::map_frames::FrameReader,
};
use tokio::time::{sleep, timeout};

use super::world::{World, machine_get, machine_request};

/// A network with machines of these numbers.
async fn network(numbers: &[u8]) -> World {
    let world = World::new().await;
    world.command(Method::POST, "user", json!({ "name": "anna" })).await;
    let key = json!({ "user": "1", "reusable": true });
    let key = world.command(Method::POST, "preauthkey", key).await;
    for number in numbers {
        let hostinfo = json!({ "Hostname": format!("host-{number}"), "OS": "linux" });
        world.join(*number, key["key"].as_str().unwrap(), hostinfo).await;
        let (key, disco) = (NodePublic([*number; 32]), DiscoPublic([*number; 32]));
        let request =
            json!({ "Version": 131, "NodeKey": key, "DiscoKey": disco, "OmitPeers": true });
        let mut machine = world.machine(*number).await;
        machine.send_request(machine_request("map", &request)).await.unwrap();
    }
    world
}

/// The only map in a body.
async fn map(body: Incoming) -> Value {
    let mut reader = FrameReader::default();
    reader.handle_bytes(&body.collect().await.unwrap().to_bytes());
    let map = reader.poll_frame().unwrap().unwrap();
    assert!(reader.poll_frame().unwrap().is_none());
    serde_json::from_slice(&map).unwrap()
}

#[tokio::test]
async fn one_shot_maps_are_sent_one_at_a_time_for_each_connection() {
    let world = network(&[1, 2]).await;
    let mut machine = world.machine(1).await;
    let body = json!({
        "Version": 131, "NodeKey": NodePublic([1; 32]), "Compress": "zstd", "ReadOnly": true,
    });
    let mut request = async || {
        let response = machine.send_request(machine_request("map", &body)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.into_body()
    };
    let first = request().await;
    let mut second = request().await;
    let early = timeout(Duration::from_millis(200), second.frame()).await;
    assert!(early.is_err(), "the first was not read");
    for body in [first, second] {
        let map = map(body).await;
        assert_eq!(map["Peers"].as_array().unwrap().len(), 1, "{map}");
        assert!(map["Node"]["Name"].as_str().unwrap().starts_with("host-1."), "{map}");
    }
}

#[tokio::test]
async fn a_machine_can_query_only_logins_to_itself() {
    let world = network(&[1, 2, 3]).await;
    for (number, status) in
        [(3, StatusCode::FORBIDDEN), (1, StatusCode::FORBIDDEN), (2, StatusCode::OK)]
    {
        let mut machine = world.machine(number).await;
        let answer = machine_get(&mut machine, "ssh/action/1/to/2?local_user=root").await;
        assert_eq!(answer.status, status, "machine {number}: {}", answer.body);
    }
}

#[tokio::test]
async fn a_machine_can_answer_only_its_own_pings() {
    let world = network(&[1, 2]).await;
    let mut machine = world.machine(1).await;
    let follow = json!({ "Version": 131, "NodeKey": NodePublic([1; 32]), "Stream": true, "Compress": "zstd" });
    let response = machine.send_request(machine_request("map", &follow)).await.unwrap();
    let (mut body, mut reader) = (response.into_body(), FrameReader::default());
    let mut question = async || loop {
        while let Some(frame) = reader.poll_frame().unwrap() {
            let frame: Value = serde_json::from_slice(&frame).unwrap();
            if let Some(url) = frame["PingRequest"]["URL"].as_str() {
                return url.split_once("/machine/").unwrap().1.to_owned();
            }
        }
        let frame = body.frame().await.unwrap().unwrap();
        reader.handle_bytes(frame.data_ref().unwrap());
    };
    let queries = async {
        // The machine is not connected before its first map.
        loop {
            world.try_command(Method::GET, "node/1/health").await;
            sleep(Duration::from_millis(10)).await;
        }
    };
    let answered = async {
        let path = question().await;
        let mut other = world.machine(2).await;
        for (of, status) in [(&mut other, StatusCode::NOT_FOUND), (&mut machine, StatusCode::OK)] {
            let answer = of.send_request(machine_request(&path, &json!({}))).await.unwrap();
            assert_eq!(answer.status(), status);
        }
    };
    tokio::select! {
        () = queries => {}
        () = answered => {}
    }
}
