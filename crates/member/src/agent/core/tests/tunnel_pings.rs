use ipc::TunnelPing;
use mesh::local_json::{PingKind, PingResult};

use super::*;
use crate::agent::local_api::ApiError;

fn sent(messages: &[ToDataPlane]) -> Vec<TunnelPing> {
    let ping_of = |message: &ToDataPlane| match message {
        ToDataPlane::TunnelPing(ping) => Some(*ping),
        _ => None,
    };
    messages.iter().filter_map(ping_of).collect()
}

fn pong(ping: &TunnelPing) -> ToAgent {
    ToAgent::TunnelPong(TunnelPing { from: ping.to, to: ping.from, token: ping.token })
}

async fn send_ping(rig: &mut Rig, ip: &str) -> oneshot::Receiver<Result<PingResult, ApiError>> {
    let (reply, answer) = oneshot::channel();
    let ping = Request::Ping { ip: ip.parse().unwrap(), kind: PingKind::Tsmp, size: 0, reply };
    rig.handle(Input::Request(ping)).await;
    answer
}

#[tokio::test]
async fn program_gets_the_latency_or_the_failure_of_a_tunnel_ping() {
    let mut rig = Rig::joined("tunnel-ping").await;
    rig.stream(map_of(&[2])).await;
    rig.plane_messages();
    let mut answer = send_ping(&mut rig, "100.64.0.2").await;
    let [ping] = sent(&rig.plane_messages())[..] else { panic!("one is sent") };
    assert_eq!([ping.from, ping.to].map(|ip| ip.to_string()), ["100.64.0.1", "100.64.0.2"]);
    let other = TunnelPing { to: "100.64.0.3".parse().unwrap(), ..ping };
    rig.plane(pong(&other)).await;
    assert!(answer.try_recv().is_err(), "the answer of another peer is ignored");
    rig.pass(Duration::from_millis(20)).await;
    rig.plane(pong(&ping)).await;
    let result = answer.try_recv().unwrap().unwrap();
    assert_eq!((&*result.node_ip, &*result.node_name, &*result.err), ("100.64.0.2", "n2", ""));
    assert!((0.02..0.03).contains(&result.latency_seconds));

    let mut silent = send_ping(&mut rig, "100.64.0.2").await;
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(silent.try_recv().unwrap().unwrap().err, "no reply");
    for (ip, error) in [("100.64.0.9", "no matching peer"), ("100.64.0.1", "is local")] {
        let refused = send_ping(&mut rig, ip).await.try_recv().unwrap().unwrap();
        assert!(refused.err.contains(error), "{refused:?}");
    }
    rig.plane_messages();
    for _ in 0..1000 {
        drop(send_ping(&mut rig, "100.64.0.2").await);
    }
    let of_all = sent(&rig.plane_messages()).len();
    let mut last = send_ping(&mut rig, "100.64.0.2").await;
    let [ping] = sent(&rig.plane_messages())[..] else { panic!("one more is sent after {of_all}") };
    rig.plane(pong(&ping)).await;
    assert!(last.try_recv().is_ok());
}

#[tokio::test]
async fn coordinator_gets_a_ping_result_only_if_the_peer_answers() {
    let mut rig = Rig::joined("ping-request").await;
    rig.stream(map_of(&[2])).await;
    rig.plane_messages();
    rig.session_commands().await;
    let ping_request = |url: &str, types: &str, ip: &str| {
        let ping = json!({ "URL": url, "URLIsNoise": true, "Types": types, "IP": ip });
        json!({ "KeepAlive": true, "PingRequest": ping })
    };
    rig.map(ping_request("https://unused/1", "TSMP", "100.64.0.2")).await;
    let [ping] = sent(&rig.plane_messages())[..] else { panic!("one is sent") };
    assert!(rig.session_commands().await.is_empty());
    rig.plane(pong(&ping)).await;
    rig.plane(pong(&ping)).await;
    let answers = |commands: Vec<control::Command>| -> Vec<(String, bool, Value)> {
        let answers = commands.into_iter().filter_map(|command| match command {
            control::Command::Answer { url, over_noise, body } => {
                Some((url, over_noise, serde_json::from_slice(&body).unwrap()))
            }
            _ => None,
        });
        answers.collect()
    };
    let [(url, over_noise, body)] = &answers(rig.session_commands().await)[..] else {
        panic!("one answer")
    };
    assert_eq!((&**url, *over_noise), ("https://unused/1", true));
    assert_eq!((&body["Type"], &body["Err"]), (&json!("TSMP"), &json!("")));

    rig.map(ping_request("https://unused/2", "TSMP", "100.64.0.2")).await;
    rig.pass(Duration::from_secs(60)).await;
    assert!(answers(rig.session_commands().await).is_empty());
    rig.map(ping_request("https://unused/3", "TSMP", "100.64.0.9")).await;
    assert_eq!(answers(rig.session_commands().await)[0].2["Err"], "no matching peer");
    for (types, ip) in [("TSMP", ""), ("TSMP", "n2"), ("c2n", "100.64.0.2"), ("x", "7")] {
        rig.map(ping_request("https://unused/4", types, ip)).await;
    }
    assert!(
        sent(&rig.plane_messages()).len() == 1 && answers(rig.session_commands().await).is_empty()
    );
}
