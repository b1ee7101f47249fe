//! The agent's loop: handles one event after another.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use ipc::FromSteward;
use mesh::portmap::Nonce;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until, timeout},
};

#[cfg(feature = "local-api")]
use super::local_api;
use super::{
    Clients, Lines, Options,
    clock::Clock,
    control::{
        self,
        dial::{Dialer, SocketHook},
    },
    core::{self, Agent, Input, Parts},
    derp,
    local_api::Writers,
    machine::{self, Machine},
    portmap::{self, PortMapping},
    process_channel,
    state_folder::StateFolder,
};

/// The capacity of each channel.
const CHANNEL_CAPACITY: usize = 256;
/// The time limit for releasing the port mapping at the end.
const RELEASE_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs until the data plane ends, or the program that contains the agent.
pub(super) async fn run(options: Options, lines: Lines) -> anyhow::Result<()> {
    let (to_core, mut from_plane) = mpsc::channel(CHANNEL_CAPACITY);
    let (plane, plane_line) = process_channel::open(lines.plane, to_core).context("line")?;
    let (to_core, mut from_steward) = mpsc::channel(CHANNEL_CAPACITY);
    let opened = lines.steward.map(|steward| process_channel::open(steward, to_core.clone()));
    let (steward, steward_line) = opened.transpose().context("steward")?.unzip();
    let (to_core, mut from_relay_server) = mpsc::channel(CHANNEL_CAPACITY);
    let opened = lines.relay_server.map(|line| process_channel::open(line, to_core.clone()));
    let (relay_server, relay_server_line) = opened.transpose().context("relay")?.unzip();
    let user = (!options.has_own_user).then(sys::process::effective_user);
    let writers = Arc::new(Writers::new(user));
    #[cfg(feature = "local-api")]
    let _server;
    #[cfg_attr(
        not(feature = "local-api"),
        expect(clippy::infallible_destructuring_match, reason = "the other way is a feature")
    )]
    let mut requests = match lines.clients {
        #[cfg(feature = "local-api")]
        Clients::Socket(socket) => {
            let (to_core, requests) = mpsc::channel(CHANNEL_CAPACITY);
            let server = local_api::Server::start(socket, writers.clone(), to_core);
            _server = server.context("socket")?;
            requests
        }
        Clients::Own(requests) => requests,
    };
    let (control_events, mut from_control) = mpsc::channel(CHANNEL_CAPACITY);
    let (relay_events, mut from_relays) = mpsc::channel(CHANNEL_CAPACITY);
    let (relays, relay_commands) = mpsc::channel(CHANNEL_CAPACITY);

    let state = StateFolder::new(options.folder);
    let hook = socket_hook(options.mark);
    let dialer = Dialer::from_environment(hook.clone(), &options.roots);
    tokio::spawn(derp::run(derp::Settings { dialer }, relay_commands, relay_events));
    tokio::pin!(plane_line);
    let mut steward_line = steward_line.map(Box::pin);
    let mut relay_server_line = relay_server_line.map(Box::pin);
    let (check_results, mut from_checks) = mpsc::channel(CHANNEL_CAPACITY);
    let (wanted, is_wanted) = watch::channel(portmap::Wanted::default());
    let nonce = Nonce::of(&state.disco_key()?);
    let mapping =
        tokio::spawn(portmap::task::run(nonce, hook.clone(), is_wanted, check_results.clone()));
    let mut agent = Agent::new(Parts {
        has_interface: options.has_interface,
        address_ranges: options.address_ranges,
        state,
        roots: options.roots,
        hook,
        lines: core::Lines { plane, steward, relay_server },
        relays,
        control_events,
        check_results,
        port_mapping: PortMapping::new(wanted),
        writers,
        machine: Machine::new(Box::new(machine::addresses), Box::new(machine::default_routes)),
        connect: Box::new(|settings, commands, events| {
            tokio::spawn(control::run(settings, commands, events));
        }),
        clock: Clock::read(),
    })?;
    agent.hello();
    let ended = loop {
        let due = agent.poll_timeout();
        let wait = due.map_or(Duration::ZERO, |due| due.saturating_sub(Clock::read().now));
        let wake = Instant::now() + wait;
        let input = tokio::select! {
            ended = &mut plane_line => break ended.context("line"),
            Some(_) = wait_for(&mut steward_line) => {
                steward_line = None;
                Input::StewardEnded
            }
            // It ends with the steward.
            Some(_) = wait_for(&mut relay_server_line) => {
                relay_server_line = None;
                Input::RelayServerEnded
            }
            Some(message) = from_plane.recv() => Input::Plane(message),
            Some(message) = from_steward.recv() => match message {
                FromSteward::End => break Ok(()),
                message @ FromSteward::Done { .. } => Input::Steward(message),
            },
            Some(message) = from_relay_server.recv() => Input::RelayServer(message),
            Some((session, event)) = from_control.recv() => Input::Control(session, event),
            Some(event) = from_relays.recv() => Input::Relays(event),
            request = requests.recv(), if agent.is_ready() => match request {
                Some(request) => Input::Request(request),
                None => break Ok(()),
            },
            Some(found) = from_checks.recv() => Input::CheckResult(found),
            () = sleep_until(wake), if due.is_some() => Input::Timeout,
        };
        agent.handle(input, Clock::read()).await;
        agent.handle_done(Clock::read().now);
    };
    drop(agent);
    drop(from_checks);
    let _ = timeout(RELEASE_TIMEOUT, mapping).await;
    ended
}

/// The result of the future; waits forever without one.
async fn wait_for<F: Future + Unpin>(some: &mut Option<F>) -> Option<F::Output> {
    match some {
        Some(future) => Some(future.await),
        None => std::future::pending().await,
    }
}

/// A hook that marks sockets, so that their packets do not use the routes of the interface.
fn socket_hook(mark: u32) -> Option<SocketHook> {
    let hook: SocketHook = Arc::new(move |socket| sys::process::mark_socket(socket, mark));
    Some(hook).filter(|_| mark != 0)
}
