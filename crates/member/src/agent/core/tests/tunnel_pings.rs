use tailnet::{
    line::TunnelPing,
    local::{PingKind, PingResult},
};

use super::*;
use crate::agent::local_api::Refusal;

fn sent(told: &[ToPlane]) -> Vec<TunnelPing> {
    let ping = |message: &ToPlane| match message {
        ToPlane::TunnelPing(ping) => Some(*ping),
        _ => None,
    };
    told.iter().filter_map(ping).collect()
}

fn pong(ping: &TunnelPing) -> ToAgent {
    ToAgent::TunnelPong(TunnelPing { from: ping.to, to: ping.from, token: ping.token })
}

async fn ask(rig: &mut Rig, ip: &str) -> oneshot::Receiver<Result<PingResult, Refusal>> {
    let (reply, answer) = oneshot::channel();
    let ping = Request::Ping { ip: ip.parse().unwrap(), kind: PingKind::Tsmp, size: 0, reply };
    rig.handle(Input::Request(ping)).await;
    answer
}

#[tokio::test]
async fn a_program_hears_how_long_a_ping_through_the_tunnel_took_or_that_none_answered() {
    let mut rig = Rig::joined("tunnel-ping").await;
    rig.stream(map_of(&[2])).await;
    rig.told();
    let mut answer = ask(&mut rig, "100.64.0.2").await;
    let [ping] = sent(&rig.told())[..] else { panic!("one is sent") };
    assert_eq!([ping.from, ping.to].map(|ip| ip.to_string()), ["100.64.0.1", "100.64.0.2"]);
    let other = TunnelPing { to: "100.64.0.3".parse().unwrap(), ..ping };
    rig.plane(pong(&other)).await;
    assert!(answer.try_recv().is_err(), "another's answer is none");
    rig.pass(Duration::from_millis(20)).await;
    rig.plane(pong(&ping)).await;
    let result = answer.try_recv().unwrap().unwrap();
    assert_eq!((&*result.node_ip, &*result.node_name, &*result.err), ("100.64.0.2", "n2", ""));
    assert!((0.02..0.03).contains(&result.latency_seconds));

    let mut silent = ask(&mut rig, "100.64.0.2").await;
    rig.pass(Duration::from_secs(6)).await;
    assert_eq!(silent.try_recv().unwrap().unwrap().err, "no reply");
    for (ip, error) in [("100.64.0.9", "no matching peer"), ("100.64.0.1", "is local")] {
        let refused = ask(&mut rig, ip).await.try_recv().unwrap().unwrap();
        assert!(refused.err.contains(error), "{refused:?}");
    }
    rig.told();
    for _ in 0..1000 {
        drop(ask(&mut rig, "100.64.0.2").await);
    }
    let of_all = sent(&rig.told()).len();
    let mut last = ask(&mut rig, "100.64.0.2").await;
    let [ping] = sent(&rig.told())[..] else { panic!("one more is sent after {of_all}") };
    rig.plane(pong(&ping)).await;
    assert!(last.try_recv().is_ok());
}

#[tokio::test]
async fn the_coordinator_is_told_of_a_peer_that_answers_and_not_of_one_that_does_not() {
    let mut rig = Rig::joined("asked-to-ping").await;
    rig.stream(map_of(&[2])).await;
    rig.told();
    rig.commands().await;
    let asked = |url: &str, types: &str, ip: &str| {
        let ping = json!({ "URL": url, "URLIsNoise": true, "Types": types, "IP": ip });
        json!({ "KeepAlive": true, "PingRequest": ping })
    };
    rig.map(asked("https://unused/1", "TSMP", "100.64.0.2")).await;
    let [ping] = sent(&rig.told())[..] else { panic!("one is sent") };
    assert!(rig.commands().await.is_empty());
    rig.plane(pong(&ping)).await;
    rig.plane(pong(&ping)).await;
    let said = |commands: Vec<control::Command>| -> Vec<(String, bool, Value)> {
        let answers = commands.into_iter().filter_map(|command| match command {
            control::Command::Answer { url, over_noise, body } => {
                Some((url, over_noise, serde_json::from_slice(&body).unwrap()))
            }
            _ => None,
        });
        answers.collect()
    };
    let [(url, over_noise, body)] = &said(rig.commands().await)[..] else { panic!("one answer") };
    assert_eq!((&**url, *over_noise), ("https://unused/1", true));
    assert_eq!((&body["Type"], &body["Err"]), (&json!("TSMP"), &json!("")));

    rig.map(asked("https://unused/2", "TSMP", "100.64.0.2")).await;
    rig.pass(Duration::from_secs(60)).await;
    assert!(said(rig.commands().await).is_empty());
    rig.map(asked("https://unused/3", "TSMP", "100.64.0.9")).await;
    assert_eq!(said(rig.commands().await)[0].2["Err"], "no matching peer");
    for (types, ip) in [("TSMP", ""), ("TSMP", "n2"), ("c2n", "100.64.0.2"), ("x", "7")] {
        rig.map(asked("https://unused/4", types, ip)).await;
    }
    assert!(sent(&rig.told()).len() == 1 && said(rig.commands().await).is_empty());
}
