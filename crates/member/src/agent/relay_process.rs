//! The agent's part of a peer relay: permissions for endpoints, and the addresses of the relay. A
//! separate process relays the datagrams ([`crate::relay_server`]).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use getrandom::{SysRng, rand_core::UnwrapErr};
use ipc::{
    Outgoing,
    relay_process::{Allocation, FromRelayServer, ToRelayServer},
};
use mesh::{
    netcheck::{Families, Netcheck, Report},
    network_map::NetworkMap,
    node_settings::has_capability,
    peer_filter::Grants,
    peer_paths::{To, Transmit},
    peer_relay::MAY_ALLOCATE,
    permitted_addresses::Scope,
};
use tailnet::{
    disco::{Message, RelayEndpoint},
    map_messages::DerpMap,
};

use super::{
    check_tasks::CheckResult,
    peer_paths::AllocationRequest,
    problems::Problems,
    process_channel::{LineSender, queue},
};

/// The most pending requests. The relay answers in microseconds.
const MAX_REQUESTS: usize = 256;
/// The most addresses of an endpoint.
const MAX_ADDRESSES: usize = 20;

/// The state of the relay process.
pub(super) struct RelayProcess {
    line: Option<LineSender<ToRelayServer>>,
    /// Its port, while it relays.
    port: Option<u16>,
    pending: BTreeMap<u32, AllocationRequest>,
    next: u32,
    /// Finds the external addresses of its socket.
    netcheck: Netcheck,
    report: Report,
}

impl RelayProcess {
    /// `line` leads to the process, if there is one.
    pub(super) fn new(line: Option<LineSender<ToRelayServer>>) -> Self {
        Self {
            line,
            port: None,
            pending: BTreeMap::new(),
            next: 0,
            netcheck: Netcheck::new(Box::new(UnwrapErr(SysRng))),
            report: Report::default(),
        }
    }

    /// Asks whether it relays already.
    pub(super) fn hello(&self) {
        self.send(ToRelayServer::Hello);
    }

    pub(super) fn set_relays(&mut self, map: &DerpMap, scope: Scope) {
        self.netcheck.set_map(map, scope);
    }

    pub(super) fn handle_check_result(&mut self, found: &CheckResult) {
        if let CheckResult::Addresses(name, addresses) = found {
            self.netcheck.handle_address(name, addresses.clone());
        }
    }

    /// The relay is disabled or gone.
    pub(super) fn stop(&mut self) {
        self.port = None;
        self.pending.clear();
    }

    /// Requests an endpoint, if the relay is running.
    fn request_endpoint(&mut self, request: AllocationRequest) {
        if self.port.is_none() {
            return;
        }
        if self.pending.len() >= MAX_REQUESTS {
            self.pending.pop_first();
        }
        self.next = self.next.wrapping_add(1);
        self.pending.insert(self.next, request);
        let (id, clients) = (self.next, request.message.clients);
        self.send(ToRelayServer::Allocate { id, requested_by: request.disco, clients });
    }

    /// The addresses of the relay: in local networks and external.
    fn addresses(&self, local: &[SocketAddr]) -> Vec<SocketAddr> {
        let Some(port) = self.port else { return Vec::new() };
        let local = local.iter().map(|at| SocketAddr::new(at.ip(), port));
        let seen = [self.report.global(false), self.report.global(true)].concat();
        // The user of a NAT with endpoint-dependent mapping may have forwarded this port.
        let varies = self.report.mapping_varies() == Some(true);
        let forwarded = seen.iter().find(|at| varies && at.is_ipv4());
        let forwarded = forwarded.map(|at| SocketAddr::new(at.ip(), port));
        let mut unique = BTreeSet::new();
        let all = local.chain(seen.iter().copied()).chain(forwarded);
        all.filter(|at| unique.insert(*at)).take(MAX_ADDRESSES).collect()
    }

    pub(super) fn poll_timeout(&self) -> Option<Duration> {
        self.port?;
        let running = self.netcheck.is_running();
        if running { self.netcheck.poll_timeout() } else { Some(self.netcheck.due()) }
    }

