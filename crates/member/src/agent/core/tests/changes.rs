//! Changes of the machine's network and clock.

use std::{cell::Cell, net::SocketAddr, rc::Rc};

use ipc::{Activity, Incoming, Path};
use mesh::nat64::Prefix;
use sys::netlink::DefaultRoute;
use tailnet::{
    disco::{Disco, Message},
    stun,
};

use super::*;

const RELAY: &str = "192.0.2.9:3478";

/// The targets of STUN requests.
fn stun_targets(messages: &[ToDataPlane]) -> Vec<SocketAddr> {
    let datagrams = messages.iter().filter_map(|message| match message {
        ToDataPlane::Datagrams(some) => Some(some),
        _ => None,
    });
    datagrams.flatten().filter(|one| stun::is_stun(&one.bytes)).map(|one| one.to).collect()
}

fn reconnects(commands: &[control::Command]) -> usize {
    commands.iter().filter(|one| matches!(one, control::Command::Reconnect)).count()
}

#[tokio::test]
async fn moved_default_route_counts_as_a_network_change() {
    let mut rig = Rig::joined("default-route").await;
    let device = Rc::new(Cell::new(2));
    let leads = device.clone();
    *rig.access.default_routes.borrow_mut() = Box::new(move || {
        let way = DefaultRoute { device: Some(leads.get()), gateway: None };
        [way, DefaultRoute::default()]
    });
    rig.plane(ToAgent::NetworkChanged).await;
    rig.stream(map_of(&[2])).await;
    rig.pass(Duration::from_secs(10)).await;
    for (to, is_change) in [(2, false), (3, true), (3, false), (2, true)] {
        rig.plane_messages();
        rig.session_commands().await;
        rig.relay_commands().await;
        device.set(to);
        rig.plane(ToAgent::NetworkChanged).await;
        let changes = [
            !stun_targets(&rig.plane_messages()).is_empty(),
            reconnects(&rig.session_commands().await) == 1,
            rig.relay_commands()
                .await
                .iter()
                .any(|one| matches!(one, derp::Command::NetworkChanged)),
        ];
        assert_eq!(changes, [is_change; 3], "to {to}");
        rig.pass(Duration::from_secs(10)).await;
    }
}

#[tokio::test]
async fn constantly_changing_network_is_checked_twice_a_second() {
    let mut rig = Rig::joined("looks").await;
    let looks = Rc::new(Cell::new(0));
    let count = looks.clone();
    *rig.access.default_routes.borrow_mut() = Box::new(move || {
        count.set(count.get() + 1);
        <[DefaultRoute; 2]>::default()
    });
    rig.plane(ToAgent::NetworkChanged).await;
    assert_eq!(looks.get(), 1, "the first change is seen at once");
    for _ in 0..100 {
        rig.plane(ToAgent::NetworkChanged).await;
        rig.pass(Duration::from_millis(100)).await;
    }
    assert!((20..=21).contains(&looks.get()), "{} looks in ten seconds", looks.get());
    rig.plane(ToAgent::NetworkChanged).await;
    let before = looks.get();
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(looks.get(), before + 1, "the last change is seen");
    rig.pass(Duration::from_secs(10)).await;
    assert_eq!(looks.get(), before + 1, "nothing is looked at without a change");
}

