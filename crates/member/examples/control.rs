//! Connects to a coordinator and prints the events: `control URL [AUTH-KEY-FILE] [SECONDS]`. The
//! node has new keys each time and no data plane, so peers see it but cannot reach it. It logs out
//! at the end.

use std::time::Duration;

use anyhow::Context;
use member::agent::{
    control::{Command, Event, Settings, dial, run},
    roots::Roots,
};
use mesh::{dialing::ControlUrl, permitted_addresses::Scope, registration::Login};
use tailnet::{
    keys::{DiscoPublic, MachineKey, MachinePublic, NodePublic},
    map_messages::Node,
    ts2021::requests::{Announcement, EndpointKind},
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use zeroize::Zeroizing;

fn random() -> anyhow::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

fn announced(port: u16, disco_key: DiscoPublic) -> Box<Announcement> {
    let hostinfo = serde_json::json!({
        "BackendLogID": "0".repeat(64),
        "Hostname": "control-example",
        "OS": "linux",
        "IPNVersion": env!("CARGO_PKG_VERSION"),
    });
    let endpoints = vec![(([192, 0, 2, 1], port).into(), EndpointKind::Local)];
    Box::new(Announcement { hostinfo, endpoints, disco_key, tka_head: String::new() })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let url: ControlUrl = arguments.next().context("a URL is needed")?.parse()?;
    let auth_key = arguments.next().filter(|file| !file.is_empty()).map(std::fs::read_to_string);
    let seconds = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let machine_key = MachineKey::new(Box::new(Zeroizing::new(random()?)));
    let (node_key, disco_key) = (NodePublic(random()?), DiscoPublic(random()?));
    let scope = Scope::of_control(&url, "");
    let dialer = dial::Dialer::from_environment(None, &Roots::from_environment()).within(scope);
    let server_key = MachinePublic::default();
    let settings = Settings { url, server_key, machine_key, dialer };
    let (commands, command_receiver) = mpsc::channel(8);
    let (event_sender, mut event_receiver) = mpsc::channel(8);
    let running = tokio::spawn(run(settings, command_receiver, event_sender));
    let begun = Instant::now();
    commands.send(Command::Update(announced(1, disco_key))).await?;
    let auth_key = auth_key.transpose()?.map(|key| Zeroizing::new(key.trim().to_owned()));
    commands.send(Command::Login(Login { auth_key, ..Login::new(node_key) })).await?;
    let end = begun + Duration::from_secs(seconds);
    let mut is_leaving = false;
    loop {
        let event = tokio::select! {
            event = event_receiver.recv() => event.context("it ended by itself")?,
            () = sleep_until(end), if !is_leaving => {
                is_leaving = true;
                commands.send(Command::Logout(node_key)).await?;
                continue;
            }
        };
        print!("{:>6} ms  ", begun.elapsed().as_millis());
        match event {
            Event::Disconnected { why, retry_in } => println!("disconnected ({retry_in:?}): {why}"),
            Event::Map { head, map, .. } => {
                let mut count = 0;
                map.peers.for_each("peer", &mut Vec::new(), |_: Node| count += 1);
                println!("map of {count} peers, {head:?}");
            }
            Event::Connected { .. } => {
                println!("connected");
                commands.send(Command::Update(announced(2, disco_key))).await?;
            }
            Event::LoggedOut => {
                println!("logged out");
                break;
            }
            event => println!("{event:?}"),
        }
    }
    drop(commands);
    running.await?;
    Ok(())
}
