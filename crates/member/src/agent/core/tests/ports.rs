//! The port mapping: requests for it, and its announcement.

use std::net::SocketAddrV4;

use mesh::portmap::{GatewayState, Mapping, Protocol};
use tailnet::ts2021::requests::{Announcement, EndpointKind};

use super::{super::super::portmap::Router, *};

const OUTSIDE: &str = "203.0.113.1:4000";

fn mapped(now: Duration) -> Router {
    let external: SocketAddrV4 = OUTSIDE.parse().unwrap();
    let expires = now + Duration::from_secs(7200);
    let mapping = Some(Mapping { protocol: Protocol::NatPmp, external, expires });
    let pcp_nat_pmp = GatewayState { pcp: Some(false), nat_pmp: Some(true), mapping };
    Router { pcp_nat_pmp, ..Router::default() }
}

async fn announced(rig: &Rig) -> Box<Announcement> {
    let commands = rig.session_commands().await;
    let last = commands.into_iter().rev().find_map(|command| match command {
        control::Command::Update(announced) => Some(announced),
        _ => None,
    });
    last.expect("an update was sent")
}

#[tokio::test]
async fn port_mapping_is_requested_only_while_running_in_a_network() {
    let mut rig = Rig::joined("port-wanted").await;
    assert_eq!(rig.wanted.borrow().port, None, "it has not joined a network");
    rig.stream(map_of(&[2])).await;
    assert_eq!(rig.wanted.borrow().port, Some(41641));
    rig.plane(ToAgent::Port(7)).await;
    assert_eq!(rig.wanted.borrow().port, Some(7));
    rig.set("WantRunning", false).await;
    assert_eq!(rig.wanted.borrow().port, None);
    rig.set("WantRunning", true).await;
    assert_eq!(rig.wanted.borrow().port, Some(7));
}

#[tokio::test]
async fn network_change_rechecks_the_router() {
    let mut rig = Rig::joined("port-network").await;
    rig.stream(map_of(&[2])).await;
    rig.wanted.borrow_and_update();
    rig.plane(ToAgent::NetworkChanged).await;
    assert!(rig.wanted.has_changed().unwrap());
}

#[tokio::test]
async fn mapped_port_is_reported_to_coordinator_and_programs() {
    let mut rig = Rig::joined("port-announced").await;
    rig.stream(map_of(&[2])).await;
    let status = rig.status().await;
    assert_eq!(status.port_mapping, Value::Null);
    rig.handle(Input::CheckResult(CheckResult::Mapped(mapped(rig.agent.clock.now)))).await;

    let messages = announced(&rig).await;
    assert!(messages.endpoints.contains(&(OUTSIDE.parse().unwrap(), EndpointKind::Portmapped)));
    let info = &messages.hostinfo["NetInfo"];
    let values = ["HavePortMap", "PMP", "PCP"].map(|key| info[key].clone());
    assert_eq!(values, [json!(true), json!(true), json!(false)]);

    rig.pass(Duration::from_secs(200)).await;
    let status = rig.status().await;
    let expected =
        json!({"Protocol": "NAT-PMP", "Address": OUTSIDE, "LifetimeSeconds": 7200 - 200});
    assert_eq!(status.port_mapping, expected);
    assert!(status.own.addrs.contains(&OUTSIDE.to_owned()));
    let report = rig.request(|reply| Request::Netcheck { reply }).await.unwrap().unwrap();
    assert_eq!(report["port mapping"], "203.0.113.1:4000 by NAT-PMP, for 7000 s");

    let mut gone = mapped(Duration::ZERO);
    (gone.pcp_nat_pmp.mapping, gone.upnp.is_supported) = (None, Some(false));
    rig.handle(Input::CheckResult(CheckResult::Mapped(gone))).await;
    let messages = announced(&rig).await;
    assert!(messages.endpoints.iter().all(|(_, kind)| *kind != EndpointKind::Portmapped));
    assert_eq!(messages.hostinfo["NetInfo"]["HavePortMap"], Value::Null);
    let report = rig.request(|reply| Request::Netcheck { reply }).await.unwrap().unwrap();
    assert_eq!(report["port mapping"], "none: the router refuses");
}
