//! The parts of a new agent.

use std::sync::Arc;

use ipc::{ToDataPlane, ToSteward, relay_process::ToRelayServer};
use ipnet::IpNet;
use tokio::sync::mpsc;

use super::Agent;
use crate::agent::{
    applied_settings::AppliedSettings,
    check_tasks::{CheckResult, CheckTasks},
    clock::Clock,
    control::{self, dial::SocketHook},
    coordinator::{Connect, Coordinator, SessionParts},
    derp,
    host::Host,
    local_api::Writers,
    machine::Machine,
    peer_paths::Mesh,
    portmap::PortMapping,
    problems::Problems,
    process_channel::LineSender,
    programs::Programs,
    relay_process::RelayProcess,
    relays::Relays,
    roots::Roots,
    state_folder::StateFolder,
    this_node::ThisNode,
    tka::Tka,
    tunnel_pings::TunnelPings,
};

/// The parts of a new agent.
pub(in crate::agent) struct Parts {
    pub has_interface: bool,
    pub address_ranges: Vec<IpNet>,
    pub state: StateFolder,
    pub roots: Roots,
    pub hook: Option<SocketHook>,
    pub lines: Lines,
    pub relays: mpsc::Sender<derp::Command>,
    pub control_events: mpsc::Sender<(u32, control::Event)>,
    /// Receives the results of network checks.
    pub check_results: mpsc::Sender<CheckResult>,
    pub port_mapping: PortMapping,
    pub writers: Arc<Writers>,
    pub machine: Machine,
    /// Starts a session with a coordinator.
    pub connect: Box<Connect>,
    pub clock: Clock,
}

/// Senders to the other processes of this node.
pub(in crate::agent) struct Lines {
    pub plane: LineSender<ToDataPlane>,
    pub steward: Option<LineSender<ToSteward>>,
    pub relay_server: Option<LineSender<ToRelayServer>>,
}

impl Agent {
    /// An agent without information from the data plane or a coordinator.
    ///
    /// # Errors
    /// Its keys cannot be read or created.
    pub(crate) fn new(parts: Parts) -> anyhow::Result<Self> {
        let Parts { has_interface, state, roots, hook, lines, .. } = parts;
        let machine_key = state.machine_key()?;
        let mesh = Mesh::new(state.disco_key()?, parts.port_mapping);
        let node = ThisNode::new(state.clone());
        let tka = Tka::new(state, &node.prefs().control_url)?;
        let mut problems = Problems::default();
        if let Some(problem) = roots.problem() {
            tracing::warn!("{problem}");
            problems.set("certificates", problem);
        }
        let host = Host::new(lines.steward, hook.clone());
        let (events, connect) = (parts.control_events, parts.connect);
        let session = SessionParts { machine_key, roots, hook, has_interface, events, connect };
        Ok(Self {
            node,
            coordinator: Coordinator::new(session, tka),
            mesh,
            applied: AppliedSettings::new(has_interface, parts.address_ranges),
            machine: parts.machine,
            host,
            relay_process: RelayProcess::new(lines.relay_server),
            programs: Programs::new(parts.writers),
            tunnel_pings: TunnelPings::default(),
            problems,
            plane: lines.plane,
            relays: Relays::new(parts.relays),
            check_tasks: CheckTasks::new(parts.check_results),
            clock: parts.clock,
        })
    }
}