#[tokio::test]
async fn nat64_addresses_are_used_only_towards_the_data_plane() {
    let mut rig = Rig::new("translated");
    *rig.access.addresses.borrow_mut() = Box::new(|_| vec!["2001:db8:1::2/64".parse().unwrap()]);
    let prefs = Prefs { control_url: URL.into(), want_running: true, ..Prefs::new() };
    rig.agent.node.set_prefs(prefs, &mut Problems::default()).unwrap();
    rig.plane(hello(KEY)).await;
    let mut map = map_of(&[2]);
    // A peer without a relay is probed at its address at once.
    map["Peers"][0]["HomeDERP"] = json!(0);
    map["Peers"][0]["Endpoints"] = json!(["203.0.113.7:9"]);
    rig.stream(map).await;
    assert_eq!(stun_targets(&rig.plane_messages()), [], "there is no way to IPv4");

    let prefix = Prefix::discover(["64:ff9b::192.0.0.170".parse().unwrap()]);
    rig.handle(Input::CheckResult(CheckResult::Nat64Prefix(Some(prefix)))).await;
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(
        stun_targets(&rig.plane_messages())[0],
        "[64:ff9b::192.0.2.9]:3478".parse().unwrap()
    );

    let from = "[64:ff9b::203.0.113.7]:9".parse().unwrap();
    let active = Activity {
        peer: key(2),
        received: 1,
        sent: 1,
        last_handshake: None,
        received_from: Some(Path::Direct(from)),
        path_mtu: None,
        post_quantum: None,
    };
    rig.plane(ToAgent::Activity(vec![active])).await;
    let received = rig.agent.mesh.activity(&key(2)).and_then(|one| one.received_from);
    assert_eq!(received, Some(Path::Direct("203.0.113.7:9".parse().unwrap())));

    // With an IPv4 address NAT64 is disabled, once the present check has ended.
    rig.pass(Duration::from_secs(10)).await;
    rig.plane_messages();
    *rig.access.addresses.borrow_mut() = Box::new(|_| vec!["192.0.2.1/24".parse().unwrap()]);
    rig.plane(ToAgent::NetworkChanged).await;
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(stun_targets(&rig.plane_messages())[0], RELAY.parse().unwrap());
}

#[tokio::test]
async fn wall_clock_jumps_remove_no_peer_and_no_path() {
    const DAY: Duration = Duration::from_secs(86_400);
    let mut rig = Rig::joined("clock").await;
    rig.stream(map_of(&[2, 3])).await;
    rig.pass(Duration::from_secs(5)).await;
    let wall = rig.agent.clock.wall;
    for step in [wall + 3650 * DAY, wall - 3650 * DAY, Duration::ZERO, wall] {
        rig.plane_messages();
        rig.agent.clock.wall = step;
        rig.handle(Input::Timeout).await;
        rig.plane(ToAgent::NetworkChanged).await;
        rig.map(map_of(&[2, 3])).await;
        rig.pass(Duration::from_secs(60)).await;
        let messages = rig.plane_messages();
        let costs = messages.iter().any(|message| match message {
            ToDataPlane::Peers { removed, .. } => !removed.is_empty(),
            ToDataPlane::Path { .. } | ToDataPlane::Reset => true,
            _ => false,
        });
        assert!(!costs, "at {step:?}: {messages:?}");
        assert_eq!(rig.status().await.peer.len(), 2);
    }
}

/// Answers the pings to a peer with this disco key. Returns whether there were any.
async fn answer_pings(rig: &mut Rig, peer: &mut Disco, messages: Vec<ToDataPlane>) -> bool {
    let (own, at) = (rig.agent.mesh.disco_key(), rig.agent.clock.now);
    let datagrams = messages.into_iter().filter_map(|message| match message {
        ToDataPlane::Datagrams(some) => Some(some),
        _ => None,
    });
    let mut answers = Vec::new();
    for ping in datagrams.flatten() {
        if let Ok((_, Message::Ping { tx, .. })) = peer.open(&ping.bytes) {
            let pong = Message::Pong { tx, source: "192.0.2.1:41641".parse().unwrap() };
            let bytes = peer.seal(own, &pong, [1; 24]);
            answers.push(Incoming { from: ping.to, local: None, at, to: None, bytes });
        }
    }
    let has_some = !answers.is_empty();
    rig.plane(ToAgent::Datagrams(answers)).await;
    has_some
}