    /// Checks the external addresses of its socket from time to time, which also refreshes a NAT's
    /// mapping. Returns the names of relays to resolve.
    pub(super) fn handle_timeout(&mut self, local: &[SocketAddr], now: Duration) -> Vec<String> {
        if self.port.is_none() {
            return Vec::new();
        }
        if !self.netcheck.is_running() && self.netcheck.due() <= now {
            let has = |v6| local.iter().any(|at| at.is_ipv6() == v6);
            self.netcheck.set_families(Families { v4: has(false), v6: has(true) });
            self.netcheck.start(now);
        }
        let names = std::iter::from_fn(|| self.netcheck.poll_lookup()).collect();
        let mut requests = Vec::new();
        while let Some((to, bytes)) = self.netcheck.poll_transmit(now) {
            requests.push(Outgoing::new(to, bytes.to_vec()));
        }
        if !requests.is_empty() {
            self.send(ToRelayServer::Datagrams(requests));
        }
        while let Some(region) = self.netcheck.poll_tcp_probe() {
            self.netcheck.handle_tcp_latency(region, None);
        }
        if let Some(report) = self.netcheck.poll_report(now) {
            self.report = report;
        }
        names
    }

    /// Handles a message of the process. Returns the message to a peer that it causes. `local` are
    /// this machine's addresses.
    pub(super) fn handle_message(
        &mut self,
        message: FromRelayServer,
        is_enabled: bool,
        local: &[SocketAddr],
        problems: &mut Problems,
    ) -> Option<Transmit> {
        match message {
            FromRelayServer::Ready { key, port } => {
                if is_enabled {
                    tracing::info!(port, %key, "ready to relay for peers");
                    self.port = Some(port);
                    problems.clear("peer relay");
                }
                None
            }
            FromRelayServer::Failed(why) => {
                tracing::error!(why, "relaying for peers failed");
                problems.set("peer relay", format!("relaying for peers failed: {why}"));
                None
            }
            FromRelayServer::Allocated { id, endpoint } => {
                let request = self.pending.remove(&id)?;
                match endpoint {
                    Ok(endpoint) => self.response(&request, endpoint, local),
                    Err(error) => {
                        tracing::debug!(%error, peer = %request.peer, "relay");
                        None
                    }
                }
            }
            FromRelayServer::Datagrams(datagrams) => {
                for one in datagrams {
                    self.netcheck.handle_stun_response(&one.bytes, one.at);
                }
                None
            }
        }
    }

    /// The response to a request; `None` without addresses. The peer repeats its request after three
    /// seconds.
    fn response(
        &self,
        request: &AllocationRequest,
        allocated: Allocation,
        local: &[SocketAddr],
    ) -> Option<Transmit> {
        let addresses = Some(self.addresses(local)).filter(|addresses| !addresses.is_empty())?;
        let endpoint = Box::new(RelayEndpoint {
            server: allocated.server,
            clients: allocated.clients,
            lamport: allocated.lamport,
            vni: allocated.vni,
            bind_lifetime: allocated.bind_lifetime,
            steady_lifetime: allocated.steady_lifetime,
            addresses,
        });
        let generation = request.message.generation;
        Some(Transmit {
            to: To::Relay { region: request.region, peer: request.peer },
            disco: request.disco,
            message: Message::AllocateResponse { generation, endpoint },
        })
    }

    /// Allocates an endpoint for a permitted peer that is one of its two clients.
    pub(super) fn allocate(
        &mut self,
        request: AllocationRequest,
        map: &NetworkMap,
        grants: &Grants,
    ) {
        let peer = map.peer(&request.peer);
        let may = |(peer, own)| has_capability(peer, own, MAY_ALLOCATE, grants);
        if request.message.clients.contains(&request.disco) && peer.zip(map.node()).is_some_and(may)
        {
            self.request_endpoint(request);
        } else {
            tracing::debug!(peer = %request.peer, "a peer requested a relay endpoint without permission");
        }
    }

    fn send(&self, message: ToRelayServer) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }
}

impl queue::Message for ToRelayServer {
    type Queue = VecDeque<Self>;

    /// A peer repeats its request for an endpoint.
    fn push(self, queue: &mut VecDeque<Self>) {
        if queue.len() < MAX_REQUESTS {
            queue.push_back(self);
        }
    }

    fn pop(queue: &mut VecDeque<Self>) -> Option<Self> {
        queue.pop_front()
    }
}