#[tokio::test]
async fn path_survives_a_stall_of_seconds_but_not_a_minute_of_sleep() {
    let paths = |messages: &[ToDataPlane]| {
        messages.iter().rev().find_map(|message| match message {
            ToDataPlane::Path { path, .. } => Some(*path),
            _ => None,
        })
    };
    for (late, survives) in [(Duration::from_secs(20), true), (Duration::from_secs(60), false)] {
        let (mut rig, mut peer) = (Rig::joined("stall").await, disco(9));
        let mut map = map_of(&[2]);
        map["Peers"][0]["DiscoKey"] = json!(peer.public());
        map["Peers"][0]["Endpoints"] = json!(["192.0.2.2:41641"]);
        rig.stream(map).await;
        let active = Activity {
            peer: key(2),
            received: 0,
            sent: 1,
            last_handshake: None,
            received_from: None,
            path_mtu: None,
            post_quantum: None,
        };
        rig.plane(ToAgent::Activity(vec![active])).await;
        let messages = rig.plane_messages();
        assert!(answer_pings(&mut rig, &mut peer, messages).await, "the peer is pinged");
        let messages = rig.plane_messages();
        assert!(matches!(paths(&messages), Some(Path::Direct(_))), "{messages:?}");

        let Clock { now, wall } = rig.agent.clock;
        let later = Clock { now: now + late, wall: wall + late };
        rig.agent.handle(Input::Timeout, later).await;
        assert_eq!(paths(&rig.plane_messages()).is_none(), survives, "late by {late:?}");
    }
}

#[tokio::test]
async fn local_addresses_are_used_only_with_a_coordinator_on_this_machine() {
    for (url, is_allowed) in [(URL, false), ("http://127.0.0.1:8080", true)] {
        let mut rig = Rig::new(if is_allowed { "near" } else { "far" });
        let prefs = Prefs { control_url: url.into(), want_running: true, ..Prefs::new() };
        rig.agent.node.set_prefs(prefs, &mut Problems::default()).unwrap();
        rig.plane(hello(KEY)).await;
        let mut map = map_of(&[2]);
        map["DERPMap"]["Regions"]["1"]["Nodes"][0]["IPv4"] = json!("127.0.0.1");
        map["DNSConfig"] = json!({"Proxied": true, "Resolvers": [{"Addr": "127.0.0.1"}]});
        rig.stream(map).await;
        let messages: Vec<bool> = rig
            .relay_commands()
            .await
            .into_iter()
            .filter_map(|command| match command {
                derp::Command::Map(_, scope) => Some(scope.admits([127, 0, 0, 1].into())),
                _ => None,
            })
            .collect();
        assert_eq!(messages, [is_allowed], "{url}");
        let is_local = rig.sessions.lock().unwrap().last().unwrap().is_local;
        assert_eq!(is_local, is_allowed, "{url}");
        assert_eq!(!stun_targets(&rig.plane_messages()).is_empty(), is_allowed, "{url}");
        assert_eq!(rig.health("DNS server").await.is_empty(), is_allowed, "{url}");
    }
}

#[tokio::test]
async fn events_of_an_ended_session_are_ignored() {
    let mut rig = Rig::joined("ended").await;
    rig.stream(map_of(&[2])).await;
    let before = rig.sessions.lock().unwrap().last().unwrap().events.clone();
    rig.set("WantRunning", false).await;
    rig.set("WantRunning", true).await;
    assert_eq!(rig.sessions.lock().unwrap().len(), 2);
    rig.plane_messages();
    let current = {
        let mut sessions = rig.sessions.lock().unwrap();
        std::mem::replace(&mut sessions.last_mut().unwrap().events, before)
    };
    rig.stream(map_of(&[9])).await;
    assert_eq!(peers(&rig.plane_messages()), []);
    rig.sessions.lock().unwrap().last_mut().unwrap().events = current;
    rig.stream(map_of(&[9])).await;
    assert_eq!(peers(&rig.plane_messages()), [key(9)]);
}
